"""`kvstudy pin`: look up what is to be pinned, and write it into config.yaml.

Comments, order and every other byte of the file stay. It needs the registry or the hub.
"""

from __future__ import annotations

import argparse
from dataclasses import asdict
from pathlib import Path

from kvstudy.commands.parser import Parser
from kvstudy.commands.terminal import note, out, out_json
from kvstudy.pins.pin import find_pins, write_pins
from kvstudy.study.parse import read_config

_EPILOG = """examples:
  kvstudy pin                        every entry that says to-be-pinned
  kvstudy pin trtllm-1.3.0rc22       one engine
  kvstudy pin model --dry-run        show, write nothing"""


def main(argv: list[str]) -> int:
    """Look up the named entries, show what was found, write it."""
    parser = Parser(
        prog="kvstudy pin",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("names", nargs="*", help="engines, or `model`; default: all")
    parser.add_argument("--config", type=Path, default=Path("config.yaml"))
    parser.add_argument("--dry-run", action="store_true", help="write nothing")
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args(argv)
    found = find_pins(read_config(args.config), args.names)
    if args.json:
        out_json([{**asdict(entry), "key": entry.key} for entry in found])
    else:
        for entry in found:
            out(f"{entry.key}: {entry.new}")
            out(f"  was {entry.old or 'not there'}; {entry.note}")
    if not found:
        note("nothing is to be pinned")
    elif not args.dry_run and write_pins(args.config, found):
        note(f"written to {args.config}")
    return 0

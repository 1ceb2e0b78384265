"""`kvstudy publish`: a finished run as one bundle that others can check.

The bundle is a zip with the report, tables, statistics, figures, raw rows of every request, raw
telemetry, logs, configuration, pins, launch commands and environment. Secrets are masked, every
file has its SHA-256 in checksums.json, and the same results give the same bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import kvstudy
from kvstudy.bundle.publish import Published, publish
from kvstudy.commands.parser import Parser
from kvstudy.commands.terminal import note, out, out_json

_EPILOG = """examples:
  kvstudy publish --out study.zip                        the measured run of this checkout
  kvstudy publish --backend emulated --out emulated.zip
  kvstudy publish --results elsewhere/results --out study.zip --json

then: kvstudy verify study.zip"""

_LICENCE = "https://spdx.org/licenses/Apache-2.0"


def main(argv: list[str]) -> int:
    """Write the bundle and say what is in it and what is not."""
    args = _parser().parse_args(argv)
    made = publish(
        args.results / args.backend,
        args.out,
        checkout=args.checkout,
        licence=args.licence,
        with_tokenizer=args.with_tokenizer,
    )
    if args.json:
        out_json(
            {
                "bundle": str(made.path),
                "members": made.members,
                "bytes": made.bytes,
                "content_sha256": made.content_sha256,
                "absent": made.absent,
                "scrubbed": made.scrubbed,
            }
        )
        return 0
    _print(made)
    return 0


def _parser() -> Parser:
    parser = Parser(
        prog="kvstudy publish",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", choices=["measured", "emulated"], default="measured")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--out", type=Path, required=True, metavar="FILE.zip")
    parser.add_argument(
        "--checkout",
        type=Path,
        default=Path(kvstudy.__file__).resolve().parents[2],
        help="folder of the Snakefile and the published numbers (default: this checkout)",
    )
    parser.add_argument(
        "--with-tokenizer",
        action="store_true",
        help="add the model's tokenizer, if its licence lets you pass it on",
    )
    parser.add_argument("--licence", default=_LICENCE, help="URL of the bundle's licence")
    parser.add_argument("--json", action="store_true", help="for machines")
    return parser


def _print(made: Published) -> None:
    out(f"{made.path}: {made.members} files, {made.bytes / 1e6:,.1f} MB")
    out(f"content: sha256 {made.content_sha256}")
    for name, hits in made.scrubbed.items():
        out(f"masked: {name} ({hits} {'line' if hits == 1 else 'lines'})")
    for line in made.absent:
        note(f"absent: {line}")
    note(f"anyone can now check it: kvstudy verify {made.path}")

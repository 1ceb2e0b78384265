"""`kvstudy simulate --spec FILE`: one simulation spec in virtual time, one JSON object out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from kvstudy.base.errors import SpecError
from kvstudy.commands.parser import Parser
from kvstudy.commands.terminal import out_json
from kvstudy.sim.replay import simulate, simulate_rows

_EPILOG = """examples:
  kvstudy simulate --spec spec.json
  kvstudy simulate --spec spec.json --per-request
  echo '{...}' | kvstudy simulate --spec -
keys of the spec: docs/simulate.md"""


def main(argv: list[str]) -> int:
    """Read the spec, run it, print the result."""
    import argparse  # noqa: PLC0415 - for the formatter only

    parser = Parser(
        prog="kvstudy simulate",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--spec", required=True, help="JSON file, or - for standard input")
    parser.add_argument("--per-request", action="store_true", help="add one row per request")
    parser.add_argument("--json", action="store_true", help="the default; kept for uniformity")
    args = parser.parse_args(argv)
    spec = _read(args.spec)
    result = simulate(spec)
    if args.per_request:
        result["per_request"] = simulate_rows(spec)
    out_json(result)
    return 0


def _read(name: str) -> Any:
    try:
        text = sys.stdin.read() if name == "-" else Path(name).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise SpecError(f"{name}: cannot be read ({error})") from error
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise SpecError(f"{name}: not valid JSON ({error})") from error

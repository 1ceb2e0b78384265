"""`kvstudy report --verdict`: the verdicts of a finished run, and an exit code for them.

Exit codes: 0 every published number that can be tested was reproduced, 1 one was not, 2 one is
invalid or not measured (2 wins over 1).
"""

from __future__ import annotations

import argparse
from collections import Counter
from pathlib import Path
from typing import Any

from kvstudy.base import tables
from kvstudy.base.errors import EXIT_OK
from kvstudy.commands.parser import Parser
from kvstudy.commands.terminal import note, out, out_json, table
from kvstudy.stats.verdict import exit_code, sentence

_EPILOG = """examples:
  kvstudy report --verdict
  kvstudy report --backend emulated --verdict --json"""


def main(argv: list[str]) -> int:
    """Print where the report is, or each published number with its verdict."""
    parser = Parser(
        prog="kvstudy report",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", choices=["measured", "emulated"], default="measured")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--verdict", action="store_true", help="one line per published number")
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args(argv)
    folder = args.results / args.backend
    rows = tables.read(folder / "stats" / "verdicts.parquet", tables.VERDICTS).to_pylist()
    counts = {
        source: dict(Counter(r["verdict"] for r in rows if r["source"] == source))
        for source in dict.fromkeys(r["source"] for r in rows)
    }
    code = exit_code(rows) if args.verdict else EXIT_OK
    if args.json:
        out_json({"counts": counts, "sentence": sentence(rows), "exit_code": code, "claims": rows})
        return code
    if args.verdict:
        _print(rows)
    for source, found in counts.items():
        words = ", ".join(f"{count} {name.replace('_', ' ')}" for name, count in found.items())
        out(f"{source}: {words}")
    out(f"report: {folder / 'report' / 'index.html'}")
    note(sentence(rows))
    return code


def _print(rows: list[dict[str, Any]]) -> None:
    table(
        ["claim", "source", "published", "here", "unit", "basis", "verdict"],
        [
            [
                row["claim_id"],
                row["source"],
                f"{row['published']:,.6g}",
                "-" if row["observed"] is None else f"{row['observed']:,.6g}",
                row["unit"],
                row["basis"],
                row["verdict"],
            ]
            for row in rows
        ],
    )
    out("")

"""`kvstudy trace CLAIM_ID`: the chain of files, columns and cells behind a number of the report."""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import Any

from kvstudy.base import tables
from kvstudy.base.errors import UsageError
from kvstudy.commands.parser import Parser
from kvstudy.commands.terminal import out, out_json

_EPILOG = """examples:
  kvstudy trace wc-gne-throughput
  kvstudy trace --backend emulated --list"""


def main(argv: list[str]) -> int:
    """Print every verdict row of a claim with the cells and files it was computed from."""
    parser = Parser(
        prog="kvstudy trace",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("claim_id", nargs="?")
    parser.add_argument("--backend", choices=["measured", "emulated"], default="emulated")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--list", action="store_true", help="list the claim ids")
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args(argv)
    results = args.results / args.backend
    rows = tables.read(results / "stats" / "verdicts.parquet", tables.VERDICTS).to_pylist()
    known = list(dict.fromkeys(row["claim_id"] for row in rows))
    if args.list or args.claim_id is None:
        for claim_id in known:
            out(claim_id)
        return 0
    if args.claim_id not in known:
        close = difflib.get_close_matches(args.claim_id, known, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else ""
        raise UsageError(f"no claim {args.claim_id!r} in {results}/stats/verdicts.parquet{hint}")
    found = [row for row in rows if row["claim_id"] == args.claim_id]
    chains = [_chain(row, results) for row in found]
    if args.json:
        out_json(chains)
    else:
        for chain in chains:
            _print(chain)
    return 0


def _chain(row: dict[str, Any], results: Path) -> dict[str, Any]:
    sources = {"predicted": "predicted", "measured": "cells", "emulated": "cells"}
    folder = sources[row["source"]]
    return {
        **row,
        "files": [
            f"{results}/report/index.html (data-claim={row['claim_id']})",
            f"{results}/stats/verdicts.parquet",
            f"{results}/tables/cells.parquet",
            *(f"{results}/{folder}/{cell}/requests.parquet" for cell in row["cells"]),
        ],
        "functions": [
            "kvstudy.stats.verdict (claim to verdict)",
            "kvstudy.stats.expression (cells to the observed value)",
            "kvstudy.metrics.per_cell (request rows to cell columns)",
        ],
    }


def _print(chain: dict[str, Any]) -> None:
    observed = "not observed" if chain["observed"] is None else f"{chain['observed']:.6g}"
    out(f"{chain['claim_id']} ({chain['source']}, {chain['basis']}): {chain['label']}")
    out(f"  published {chain['published']:g} {chain['unit']}, here {observed}: {chain['verdict']}")
    out(f"  tolerance: {chain['tolerance_reason']}")
    for title in ("cells", "files", "functions"):
        for item in chain[title]:
            out(f"  {title[:-1]}: {item}")

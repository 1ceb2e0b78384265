"""`kvstudy compare A B`: two runs side by side, B over A.

A and B are results folders, bundles, or names of imported sides. Differences of configuration and
environment come first; then the same cells with ratio and interval. Cells whose workload differs
are refused (exit 64, workload_differs): their numbers say nothing about each other.
"""

from __future__ import annotations

import argparse
import difflib
from pathlib import Path
from typing import Any

from kvstudy.base.errors import EXIT_OK, UsageError
from kvstudy.bundle.compare import MAIN_METRICS, METRICS, Change, Comparison, compare
from kvstudy.bundle.sides import results_of
from kvstudy.commands.parser import Parser
from kvstudy.commands.terminal import note, out, out_json, table

_EPILOG = """examples:
  kvstudy compare results/emulated before.zip
  kvstudy compare emulated their-run            their-run: kvstudy import ... --as their-run
  kvstudy compare a.zip b.zip --workload W-B --all-metrics
  kvstudy compare a.zip b.zip --metric tpot_p99_ms --json"""

_LONGEST = 60


def main(argv: list[str]) -> int:
    """Print the differences of making, then the differences of numbers."""
    args = _parser().parse_args(argv)
    metrics = METRICS if args.all_metrics else tuple(args.metric) or MAIN_METRICS
    for name in metrics:
        _known(name)
    with results_of(args.a, args.results) as left, results_of(args.b, args.results) as right:
        found = compare(
            left, right, metrics=metrics, workloads=args.workload, predicted=args.predicted
        )
    if args.json:
        out_json(_document(args.a, args.b, found))
    else:
        _print(args.a, args.b, found)
    return EXIT_OK


def _known(name: str) -> None:
    if name not in METRICS:
        close = difflib.get_close_matches(name, METRICS, n=1)
        hint = f"; did you mean {close[0]!r}?" if close else f"; there are {', '.join(METRICS)}"
        raise UsageError(f"--metric {name}: no such metric{hint}")


def _parser() -> Parser:
    parser = Parser(
        prog="kvstudy compare",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("a", metavar="A", help="results folder, bundle or imported name")
    parser.add_argument("b", metavar="B", help="results folder, bundle or imported name")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--metric", action="append", default=[], metavar="NAME")
    parser.add_argument("--all-metrics", action="store_true")
    parser.add_argument("--workload", action="append", default=[], metavar="NAME")
    parser.add_argument("--predicted", action="store_true", help="compare the predictions instead")
    parser.add_argument("--json", action="store_true", help="for machines")
    return parser


def _document(a: str, b: str, found: Comparison) -> dict[str, Any]:
    keys = ("workload", "concurrency", "within", "source", "metric", "unit", "ratio", "ratio_low",
            "ratio_high", "noise_ratio", "noise_factor", "repeats", "remark")  # fmt: skip

    def listed(changes: list[Change]) -> list[dict[str, str]]:
        return [{"key": c.key, "a": c.left, "b": c.right} for c in changes]

    return {
        "a": a,
        "b": b,
        "equal": found.equal,
        "configuration": listed(found.config),
        "environment": listed(found.environment),
        "cells": found.cells,
        "only_in_a": found.only_left,
        "only_in_b": found.only_right,
        "rows": [
            {"a": row["baseline_value"], "b": row["treatment_value"]}
            | {key: row[key] for key in keys}
            for row in found.rows
        ],
        "remarks": found.remarks,
    }


def _print(a: str, b: str, found: Comparison) -> None:
    out(f"A: {a}")
    out(f"B: {b}")
    for title, changes in (
        ("configuration", found.config),
        ("environment", found.environment),
    ):
        out("")
        out(f"{title}: {'the same' if not changes else ''}".rstrip())
        for change in changes:
            out(f"  {change.key}: {_short(change.left)} -> {_short(change.right)}")
    out("")
    table(
        ["cell", "metric", "A", "B", "B/A", "95 % interval", "difference"],
        [_line(row) for row in found.rows],
    )
    for title, names in (("A", found.only_left), ("B", found.only_right)):
        if names:
            note(f"only in {title}: {', '.join(names)}")
    for remark in found.remarks:
        note(f"note: {remark}")
    out("")
    same = "equal: every compared number is the same in A and B"
    out(same if found.equal else "not equal: at least one compared number differs")


def _line(row: dict[str, Any]) -> list[str]:
    low, high = row["ratio_low"], row["ratio_high"]
    interval = "-" if low is None else f"{low:.4f} to {high:.4f}"
    return [
        f"{row['workload']}.c{row['concurrency']} {row['within']}",
        f"{row['metric']}",
        _number(row["baseline_value"]),
        _number(row["treatment_value"]),
        "-" if row["ratio"] is None else f"{row['ratio']:.4f}",
        interval,
        _words(row),
    ]


def _words(row: dict[str, Any]) -> str:
    """The difference in words, no stronger than the repeats allow."""
    if row["baseline_value"] == row["treatment_value"]:
        return "none: equal"
    if row["baseline_value"] is None or row["treatment_value"] is None:
        return "not known on one side"
    if row["ratio_low"] is None:
        return "no interval: " + ("a prediction" if row["source"] == "predicted" else "one repeat")
    if row["ratio_low"] <= 1 <= row["ratio_high"]:
        return "within chance"
    factor = row["noise_factor"]
    if factor is not None and factor <= 1:
        return "no larger than between repeats"
    return "beyond chance" if factor is None else f"{factor:.1f} x the repeats' own"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:,.6g}"


def _short(text: str) -> str:
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."

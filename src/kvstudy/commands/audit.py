"""`kvstudy audit`: whether the numbers of a run agree with each other.

Little's law, tokens = throughput x window, percentile order, TTFT > 0, first <= last <= end,
counts conserved, peak >= mean, distinct prompts = requests, cached tokens = 0 when reuse is off,
and a null contrast (halves of one arm) that says "no difference" at its stated rate. Each
violation is a reason code and a line. Exit codes: 0 none, 2 at least one.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvstudy.base.errors import EXIT_INVALID, EXIT_OK
from kvstudy.base.reasons import describe
from kvstudy.bundle.null_contrast import Rate, null_rates
from kvstudy.bundle.sides import Results, results_of
from kvstudy.commands.parser import Parser
from kvstudy.commands.terminal import note, out, out_json
from kvstudy.metrics.consistency import Violation, audit_cell, audit_prompts
from kvstudy.stats.contrast import AA
from kvstudy.stats.data import REQUEST_COLUMNS, data_of

_EPILOG = """examples:
  kvstudy audit                      the measured results, or the emulated ones
  kvstudy audit results/emulated
  kvstudy audit study.zip --json
  kvstudy audit their-run            an imported side, by its name"""


def main(argv: list[str]) -> int:
    """Print every violation, or that there is none."""
    parser = Parser(
        prog="kvstudy audit",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("which", nargs="?", metavar="RESULTS|BUNDLE")
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args(argv)
    measured = (args.results / "measured" / "tables").is_dir()
    which = args.which or ("measured" if measured else "emulated")
    with results_of(which, args.results) as results:
        cells = list(_cells(results))
        rates = _rates(results)
        summary = _aa_summary(results)
    violations = [
        {"cell_id": cell, "source": source, "code": found.code, "line": found.line}
        for cell, source, all_found in cells
        for found in all_found
    ]
    violations += [_of_rate(rate) for rate in rates if rate.too_often]
    code = EXIT_INVALID if violations else EXIT_OK
    if args.json:
        null = [{"arm": r.arm, "metric": r.metric, "different": r.different, "splits": r.splits}
                for r in rates]  # fmt: skip
        document = {"cells": len(cells), "violations": violations, "null_contrast": null}
        out_json({**document, "aa_contrasts": summary, "exit_code": code})
        return code
    _print(violations, len(cells), rates, summary)
    return code


def _cells(results: Results) -> Iterator[tuple[str, str, list[Violation]]]:
    """(cell id, source, violations) of every cell that was run."""
    for cell in results.cells.to_pylist():
        if "not_run" in cell["reasons"]:
            continue
        requests = results.cell_rows(cell["source"], cell["cell_id"])
        if results.foreign:
            requests = [_filled(row) for row in requests]
        iterations = results.iteration_rows(cell["source"], cell["cell_id"])
        found = audit_cell(cell, requests, iterations, prefix_reuse=_reuse(results, cell))
        workload = results.workloads.get(cell["workload"])
        if workload is not None:
            found += audit_prompts(workload, cell["requests"])
        yield cell["cell_id"], cell["source"], found


def _filled(row: dict[str, Any]) -> dict[str, Any]:
    """A foreign row in which what was not said contradicts nothing."""
    neutral = {
        "chunk_count": 1,
        "planned_output_tokens": 0,
        "planned_input_tokens": row["server_input_tokens"],
    }
    return {**row, **{key: value for key, value in neutral.items() if row[key] is None}}


def _reuse(results: Results, cell: dict[str, Any]) -> bool:
    """Whether the configuration lets prompt tokens come from a cache."""
    config = results.config
    if not config:
        return False
    own = config["workloads"].get(cell["workload"], {}).get("server") or {}
    pool = {**config["server"]["kv_pool"], **(own.get("kv_pool") or {})}
    return bool(pool.get("prefix_reuse"))


def _rates(results: Results) -> list[Rate]:
    data = data_of(results.cells, results.requests(REQUEST_COLUMNS))
    return null_rates(data, int(results.config.get("seed", 0)))


def _of_rate(rate: Rate) -> dict[str, str]:
    line = f"{rate.metric}: {rate.different} of {rate.splits} random halves seem to differ"
    return {"cell_id": rate.arm, "source": "", "code": "aa_difference", "line": line}


def _aa_summary(results: Results) -> dict[str, Any]:
    """The A/A contrasts of the run itself: repeat against repeat of one arm."""
    ratios = [
        max(row["ratio"], 1 / row["ratio"])
        for row in results.contrasts
        if row["contrast"] == AA and row["ratio"]
    ]
    return {"contrasts": len(ratios), "largest_ratio": max(ratios, default=None)}


def _print(
    violations: list[dict[str, str]], cells: int, rates: list[Rate], summary: dict[str, Any]
) -> None:
    for found in violations:
        where = f"{found['cell_id']} ({found['source']})" if found["source"] else found["cell_id"]
        out(f"{found['code']}: {where}: {found['line']}")
    for code in dict.fromkeys(found["code"] for found in violations):
        note(f"{code}: {describe(code)}")
    splits = sum(rate.splits for rate in rates)
    if splits:
        hits = sum(rate.different for rate in rates)
        out(f"null contrast: {hits} of {splits} random halves seem to differ, 5 % may")
    else:
        out("null contrast: none possible (one repeat, or few requests)")
    if summary["contrasts"]:
        out(f"A/A contrasts: {summary['contrasts']}, largest ratio {summary['largest_ratio']:.4f}")
    many = "violation" if len(violations) == 1 else "violations"
    out(f"{cells} cells audited, {len(violations) or 'no'} {many}")

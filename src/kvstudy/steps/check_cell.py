"""Take one cell out of the store and audit it on its own rows."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from kvstudy.base import tables
from kvstudy.base.errors import DataError
from kvstudy.base.files import read_json, write_json
from kvstudy.base.reasons import describe
from kvstudy.base.store import CellStore, materialise
from kvstudy.metrics.audit import (
    audit_client,
    audit_load,
    audit_requests,
    littles_law_holds,
    valid,
)
from kvstudy.metrics.per_cell import iteration_columns, window
from kvstudy.steps.run import run

FILES = ["requests.parquet", "outputs.parquet", "iterations.parquet", "run.json"]


def reasons_of(folder: Path, spec: dict[str, Any]) -> list[str]:
    """Reason codes of a materialised cell, without repeats, in the order found."""
    values, run_facts = spec["values"], read_json(folder / "run.json")
    rows = tables.read(folder / "requests.parquet", tables.CLIENT_REQUESTS).to_pylist()
    iterations = tables.read(folder / "iterations.parquet", tables.CELL_ITERATIONS).to_pylist()
    codes = list(run_facts["reasons"])
    planned = values["workload"]["requests"]
    codes += audit_requests(rows, planned, values["server"]["kv_pool"]["prefix_reuse"])
    codes += audit_load(rows, values["concurrency"], run_facts["time_scale"])
    codes += audit_client(run_facts["audit"])
    if not littles_law_holds(rows):
        codes.append("littles_law")
    coverage = iteration_columns(iterations, rows, window(rows))["telemetry_coverage"]
    if not values["telemetry"]["enabled"]:
        codes.append("telemetry_off")
    elif coverage != 1.0:
        codes.append("telemetry_partial")
    if run_facts["attempt"] > 1:
        codes.append("later_attempt")
    if run_facts["dirty"]:
        codes.append("dirty_checkout")
    return list(dict.fromkeys(codes))


def main(argv: list[str] | None = None) -> None:
    """Copy the cell's files and write check.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--spec", required=True, type=json.loads)
    parser.add_argument("--store", required=True, type=Path)
    parser.add_argument("--manifest", required=True, type=Path)
    parser.add_argument("--check", required=True, type=Path)
    args = parser.parse_args(argv)
    cell_id = args.spec["values"]["cell_id"]
    attempt = CellStore(args.store, cell_id, args.spec["digest"]).finished(args.spec["attempt"])
    if attempt is None:
        raise DataError(
            f"{cell_id}: {args.manifest} names an attempt that the store no longer holds whole. "
            f"Delete {args.manifest} and run again to measure the cell anew"
        )
    folder = args.check.parent
    materialise(attempt, FILES, folder)
    codes = reasons_of(folder, args.spec)
    write_json(
        args.check,
        {
            "cell_id": cell_id,
            "attempt": attempt.number,
            "valid": valid(codes),
            "reasons": codes,
            "meaning": {code: describe(code) for code in codes},
        },
    )


if __name__ == "__main__":
    run(main)

"""All cells and predictions to tidy tables: nothing dropped, invalid marked."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any, Protocol

import pyarrow as pa

from kvstudy.base import tables
from kvstudy.base.files import read_json, write_json
from kvstudy.metrics.per_request import complete
from kvstudy.metrics.rows import cell_row, facts_of_run, keys_of, missing_row
from kvstudy.steps.run import run
from kvstudy.workload.tokens import HubTokenizer

Row = dict[str, Any]


class Counter(Protocol):
    """What the tables need of a tokenizer."""

    def count(self, texts: list[str]) -> list[int]:
        """Number of tokens of each text, with no special tokens."""
        ...


def _measured(folder: Path, tokenizer: Counter) -> tuple[list[Row], list[Row], Row]:
    """Client rows with their re-tokenised counts, iteration rows, and the columns of run.json."""
    rows = tables.read(folder / "requests.parquet", tables.CLIENT_REQUESTS).to_pylist()
    outputs = tables.read(folder / "outputs.parquet", tables.OUTPUTS).to_pylist()
    counts = dict(
        zip(
            (o["request_id"] for o in outputs),
            tokenizer.count([o["text"] for o in outputs]),
            strict=True,
        )
    )
    requests = [complete(row, {}, counts.get(row["request_id"])) for row in rows]
    iterations = tables.read(folder / "iterations.parquet", tables.CELL_ITERATIONS).to_pylist()
    facts = facts_of_run(read_json(folder / "run.json"))
    facts["reasons"] = read_json(folder / "check.json")["reasons"]
    return requests, iterations, facts


def _predicted(folder: Path) -> tuple[list[Row], list[Row], Row]:
    rows = tables.read(folder / "requests.parquet", tables.CLIENT_REQUESTS).to_pylist()
    requests = [complete(row, {}, row["chunk_count"]) for row in rows]
    iterations = tables.read(folder / "iterations.parquet", tables.CELL_ITERATIONS).to_pylist()
    return requests, iterations, dict(read_json(folder / "run.json")["totals"])


class Collector:
    """Gathers rows cell by cell, as Arrow, so that memory holds the tables and one cell."""

    def __init__(self, plan: Row) -> None:
        self.plan = plan
        self.cells: list[Row] = []
        self._requests: list[pa.Table] = []
        self._iterations: list[pa.Table] = []

    def add(self, cell: Row, source: str, parts: tuple[list[Row], list[Row], Row]) -> None:
        """Add one cell's rows and its summary."""
        requests, iterations, facts = parts
        facts = {"planned": cell["planned"], **facts}
        self.cells.append(cell_row(self.plan, cell, source, requests, iterations, facts))
        keys = keys_of(self.plan, cell, source)
        self._requests.append(_arrow([{**keys, **row} for row in requests], tables.REQUESTS))
        keys = {"cell_id": cell["cell_id"], "source": source}
        self._iterations.append(_arrow([{**keys, **row} for row in iterations], tables.ITERATIONS))

    def write(self, requests: Path, iterations: Path, cells: Path) -> None:
        """Write the three tables."""
        tables.write(requests, pa.concat_tables(self._requests), tables.REQUESTS)
        tables.write(iterations, pa.concat_tables(self._iterations), tables.ITERATIONS)
        tables.write(cells, self.cells, tables.CELLS)


def _arrow(rows: list[Row], table: tables.Table) -> pa.Table:
    loose = pa.schema([pa.field(c.name, c.type) for c in table.columns])
    return pa.Table.from_pylist(rows, schema=loose)


def collect(
    plan: Row, tokenizer: Counter, cells: Path, predicted: Path
) -> tuple[Collector, dict[str, Row]]:
    """All rows of a plan, and what ran by cell id."""
    collector = Collector(plan)
    runs = {}
    for cell in plan["cells"]:
        folder = cells / cell["cell_id"]
        if cell["runnable"]:
            collector.add(cell, plan["source"], _measured(folder, tokenizer))
            runs[cell["cell_id"]] = {**read_json(folder / "run.json"), "arm": cell["arm"]}
        else:
            missing = missing_row(plan, cell, plan["source"], cell["planned"])
            collector.cells.append(missing)
        collector.add(cell, "predicted", _predicted(predicted / cell["cell_id"]))
    return collector, runs


def main(argv: list[str] | None = None) -> None:
    """Write requests, iterations and cells as Parquet, and what ran as runs.json."""
    parser = argparse.ArgumentParser(description=__doc__)
    for name in ("plan", "tokenizer", "cells-dir", "predicted-dir"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    for name in ("requests", "iterations", "cells", "runs"):
        parser.add_argument(f"--{name}", required=True, type=Path)
    args = parser.parse_args(argv)
    tokenizer = HubTokenizer(args.tokenizer.parent)
    collector, runs = collect(read_json(args.plan), tokenizer, args.cells_dir, args.predicted_dir)
    collector.write(args.requests, args.iterations, args.cells)
    write_json(args.runs, runs)


if __name__ == "__main__":
    run(main)

"""The tables as figures read them: one cell's requests and iterations as arrays, times in s."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstudy.base.units import NS_PER_S
from kvstudy.stats.claims import Published
from kvstudy.stats.data import Reals, Row


@dataclass(frozen=True)
class CellRows:
    """One cell of one source: its summary, requests in order, iterations of its window."""

    row: Row
    requests: pa.Table
    iterations: pa.Table

    @cached_property
    def start_ns(self) -> float:
        """Start of the window."""
        return float(self.row["window_start_ns"] or 0)

    def times(self, column: str) -> Reals:
        """A time column of requests in s since the window's start; null is NaN."""
        return (real(self.requests[column]) - self.start_ns) / NS_PER_S

    def value(self, column: str) -> Reals:
        """A column of requests as reals; null is NaN."""
        return real(self.requests[column])

    def steps(self, column: str) -> Reals:
        """A column of iterations as reals; null is NaN."""
        return real(self.iterations[column])

    @property
    def step_times(self) -> Reals:
        """Iteration times in s since the window's start."""
        return (self.steps("t_ns") - self.start_ns) / NS_PER_S

    @property
    def chunk_times(self) -> list[Reals]:
        """Chunk times per request in s since the window's start."""
        lists = self.requests["chunk_ns"].to_pylist()
        return [
            (np.asarray(chunks, dtype=np.float64) - self.start_ns) / NS_PER_S for chunks in lists
        ]


@dataclass(frozen=True)
class Frames:
    """All tables a figure may be a function of."""

    cells: Sequence[Row]
    requests: pa.Table
    iterations: pa.Table
    contrasts: Sequence[Row]
    published: Sequence[Published]

    @cached_property
    def backend(self) -> str:
        """Source of the run: measured or emulated; predicted where nothing else is there."""
        found = {row["source"] for row in self.cells if "not_run" not in row["reasons"]}
        return next((s for s in ("measured", "emulated") if s in found), "predicted")

    @property
    def sources(self) -> list[str]:
        """The run's source, then the prediction."""
        present = {row["source"] for row in self.cells}
        return [s for s in dict.fromkeys((self.backend, "predicted")) if s in present]

    def cell(self, row: Row) -> CellRows:
        """Rows of one cell."""
        requests = _of(self.requests, row).sort_by("submit_order")
        done = requests.filter(pc.is_valid(requests["first_chunk_ns"]))
        start, end = row["window_start_ns"] or 0, row["window_end_ns"] or 0
        steps = _of(self.iterations, row).sort_by("t_ns")
        inside = pc.and_(pc.greater(steps["t_ns"], start), pc.less_equal(steps["t_ns"], end))
        return CellRows(row, done, steps.filter(inside))

    def rows(self, source: str, **keys: Any) -> list[Row]:
        """Summaries of the cells of a source that ran, by repeat."""
        return sorted(
            (
                row
                for row in self.cells
                if row["source"] == source
                and "not_run" not in row["reasons"]
                and all(row[key] == value for key, value in keys.items())
            ),
            key=lambda row: row["repeat"],
        )

    def groups(self) -> Iterator[tuple[str, int, str, list[str]]]:
        """Workload, concurrency, engine and its arms, in table order."""
        found: dict[tuple[str, int, str], dict[str, None]] = {}
        for row in self.cells:
            if "not_run" not in row["reasons"] or row["source"] == "predicted":
                key = (row["workload"], row["concurrency"], row["engine"])
                found.setdefault(key, {})[row["arm"]] = None
        for (workload, concurrency, engine), arms in found.items():
            yield workload, concurrency, engine, list(arms)

    def arm(self, name: str) -> str:
        """How figures name an arm."""
        return self._words.get(name, name)

    @cached_property
    def _words(self) -> dict[str, str]:
        layouts = [layout for file in self.published for layout in file.layouts]
        return {
            arm: words.partition(" (")[0]
            for layout in reversed(layouts)
            for arm, words in layout.arms.items()
        }


def _of(table: pa.Table, row: Row) -> pa.Table:
    here = pc.and_(
        pc.equal(table["cell_id"], row["cell_id"]), pc.equal(table["source"], row["source"])
    )
    return table.filter(here)


def real(column: Any) -> Reals:
    """An Arrow column as float64; null is NaN."""
    values = column.cast(pa.float64()).to_numpy(zero_copy_only=False)
    return np.asarray(values, dtype=np.float64)

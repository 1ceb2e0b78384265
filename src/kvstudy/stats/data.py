"""The tables as the statistics read them: cells as rows, requests as arrays per cell."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Row = dict[str, Any]
Reals = NDArray[np.float64]

SOURCES = ("measured", "emulated", "predicted")
MODEL_SOURCES = ("emulated", "predicted")
_WORST_LAST = ("measured", "held_out", "fitted", "assumed")

REQUEST_COLUMNS = [
    "cell_id",
    "source",
    "submit_order",
    "planned_input_tokens",
    "planned_output_tokens",
    "output_cap_tokens",
    "chunk_count",
    "retokenized_tokens",
    "usage_tokens",
    "outcome",
    "ttft_ns",
    "tpot_ns",
    "tpot_chunks_ns",
    "e2e_ns",
    "max_gap_ns",
]
"""Columns of requests that statistics need: everything but the long lists."""


@dataclass(frozen=True)
class Data:
    """Cells and requests of one study, all sources."""

    cells: Sequence[Row]
    requests: dict[tuple[str, str], dict[str, Reals]] = field(default_factory=dict)

    @property
    def sources(self) -> list[str]:
        """Sources that have at least one cell, measured first."""
        present = {row["source"] for row in self.cells}
        return [source for source in SOURCES if source in present]

    def of(self, row: Row, column: str) -> Reals:
        """One requests column of a cell; failed requests are left out, null is NaN."""
        rows = self.requests.get((row["source"], row["cell_id"]), {})
        return rows.get(column, np.empty(0))

    def select(self, source: str, **keys: Any) -> list[Row]:
        """Cells of a source whose named columns have the given values (None: any).

        In table order, repeats of a cell together and ascending.
        """
        wanted = {key: value for key, value in keys.items() if value is not None}
        rows = [
            row
            for row in self.cells
            if row["source"] == source and all(row[k] == v for k, v in wanted.items())
        ]
        place: dict[str, int] = {}
        for row in rows:
            place.setdefault(_group(row), len(place))
        return sorted(rows, key=lambda row: (place[_group(row)], row["repeat"]))


def _group(row: Row) -> str:
    return f"{row['workload']}.c{row['concurrency']}.{row['engine']}.{row['arm']}"


def data_of(cells: pa.Table, requests: pa.Table) -> Data:
    """Read both tables into one view. Rows whose outcome is not `ok` stay out of the arrays."""
    numeric = [
        name
        for name in requests.schema.names
        if pa.types.is_integer(requests.schema.field(name).type)
        or pa.types.is_floating(requests.schema.field(name).type)
    ]
    done = requests.filter(pc.equal(requests["outcome"], "ok"))
    keys = list(zip(done["source"].to_pylist(), done["cell_id"].to_pylist(), strict=True))
    index: dict[tuple[str, str], list[int]] = {}
    for position, key in enumerate(keys):
        index.setdefault(key, []).append(position)
    columns = {
        name: done[name].cast(pa.float64()).to_numpy(zero_copy_only=False) for name in numeric
    }
    arrays = {
        key: {name: np.asarray(values[at], dtype=np.float64) for name, values in columns.items()}
        for key, at in index.items()
    }
    return Data(cells.to_pylist(), arrays)


def metric(row: Row, name: str) -> float | None:
    """One number of a cell; None where it is undefined."""
    value = row[name]
    return None if value is None else float(value)


def finite(values: Iterable[float | None]) -> list[float]:
    """The values that are defined."""
    return [value for value in values if value is not None]


def worst_basis(rows: Iterable[Row], default: str) -> str:
    """The weakest basis of the cells: assumed before fitted before held_out before measured."""
    found = [row["basis"] for row in rows]
    return max(found, key=_WORST_LAST.index) if found else default

"""Rows of cells with only what a test is about."""

from __future__ import annotations

from typing import Any

import numpy as np

from kvstudy.base import tables
from kvstudy.stats.data import Data


def cell(arm: str, repeat: int, source: str = "measured", **columns: Any) -> dict[str, Any]:
    """A valid cell of W-C on engine `e`; columns not given are null."""
    row: dict[str, Any] = dict.fromkeys(tables.CELLS.names)
    engine = columns.pop("engine", "e")
    workload = columns.pop("workload", "W-C")
    row |= {
        "cell_id": f"{workload}.c32.{engine}.{arm}.r{repeat}",
        "source": source,
        "basis": "measured" if source == "measured" else "held_out",
        "valid": True,
        "reasons": [],
        "engine": engine,
        "arm": arm,
        "workload": workload,
        "concurrency": 32,
        "repeat": repeat,
        "allocation": f"{workload}.c32.{engine}",
        "node": "n1",
        "gpu_uuid": "GPU-1",
        "wall_s": 10.0,
    }
    return row | columns


def data(*rows: dict[str, Any], **requests: dict[str, list[float]]) -> Data:
    """A study of these cells; `requests` maps `<arm><repeat>` to columns, for measured cells."""
    arrays = {}
    for row in rows:
        columns = requests.get(f"{row['arm']}{row['repeat']}")
        if columns is not None:
            arrays[(row["source"], row["cell_id"])] = {
                name: np.asarray(values, dtype=np.float64) for name, values in columns.items()
            }
    return Data(list(rows), arrays)

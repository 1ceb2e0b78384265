"""How far emulated cells are from their predictions, cell by cell.

Usage: python benchmarks/emulator_fidelity.py results/emulated
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

from kvstudy.base import tables
from kvstudy.base.files import read_json
from kvstudy.metrics.per_cell import (
    iteration_columns,
    latency_columns,
    throughput_columns,
    window,
)
from kvstudy.metrics.per_request import complete

NAMES = ("output_tok_per_s", "ttft_p50_ms", "tpot_p50_ms", "tpot_p99_ms", "e2e_p99_s")
COUNTS = ("iterations", "pauses", "recomputed_tokens", "hidden_tokens", "peak_blocks")


def columns(folder: Path, concurrency: int) -> dict[str, Any]:
    """The numbers of one cell, from its own rows; chunks stand for tokens."""
    rows = tables.read(folder / "requests.parquet", tables.CLIENT_REQUESTS).to_pylist()
    requests = [complete(row, {}, row["chunk_count"]) for row in rows]
    steps = tables.read(folder / "iterations.parquet", tables.CELL_ITERATIONS).to_pylist()
    return {
        **throughput_columns(requests, concurrency, {}),
        **latency_columns(requests),
        **iteration_columns(steps, requests, window(requests)),
    }


def main(results: Path) -> None:
    """Print one line per cell: differences in percent, and whether every count is equal."""
    print(f"{'cell':40s} {'scale':>6s} counts " + " ".join(f"{name:>17s}" for name in NAMES))
    for folder in sorted((results / "cells").iterdir()):
        predicted = results / "predicted" / folder.name
        if not predicted.is_dir():
            continue
        lanes = int(folder.name.split(".c")[1].split(".")[0])
        here, there = columns(folder, lanes), columns(predicted, lanes)
        scale = read_json(folder / "run.json")["time_scale"]
        equal = "equal" if all(here[n] == there[n] for n in COUNTS) else "DIFFER"
        shown = [f"{100 * (here[name] / there[name] - 1):+16.2f}%" for name in NAMES]
        print(f"{folder.name:40s} {scale:6.1f} {equal:6s} " + " ".join(shown))


if __name__ == "__main__":
    main(Path(sys.argv[1]))

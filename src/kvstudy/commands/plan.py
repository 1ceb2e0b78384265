"""`kvstudy plan`: cells, allocations, what would run and why, and what it would cost."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvstudy.base.errors import EXIT_INVALID, EXIT_OK
from kvstudy.base.store import CellStore
from kvstudy.commands.parser import Parser
from kvstudy.commands.preflight import check
from kvstudy.commands.terminal import note, out, out_json, table
from kvstudy.pins.pin import pin_state
from kvstudy.pins.spec import cache_folder
from kvstudy.sim.of_cell import Prediction
from kvstudy.study.cost import START_S
from kvstudy.study.parse import read_config
from kvstudy.study.plan import Cell, Study
from kvstudy.workload.lengths import draw, rng_for, submission_order

_EPILOG = """examples:
  kvstudy plan                                  the measured study of config.yaml
  kvstudy plan --backend emulated --json
  kvstudy plan --configfile config.yaml more.yaml
  kvstudy plan --preflight                      what of this site would stop the run"""


def main(argv: list[str]) -> int:
    """Print the plan as a table or as JSON."""
    parser = Parser(
        prog="kvstudy plan",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", choices=["measured", "emulated"], default=None)
    parser.add_argument("--configfile", type=Path, nargs="+", default=[Path("config.yaml")])
    parser.add_argument("--results", type=Path, default=Path("results"))
    parser.add_argument("--preflight", action="store_true", help="look at the site too")
    parser.add_argument("--profile", type=Path, default=Path("profiles/slurm"))
    parser.add_argument("--json", action="store_true", help="for machines")
    args = parser.parse_args(argv)
    overrides = {"backend": args.backend} if args.backend else {}
    study = Study(read_config(*args.configfile, overrides=overrides))
    store = args.results / study.backend / "store"
    rows = [_row(study, cell, store) for cell in study.cells]
    pins = pin_state(study, cache_folder(None)) if study.backend == "measured" else []
    problems = check(study, args.profile) if args.preflight else []
    if args.json:
        out_json(
            {
                "cells": rows,
                "pins": [asdict(pin) for pin in pins],
                "notices": study.notices(),
                "problems": [asdict(problem) for problem in problems],
            }
        )
    else:
        _print(study, rows)
        for pin in pins:
            out(f"pin {pin.key}: {pin.state}: {pin.detail}")
        for problem in problems:
            out(f"problem: {problem.what}. {problem.fix}")
        if args.preflight and not problems:
            out("preflight: no problem found")
    return EXIT_INVALID if problems else EXIT_OK


def _row(study: Study, cell: Cell, store: Path) -> dict[str, Any]:
    state, why = _state(study, cell, store)
    seconds = _seconds(study, cell)
    return {
        "cell_id": cell.id,
        "allocation": cell.allocation,
        "digest": study.cell_digest(cell),
        "attempt": study.attempt(cell),
        "state": state,
        "why": why,
        "predicted_s": seconds,
    }


def _state(study: Study, cell: Cell, store: Path) -> tuple[str, str]:
    """(state, reason): what a run would do with a cell."""
    if not study.runnable(cell):
        return "waits", f"engines.{cell.engine}.image.digest is to be pinned"
    attempts = CellStore(store, cell.id, study.cell_digest(cell))
    if attempts.finished(study.attempt(cell)) is not None:
        return "done", "in the store"
    if attempts.finished(1) is not None:
        return "runs", f"attempt {study.attempt(cell)} is wanted"
    if attempts.attempts():
        return "runs", "an earlier attempt failed or was interrupted"
    if (store / cell.id).is_dir():
        return "runs", "a key of the configuration that it depends on has changed"
    return "runs", "new"


def _seconds(study: Study, cell: Cell) -> float | None:
    """Predicted length of start, warm-up and measured phase on a real GPU, in seconds."""
    values = json.loads(study.prediction_spec(SimpleNamespace(cell=cell.id)))
    if values["adapter"] == "llamacpp":
        return None
    workload = values["workload"]
    seconds = START_S + _phase_s(values, "measured", workload["requests"])
    if workload["warmup"]:
        warm = {**values, "concurrency": workload["warmup"]["concurrency"]}
        seconds += _phase_s(warm, "warmup", workload["warmup"]["requests"])
    return round(seconds, 1)


def _phase_s(values: dict[str, Any], phase: str, count: int) -> float:
    workload = values["workload"]
    seed, name = workload["seed"], workload["name"]
    inputs = draw(workload["input_tokens"], count, rng_for(seed, "input", name, phase))
    outputs = draw(workload["output_tokens"], count, rng_for(seed, "output", name, phase))
    planned = [
        {
            "request_id": str(index),
            "input_tokens": inputs[index],
            "output_tokens": outputs[index],
            "output_cap_tokens": workload["output_cap_tokens"],
        }
        for index in submission_order(seed, name, values["repeat"], count)
    ]
    return Prediction(values, planned).wall_s


def _print(study: Study, rows: list[dict[str, Any]]) -> None:
    table(
        ["cell", "digest", "attempt", "state", "why"],
        [[r["cell_id"], r["digest"][:8], str(r["attempt"]), r["state"], r["why"]] for r in rows],
    )
    running = [r for r in rows if r["state"] == "runs"]
    hours = sum(r["predicted_s"] or 0.0 for r in running) / 3600
    out("")
    out(
        f"{len(rows)} cells in {len(study.allocations)} allocations; {len(running)} would run"
        + (f", about {hours:.1f} GPU-hours" if study.backend == "measured" else "")
    )
    for line in study.notices():
        note(f"notice: {line}")

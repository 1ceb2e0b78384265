"""Rows of `tables.CELLS`, from what a cell or a prediction left behind."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from kvstudy.base import tables
from kvstudy.metrics.audit import valid
from kvstudy.metrics.per_cell import (
    count_columns,
    iteration_columns,
    latency_columns,
    throughput_columns,
    window,
)

Row = Mapping[str, Any]
DESIGN_KEYS = ("engine", "engine_version", "arm", "workload", "concurrency", "repeat")


def keys_of(plan: Row, plan_cell: Row, source: str) -> dict[str, Any]:
    """The columns that name a cell in every table."""
    return {
        "cell_id": plan_cell["cell_id"],
        "source": source,
        "study": plan["study"],
        **{key: plan_cell[key] for key in DESIGN_KEYS},
    }


def basis_of(source: str, plan: Row, plan_cell: Row, pauses: int | None) -> str:
    """What a number's agreement proves (`design` vocabulary: measured, fitted, ...).

    A modelled cell is `fitted` when the constants saw it, `assumed` when pauses happened whose
    cost the configuration assumes, and `held_out` otherwise.
    """
    if source == "measured":
        return "measured"
    if any(fnmatchcase(plan_cell["cell_id"], pattern) for pattern in plan["fitted_to"]):
        return "fitted"
    if pauses and plan_cell["pause"] != "recompute":
        return "assumed"
    return "held_out"


def cell_row(
    plan: Row,
    plan_cell: Row,
    source: str,
    requests: Sequence[Row],
    iterations: Sequence[Row],
    facts: Row,
) -> dict[str, Any]:
    """One complete row; `facts` are the columns that do not follow from the rows."""
    span = window(requests)
    evidence = iteration_columns(iterations, requests, span)
    reasons = list(facts.get("reasons", ()))
    row = dict.fromkeys(tables.CELLS.names)
    row |= keys_of(plan, plan_cell, source)
    row |= {
        "allocation": plan_cell["allocation"],
        "spec_digest": plan_cell["digest"],
        "basis": basis_of(source, plan, plan_cell, evidence["pauses"]),
    }
    row |= count_columns(requests, int(facts["planned"]))
    row |= throughput_columns(requests, plan_cell["concurrency"], plan["slo"])
    row |= latency_columns(requests)
    row |= evidence
    row |= {key: value for key, value in facts.items() if key in row}
    row |= {"valid": valid(reasons), "reasons": reasons}
    return row


def missing_row(plan: Row, plan_cell: Row, source: str, planned: int) -> dict[str, Any]:
    """The row of a cell that was not run: everything undefined, with the reason."""
    row = dict.fromkeys(tables.CELLS.names)
    row |= keys_of(plan, plan_cell, source)
    row |= {
        "allocation": plan_cell["allocation"],
        "spec_digest": plan_cell["digest"],
        "basis": basis_of(source, plan, plan_cell, None),
        "requests": planned,
        "valid": False,
        "reasons": ["not_run"],
    }
    return row


def facts_of_run(run: Row) -> dict[str, Any]:
    """Columns of `tables.CELLS` that a cell's run.json states."""
    audit, phases = run["audit"], run["phases_s"]
    gpu = run["gpu"]
    return {
        "attempt": run["attempt"],
        "loop_lag_p99_ms": audit["loop_lag_p99_ms"],
        "loop_lag_max_ms": audit["loop_lag_max_ms"],
        "client_cpu_share": audit["cpu_share"],
        "client_load_share": run.get("client_load_share"),
        "time_scale": run["time_scale"],
        "starting_s": phases["starting"],
        "warming_s": phases["warming"],
        "measuring_s": phases["measuring"],
        "stopping_s": phases["stopping"],
        "gpu_seconds_allocated": sum(phases.values()) if gpu else None,
        "gpu_seconds_measuring": phases["measuring"] if gpu else None,
        "node": run["host"]["node"],
        "gpu_uuid": gpu["uuid"] if gpu else None,
        "commit": run["commit"],
    }

"""Rows to fit and to predict: a scenario under one policy, and what was observed of it."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from statistics import fmean
from types import SimpleNamespace
from typing import Any

from kvstudy.base.errors import UsageError
from kvstudy.explain.basis import METRICS
from kvstudy.explain.evidence import PublishedValue
from kvstudy.explain.published import lengths_of
from kvstudy.explain.scenario import Scenario, scenario_of
from kvstudy.sim.model import Pause, Policy
from kvstudy.sim.spec import parse
from kvstudy.study.plan import Cell, Study

WEIGHTS = {"output_tok_per_s": 3.0, "ttft_p50_ms": 0.5}
"""Weights of log ratios; metrics not named weigh 1. Throughput repeats to 0.7 %, TTFT depends on
details of the loop that the model leaves out."""

FITTED_METRICS = tuple(m for m in METRICS if m not in ("ttft_p99_ms", "e2e_p50_s"))


@dataclass(frozen=True)
class Target:
    """One row: what ran, under which policy and pause mode, and the observed metrics."""

    id: str
    scenario: Scenario
    policy: Policy
    pause: Pause
    observed: Mapping[str, float]
    source: str

    def matches(self, patterns: Iterable[str]) -> bool:
        """Whether a pattern over cell ids (with or without a repeat) names this row."""
        names = (self.id, f"{self.id}.r1")
        return any(fnmatchcase(name, pattern) for name in names for pattern in patterns)


def published_targets(study: Study, values: Sequence[PublishedValue]) -> list[Target]:
    """One row per arm of the study that published numbers describe in absolute terms."""
    found = []
    for cell in _first_repeats(study):
        key = (cell.engine, cell.workload, cell.concurrency, cell.arm)
        observed = {
            v.metric: v.value
            for v in values
            if v.over_arm is None
            and v.metric in FITTED_METRICS
            and (v.engine, v.workload, v.concurrency, v.arm) == key
        }
        if observed:
            found.append(_target(study, cell, observed, "published"))
    return found


def cell_targets(
    study: Study, rows: Sequence[Mapping[str, Any]], source: str | None = None
) -> list[Target]:
    """One row per arm of the study that has valid cells, means over repeats."""
    found = []
    wanted = source or study.backend
    for cell in _first_repeats(study):
        key = (cell.engine, cell.workload, cell.concurrency, cell.arm)
        own = [
            row
            for row in rows
            if row["valid"]
            and row["source"] == wanted
            and (row["engine"], row["workload"], row["concurrency"], row["arm"]) == key
        ]
        values = {m: [r[m] for r in own if r[m]] for m in FITTED_METRICS}
        observed = {metric: fmean(found) for metric, found in values.items() if found}
        if observed:
            found.append(_target(study, cell, observed, wanted))
    return found


def inline_targets(documents: Sequence[Any]) -> list[Target]:
    """Rows given as {id, spec, values}: a simulation spec without step_time, and its metrics."""
    found = []
    for index, document in enumerate(documents):
        at = f"rows[{index}]"
        if not isinstance(document, Mapping) or set(document) != {"id", "spec", "values"}:
            raise UsageError(f"{at}: expected an object with the keys id, spec and values")
        spec = parse(document["spec"])
        found.append(
            Target(
                id=str(document["id"]),
                scenario=Scenario(
                    spec.engine, tuple(spec.requests), spec.concurrency, spec.admission_lag_steps
                ),
                policy=spec.engine.policy,
                pause=spec.engine.pause,
                observed=_values(document["values"], at),
                source="given",
            )
        )
    return found


def _values(values: Any, at: str) -> dict[str, float]:
    if not isinstance(values, Mapping) or not values:
        raise UsageError(f"{at}.values: expected metrics and their values")
    for name, value in values.items():
        if name not in METRICS:
            raise UsageError(f"{at}.values.{name}: expected one of {', '.join(METRICS)}")
        if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e12:
            raise UsageError(f"{at}.values.{name}: expected a number above 0, got {value!r}")
    return {str(name): float(value) for name, value in values.items()}


def _first_repeats(study: Study) -> list[Cell]:
    return [
        cell
        for cell in study.cells
        if cell.repeat == 1 and study.config.engines[cell.engine].adapter == "trtllm"
    ]


def _target(study: Study, cell: Cell, observed: Mapping[str, float], source: str) -> Target:
    values = json.loads(study.prediction_spec(SimpleNamespace(cell=cell.id)))
    scenario = scenario_of(values, lengths_of)
    return Target(
        id=cell.id.removesuffix(".r1"),
        scenario=scenario,
        policy=scenario.engine.policy,
        pause=scenario.engine.pause,
        observed=observed,
        source=source,
    )

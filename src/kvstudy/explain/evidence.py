"""What hypotheses are held against: published or measured ratios, each with its stated spread."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import Any

from kvstudy.explain.tables import RATIOS

Row = Mapping[str, Any]

LEAST_SPREAD = 0.007
"""Largest published difference between two repeats of a cell's throughput; no cell of a run is
taken to be better known than that."""


@dataclass(frozen=True, slots=True)
class PublishedValue:
    """One published number: the metric of an arm, or its ratio over another arm's.

    `spread` is its stated tolerance as a share of the number.
    """

    engine: str
    workload: str
    concurrency: int
    arm: str
    metric: str
    value: float
    spread: float
    over_arm: str | None = None


@dataclass(frozen=True)
class Side:
    """Which two arms of which engine and load a ratio compares."""

    engine: str
    workload: str
    concurrency: int
    baseline: str
    treatment: str


@dataclass(frozen=True)
class Evidence:
    """Ratios treatment / baseline with the standard error of their logarithms."""

    source: str
    ratios: Mapping[str, float] = field(default_factory=dict)
    spreads: Mapping[str, float] = field(default_factory=dict)
    treatment: Mapping[str, float] = field(default_factory=dict)
    baseline: Mapping[str, float] = field(default_factory=dict)
    counts: Mapping[str, float] = field(default_factory=dict)


def published_evidence(side: Side, values: Iterable[PublishedValue]) -> Evidence | None:
    """Published ratios: of the two absolute numbers where both are printed, else as printed."""
    own = [
        v
        for v in values
        if (v.engine, v.workload, v.concurrency) == (side.engine, side.workload, side.concurrency)
    ]
    single = {(v.arm, v.metric): v for v in own if v.over_arm is None}
    double = {v.metric: v for v in own if v.over_arm == side.baseline and v.arm == side.treatment}
    ratios, spreads = {}, {}
    for name, metric in RATIOS.items():
        top, bottom = single.get((side.treatment, metric)), single.get((side.baseline, metric))
        if top is not None and bottom is not None:
            ratios[name] = top.value / bottom.value
            spreads[name] = top.spread + bottom.spread
        elif metric in double:
            ratios[name] = double[metric].value
            spreads[name] = double[metric].spread
    if not ratios:
        return None
    arms = {
        arm: {m: v.value for (owner, m), v in single.items() if owner == arm}
        for arm in (side.treatment, side.baseline)
    }
    return Evidence("published", ratios, spreads, arms[side.treatment], arms[side.baseline])


def run_evidence(side: Side, source: str, cells: Sequence[Row]) -> Evidence | None:
    """Ratios of means over the valid repeats of a run; spreads from the repeats."""
    arms = {arm: _valid(side, arm, source, cells) for arm in (side.baseline, side.treatment)}
    if not all(arms.values()):
        return None
    ratios, spreads = {}, {}
    for name, metric in RATIOS.items():
        top = _defined(arms[side.treatment], metric)
        bottom = _defined(arms[side.baseline], metric)
        if top and bottom:
            ratios[name] = fmean(top) / fmean(bottom)
            spreads[name] = _spread(top) + _spread(bottom)
    means = {arm: _means(rows, RATIOS.values()) for arm, rows in arms.items()}
    counters = ("pauses", "recomputed_tokens", "hidden_tokens", "iterations", "max_gap_ms")
    return Evidence(
        source,
        ratios,
        spreads,
        means[side.treatment],
        means[side.baseline],
        _means(arms[side.treatment], counters),
    )


def _valid(side: Side, arm: str, source: str, cells: Sequence[Row]) -> list[Row]:
    wanted = (source, side.engine, side.workload, side.concurrency, arm)
    keys = ("source", "engine", "workload", "concurrency", "arm")
    return [row for row in cells if row["valid"] and tuple(row[key] for key in keys) == wanted]


def _defined(rows: Sequence[Row], column: str) -> list[float]:
    return [float(row[column]) for row in rows if row[column] is not None and row[column] > 0]


def _means(rows: Sequence[Row], columns: Iterable[str]) -> dict[str, float]:
    values = {c: [float(r[c]) for r in rows if r[c] is not None] for c in columns}
    return {column: fmean(found) for column, found in values.items() if found}


def _spread(values: Sequence[float]) -> float:
    return max(LEAST_SPREAD, math.log(max(values) / min(values)))

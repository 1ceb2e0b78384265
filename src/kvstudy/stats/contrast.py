"""Treatment against baseline: ratios of cell means, intervals, and the noise they stand in."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import fmean
from typing import Any

import numpy as np

from kvstudy.base.units import NS_PER_MS, NS_PER_S
from kvstudy.stats import bootstrap
from kvstudy.stats.data import Data, Reals, Row, finite, metric

AA = "A/A"
"""Name of the contrast of an arm with itself: repeat n + 1 over repeat n."""


@dataclass(frozen=True, slots=True)
class Measure:
    """A column of cells that contrasts report, and how requests give it again."""

    column: str
    unit: str
    requests: str | None = None
    per: float = 1.0
    statistic: bootstrap.Statistic | None = None


def _measures() -> tuple[Measure, ...]:
    tokens = bootstrap.mean()
    spread = {"mean": bootstrap.mean(), "max": bootstrap.largest()}
    spread |= {f"p{q}": bootstrap.quantile(q) for q in (50, 90, 99)}
    rows = [
        Measure("output_tok_per_s", "tok/s", "retokenized_tokens", statistic=tokens),
        Measure("output_tok_per_s_nominal", "tok/s", "planned_output_tokens", statistic=tokens),
        Measure("output_tok_per_s_chunks", "tok/s", "chunk_count", statistic=tokens),
        Measure("output_tok_per_s_usage", "tok/s", "usage_tokens", statistic=tokens),
        Measure("output_tok_per_s_steady", "tok/s"),
        Measure("goodput_req_per_s", "1/s"),
    ]
    for prefix, unit, per in (
        ("ttft", "ms", NS_PER_MS),
        ("tpot", "ms", NS_PER_MS),
        ("tpot_chunks", "ms", NS_PER_MS),
        ("e2e", "s", NS_PER_S),
    ):
        for stat, how in spread.items():
            if prefix != "tpot_chunks" or stat == "p99":
                column = f"{prefix}_{stat}_{unit}"
                rows.append(Measure(column, unit, f"{prefix}_ns", per, how))
    return tuple(rows)


MEASURES = _measures()


@dataclass(frozen=True, slots=True)
class Side:
    """One side of a contrast: its name and its valid cells, by repeat."""

    name: str
    cells: Sequence[Row]


@dataclass(frozen=True, slots=True)
class Pair:
    """Two sides that share everything but what the contrast is about."""

    contrast: str
    source: str
    workload: str
    concurrency: int
    within: str
    baseline: Side
    treatment: Side

    @property
    def paired(self) -> bool:
        """Whether both sides ran in one allocation on one GPU."""
        rows = [*self.baseline.cells, *self.treatment.cells]
        places = {(row["allocation"], row["node"], row["gpu_uuid"]) for row in rows}
        return len(places) == 1


def pairs_of(contrasts: Iterable[Mapping[str, str]], data: Data) -> list[Pair]:
    """Every pair of sides the declared contrasts ask for, in the order of the config."""
    pairs = []
    for contrast in contrasts:
        shared, varied = ("engine", "arm") if contrast["within"] == "engine" else ("arm", "engine")
        for source in data.sources:
            rows = data.select(source)
            for key in dict.fromkeys((r["workload"], r["concurrency"], r[shared]) for r in rows):
                workload, concurrency, common = key
                sides = [
                    Side(
                        contrast[side],
                        data.select(
                            source,
                            workload=workload,
                            concurrency=concurrency,
                            **{shared: common, varied: contrast[side]},
                        ),
                    )
                    for side in ("baseline", "treatment")
                ]
                if all(side.cells for side in sides):
                    name = f"{contrast['treatment']} vs {contrast['baseline']}"
                    pairs.append(Pair(name, source, workload, concurrency, common, *sides))
    return pairs


def aa_pairs(data: Data) -> list[Pair]:
    """Each repeat against the one before it, same arm: what no effect looks like."""
    pairs = []
    for source in data.sources:
        if source == "predicted":
            continue
        groups: dict[tuple[Any, ...], list[Row]] = {}
        for row in data.select(source):
            key = (row["workload"], row["concurrency"], row["engine"], row["arm"])
            groups.setdefault(key, []).append(row)
        for (workload, concurrency, engine, arm), rows in groups.items():
            ordered = sorted(rows, key=lambda row: row["repeat"])
            for first, second in pairwise(ordered):
                sides = [Side(f"{arm} r{row['repeat']}", [row]) for row in (first, second)]
                pairs.append(Pair(AA, source, workload, concurrency, engine, *sides))
    return pairs


def contrast_rows(
    pairs: Iterable[Pair], data: Data, *, seed: int, spoilt: Mapping[str, str] | None = None
) -> list[Row]:
    """One row per pair and metric; a metric that neither side has is left out."""
    rows = []
    for pair in pairs:
        for measure in MEASURES:
            row = _row(pair, measure, data, seed, spoilt or {})
            if row["baseline_value"] is not None or row["treatment_value"] is not None:
                rows.append(row)
    return rows


def _row(pair: Pair, measure: Measure, data: Data, seed: int, spoilt: Mapping[str, str]) -> Row:
    sides = [
        Side(side.name, [row for row in side.cells if row["valid"]])
        for side in (pair.baseline, pair.treatment)
    ]
    values = [finite(metric(row, measure.column) for row in side.cells) for side in sides]
    means = [fmean(found) if found else None for found in values]
    ratio = _ratio(means[1], means[0])
    noise = None if pair.contrast == AA else noise_ratio(values)
    interval = _interval(pair, sides, measure, data, seed) if ratio is not None else None
    return {
        "contrast": pair.contrast,
        "source": pair.source,
        "workload": pair.workload,
        "concurrency": pair.concurrency,
        "within": pair.within,
        "baseline": pair.baseline.name,
        "treatment": pair.treatment.name,
        "metric": measure.column,
        "unit": measure.unit,
        "baseline_value": means[0],
        "treatment_value": means[1],
        "ratio": ratio,
        "ratio_low": interval.low if interval else None,
        "ratio_high": interval.high if interval else None,
        "noise_ratio": noise,
        "noise_factor": noise_factor(ratio, noise),
        "repeats": min(len(found) for found in values),
        "paired": pair.paired,
        "remark": _remark(pair, values, spoilt),
    }


def _ratio(top: float | None, bottom: float | None) -> float | None:
    return None if top is None or not bottom else top / bottom


def noise_ratio(sides: Sequence[Sequence[float]]) -> float | None:
    """Largest repeat-to-repeat ratio on either side, at least 1; None below two repeats."""
    if any(len(values) < 2 for values in sides) or min(map(min, sides)) <= 0:
        return None
    return max(max(values) / min(values) for values in sides)


def noise_factor(ratio: float | None, noise: float | None) -> float | None:
    """How many times the effect exceeds the largest repeat-to-repeat ratio, on a log scale."""
    if ratio is None or ratio <= 0 or noise is None or noise <= 1:
        return None
    return abs(math.log(ratio)) / math.log(noise)


def _interval(
    pair: Pair, sides: Sequence[Side], measure: Measure, data: Data, seed: int
) -> bootstrap.Interval | None:
    if measure.requests is None or measure.statistic is None or pair.source == "predicted":
        return None
    samples = [[_sample(measure, row, data) for row in side.cells] for side in sides]
    name = (pair.contrast, pair.source, pair.workload, str(pair.concurrency), pair.within)
    return bootstrap.ratio_interval(
        samples[1],
        samples[0],
        measure.statistic,
        bootstrap.rng_for(seed, *name, measure.column),
        paired=pair.paired,
    )


def _sample(measure: Measure, row: Row, data: Data) -> Reals:
    """Per-request values whose statistic is the cell's value.

    Throughput is the mean of tokens x requests / window: its window stays as it was.
    """
    values = data.of(row, str(measure.requests))
    values = values[~np.isnan(values)]
    if measure.unit == "tok/s":
        return np.asarray(values * len(values) / row["wall_s"])
    return np.asarray(values / measure.per)


def _remark(pair: Pair, values: Sequence[Sequence[float]], spoilt: Mapping[str, str]) -> str | None:
    rows = [*pair.baseline.cells, *pair.treatment.cells]
    remarks = sorted({spoilt[row["cell_id"]] for row in rows if row["cell_id"] in spoilt})
    dropped = sorted(row["cell_id"] for row in rows if not row["valid"])
    if dropped:
        remarks.append(f"left out as not valid: {', '.join(dropped)}")
    if pair.source == "predicted":
        remarks.append("a prediction is deterministic: no interval")
    elif pair.contrast != AA and min(len(found) for found in values) < 2:
        remarks.append("one repeat: no interval and no noise floor exist")
    if not pair.paired and pair.source != "predicted":
        remarks.append("unpaired: the sides ran in different allocations or on different GPUs")
    return "; ".join(remarks) or None

"""A claim's expression, evaluated over the cells and requests of one source."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import fmean

import numpy as np
from numpy.typing import NDArray

from kvstudy.stats.claims import Bounds, Compute, Selector
from kvstudy.stats.data import Data, Reals, Row, finite, metric


@dataclass(frozen=True, slots=True)
class Evaluated:
    """A value, the cells behind it, its repeat-to-repeat range, or why there is none."""

    value: float | None
    cells: tuple[Row, ...] = ()
    noise: float | None = None
    problem: str | None = None


def evaluate(compute: Compute, data: Data, source: str) -> Evaluated:
    """The expression's value for one source.

    `noise` is the range of the values that single repeats (or pairs of them) give; None with
    fewer than two repeats.
    """
    if compute.op == "none":
        return Evaluated(None, problem=compute.because)
    sides = [_cells(data, source, compute.of)]
    if compute.over is not None:
        sides.append(_cells(data, source, compute.over))
    used = tuple({row["cell_id"]: row for side in sides for row in side}.values())
    if not all(sides):
        missing = compute.of if not sides[0] else compute.over
        return Evaluated(None, used, problem=f"no cell of {_named(missing)} in this run")
    value, problem = _OPERATIONS[compute.op](compute, data, sides)
    return Evaluated(value, used, _noise(compute, sides) if value is not None else None, problem)


def _cells(data: Data, source: str, selector: Selector) -> list[Row]:
    """Cells that were run; one that was not is as if it were absent."""
    repeat = selector.repeat if isinstance(selector.repeat, int) else None
    rows = data.select(
        source,
        workload=selector.workload,
        concurrency=selector.concurrency,
        engine=selector.engine,
        arm=selector.arm,
        repeat=repeat,
    )
    return [row for row in rows if "not_run" not in row["reasons"]]


def _named(selector: Selector | None) -> str:
    parts = selector.model_dump(exclude_none=True, exclude={"metric"}) if selector else {}
    return " ".join(f"{key} {value}" for key, value in parts.items()) or "the study"


Result = tuple[float | None, str | None]


def _reduce(selector: Selector, rows: Sequence[Row]) -> float | None:
    values = finite(metric(row, str(selector.metric)) for row in rows)
    if len(values) < len(rows):
        return None
    if selector.repeat == "min":
        return min(values)
    return max(values) if selector.repeat == "max" else fmean(values)


def _undefined(selector: Selector) -> str:
    return f"{selector.metric} is not defined in the cells of {_named(selector)}"


def _value(compute: Compute, _data: Data, sides: list[list[Row]]) -> Result:
    value = _reduce(compute.of, sides[0])
    return (None, _undefined(compute.of)) if value is None else (value * compute.scale, None)


def _ratio(compute: Compute, _data: Data, sides: list[list[Row]]) -> Result:
    over = compute.over or compute.of
    top, bottom = _reduce(compute.of, sides[0]), _reduce(over, sides[1])
    if top is None or bottom is None:
        return None, _undefined(compute.of if top is None else over)
    if bottom == 0:
        return None, f"{over.metric} is zero in the cells of {_named(over)}"
    return top / bottom, None


def _delta_percent(compute: Compute, data: Data, sides: list[list[Row]]) -> Result:
    ratio, problem = _ratio(compute, data, sides)
    return (None, problem) if ratio is None else (100 * (ratio - 1), None)


def _sum(compute: Compute, _data: Data, sides: list[list[Row]]) -> Result:
    values = finite(metric(row, str(compute.of.metric)) for row in sides[0])
    if len(values) < len(sides[0]):
        return None, _undefined(compute.of)
    return sum(values) * compute.scale, None


def _spread(compute: Compute, _data: Data, sides: list[list[Row]]) -> Result:
    values = finite(metric(row, str(compute.of.metric)) for row in sides[0])
    if len(values) < 2:
        return None, "one repeat has no spread"
    return (max(values) - min(values)) * compute.scale, None


def _max_repeat_diff(compute: Compute, _data: Data, sides: list[list[Row]]) -> Result:
    groups: dict[tuple[str, ...], list[float]] = {}
    for row in sides[0]:
        value = metric(row, str(compute.of.metric))
        if value is not None:
            key = (row["workload"], str(row["concurrency"]), row["engine"], row["arm"])
            groups.setdefault(key, []).append(value)
    shares = [
        100 * (max(values) - min(values)) / fmean(values)
        for values in groups.values()
        if len(values) > 1 and fmean(values) > 0
    ]
    return (max(shares), None) if shares else (None, "no cell has two repeats")


def _meets(values: Reals, bounds: Bounds) -> NDArray[np.bool_]:
    keep = ~np.isnan(values)
    if bounds.equals is not None:
        keep &= values == bounds.equals
    if bounds.below is not None:
        keep &= values < bounds.below
    if bounds.at_least is not None:
        keep &= values >= bounds.at_least
    return np.asarray(keep, dtype=np.bool_)


def _count(compute: Compute, data: Data, sides: list[list[Row]]) -> Result:
    total = 0
    for row in sides[0]:
        columns = {name: data.of(row, name) for name in compute.where}
        if any(not values.size or np.isnan(values).all() for values in columns.values()):
            return None, f"{', '.join(compute.where)} not recorded in {row['cell_id']}"
        masks = [_meets(columns[name], bounds) for name, bounds in compute.where.items()]
        total += int(np.logical_and.reduce(masks).sum())
    return float(total), None


def _demand(compute: Compute, data: Data, sides: list[list[Row]]) -> Result:
    longest = 0.0
    for row in sides[0]:
        full = data.of(row, "planned_input_tokens") + data.of(row, "output_cap_tokens")
        longest = max(longest, float(full.max(initial=0.0)))
    if not longest:
        return None, "no request is known"
    demand = longest * float(compute.of.concurrency or 0)
    if compute.pool_block_tokens is None:
        return demand, None
    pools = finite(row["pool_blocks"] for row in sides[0])
    if not pools:
        return None, "no server said how large its KV pool is"
    return demand / (min(pools) * compute.pool_block_tokens), None


_OPERATIONS: dict[str, Callable[[Compute, Data, list[list[Row]]], Result]] = {
    "value": _value,
    "ratio": _ratio,
    "delta_percent": _delta_percent,
    "sum": _sum,
    "spread": _spread,
    "max_repeat_diff": _max_repeat_diff,
    "count": _count,
    "demand": _demand,
}


def _noise(compute: Compute, sides: list[list[Row]]) -> float | None:
    """Range of the expression over single repeats; None with fewer than two anywhere."""
    if compute.op not in ("value", "ratio", "delta_percent", "sum"):
        return None
    selectors = [compute.of, compute.over or compute.of]
    columns = [
        finite(metric(row, str(selector.metric)) for row in side)
        for selector, side in zip(selectors, sides, strict=False)
    ]
    if any(len(values) < 2 for values in columns):
        return None
    if compute.op in ("value", "sum"):
        return (max(columns[0]) - min(columns[0])) * abs(compute.scale)
    ratios = [top / bottom for top, bottom in product(*columns) if bottom]
    if not ratios:
        return None
    return (max(ratios) - min(ratios)) * (100 if compute.op == "delta_percent" else 1)

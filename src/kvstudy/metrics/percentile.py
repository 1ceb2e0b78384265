"""The one percentile of the project."""

from __future__ import annotations

import math
from collections.abc import Iterable


def percentile(values: Iterable[float | None], percent: float) -> float | None:
    """Percentile by linear interpolation between order statistics.

    With n sorted values, position (n - 1) * percent / 100 is interpolated between its neighbours:
    definition 7 of Hyndman and Fan, numpy's default and the issue's. Nulls are left out; with no
    value left the result is None. Raises ValueError for a percent outside [0, 100] or a NaN.
    """
    if not 0 <= percent <= 100:
        raise ValueError(f"percent must be within [0, 100], got {percent}")
    ordered = sorted(value for value in values if value is not None)
    if any(math.isnan(value) for value in ordered):
        raise ValueError("a NaN is not a measurement; use None")
    if not ordered:
        return None
    position = (len(ordered) - 1) * percent / 100
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    share = position - below
    return ordered[below] + (ordered[above] - ordered[below]) * share


def mean(values: Iterable[float | None]) -> float | None:
    """Arithmetic mean of the values that are not null; None when there is none."""
    present = [value for value in values if value is not None]
    return math.fsum(present) / len(present) if present else None

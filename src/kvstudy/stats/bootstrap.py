"""Hierarchical bootstrap: repeats first, then requests within each drawn repeat.

With two repeats the interval is wide where repeats differ and honest about little else; with one
repeat there is none (`None`): nothing about repeat-to-repeat change can be learnt from it.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from kvstudy.stats.data import Reals

DRAWS = 1000
LEVEL = 0.95

Statistic = Callable[[Reals], Reals]
"""From a (draws, requests) array to one value per draw."""


@dataclass(frozen=True, slots=True)
class Interval:
    """Ends of a two-sided percentile interval."""

    low: float
    high: float


def rng_for(seed: int, *names: str) -> np.random.Generator:
    """One generator per named purpose: drawing for one never moves another."""
    return np.random.default_rng([seed, *(zlib.crc32(name.encode()) for name in names)])


def quantile(q: float) -> Statistic:
    """Percentile `q` (0 to 100) with linear interpolation."""
    return lambda draws: np.asarray(np.percentile(draws, q, axis=1))


def mean() -> Statistic:
    """Mean."""
    return lambda draws: draws.mean(axis=1)


def largest() -> Statistic:
    """Maximum."""
    return lambda draws: draws.max(axis=1)


def resample(
    repeats: Sequence[Reals],
    picks: np.ndarray,
    statistic: Statistic,
    rng: np.random.Generator,
) -> Reals:
    """Mean over drawn repeats of the statistic of drawn requests, one per draw.

    `picks` is (draws, repeats): which repeat stands in each place of each draw.
    """
    values = np.empty(picks.shape)
    for repeat, requests in enumerate(repeats):
        chosen = picks == repeat
        count = int(chosen.sum())
        if count:
            at = rng.integers(0, len(requests), (count, len(requests)))
            values[chosen] = statistic(requests[at])
    return np.asarray(values.mean(axis=1))


def ratio_interval(
    treatment: Sequence[Reals],
    baseline: Sequence[Reals],
    statistic: Statistic,
    rng: np.random.Generator,
    *,
    paired: bool,
    draws: int = DRAWS,
) -> Interval | None:
    """Interval of statistic(treatment) / statistic(baseline); None below two repeats a side.

    `paired`: repeat i of both sides ran in one allocation, so both are drawn together.
    """
    if min(len(treatment), len(baseline)) < 2 or any(
        not len(values) for values in (*treatment, *baseline)
    ):
        return None
    tops = rng.integers(0, len(treatment), (draws, len(treatment)))
    together = paired and len(treatment) == len(baseline)
    bottoms = tops if together else rng.integers(0, len(baseline), (draws, len(baseline)))
    top = resample(treatment, tops, statistic, rng)
    bottom = resample(baseline, bottoms, statistic, rng)
    if not np.all(bottom > 0):
        return None
    tail = 50 * (1 - LEVEL)
    low, high = np.percentile(top / bottom, [tail, 100 - tail])
    return Interval(float(low), float(high))

"""Fitting the step-time constants: least squares on weighted log ratios, and what it can tell.

    minimise sum over rows and metrics of (w * ln(predicted / observed))^2, constants >= 0

A constant's range is its profile: the values at which refitting all others costs no more than one
standard deviation of the data. A constant whose range includes 0, or spans a factor of `WIDE`, is
not separable from the others by these rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from kvstudy.base.errors import UsageError
from kvstudy.explain.basis import CONSTANTS, Basis, basis_of, step_time_of, values_of
from kvstudy.explain.evidence import LEAST_SPREAD
from kvstudy.explain.targets import WEIGHTS, Target
from kvstudy.sim.timing import PUBLISHED_FIT, StepTime

Reals = NDArray[np.float64]

WIDE = 3.0
_MOST = 50.0
_BISECTIONS = 10


@dataclass(frozen=True, slots=True)
class Range:
    """One constant: its value, the profile's ends, and whether the rows determine it."""

    name: str
    value: float
    low: float
    high: float | None
    separable: bool


@dataclass(frozen=True, slots=True)
class Direction:
    """One combination of constants: how strongly the rows determine it, and its parts."""

    strength: float
    parts: Mapping[str, float]


@dataclass(frozen=True)
class Fit:
    """The constants, what is known about each, and the ends of all profiles."""

    step_time: StepTime
    ranges: Sequence[Range]
    directions: Sequence[Direction]
    noise: float
    cost: float
    count: int
    extremes: Sequence[Reals]

    @property
    def not_separable(self) -> list[str]:
        """Constants that these rows cannot tell from the others."""
        return [r.name for r in self.ranges if not r.separable]


class Problem:
    """Rows, their bases and weights; residuals are in shares of the starting constants."""

    def __init__(self, targets: Sequence[Target], start: StepTime = PUBLISHED_FIT) -> None:
        if not targets:
            raise UsageError("nothing to fit: no row matches; give --fit a pattern that does")
        self.unit = values_of(start)
        self.bases: list[tuple[Basis, Mapping[str, float]]] = [
            (basis_of(t.scenario, t.policy, t.pause, start), t.observed) for t in targets
        ]
        self.count = sum(len(t.observed) for t in targets)
        if self.count < 2:
            raise UsageError("nothing to fit: at least two observed numbers are needed")

    def residuals(self, shares: Reals) -> Reals:
        """Weighted log ratios for constants `shares` x start."""
        found = []
        for basis, observed in self.bases:
            metrics = basis.metrics(np.maximum(shares, 1e-12) * self.unit)
            found += [
                WEIGHTS.get(name, 1.0) * np.log(metrics[name] / value)
                for name, value in observed.items()
            ]
        return np.array(found)

    def solve(self, start: Reals, fixed: tuple[int, float] | None = None) -> tuple[Reals, float]:
        """(best shares, sum of squares), with one constant held if `fixed`."""
        free = [i for i in range(len(CONSTANTS)) if fixed is None or i != fixed[0]]
        whole = start.copy()
        if fixed is not None:
            whole[fixed[0]] = fixed[1]

        def part(values: Reals) -> Reals:
            shares = whole.copy()
            shares[free] = values
            return self.residuals(shares)

        first = np.clip(whole[free], 1e-6, _MOST / 2)
        done = least_squares(part, first, bounds=(0.0, _MOST), xtol=1e-8, ftol=1e-8, gtol=1e-8)
        best = whole.copy()
        best[free] = done.x
        return best, float(2 * done.cost)


def fit(targets: Sequence[Target], start: StepTime = PUBLISHED_FIT) -> Fit:
    """Fit all five constants to the rows."""
    problem = Problem(targets, start)
    starts = [np.ones(len(CONSTANTS)), np.array([1.2, 0.1, 0.8, 1.0, 2.0])]
    best, cost = min((problem.solve(s) for s in starts), key=lambda found: found[1])
    freedom = max(1, problem.count - len(CONSTANTS))
    noise = max(LEAST_SPREAD, float(np.sqrt(cost / freedom)))
    ranges, extremes = [], []
    for index, name in enumerate(CONSTANTS):
        low, high = (_end(problem, best, index, cost + noise**2, up=up) for up in (False, True))
        extremes += [low, high]
        ranges.append(_range(name, best, low, high, index, problem.unit))
    return Fit(
        step_time=step_time_of(best * problem.unit),
        ranges=ranges,
        directions=_directions(problem, best),
        noise=noise,
        cost=cost,
        count=problem.count,
        extremes=[shares * problem.unit for shares in extremes],
    )


def _range(name: str, best: Reals, low: Reals, high: Reals, index: int, unit: Reals) -> Range:
    size = unit[index]
    bounded = high[index] < _MOST * 0.999
    separable = bool(bounded and low[index] > 1e-3 and high[index] / low[index] <= WIDE)
    return Range(
        name,
        float(best[index] * size),
        float(low[index] * size) if low[index] > 1e-3 else 0.0,
        float(high[index] * size) if bounded else None,
        separable,
    )


def _end(problem: Problem, best: Reals, index: int, limit: float, *, up: bool) -> Reals:
    """The shares at one end of a constant's profile."""
    inside, outside = best[index], _MOST if up else 0.0
    at = best
    shares, cost = problem.solve(best, (index, outside))
    if cost <= limit:
        return shares
    for _ in range(_BISECTIONS):
        middle = (inside + outside) / 2
        if inside > 1e-6 and outside > 1e-6:
            middle = float(np.sqrt(inside * outside))
        shares, cost = problem.solve(at, (index, middle))
        if cost <= limit:
            inside, at = middle, shares
        else:
            outside = middle
    return at


def _directions(problem: Problem, best: Reals) -> list[Direction]:
    """Singular directions of the Jacobian by shares of the start, the weakest last."""
    step = 1e-4
    columns = []
    for index in range(len(CONSTANTS)):
        moved = best.copy()
        moved[index] += step
        columns.append((problem.residuals(moved) - problem.residuals(best)) / step)
    _, strengths, parts = np.linalg.svd(np.array(columns).T, full_matrices=False)
    strengths = np.pad(strengths, (0, len(CONSTANTS) - len(strengths)))
    return [
        Direction(
            float(strength),
            {name: float(v) for name, v in zip(CONSTANTS, row, strict=True) if abs(v) >= 0.1},
        )
        for strength, row in zip(strengths, parts, strict=False)
    ]

"""The null contrast: halves of one arm's own requests, which differ by chance alone.

The requests of each repeat are split at random into two sides, and the interval that the report
gives for a contrast is taken between them. At its stated level it may leave out 1 in one split of
twenty. If it does so much more often, the intervals of these results promise too much.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import comb

import numpy as np

from kvstudy.stats import bootstrap
from kvstudy.stats.data import Data, Reals, Row

SPLITS, DRAWS, LEAST = 40, 200, 20
_SURE = 1e-4
_METRICS = (
    ("ttft_p50_ms", "ttft_ns", 50),
    ("tpot_p50_ms", "tpot_ns", 50),
    ("tpot_p99_ms", "tpot_ns", 99),
    ("e2e_p99_s", "e2e_ns", 99),
)


@dataclass(frozen=True, slots=True)
class Rate:
    """How often halves of one arm seemed to differ in one metric."""

    arm: str
    metric: str
    different: int
    splits: int

    @property
    def too_often(self) -> bool:
        """Whether chance explains the count with a probability below one in ten thousand."""
        return tail(self.different, self.splits, 1 - bootstrap.LEVEL) < _SURE


def tail(hits: int, trials: int, rate: float) -> float:
    """Probability of at least `hits` in `trials` independent trials."""
    below = sum(comb(trials, k) * rate**k * (1 - rate) ** (trials - k) for k in range(hits))
    return max(0.0, 1 - below)


def null_rates(data: Data, seed: int) -> list[Rate]:
    """One rate per arm and metric; arms with one repeat or few requests have no interval."""
    rates = []
    groups: dict[tuple[str, ...], list[Row]] = {}
    for row in data.cells:
        if row["source"] != "predicted" and row["valid"]:
            key = (row["source"], f"{row['workload']}.c{row['concurrency']}.{row['engine']}",
                   row["arm"])  # fmt: skip
            groups.setdefault(key, []).append(row)
    for (source, group, arm), rows in groups.items():
        for metric, column, percent in _METRICS:
            repeats = [_known(data.of(row, column)) for row in rows]
            if len(repeats) < 2 or min(map(len, repeats)) < 2 * LEAST:
                continue
            rng = bootstrap.rng_for(seed, "null", source, group, arm, metric)
            different = sum(
                _differs(repeats, bootstrap.quantile(percent), rng) for _ in range(SPLITS)
            )
            rates.append(Rate(f"{group}.{arm}", metric, different, SPLITS))
    return rates


def _known(values: Reals) -> Reals:
    return np.asarray(values[~np.isnan(values)])


def _differs(
    repeats: Sequence[Reals], statistic: bootstrap.Statistic, rng: np.random.Generator
) -> bool:
    """Whether the interval between two random halves leaves out 1."""
    sides: tuple[list[Reals], list[Reals]] = ([], [])
    for values in repeats:
        order, half = rng.permutation(len(values)), len(values) // 2
        sides[0].append(values[order[:half]])
        sides[1].append(values[order[half : 2 * half]])
    found = bootstrap.ratio_interval(*sides, statistic, rng, paired=True, draws=DRAWS)
    return found is not None and not found.low <= 1 <= found.high

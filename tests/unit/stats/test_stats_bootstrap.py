"""The hierarchical bootstrap against scipy and against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest
from scipy import stats

from kvstudy.stats import bootstrap


def interval(top, bottom, statistic, *, paired=False, draws=4000):
    found = bootstrap.ratio_interval(
        top, bottom, statistic, bootstrap.rng_for(1, "test"), paired=paired, draws=draws
    )
    assert found is not None
    return found


def test_with_constant_requests_it_is_scipys_bootstrap_over_repeats() -> None:
    """When requests of a repeat are all equal, only the level of repeats is left."""
    means = np.array([9.0, 10.0, 11.0, 12.0, 10.5, 9.5, 11.5, 10.2])
    repeats = [np.full(20, value) for value in means]
    ours = interval(repeats, [np.ones(5), np.ones(5)], bootstrap.mean())
    theirs = stats.bootstrap(
        (means,), np.mean, n_resamples=4000, method="percentile", rng=np.random.default_rng(3)
    ).confidence_interval
    assert ours.low == pytest.approx(theirs.low, abs=0.05)
    assert ours.high == pytest.approx(theirs.high, abs=0.05)


def test_it_agrees_with_a_plain_loop_over_repeats_and_requests() -> None:
    rng = np.random.default_rng(5)
    top = [rng.gamma(3, 2, 60) + shift for shift in (0.0, 0.4)]
    bottom = [rng.gamma(3, 1, 60) for _ in range(2)]

    def one_side(sides) -> float:
        picked = [sides[rng.integers(0, 2)] for _ in range(2)]
        return float(np.mean([np.percentile(rng.choice(p, len(p)), 90) for p in picked]))

    loop = [one_side(top) / one_side(bottom) for _ in range(4000)]
    low, high = np.percentile(loop, [2.5, 97.5])
    ours = interval(top, bottom, bootstrap.quantile(90))
    assert ours.low == pytest.approx(low, rel=0.03)
    assert ours.high == pytest.approx(high, rel=0.03)


def test_pairing_draws_the_same_repeats_so_a_common_drift_cancels() -> None:
    drift = [np.full(10, 1.0), np.full(10, 3.0)]
    double = [2 * values for values in drift]
    paired = interval(double, drift, bootstrap.mean(), paired=True)
    free = interval(double, drift, bootstrap.mean())
    assert (paired.low, paired.high) == (2.0, 2.0)
    assert free.low < 2.0 < free.high


def test_one_repeat_has_no_interval() -> None:
    one, two = [np.ones(5)], [np.ones(5), np.ones(5)]
    for top, bottom in ((one, two), (two, one), ([np.ones(5), np.empty(0)], two)):
        found = bootstrap.ratio_interval(
            top, bottom, bootstrap.mean(), bootstrap.rng_for(1), paired=False
        )
        assert found is None


def test_the_same_seed_gives_the_same_interval_and_names_part_streams() -> None:
    values = [np.arange(1.0, 30.0), np.arange(2.0, 31.0)]
    runs = [interval(values, values, bootstrap.quantile(50)) for _ in range(2)]
    assert runs[0] == runs[1]
    assert bootstrap.rng_for(1, "a").random() != bootstrap.rng_for(1, "b").random()


def test_the_largest_and_the_mean_are_per_draw() -> None:
    draws = np.array([[1.0, 2.0, 6.0], [4.0, 4.0, 4.0]])
    assert bootstrap.largest()(draws).tolist() == [6.0, 4.0]
    assert bootstrap.mean()(draws).tolist() == [3.0, 4.0]

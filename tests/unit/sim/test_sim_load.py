"""Who joins when."""

from __future__ import annotations

import numpy as np
import pytest

from kvstudy.sim.load import AdmissionLag, constant_arrivals_ns, poisson_arrivals_ns
from kvstudy.sim.replay import simulate_rows, simulate_steps

S = 1_000_000_000


def test_a_successor_joins_lag_plus_one_steps_after_the_end() -> None:
    """Step 4 ends two requests, step 5 one; lag 2."""
    lag: AdmissionLag[str] = AdmissionLag(2)
    for step, name in ((4, "a"), (4, "b"), (5, "c")):
        lag.ended(step, name)
    assert (lag.next_due_step, len(lag)) == (7, 3)
    assert [lag.due_count(step) for step in (6, 7, 8)] == [0, 2, 3]
    assert lag.take_due(6) == []
    assert lag.take_due(7) == ["a", "b"]
    assert lag.take_all() == ["c"]
    assert (lag.next_due_step, len(lag)) == (None, 0)


def test_the_lag_refuses_what_cannot_be() -> None:
    """A negative lag, and steps reported out of order."""
    with pytest.raises(ValueError, match="lag_steps"):
        AdmissionLag(-1)
    lag: AdmissionLag[None] = AdmissionLag(0)
    lag.ended(5, None)
    with pytest.raises(ValueError, match="step 4"):
        lag.ended(4, None)


def test_constant_arrivals_are_evenly_spaced() -> None:
    """4 a second: every 250 ms from 0 on."""
    assert constant_arrivals_ns(3, 4.0) == [0, 250_000_000, 500_000_000]


def test_poisson_arrivals_are_seeded_and_have_the_rate() -> None:
    """10,000 gaps of mean 0.5 s; the standard error of the mean is 1 %."""
    times = poisson_arrivals_ns(10_000, 2.0, seed=7)
    assert times == poisson_arrivals_ns(10_000, 2.0, seed=7)
    assert times != poisson_arrivals_ns(10_000, 2.0, seed=8)
    gaps_s = np.diff([0, *times]) / S
    assert gaps_s.min() >= 0
    assert gaps_s.mean() == pytest.approx(0.5, rel=0.04)
    assert gaps_s.std() == pytest.approx(0.5, rel=0.06)


def open_loop(times_s: list[float]) -> dict[str, object]:
    return {
        "policy": "guaranteed_no_evict",
        "pool_tokens": 400,
        "block_tokens": 4,
        "arrivals": {"trace_s": times_s},
        "requests": {"count": len(times_s), "input_tokens": 4, "output_tokens": 2},
        "step_time": {"fixed_s": 1.0},
    }


def test_an_arrival_joins_the_first_step_that_starts_at_or_after_it() -> None:
    """Arrivals at 0, 0.5, 1 and 9.5 s: steps start at 0 and 1 s; idle from 3 to 9.5 s."""
    spec = open_loop([0.0, 0.5, 1.0, 9.5])
    rows = simulate_rows(spec)
    assert [row["submitted_ns"] for row in rows] == [0, S // 2, S, 19 * S // 2]
    assert [row["first_token_ns"] for row in rows] == [S, 2 * S, 2 * S, 21 * S // 2]
    assert [row["ttft_ns"] for row in rows] == [S, 3 * S // 2, S, S]
    assert {row["lane"] for row in rows} == {None}
    ends = [row["t_ns"] for row in simulate_steps(spec)]
    assert ends == [S, 2 * S, 3 * S, 21 * S // 2, 23 * S // 2]

"""The small parts: the pool, the cost model, the percentiles, a request's own numbers."""

from __future__ import annotations

import json
from itertools import pairwise

import numpy as np
import pytest

from kvstudy.base.units import ns_to_ms
from kvstudy.sim.kv_pool import KvPool
from kvstudy.sim.replay import simulate, simulate_rows
from kvstudy.sim.request import SimRequest, blocks_of
from kvstudy.sim.result import percentile
from kvstudy.sim.timing import PUBLISHED_FIT, StepTime


def test_the_pool_refuses_to_lose_or_invent_blocks() -> None:
    """Free and held blocks stay 4 in all."""
    pool = KvPool(4)
    pool.take(3)
    assert (pool.free_blocks, pool.held_blocks, pool.peak_blocks) == (1, 3, 3)
    for bad in (2, -1):
        with pytest.raises(ValueError, match="free=1, held=3, total=4"):
            pool.take(bad)
    with pytest.raises(ValueError, match="give back 4"):
        pool.give_back(4)
    pool.give_back(3)
    assert (pool.free_blocks, pool.held_blocks, pool.peak_blocks) == (4, 0, 3)


def test_blocks_round_up() -> None:
    """W-C: 16,384 tokens are 512 blocks, 16,896 are 528."""
    assert [blocks_of(n, 32) for n in (0, 1, 32, 33, 16384, 16896)] == [0, 1, 1, 2, 512, 528]


def test_a_generating_step_costs_what_the_published_constants_say() -> None:
    """22 requests at 16,500 tokens: 18.78 + 0.165 + 0.0000323 x 363,000 = 30.6699 ms."""
    assert PUBLISHED_FIT.step_ns(22, 22 * 16500) == 30_669_900


def test_runs_of_steps_equal_single_steps_to_the_nanosecond() -> None:
    """The vector and the scalar path do the same operations in the same order."""
    rng = np.random.default_rng(16827)
    for _ in range(200):
        a, b, c = rng.random(3) * [1e-1, 1e-5, 1e-7]
        step_time = StepTime(float(a), float(b), float(c))
        generating, kv_tokens = int(rng.integers(1, 300)), int(rng.integers(1, 5_000_000))
        lengths = step_time.decode_run_ns(generating, kv_tokens, 50).tolist()
        assert lengths == [
            step_time.step_ns(generating, kv_tokens + generating * i) for i in range(50)
        ]
        assert all(x <= y for x, y in pairwise(lengths))


def test_a_run_that_could_overflow_is_not_offered() -> None:
    """An hour a token: the step-by-step path has Python's integers."""
    assert len(StepTime(3600.0, 0.0, 3600.0).decode_run_ns(10, 10**6, 10**6)) == 0


def test_huge_step_times_are_exact() -> None:
    """8 steps of about 3,600 s per kv token."""
    out = simulate(
        {
            "policy": "guaranteed_no_evict",
            "pool_tokens": 1 << 30,
            "concurrency": 1,
            "requests": {"input_tokens": 1 << 24, "output_tokens": 4},
            "max_num_tokens": 1 << 25,
            "step_time": {"fixed_s": 0.0, "per_generation_context_token_s": 3600.0},
        }
    )
    assert out["wall_s"] == 3600.0 * (3 * (1 << 24) + 3)


def test_percentiles_interpolate_and_nothing_has_none() -> None:
    """Between 1 and 2 ms."""
    assert percentile([1e6, 2e6], 50, ns_to_ms) == 1.5
    assert percentile([], 50, ns_to_ms) is None


def test_a_request_knows_nothing_before_it_happens() -> None:
    """Undefined is None."""
    request = SimRequest("a", 4, 2, 8, submitted_ns=5)
    assert (request.ttft_ns, request.tpot_ns, request.e2e_ns) == (None, None, None)
    assert "waiting" in repr(request)
    assert "output_tokens" not in repr(request)


def test_one_token_outputs_have_no_time_per_output_token() -> None:
    """Null, not 0; and no wall time means no throughput."""
    spec = {
        "policy": "guaranteed_no_evict",
        "pool_tokens": 640,
        "concurrency": 2,
        "requests": {"count": 3, "input_tokens": 8, "output_tokens": 1},
        "step_time": {"fixed_s": 0.0},
    }
    out = simulate(spec)
    assert (out["tpot_p50_ms"], out["max_gap_ms"], out["output_tok_per_s"]) == (None, None, None)
    assert (out["ttft_p50_ms"], out["e2e_p99_s"], out["wall_s"]) == (0.0, 0.0, 0.0)
    json.dumps([out, simulate_rows(spec)], allow_nan=False)

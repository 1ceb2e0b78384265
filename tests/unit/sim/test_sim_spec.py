"""A wrong spec is one clear error that names the key; a right one says what it means."""

from __future__ import annotations

import math
from typing import Any

import pytest

from kvstudy.base.errors import EXIT_USAGE, SpecError
from kvstudy.sim.model import ChunkPolicy, Pause, Policy
from kvstudy.sim.spec import parse, parse_engine
from kvstudy.sim.timing import PUBLISHED_FIT


def good(**changes: Any) -> dict[str, Any]:
    return {
        "policy": "max_utilization",
        "pool_tokens": 368640,
        "concurrency": 32,
        "requests": [{"count": 2, "input_tokens": 100, "output_tokens": 10}],
        **changes,
    }


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in good().items() if name != key}


def test_defaults_are_those_of_the_study() -> None:
    """Only policy, pool, concurrency and requests are required."""
    spec = parse(good())
    engine = spec.engine
    assert (engine.policy, engine.pool_blocks, engine.block_tokens) == (
        Policy.MAX_UTILIZATION,
        11520,
        32,
    )
    assert (engine.max_batch_size, engine.max_num_tokens, engine.chunked_prefill) == (
        64,
        8192,
        True,
    )
    assert (engine.pause, engine.chunk_policy, engine.chunk_unit) == (Pause(), ChunkPolicy.FCFS, 32)
    assert engine.step_time == PUBLISHED_FIT
    assert (spec.concurrency, spec.admission_lag_steps, spec.arrivals_ns) == (32, 2, None)
    assert [shape.output_cap_tokens for shape in spec.requests] == [10, 10]


def test_a_single_object_stands_for_equal_requests() -> None:
    """`requests` may be one {count, ...}."""
    single = {"count": 3, "input_tokens": 1, "output_tokens": 1, "output_cap_tokens": 4}
    assert len(parse(good(requests=single)).requests) == 3


def test_a_part_of_a_block_is_not_used() -> None:
    """floor(1000 / 32) = 31."""
    assert parse_engine({"policy": "static_batch", "pool_tokens": 1000}).pool_blocks == 31


def test_an_absent_term_of_the_step_time_is_zero() -> None:
    """A model with a fixed cost only."""
    step_time = parse(good(step_time={"fixed_s": 2})).engine.step_time
    assert (step_time.fixed_s, step_time.per_context_token_s) == (2.0, 0.0)


def test_knobs_keep_their_types() -> None:
    """Flags, counts and numbers of the two other engines."""
    engine = parse(
        good(
            policy="sglang_retract",
            sglang={"mixed_chunk": True, "clip_tokens": 100, "conservativeness": 0.5},
            vllm={"watermark": 0.01, "null_block": False},
        )
    ).engine
    assert (engine.sglang.mixed_chunk, engine.sglang.clip_tokens) == (True, 100)
    assert engine.sglang.initial_ratio == pytest.approx(0.35)
    assert (engine.vllm.watermark, engine.vllm.null_block) == (0.01, False)


def request(**changes: Any) -> dict[str, Any]:
    return good(requests=[{"input_tokens": 100, "output_tokens": 10, **changes}])


BAD = [
    ([], "spec: expected an object"),
    (good(policy_="x"), "policy_: unknown key; did you mean policy?"),
    (without("policy"), "policy: missing"),
    (without("requests"), "requests: missing"),
    (without("concurrency"), "concurrency: missing"),
    (good(policy="max_util"), "policy: expected one of guaranteed_no_evict"),
    (good(policy=None), "policy: expected one of"),
    (good(pause="forget"), "pause: expected"),
    (good(pause={"truncate_to_tokens": 0}), "pause.truncate_to_tokens: expected a whole number"),
    (good(pause={"truncate": 5}), "pause.truncate: unknown key"),
    (good(policy="vllm_recompute", pause="never_release"), "pause: expected"),
    (good(pool_tokens=-1), "pool_tokens: expected a whole number >= 1, got -1"),
    (good(pool_tokens=31), "pool_tokens: expected at least one block"),
    (good(pool_tokens=96), "pool_tokens: the pool has 3 usable blocks"),
    (good(pool_tokens=1e6), "pool_tokens: expected a whole number"),
    (good(pool_tokens="368640"), "pool_tokens: expected a whole number"),
    (good(block_tokens=0), "block_tokens: expected a whole number >= 1"),
    (good(max_batch_size=True), "max_batch_size: expected a whole number"),
    (good(max_num_tokens=None), "max_num_tokens: expected a whole number"),
    (good(chunked_prefill=1), "chunked_prefill: expected true or false"),
    (good(chunked_prefill=False, max_num_tokens=99), "max_num_tokens: expected at least 100"),
    (good(chunk_policy="round"), "chunk_policy: expected one of fcfs, equal_progress"),
    (good(concurrency=0), "concurrency: expected a whole number >= 1"),
    (good(admission_lag_steps=-1), "admission_lag_steps: expected a whole number >= 0"),
    (good(requests=[]), "requests: expected a list of at least one"),
    (good(requests=[None]), "requests[0]: expected an object"),
    (request(input_tokens=0), "requests[0].input_tokens: expected a whole number >= 1"),
    (request(output_tokens=-3), "requests[0].output_tokens: expected"),
    (request(output_cap_tokens=9), "requests[0].output_cap_tokens: expected at least output"),
    (request(count=0), "requests[0].count: expected a whole number >= 1"),
    (request(count=10**12), "requests[0].count: expected a whole number >= 1 and <= 5000000"),
    (request(cap=9), "requests[0].cap: unknown key"),
    (good(step_time={"fixed_s": -1.0}), "step_time.fixed_s: expected a finite number"),
    (good(step_time={"fixed_s": math.nan}), "step_time.fixed_s: expected a finite number"),
    (good(step_time={"fixed_s": math.inf}), "step_time.fixed_s: expected a finite number"),
    (good(step_time={"fixed_s": "1"}), "step_time.fixed_s: expected a number"),
    (good(step_time={"fixed": 1}), "step_time.fixed: unknown key; did you mean fixed_s?"),
    (good(step_time=[1]), "step_time: expected an object"),
    (good(vllm={"watermark": -0.1}), "vllm.watermark: expected a finite number"),
    (good(seed=0.5), "seed: expected a whole number"),
    (good(arrivals={}), "arrivals: expected exactly one of"),
    (good(arrivals={"poisson_per_s": 0}), "arrivals.poisson_per_s: expected"),
    (good(arrivals={"constant_per_s": math.inf}), "arrivals.constant_per_s: expected"),
    (good(arrivals={"constant_per_s": 1, "poisson_per_s": 1}), "arrivals: expected exactly one"),
    (good(arrivals={"trace_s": [0.0]}), "arrivals.trace_s: expected 2 times, one per request"),
    (good(arrivals={"trace_s": [0.0, None]}), "arrivals.trace_s[1]: expected a number"),
    (good(arrivals={"trace_s": [1.0, math.nan]}), "arrivals.trace_s[1]: expected a finite"),
    (good(arrivals={"trace_s": [2.0, 1.0]}), "arrivals.trace_s[1]: expected at least 2.0"),
    (good(arrivals={"trace_s": "0,1"}), "arrivals.trace_s: expected 2 times"),
]


@pytest.mark.parametrize(("document", "message"), BAD, ids=[message for _, message in BAD])
def test_a_wrong_spec_names_the_key(document: Any, message: str) -> None:
    """One error, one line, exit 64."""
    with pytest.raises(SpecError) as caught:
        parse(document)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)
    assert caught.value.exit_code == EXIT_USAGE


def test_an_open_loop_needs_no_concurrency() -> None:
    """Lanes are not used there."""
    document = {**without("concurrency"), "arrivals": {"constant_per_s": 2.0}}
    assert parse(document).arrivals_ns == [0, 500_000_000]

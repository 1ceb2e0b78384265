"""Each policy as the pure function it is, on states small enough to work out by hand."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest

from kvstudy.sim import policy
from kvstudy.sim.model import EngineSpec, Pause, Policy, SglangOptions, VllmOptions
from kvstudy.sim.policy import Situation


@dataclass
class Seen:
    """All that a policy may see of a request: it has no true output length to give away."""

    name: str
    input_tokens: int = 8
    output_cap_tokens: int = 8
    context_tokens: int = 8
    computed_tokens: int = 0
    kv_tokens: int = 0
    held_blocks: int = 0
    streamed: int = 0
    is_started: bool = False
    is_generating: bool = False


def waiting(name: str, **changes: Any) -> Seen:
    return Seen(name, **changes)


def generating(name: str, kv_tokens: int = 8, **changes: Any) -> Seen:
    """Holds exactly the blocks of its kv tokens (4 a block); has streamed kv - 7 tokens."""
    values: dict[str, Any] = {
        "computed_tokens": 8,
        "kv_tokens": kv_tokens,
        "held_blocks": -(-kv_tokens // 4),
        "streamed": kv_tokens - 7,
        "is_started": True,
        "is_generating": True,
    }
    return Seen(name, **{**values, **changes})


def half_way(name: str) -> Seen:
    """In the middle of a prompt of 8 tokens, 4 of them computed, both blocks held."""
    return Seen(name, computed_tokens=4, held_blocks=2, is_started=True)


def spec_of(which: Policy, **changes: Any) -> EngineSpec:
    values: dict[str, Any] = {
        "policy": which,
        "pool_blocks": 100,
        "block_tokens": 4,
        "max_batch_size": 8,
        "max_num_tokens": 64,
        **changes,
    }
    return EngineSpec(**values)


def plan_of(which: Policy, queue: list[Seen], free_blocks: int, **changes: Any) -> Any:
    ratio = changes.pop("new_token_ratio", 1.0)
    spec = spec_of(which, **changes)
    scheduler: Any = policy.SCHEDULERS[which]
    now = Situation(free_blocks, sum(r.is_started for r in queue), ratio)
    return scheduler(queue, spec, now)


def names(requests: list[Seen]) -> str:
    return "".join(r.name for r in requests)


def chunked(plan: Any) -> dict[str, int]:
    return {c.request.name: c.tokens for c in plan.chunks}


# --- guaranteed_no_evict ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("free_blocks", "admitted"), [(5, {}), (6, {"b": 8}), (10, {"b": 8, "c": 8})]
)
def test_reserving_counts_what_running_requests_may_still_take(
    free_blocks: int, admitted: dict[str, int]
) -> None:
    """Request a holds 2 of blocks(8 + 8) = 4: 2 of the free are spoken for; b and c need 4 each."""
    queue = [generating("a"), waiting("b"), waiting("c")]
    plan = plan_of(Policy.GUARANTEED_NO_EVICT, queue, free_blocks)
    assert (names(plan.generation), chunked(plan), plan.paused) == ("a", admitted, [])


def test_reserving_does_not_skip_one_that_does_not_fit() -> None:
    """Request b needs 10 blocks of 9; c behind it would need only 4."""
    queue = [waiting("b", output_cap_tokens=32), waiting("c")]
    plan = plan_of(Policy.GUARANTEED_NO_EVICT, queue, 9)
    assert plan.chunks == []


def test_started_prompts_are_always_scheduled() -> None:
    """No block free, no seat left: the prompt that has begun goes on."""
    queue = [half_way("a"), waiting("b")]
    plan = plan_of(Policy.GUARANTEED_NO_EVICT, queue, 2, max_batch_size=1)
    assert chunked(plan) == {"a": 4}


# --- static_batch -----------------------------------------------------------------------------


def test_static_batch_looks_at_prompts_only_while_nothing_generates() -> None:
    """With a generating, not even the prompt that has begun goes on."""
    assert chunked(plan_of(Policy.STATIC_BATCH, [half_way("b"), waiting("c")], 50)) == {
        "b": 4,
        "c": 8,
    }
    plan = plan_of(Policy.STATIC_BATCH, [generating("a"), half_way("b"), waiting("c")], 50)
    assert (names(plan.generation), plan.chunks) == ("a", [])


# --- max_utilization --------------------------------------------------------------------------


def test_needs_of_one_step() -> None:
    """Whole context for a first chunk without a token of reserve, 0 later, growth by blocks."""
    assert policy.step_need(waiting("a"), 4) == 2
    assert policy.step_need(half_way("a"), 4) == 0
    assert policy.step_need(generating("a", 8), 4) == 1
    assert policy.step_need(generating("a", 9), 4) == 0
    assert policy.step_need(waiting("a", held_blocks=2, context_tokens=9), 4) == 1


def test_the_last_started_is_paused_and_the_list_is_cut_there() -> None:
    """Request a lacks a block: c goes (d has not started), its 2 are free; d is out this step."""
    queue = [generating("a"), generating("b", 9), generating("c"), waiting("d")]
    plan = plan_of(Policy.MAX_UTILIZATION, queue, 0)
    assert (names(plan.paused), names(plan.generation), plan.chunks) == ("c", "ab", [])


def test_a_request_can_be_its_own_victim() -> None:
    """Request b is the last started and does not fit itself."""
    plan = plan_of(Policy.MAX_UTILIZATION, [generating("a"), generating("b")], 1)
    assert (names(plan.generation), names(plan.paused)) == ("a", "b")


def test_an_earlier_waiting_request_pushes_out_later_started_ones() -> None:
    """a, paused before, needs 4 blocks of 1; pausing c and b (3 + 2) makes room."""
    queue = [waiting("a", context_tokens=16), generating("b"), generating("c", 9)]
    plan = plan_of(Policy.MAX_UTILIZATION, queue, 1)
    assert (names(plan.paused), chunked(plan), plan.generation) == ("c" + "b", {"a": 16}, [])


def test_one_victim_is_enough_where_it_makes_room() -> None:
    """Request c's 3 blocks and the free one make room for a's 4; b stays."""
    queue = [waiting("a", context_tokens=16), generating("b", 9), generating("c", 9)]
    plan = plan_of(Policy.MAX_UTILIZATION, queue, 1)
    assert (names(plan.paused), names(plan.generation), chunked(plan)) == ("c", "b", {"a": 16})


def test_a_full_batch_pauses_as_missing_blocks_do() -> None:
    """Two seats, blocks in plenty: a (waiting) and b take them, c is started and goes."""
    queue = [waiting("a"), generating("b"), generating("c")]
    plan = plan_of(Policy.MAX_UTILIZATION, queue, 50, max_batch_size=2)
    assert (names(plan.paused), names(plan.generation), chunked(plan)) == ("c", "b", {"a": 8})


def test_pausing_without_release_makes_no_room() -> None:
    """Everyone from the back on is paused in vain."""
    queue = [generating("a", 9), generating("b"), generating("c", 9)]
    plan = plan_of(Policy.MAX_UTILIZATION, queue, 0, pause=Pause(never_release=True))
    assert (names(plan.paused), names(plan.generation)) == ("cb", "a")


def test_generating_requests_take_the_budget_first() -> None:
    """64 tokens: 2 generate, 62 are left for the prompt before them in the list."""
    queue = [waiting("a", context_tokens=100), generating("b"), generating("c")]
    plan = plan_of(Policy.MAX_UTILIZATION, queue, 50)
    assert chunked(plan) == {"a": 60}


# --- vllm_recompute ---------------------------------------------------------------------------


def vllm(queue: list[Seen], free_blocks: int, **changes: Any) -> Any:
    return plan_of(Policy.VLLM_RECOMPUTE, queue, free_blocks, **changes)


def test_vllm_admits_nobody_in_a_step_that_preempts() -> None:
    """Request b goes for a's growth; c would fit into what b leaves."""
    queue = [generating("a"), generating("b"), waiting("c", context_tokens=4)]
    plan = vllm(queue, 0)
    assert (names(plan.generation), names(plan.paused), plan.chunks) == ("a", "b", [])
    assert chunked(vllm([generating("a"), waiting("c", context_tokens=4)], 2)) == {"c": 4}


def test_vllm_wants_room_for_the_whole_prompt_but_takes_the_chunk() -> None:
    """80 tokens need 20 blocks to enter; the first chunk of 64 takes 16."""
    queue = [waiting("a", context_tokens=80)]
    assert vllm(queue, 19).chunks == []
    assert vllm(queue, 20).chunks[0].hold_blocks == 16
    options = VllmOptions(reserve_full_isl=False)
    assert vllm(queue, 16, vllm=options).chunks[0].tokens == 64


def test_vllm_keeps_a_watermark_at_admission_only() -> None:
    """10 % of 99 usable blocks are 9: a waiting request of 2 blocks needs 11 free ones."""
    options = VllmOptions(watermark=0.1)
    assert vllm([waiting("a")], 10, vllm=options).chunks == []
    assert chunked(vllm([waiting("a")], 11, vllm=options)) == {"a": 8}
    assert names(vllm([generating("a")], 1, vllm=options).generation) == "a"


def test_vllm_chunks_are_not_rounded() -> None:
    """One generates, 63 of 64 tokens are left."""
    assert chunked(vllm([generating("a"), waiting("b", context_tokens=80)], 50)) == {"b": 63}


# --- sglang_retract ---------------------------------------------------------------------------


def sglang(queue: list[Seen], free_blocks: int, **changes: Any) -> Any:
    return plan_of(Policy.SGLANG_RETRACT, queue, free_blocks, **changes)


def test_sglang_charges_growth_by_the_ratio() -> None:
    """Request a may take min(8 - 1, 4096) = 7 tokens more.

    b needs 8 + 8 + a page of 4 = 20 to be less than 4 x free - 7 x ratio: 7 blocks (28 - 7 = 21)
    at ratio 1, 6 blocks (24 - 0.7) at ratio 0.1.
    """
    queue = [generating("a"), waiting("b")]
    assert sglang(queue, 6).chunks == []
    assert chunked(sglang(queue, 7)) == {"b": 8}
    assert chunked(sglang(queue, 6, new_token_ratio=0.1)) == {"b": 8}


def test_sglang_prompts_and_generation_take_separate_steps() -> None:
    """Unless chunks are mixed in."""
    queue = [generating("a"), waiting("b")]
    assert sglang(queue, 50).generation == []
    mixed = sglang(queue, 50, sglang=SglangOptions(mixed_chunk=True))
    assert (names(mixed.generation), chunked(mixed)) == ("a", {"b": 8})


def test_sglang_retracts_fewest_output_then_longest_input() -> None:
    """Four need a block each and one is free.

    Equal outputs of b and c: c has the longer input and goes first; with its 2 blocks 3 are free,
    enough for the other three. The ratio becomes (4 + 4 + 1 + 20 x 3) / (24 + 1), at most 1.
    """
    queue = [
        generating("a", streamed=4),
        generating("b", streamed=1),
        generating("c", streamed=1, input_tokens=9),
        generating("d", streamed=4),
    ]
    plan = sglang(queue, 1)
    assert (names(plan.paused), names(plan.generation)) == ("c", "ab" + "d")
    assert (plan.requeue_paused, plan.new_token_ratio) == (True, 1.0)


def test_sglang_ratio_decays_by_generating_steps() -> None:
    """From 0.7 by (0.7 - 0.098) / 600 a step, not below 0.098."""
    queue = [generating("a", 9)]
    assert sglang(queue, 1, new_token_ratio=0.7).new_token_ratio == pytest.approx(0.7 - 0.602 / 600)
    assert sglang(queue, 1, new_token_ratio=0.098).new_token_ratio == pytest.approx(0.098)


def test_sglang_ends_the_batch_at_a_cut_prompt() -> None:
    """64 tokens: 40, then 24 of 40 (a multiple of 4), then none."""
    queue = [waiting(name, context_tokens=40) for name in "abc"]
    assert chunked(sglang(queue, 90)) == {"a": 40, "b": 24}


def test_sglang_without_chunks_lets_a_first_long_prompt_run_alone() -> None:
    """Longer than max_prefill_tokens, but the first of its step."""
    options = SglangOptions(max_prefill_tokens=30)
    queue = [waiting("a", context_tokens=40), waiting("b")]
    assert chunked(sglang(queue, 90, chunked_prefill=False, sglang=options)) == {"a": 40}

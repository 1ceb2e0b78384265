"""The engine by hand: timelines derived on paper, one second a step."""

from __future__ import annotations

from typing import Any

import pytest

from kvstudy.base.errors import LivelockError
from kvstudy.sim.engine import Engine
from kvstudy.sim.model import EngineSpec, Pause, Policy
from kvstudy.sim.replay import simulate, simulate_rows, simulate_steps
from kvstudy.sim.request import SimRequest, State
from kvstudy.sim.timing import StepTime

S = 1_000_000_000
ONE_SECOND = {"fixed_s": 1.0}


def tiny(**changes: Any) -> dict[str, Any]:
    """Two requests of 6 + 6 tokens, blocks of 4: a prompt takes 2, a whole request 3 (kv <= 11)."""
    return {
        "policy": "max_utilization",
        "pool_tokens": 20,
        "block_tokens": 4,
        "max_num_tokens": 16,
        "concurrency": 2,
        "admission_lag_steps": 0,
        "requests": {"count": 2, "input_tokens": 6, "output_tokens": 6},
        "step_time": ONE_SECOND,
        **changes,
    }


def token_times_s(rows: list[dict[str, Any]]) -> list[tuple[float, float]]:
    return [(row["first_token_ns"] / S, row["last_token_ns"] / S) for row in rows]


def test_reserving_runs_them_one_after_the_other() -> None:
    """5 blocks: A reserves 3, B's 3 do not fit the 2 left. A: steps 1-6, B: steps 7-12."""
    spec = tiny(policy="guaranteed_no_evict")
    out = simulate(spec)
    assert (out["iterations"], out["wall_s"], out["pauses"]) == (12, 12.0, 0)
    assert (out["peak_blocks"], out["residents_max"], out["prefilled_tokens"]) == (3, 1, 12)
    assert out["output_tok_per_s"] == 1.0
    assert token_times_s(simulate_rows(spec)) == [(1, 6), (7, 12)]
    assert (out["tpot_p50_ms"], out["tpot_p99_ms"]) == (1000.0, 1000.0)
    # linear interpolation of e2e 6 and 12 s: 6 + 0.99 x 6
    assert (out["e2e_p50_s"], out["e2e_p99_s"]) == (9.0, pytest.approx(11.94))


def test_greedy_admission_pauses_the_youngest_and_recomputes_it() -> None:
    """Both enter in step 1 (2 + 2 blocks).

    kv is 6, 7, 8 after steps 1, 2, 3. Step 4 needs a third block each: A takes the fifth, B is
    its own victim with 3 tokens sent, so 6 + 3 = 9 tokens come again. A ends in step 6. Step 7
    computes B's 9 tokens and streams its 4th token; steps 8 and 9 the last two.
    """
    out = simulate(tiny())
    assert (out["iterations"], out["pauses"], out["recomputed_tokens"]) == (9, 1, 9)
    assert (out["prefilled_tokens"], out["hidden_tokens"]) == (6 + 6 + 9, 0)
    assert (out["peak_blocks"], out["residents_max"]) == (4, 2)
    assert token_times_s(simulate_rows(tiny())) == [(1, 6), (1, 9)]
    assert out["max_gap_ms"] == 4000.0  # B: third token at 3 s, fourth at 7 s
    assert out["paused_requests"] == 1


def test_a_truncating_pause_decodes_what_it_cut_in_silence() -> None:
    """Cut to 4: of B's 9 tokens 4 are computed again, 5 are decoded unseen.

    Step 5: B's 4 tokens need 1 of the 2 free blocks; the step that computes them makes hidden
    token 1. Steps 6-9: hidden tokens 2-5. Steps 10-12: streamed tokens 4-6.
    """
    spec = tiny(pause={"truncate_to_tokens": 4})
    out = simulate(spec)
    assert (out["iterations"], out["pauses"], out["recomputed_tokens"]) == (12, 1, 4)
    assert (out["hidden_tokens"], out["prefilled_tokens"]) == (5, 6 + 6 + 4)
    assert token_times_s(simulate_rows(spec)) == [(1, 6), (1, 12)]
    assert out["max_gap_ms"] == 7000.0  # 3 s to 10 s


def test_a_cut_longer_than_the_request_is_a_recompute() -> None:
    """min(L, prompt + generated) with L = 9 or more takes all 9 tokens."""
    assert simulate(tiny(pause={"truncate_to_tokens": 9})) == simulate(tiny())


def test_blocks_that_are_never_released_stay_held() -> None:
    """B keeps its 2 blocks while paused; A's third fills the pool; B needs 1 more, free at 6 s."""
    spec = tiny(pause="never_release")
    out = simulate(spec)
    assert (out["iterations"], out["pauses"], out["recomputed_tokens"]) == (9, 1, 9)
    assert out["peak_blocks"] == 5
    used = [row["used_blocks"] for row in simulate_steps(spec)]
    assert used == [4, 4, 4, 5, 5, 5, 3, 3, 3]


def test_never_released_blocks_can_lock_the_engine_up() -> None:
    """4 blocks, all held after step 1: in step 4 A needs one, pausing B and A frees none."""
    with pytest.raises(LivelockError) as caught:
        simulate(tiny(pause="never_release", pool_tokens=16))
    text = str(caught.value)
    assert "max_utilization: nothing can be scheduled after step 3" in text
    assert "free=0, held=4, total=4" in text
    assert "r0: paused" in text


def test_static_batch_starts_nobody_while_something_generates() -> None:
    """8 blocks hold two reserved requests; the third waits for both although A ends first.

    A (2 tokens) and B (6) run from step 1; C could enter at step 3 under guaranteed_no_evict.
    """
    requests = [
        {"input_tokens": 6, "output_tokens": 2, "output_cap_tokens": 6},
        {"count": 2, "input_tokens": 6, "output_tokens": 6},
    ]
    spec = tiny(pool_tokens=32, concurrency=3, requests=requests, max_num_tokens=64)
    static = simulate_rows({**spec, "policy": "static_batch"})
    reserving = simulate_rows({**spec, "policy": "guaranteed_no_evict"})
    assert token_times_s(static) == [(1, 2), (1, 6), (7, 12)]
    assert token_times_s(reserving) == [(1, 2), (1, 6), (3, 8)]


def test_vllm_takes_blocks_per_chunk_and_preempts_the_last() -> None:
    """As MAX_UTILIZATION on this case, with one block more for the null block."""
    out = simulate(tiny(policy="vllm_recompute", pool_tokens=24))
    assert (out["iterations"], out["pauses"], out["recomputed_tokens"]) == (9, 1, 9)


def test_sglang_retracts_to_the_end_of_the_list() -> None:
    """Conservativeness near 0 admits A and B; step 4 retracts one: equal outputs, the last.

    The retracted one is computed again in a prompt step of its own, in which nobody generates.
    """
    spec = tiny(
        policy="sglang_retract", pool_tokens=24, sglang={"conservativeness": 0.0, "clip_tokens": 1}
    )
    out = simulate({**spec, "requests": {"count": 2, "input_tokens": 7, "output_tokens": 9}})
    # 7 tokens: 2 blocks each of 6. kv 7, 8 | step 3 needs 3 blocks each: 6 fit. kv 12 after
    # step 6; step 7 needs a fourth block each with none free: B goes (6 sent, 13 tokens again).
    # A ends in step 9; B's 13 tokens run in step 10, then 2 more steps.
    assert (out["pauses"], out["recomputed_tokens"], out["iterations"]) == (1, 13, 12)


def test_step_time_adds_up_by_hand() -> None:
    """Chunks of 4 + 2 tokens at positions 0 and 4, then one generating step over 6 kv tokens.

    Step 1: 1 + 0.1*4 + 0.01*4*(0+2) = 1.48; step 2: 1 + 0.1*2 + 0.01*2*(4+1) = 1.30;
    step 3: 1 + 0.5*1 + 0.001*6 = 1.506.
    """
    step_time = {
        "fixed_s": 1.0,
        "per_generation_s": 0.5,
        "per_generation_context_token_s": 0.001,
        "per_context_token_s": 0.1,
        "per_context_attention_s": 0.01,
    }
    requests = {"input_tokens": 6, "output_tokens": 2}
    steps = simulate_steps(tiny(max_num_tokens=4, requests=requests, step_time=step_time))
    assert [row["iter_latency_ns"] for row in steps] == [
        1_480_000_000,
        1_300_000_000,
        1_506_000_000,
    ]
    assert [row["context_tokens"] for row in steps] == [4, 2, 0]


def test_the_lag_counts_whole_steps() -> None:
    """One lane, lag 2, A beside it keeps the engine busy: C joins at 2 + 1 + 2 = step 5."""
    requests = [
        {"input_tokens": 4, "output_tokens": 8},
        {"input_tokens": 4, "output_tokens": 2},
        {"input_tokens": 4, "output_tokens": 1},
    ]
    spec = tiny(pool_tokens=80, admission_lag_steps=2, requests=requests)
    rows = simulate_rows(spec)
    assert rows[2]["submitted_ns"] == 2 * S
    assert rows[2]["first_token_ns"] == 5 * S
    assert rows[2]["ttft_ns"] == 3 * S
    assert rows[2]["tpot_ns"] is None
    assert rows[2]["lane"] == rows[1]["lane"] == 1


def test_no_empty_step_is_run_while_a_successor_waits() -> None:
    """One lane: after each request the engine is empty, so its next joins at once."""
    spec = tiny(concurrency=1, admission_lag_steps=5)
    assert simulate(spec)["iterations"] == 12


def engine_of(**changes: Any) -> Engine:
    values: dict[str, Any] = {
        "policy": Policy.MAX_UTILIZATION,
        "pool_blocks": 5,
        "block_tokens": 4,
        "max_num_tokens": 16,
        "step_time": StepTime(1.0),
        **changes,
    }
    return Engine(EngineSpec(**values))


def test_a_cancelled_request_gives_its_blocks_back() -> None:
    """Its place, its blocks and its seat are free for the next step."""
    engine = engine_of()
    first, second = (SimRequest(name, 6, 6, 6, 0) for name in "ab")
    engine.join(first)
    engine.join(second)
    step = engine.step()
    assert (step.used_blocks, step.free_blocks, step.scheduled) == (4, 1, 2)
    engine.cancel(first)
    assert (engine.pool.held_blocks, engine.active, first.state) == (2, [second], State.FINISHED)
    assert first.is_cancelled
    assert first.e2e_ns == 1 * S
    while engine.has_work:
        engine.step()
    assert second.streamed == 6
    assert engine.pool.free_blocks == 5


def test_cancelling_twice_is_an_error() -> None:
    """A request that is not active cannot leave."""
    engine = engine_of()
    request = SimRequest("a", 6, 6, 6, 0)
    engine.join(request)
    engine.cancel(request)
    with pytest.raises(ValueError, match="not in list"):
        engine.cancel(request)


def test_idle_time_moves_the_clock_and_never_back() -> None:
    """The next step starts where the idling ended."""
    engine = engine_of()
    engine.idle_until(7 * S)
    engine.idle_until(3 * S)
    engine.join(SimRequest("a", 1, 1, 1, 7 * S))
    step = engine.step()
    assert (step.index, step.start_ns, step.end_ns) == (1, 7 * S, 8 * S)


def test_an_engine_with_nothing_to_do_says_so() -> None:
    """`try_step` answers None and `step` raises."""
    engine = engine_of()
    assert engine.try_step() is None
    with pytest.raises(LivelockError, match="0 active"):
        engine.step()


def test_a_token_budget_below_the_chunk_unit_is_a_livelock() -> None:
    """6 tokens with a budget of 3 round down to 0 of a unit of 4, for ever."""
    with pytest.raises(LivelockError, match="max_num_tokens"):
        simulate(tiny(max_num_tokens=3))


def test_more_generating_requests_than_the_budget_take_turns_from_the_front() -> None:
    """Budget 1: A alone generates until it ends, then B."""
    requests = {"count": 2, "input_tokens": 1, "output_tokens": 3}
    rows = simulate_rows(tiny(max_num_tokens=1, chunk_unit_tokens=1, requests=requests))
    # step 1: A's prompt; 2, 3: A generates with the whole budget; 4: B's prompt; 5, 6: B.
    assert token_times_s(rows) == [(1, 3), (4, 6)]


def test_a_full_batch_is_a_misfit_for_max_utilization() -> None:
    """One seat: B waits behind A and nobody is paused, as B never started."""
    out = simulate(tiny(max_batch_size=1))
    assert (out["iterations"], out["pauses"], out["residents_max"]) == (12, 0, 1)


def test_pause_before_the_first_token_hides_nothing_it_has_not_cut() -> None:
    """Paused in the middle of a prompt of 6: 4 are computed again, 2 are decoded in silence."""
    pause = Pause(truncate_to_tokens=4)
    assert pause.context_tokens(6) == 4
    assert pause.context_tokens(3) == 3
    assert Pause(never_release=True).context_tokens(6) == 6

"""The laws of `docs/laws.md`, held on random specs of all policies and loads (seeded)."""

from __future__ import annotations

import json
from collections import Counter
from typing import Any

import pytest
from hypothesis import assume, event, given, settings
from hypothesis import strategies as st

from kvstudy.base.digest import canonical_json
from kvstudy.base.errors import LivelockError
from kvstudy.sim import replay
from kvstudy.sim.engine import Engine, Step
from kvstudy.sim.model import EngineSpec
from kvstudy.sim.replay import run
from kvstudy.sim.request import Schedulable, SimRequest, State
from kvstudy.sim.result import Result, iteration_row
from kvstudy.sim.spec import parse

RELEASING = ["recompute", {"truncate_to_tokens": 3}, {"truncate_to_tokens": 12}]
PAUSES = [*RELEASING, "never_release"]
TENSORRT = ["guaranteed_no_evict", "max_utilization", "max_utilization", "static_batch"]
POLICIES = [*TENSORRT, "vllm_recompute", "sglang_retract"]


def seeded(examples: int) -> settings:
    return settings(max_examples=examples, derandomize=True, deadline=None, database=None)


@st.composite
def specs(draw: st.DrawFn, policies: list[str] = POLICIES) -> dict[str, Any]:
    block = draw(st.integers(1, 8))
    policy = draw(st.sampled_from(policies))
    requests = []
    for _ in range(draw(st.integers(1, 12).map(lambda n: 13 - n))):
        output = 25 - draw(st.integers(1, 24))
        requests.append(
            {
                "input_tokens": draw(st.integers(1, 40)),
                "output_tokens": output,
                "output_cap_tokens": output + draw(st.sampled_from([0, 0, 3, 30])),
            }
        )
    largest = max(-(-(r["input_tokens"] + r["output_cap_tokens"]) // block) for r in requests)
    spare = draw(st.integers(0, 14)) + (policy == "vllm_recompute")
    chunked = draw(st.booleans())
    spec = {
        "policy": policy,
        "pause": draw(st.sampled_from(PAUSES)) if policy in TENSORRT else "recompute",
        "pool_tokens": (largest + spare) * block,
        "block_tokens": block,
        "max_batch_size": draw(st.sampled_from([1, 2, 4, 64])),
        "max_num_tokens": draw(st.integers(block, 60)) + (0 if chunked else 40),
        "chunked_prefill": chunked,
        "chunk_policy": draw(st.sampled_from(["fcfs", "equal_progress"])),
        "chunk_unit_tokens": draw(st.sampled_from([block, 1, 2 * block])),
        "concurrency": draw(st.sampled_from([8, 6, 4, 3, 2, 1])),
        "admission_lag_steps": draw(st.integers(0, 3)),
        "requests": requests,
        "seed": draw(st.integers(0, 3)),
        "step_time": {
            "fixed_s": draw(st.sampled_from([0.0, 0.01])),
            "per_generation_s": draw(st.sampled_from([0.0, 0.001])),
            "per_generation_context_token_s": draw(st.sampled_from([0.0, 3.3e-5])),
            "per_context_token_s": 1e-4,
            "per_context_attention_s": 1e-6,
        },
    }
    rate = draw(st.sampled_from([None, None, "poisson_per_s", "constant_per_s"]))
    if rate is not None:
        spec["arrivals"] = {rate: draw(st.sampled_from([2.0, 30.0, 500.0]))}
    if policy == "vllm_recompute":
        spec["vllm"] = {
            "watermark": draw(st.sampled_from([0.0, 0.1])),
            "reserve_full_isl": draw(st.booleans()),
        }
    if policy == "sglang_retract":
        spec["sglang"] = {
            "mixed_chunk": draw(st.booleans()),
            "conservativeness": draw(st.sampled_from([0.01, 1.0])),
            "clip_tokens": draw(st.sampled_from([1, 4096])),
        }
    return spec


class Watched(Engine):
    """An engine whose every step is checked as it runs."""

    def __init__(self, spec: EngineSpec) -> None:
        super().__init__(spec)
        self.joined: list[SimRequest] = []
        self.sent: Counter[str] = Counter()

    def join(self, request: SimRequest) -> None:
        """Remember who joined."""
        super().join(request)
        self.joined.append(request)

    def try_step(self) -> Step | None:
        """Run the step and check it."""
        before_ns, index = self.now_ns, self.iteration
        held_before = sum(r.held_blocks for r in self.active)
        assert self.pool.held_blocks == held_before
        step = super().try_step()
        if step is None:
            assert (self.now_ns, self.iteration) == (before_ns, index)
            return None
        self._law_1_blocks(step)
        self._law_2_requests()
        assert step.start_ns == before_ns <= step.end_ns == self.now_ns  # law 3
        assert step.index == index + 1
        assert step.scheduled > 0  # law 4
        assert step.generation_requests + step.context_requests <= self.spec.max_batch_size  # 11
        self._law_7_tokens(step)
        return step

    def _law_1_blocks(self, step: Step) -> None:
        total = self.spec.usable_blocks
        assert step.used_blocks + step.free_blocks == total
        assert self.pool.free_blocks + self.pool.held_blocks == total
        assert self.pool.free_blocks >= 0
        assert sum(r.held_blocks for r in self.active) == self.pool.held_blocks
        for r in self.active:
            if r.is_generating:
                assert r.held_blocks * self.spec.block_tokens >= r.kv_tokens

    def _law_2_requests(self) -> None:
        states = Counter(r.state for r in self.joined)
        assert states[State.FINISHED] + len(self.active) == len(self.joined)
        assert sorted(id(r) for r in self.joined if r.state is not State.FINISHED) == sorted(
            id(r) for r in self.active
        )
        assert states[State.RUNNING] == sum(r.is_started for r in self.active)

    def _law_7_tokens(self, step: Step) -> None:
        assert len({id(r) for r in step.emitted}) == len(step.emitted)
        for request in step.emitted:
            self.sent[request.request_id] += 1
            assert request.streamed == self.sent[request.request_id]
            assert request.last_token_ns == step.end_ns


def watched_run(spec: dict[str, Any]) -> tuple[Watched, Result, list[Step]]:
    """The replay's own loop around a watched engine."""
    steps: list[Step] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(replay, "Engine", Watched)
        result = replay.run(parse(spec), observe=steps.append)
    assert isinstance(result.engine, Watched)
    return result.engine, result, steps


@given(specs())
@seeded(2000)
def test_every_step_and_every_end_is_lawful(spec: dict[str, Any]) -> None:
    """Laws 1 to 4, 6 to 8 and 11."""
    try:
        engine, result, steps = watched_run(spec)
    except LivelockError as error:  # law 8
        event("livelock")
        text = str(error)
        assert spec["policy"] in text
        assert "free=" in text
        assert "r" in text
        return
    counters = engine.counters
    assert engine.pool.held_blocks == 0
    assert len(result.requests) == len(spec["requests"])
    for request, shape in zip(result.requests, spec["requests"], strict=True):
        assert request.state is State.FINISHED
        assert request.streamed == shape["output_tokens"] == engine.sent[request.request_id]
        # law 7: whatever was paused and cut, its cache ends as if nothing had been
        assert request.kv_tokens == shape["input_tokens"] + shape["output_tokens"] - 1
        assert request.hidden_left == 0
        assert request.first_token_ns is not None
        assert request.last_token_ns is not None
        assert request.submitted_ns <= request.first_token_ns <= request.last_token_ns
        assert request.last_token_ns == request.ended_ns
    if spec["policy"] in ("guaranteed_no_evict", "static_batch"):  # law 6
        assert counters.pauses == counters.recomputed_tokens == counters.hidden_tokens == 0
        assert counters.prefilled_tokens == sum(r["input_tokens"] for r in spec["requests"])
    if spec["pause"] in ("recompute", "never_release"):
        assert counters.hidden_tokens == 0
    _law_11_budget(spec, steps)


def _law_11_budget(spec: dict[str, Any], steps: list[Step]) -> None:
    """A step never runs more tokens than its budget; SGLang's generation has none of its own."""
    if spec["policy"] == "sglang_retract":
        return
    for step in steps:
        assert step.context_tokens + step.generation_requests <= spec["max_num_tokens"]


@given(specs(), st.data())
@seeded(600)
def test_a_scheduler_never_sees_a_true_length(spec: dict[str, Any], data: st.DataObject) -> None:
    """Law 5: until a request ends in either run, other true lengths change no decision."""
    other = json.loads(json.dumps(spec))
    for request in other["requests"]:
        request["output_tokens"] = data.draw(st.integers(1, request["output_cap_tokens"]))
    traces = []
    for each in (spec, other):
        steps: list[Step] = []
        try:
            run(parse(each), observe=steps.append)
        except LivelockError:
            event("livelock")
        ended = next((i for i, step in enumerate(steps) if step.finished), len(steps))
        blocks = parse(each).engine.usable_blocks
        traces.append([iteration_row(step, blocks) for step in steps[: ended + 1]])
    same = min(len(trace) for trace in traces)
    assume(same > 1)
    assert traces[0][:same] == traces[1][:same]


def test_what_a_scheduler_may_see_has_no_true_length() -> None:
    """Law 5, by type: policies are written against `Schedulable`, and mypy holds them to it."""
    assert "output_tokens" not in Schedulable.__annotations__
    assert "hidden_left" not in Schedulable.__annotations__
    assert "output_cap_tokens" in Schedulable.__annotations__


def outcome(spec: dict[str, Any], *, fast: bool) -> str:
    """Everything a run says, as bytes."""
    try:
        result = run(parse(spec), fast=fast)
    except LivelockError as error:
        return str(error)
    return canonical_json([result.summary(), result.request_rows()])


@given(specs())
@seeded(300)
def test_same_spec_same_bytes(spec: dict[str, Any]) -> None:
    """Law 9: also when the spec has been through JSON."""
    assert outcome(spec, fast=True) == outcome(json.loads(canonical_json(spec)), fast=True)


@st.composite
def long_specs(draw: st.DrawFn) -> dict[str, Any]:
    """Outputs long enough for runs of decode steps, pools tight enough to break them."""
    spec = draw(specs())
    stretch = draw(st.sampled_from([1, 10, 40]))
    for request in spec["requests"]:
        request["output_tokens"] *= stretch
        request["output_cap_tokens"] *= stretch
    block = spec["block_tokens"]
    largest = max(
        -(-(r["input_tokens"] + r["output_cap_tokens"]) // block) for r in spec["requests"]
    )
    spare = draw(st.integers(1, 60))
    return {**spec, "pool_tokens": (largest + spare) * block}


@given(long_specs())
@seeded(1000)
def test_runs_of_steps_in_closed_form_equal_single_steps(spec: dict[str, Any]) -> None:
    """Law 10: byte for byte, livelock message included."""
    assert outcome(spec, fast=True) == outcome(spec, fast=False)


def test_closed_form_is_used_where_it_should_be() -> None:
    """Law 10 would be empty if no run of steps were ever taken at once."""
    spec = {
        "policy": "max_utilization",
        "pool_tokens": 4000,
        "concurrency": 4,
        "requests": {"count": 8, "input_tokens": 100, "output_tokens": 300},
    }
    taken: list[int] = []
    original = Engine.fast_forward

    def counting(self: Engine, max_steps: int, until_ns: int | None = None) -> int:
        taken.append(original(self, max_steps, until_ns))
        return taken[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Engine, "fast_forward", counting)
        result = run(parse(spec))
    assert sum(taken) > 0.9 * result.engine.iteration
    assert max(taken) > 50

"""What to expect of an engine under a load, and which setting to use, with reasons."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kvstudy.explain.regimes import EQUAL, pause_words
from kvstudy.explain.scenario import Outcome, Scenario, ratio
from kvstudy.explain.versions import POLICIES, PauseCost, pause_cost
from kvstudy.sim.model import Pause, Policy
from kvstudy.sim.timing import StepTime
from kvstudy.telemetry.knowledge import entry_for

Document = dict[str, Any]

METRICS = (
    "output_tok_per_s",
    "ttft_p50_ms",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "e2e_p99_s",
)
COUNTERS = ("pauses", "recomputed_tokens", "hidden_tokens", "iterations", "residents_max")
GAIN = 0.01
TAIL = 1.5
"""A gain below 1 % is not worth a setting; a TPOT p99 above 1.5 times is said before it."""


@dataclass(frozen=True)
class Constants:
    """Step-time constants, others they may be, and where they come from."""

    best: StepTime
    others: Sequence[StepTime]
    basis: str
    words: str


@dataclass(frozen=True)
class Question:
    """Everything the advice is asked for."""

    adapter: str
    version: str
    scenario: Scenario
    constants: Constants
    pool_words: str
    policy: Policy | None = None


def advise(question: Question) -> Document:
    """The whole answer as a document; no number in it is measured."""
    cost = pause_cost(question.adapter, question.version)
    policies = POLICIES[question.adapter]
    rows = [_policy_row(question, policy, _pause(policy, cost)) for policy in policies]
    setting = _setting(question, rows, cost)
    return {
        "engine": question.adapter,
        "version": question.version,
        "load": _load(question.scenario),
        "pool": _pool(question),
        "constants": {
            "basis": question.constants.basis,
            "words": question.constants.words,
        },
        "policies": rows,
        "pause_cost": {
            "versions": cost.versions,
            "pause": pause_words(cost.pause),
            "basis": cost.basis,
            "words": cost.words,
        },
        "if_pauses_only_recompute": _alternative(question, cost),
        "setting": setting,
        "watch": _watch(question),
        "not_known": _not_known(question, cost),
    }


def _pause(policy: Policy, cost: PauseCost) -> Pause:
    return cost.pause if policy is Policy.MAX_UTILIZATION else Pause()


def _policy_row(question: Question, policy: Policy, pause: Pause) -> Document:
    scenario = question.scenario
    best = scenario.with_step_time(question.constants.best).run(policy, pause)
    others = [
        scenario.with_step_time(constants).run(policy, pause)
        for constants in question.constants.others
    ]
    return {
        "policy": policy.value,
        "pause": pause_words(pause),
        "residents_by_arithmetic": residents(scenario, policy),
        **{name: _with_range(name, best, others) for name in METRICS},
        **{name: best.summary.get(name) for name in COUNTERS},
        "stuck": best.stuck,
    }


def _with_range(name: str, best: Outcome, others: Sequence[Outcome]) -> dict[str, float | None]:
    values = [value for o in (best, *others) if (value := o.value(name)) is not None]
    return {
        "value": best.value(name),
        "low": min(values, default=None),
        "high": max(values, default=None),
    }


def residents(scenario: Scenario, policy: Policy) -> int:
    """Requests of the longest kind that fit, with their cap reserved or with the prompt alone."""
    reserving = policy in (Policy.GUARANTEED_NO_EVICT, Policy.STATIC_BATCH)
    blocks = scenario.full_blocks if reserving else scenario.input_blocks
    most = min(scenario.engine.max_batch_size, scenario.engine.usable_blocks // blocks)
    return most if scenario.arrivals_ns is not None else min(most, scenario.concurrency)


def _load(scenario: Scenario) -> Document:
    requests = scenario.requests
    return {
        "requests": len(requests),
        "input_tokens_mean": sum(r.input_tokens for r in requests) / len(requests),
        "input_tokens_max": max(r.input_tokens for r in requests),
        "output_tokens_mean": sum(r.output_tokens for r in requests) / len(requests),
        "output_cap_tokens_max": max(r.output_cap_tokens for r in requests),
        "loop": "open" if scenario.arrivals_ns is not None else "closed",
        "concurrency": None if scenario.arrivals_ns is not None else scenario.concurrency,
    }


def _pool(question: Question) -> Document:
    scenario = question.scenario
    closed = scenario.arrivals_ns is None
    return {
        "tokens": scenario.engine.usable_blocks * scenario.engine.block_tokens,
        "blocks": scenario.engine.usable_blocks,
        "block_tokens": scenario.engine.block_tokens,
        "from": question.pool_words,
        "blocks_per_request": {"prompt": scenario.input_blocks, "full": scenario.full_blocks},
        "oversubscription": scenario.demand_ratio if closed else None,
    }


def _alternative(question: Question, cost: PauseCost) -> Document | None:
    """The greedy policy if the version's assumed cut is wrong."""
    if question.adapter != "trtllm" or cost.pause == Pause():
        return None
    return _policy_row(question, Policy.MAX_UTILIZATION, Pause())


def _setting(question: Question, rows: Sequence[Document], cost: PauseCost) -> Document:
    if question.adapter != "trtllm":
        return {
            "use": None,
            "why": "this engine has one policy; only the pool and the load can change the outcome",
            "throughput_ratio": None,
            "tpot_p99_ratio": None,
            "yaml": "",
        }
    baseline, treatment = rows
    gain = _ratio_of(treatment, baseline, "output_tok_per_s")
    tail = _ratio_of(treatment, baseline, "tpot_p99_ms")
    use, why = choose(treatment, gain, tail, cost)
    asked = question.policy
    return {
        "use": use.name,
        "why": why,
        "throughput_ratio": gain,
        "tpot_p99_ratio": tail,
        "asked_for": None if asked is None else asked.name,
        "agrees": None if asked is None else asked is use,
        "yaml": f"scheduler_config:\n  capacity_scheduler_policy: {use.name}\n",
    }


def _ratio_of(top: Mapping[str, Any], bottom: Mapping[str, Any], name: str) -> float | None:
    return ratio(top[name]["value"], bottom[name]["value"])


def choose(
    treatment: Mapping[str, Any], gain: float | None, tail: float | None, cost: PauseCost
) -> tuple[Policy, str]:
    """The policy to use, and why; where nothing is gained, the engine's default."""
    reserve, greedy = Policy.GUARANTEED_NO_EVICT, Policy.MAX_UTILIZATION
    if gain is None:
        return reserve, f"under MAX_UTILIZATION {treatment['stuck'] or 'nothing is produced'}"
    pauses = treatment["pauses"] or 0
    percent = f"{100 * abs(gain - 1):.1f} %"
    if abs(gain - 1) < EQUAL and not pauses:
        return reserve, "both policies run alike on this load, so the default does"
    if pauses and cost.basis == "assumed":
        return reserve, (
            f"{pauses} pauses are expected under MAX_UTILIZATION, and in this version a pause is "
            f"assumed to be ruinous (throughput {100 * (gain - 1):+.1f} %)"
        )
    if gain < 1 + GAIN:
        word = "loses" if gain < 1 else "gains only"
        return reserve, f"MAX_UTILIZATION {word} {percent} of throughput with {pauses} pauses"
    if tail is not None and tail > TAIL:
        return greedy, (
            f"it gains {percent} of throughput, at {tail:.1f} times the TPOT p99: take "
            "GUARANTEED_NO_EVICT where the tail matters more"
        )
    return greedy, f"it gains {percent} of throughput with {pauses} pauses"


def _watch(question: Question) -> Document:
    """The counters and the exact settings that make them appear, from the telemetry's knowledge."""
    entry = entry_for(question.adapter, question.version)
    if entry is None:
        return {"settings": "", "look": "", "signs": [], "interval": "", "destructive": ""}
    return {
        "settings": entry.settings,
        "look": entry.look,
        "signs": [
            {"name": sign.name, "nature": sign.nature.value, "meaning": sign.meaning}
            for sign in entry.signs
        ],
        "interval": entry.interval,
        "destructive": entry.destructive,
    }


def _not_known(question: Question, cost: PauseCost) -> list[str]:
    lines = [f"constants: {question.constants.words}"]
    if cost.basis in ("assumed", "inferred", "not modelled"):
        lines.append(f"the cost of a pause ({cost.basis}): {cost.words}")
    lines += [
        "repeat-to-repeat noise: the model has none",
        "prefix reuse, speculative decoding, LoRA and multimodal inputs: not modelled",
        "text effects (early ends, special tokens): not modelled",
    ]
    if "model and GPU" in question.pool_words:
        lines.append(
            "memory for activations and CUDA graphs: not subtracted; take the pool that the "
            "server's log prints"
        )
    return lines

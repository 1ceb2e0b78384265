"""What would change our mind: per hypothesis, the counter or probe that decides it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvstudy.explain.probe import UNLIMITED_TOKENS
from kvstudy.explain.scenario import STALL_S, Outcome, Scenario

Decider = dict[str, Any]


def _decider(
    test: str, counter: str, where: str, expected: str, value: float | None = None, unit: str = ""
) -> Decider:
    return {
        "test": test,
        "counter": counter,
        "where": where,
        "expected": expected,
        "value": value,
        "unit": unit,
    }


def deciders(
    family: str,
    cut: int | None,
    scenario: Scenario,
    outcome: Outcome,
    others: Mapping[str, Outcome],
) -> list[Decider]:
    """Every decider with the value that this hypothesis expects.

    `others` holds the runs of ordinary recomputation ("recompute") and of the baseline
    ("baseline"), for tests that take an effect away.
    """
    return [
        _probe(family, cut, scenario),
        _gap(outcome),
        _context_after_pause(outcome),
        _iterations(outcome),
        _pause_sum(outcome),
        _patched(family, outcome, others),
        _usage(family, outcome),
    ]


def _probe(family: str, cut: int | None, scenario: Scenario) -> Decider:
    whole = max(r.input_tokens + r.output_cap_tokens for r in scenario.requests)
    expected = {
        "H0": "says nothing about it",
        "H1": f"{cut:,}" if cut else "",
        "H2": f"at least {whole:,}, or no limit",
        "H3": "says nothing about it",
    }[family]
    value = float(cut) if cut else float(UNLIMITED_TOKENS) if family == "H2" else None
    return _decider(
        "f",
        "default of max_input_len of PyExecutor",
        "rule probe_engine: pins/<engine>.probe.json; needs no GPU",
        expected,
        value if family != "H2" else float(whole),
        "tokens" if family in ("H1", "H2") else "",
    )


def _gap(outcome: Outcome) -> Decider:
    gap_ms = outcome.value("max_gap_ms")
    if outcome.stuck is not None:
        expected = "streams that never go on"
    elif gap_ms is None:
        expected = "no gap"
    else:
        expected = (
            f"{gap_ms / 1000:,.1f} s at most; {outcome.stalled_requests} "
            f"requests with a gap above {STALL_S:.0f} s"
        )
    return _decider(
        "a",
        "largest gap between chunks of one request",
        "the client's rows: requests.max_gap_ns",
        expected,
        None if gap_ms is None else gap_ms / 1000,
        "s",
    )


def _context_after_pause(outcome: Outcome) -> Decider:
    pauses, again = outcome.value("pauses"), outcome.value("recomputed_tokens")
    if outcome.stuck is not None:
        expected, value = "no iteration at all after the stop", None
    elif not pauses:
        expected, value = "none: sum of num_ctx_tokens equals the sum of prompts", 0.0
    else:
        value = (again or 0.0) / pauses
        expected = f"{value:,.0f} tokens a pause, {again:,.0f} in all beyond the sum of prompts"
    return _decider(
        "d",
        "num_ctx_tokens of the iterations after a pause",
        "print_iter_log: true; or inflightBatchingStats.numCtxTokens",
        expected,
        value,
        "tokens",
    )


def _iterations(outcome: Outcome) -> Decider:
    steps = outcome.value("iterations")
    expected = "none after the stop" if steps is None else f"{steps:,.0f}"
    return _decider(
        "d2",
        "iterations of the run",
        "iter of the last /metrics record; a long tail of a few tokens each if tokens are hidden",
        expected,
        steps,
        "steps",
    )


def _pause_sum(outcome: Outcome) -> Decider:
    pauses = outcome.value("pauses")
    expected = "a count, then no record at all" if pauses is None else f"{pauses:,.0f}"
    return _decider(
        "g",
        "sum of numPausedRequests over all records",
        "enable_iter_perf_stats: true and GET /metrics without a loss",
        expected,
        pauses,
        "events",
    )


def _patched(family: str, outcome: Outcome, others: Mapping[str, Outcome]) -> Decider:
    after = others["recompute"] if family == "H1" else outcome
    value, base = after.value("output_tok_per_s"), others["baseline"].value("output_tok_per_s")
    shown = None if value is None or not base else value / base
    gone = " (the cliff is gone)" if family == "H1" else " (the patch changes nothing)"
    return _decider(
        "c",
        "throughput ratio with the default patched away",
        "overlays/patched-cut.yaml; with short prompts (b): overlays/short-prompts.yaml",
        "not defined: it stops" if shown is None else f"{shown:.3f}{gone}",
        shown,
        "",
    )


def _usage(family: str, outcome: Outcome) -> Decider:
    hidden = outcome.value("hidden_tokens")
    expected = "equal"
    if family == "H1" and hidden:
        expected = (
            f"equal if hidden tokens are not counted, {hidden:,.0f} more in all if they are; "
            "the model does not say which"
        )
    return _decider(
        "e",
        "usage.completion_tokens against content chunks",
        "stream_options: {include_usage: true}",
        expected,
    )

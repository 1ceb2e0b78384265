"""Per-cell metrics: request rows and iteration rows of one cell to one row of `tables.CELLS`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from kvstudy.base.units import NS_PER_S, ns_to_ms, ns_to_s
from kvstudy.metrics.per_request import meets_slo
from kvstudy.metrics.percentile import mean, percentile

Row = Mapping[str, Any]
_STATS: tuple[tuple[str, float], ...] = (
    ("p50", 50), ("p90", 90), ("p95", 95), ("p99", 99), ("max", 100),
)  # fmt: skip


def window(requests: Sequence[Row]) -> tuple[int, int] | None:
    """First send to last end of the requests, in ns; None when nothing was sent."""
    sent = [r for r in requests if r["send_ns"] is not None and r["end_ns"] is not None]
    if not sent:
        return None
    return min(r["send_ns"] for r in sent), max(r["end_ns"] for r in sent)


def spread(prefix: str, unit: str, values: Sequence[float | None]) -> dict[str, float | None]:
    """Mean, p50, p90, p95, p99 and max of one metric, under the names of `tables.CELLS`."""
    row: dict[str, float | None] = {f"{prefix}_mean_{unit}": mean(values)}
    for stat, percent in _STATS:
        row[f"{prefix}_{stat}_{unit}"] = percentile(values, percent)
    return row


def latency_columns(requests: Sequence[Row]) -> dict[str, Any]:
    """Spread of TTFT, TPOT, TPOT per chunk and e2e over completed requests, and the gaps."""
    ok = [r for r in requests if r["outcome"] == "ok"]

    def column(name: str, convert: Any) -> list[float | None]:
        return [None if r[name] is None else convert(r[name]) for r in ok]

    gaps = [r["max_gap_ns"] for r in requests if r["max_gap_ns"] is not None]
    stalls = [r["stall_count"] for r in requests if r["stall_count"] is not None]
    return {
        **spread("ttft", "ms", column("ttft_ns", ns_to_ms)),
        **spread("tpot", "ms", column("tpot_ns", ns_to_ms)),
        **spread("tpot_chunks", "ms", column("tpot_chunks_ns", ns_to_ms)),
        **spread("e2e", "s", column("e2e_ns", ns_to_s)),
        "max_gap_ms": ns_to_ms(max(gaps)) if gaps else None,
        "stalls": sum(stalls) if stalls else None,
    }


def throughput_columns(
    requests: Sequence[Row], concurrency: int, slo: Mapping[str, float | None]
) -> dict[str, Any]:
    """Token counts, throughputs under each counting method, goodput and concurrency held."""
    ok = [r for r in requests if r["outcome"] == "ok"]
    span = window(requests)
    wall_s = ns_to_s(span[1] - span[0]) if span else None

    def total(name: str) -> int | None:
        values = [r[name] for r in ok]
        if not values or any(v is None for v in values):
            return None
        return int(sum(values))

    def rate(tokens: float | None) -> float | None:
        return tokens / wall_s if tokens is not None and wall_s else None

    chunks = sum(r["chunk_count"] for r in ok)
    bounded = any(slo.get(key) is not None for key in ("ttft_ms", "tpot_ms", "e2e_s"))
    return {
        "window_start_ns": span[0] if span else None,
        "window_end_ns": span[1] if span else None,
        "wall_s": wall_s,
        "output_tokens": total("retokenized_tokens"),
        "output_chunks": chunks,
        "usage_tokens": total("usage_tokens"),
        "output_tok_per_s": rate(total("retokenized_tokens")),
        "output_tok_per_s_nominal": rate(sum(r["planned_output_tokens"] for r in requests)),
        "output_tok_per_s_chunks": rate(chunks),
        "output_tok_per_s_usage": rate(total("usage_tokens")),
        "output_tok_per_s_steady": steady_chunks_per_s(requests, concurrency),
        "requests_per_s": rate(len(ok)),
        "goodput_req_per_s": rate(sum(meets_slo(r, slo) for r in requests)) if bounded else None,
        "mean_in_flight": mean_in_flight(requests),
    }


def count_columns(requests: Sequence[Row], planned: int) -> dict[str, Any]:
    """How many were planned, completed, failed, ended early, or re-tokenised short."""
    ok = [r for r in requests if r["outcome"] == "ok"]
    full = [r for r in ok if r["chunk_count"] >= r["planned_output_tokens"]]
    counted = [r for r in full if r["retokenized_tokens"] is not None]
    return {
        "requests": planned,
        "completed": len(ok),
        "failed": len(requests) - len(ok),
        "early_ended": len(ok) - len(full),
        "retokenized_short": (
            sum(r["retokenized_tokens"] < r["planned_output_tokens"] for r in counted)
            if counted or not full
            else None
        ),
    }


def mean_in_flight(requests: Sequence[Row]) -> float | None:
    """Time-weighted requests in flight: the sum of (end - send) over the window."""
    span = window(requests)
    if span is None or span[1] == span[0]:
        return None
    sent = [r for r in requests if r["send_ns"] is not None and r["end_ns"] is not None]
    return math.fsum(r["end_ns"] - r["send_ns"] for r in sent) / (span[1] - span[0])


def steady_chunks_per_s(requests: Sequence[Row], concurrency: int) -> float | None:
    """Content chunks per second while every lane is busy, without the first round.

    The span runs from the first end of any request to the last send: in between, a closed loop
    has every lane in flight. None when the span holds no chunk.
    """
    sent = [r for r in requests if r["send_ns"] is not None and r["end_ns"] is not None]
    if len(sent) <= concurrency or concurrency < 1:
        return None
    start = min(r["end_ns"] for r in sent)
    end = max(r["send_ns"] for r in sent)
    if end <= start:
        return None
    inside = sum(start < t <= end for r in sent for t in r["chunk_ns"])
    return inside / ((end - start) / NS_PER_S) if inside else None


def iteration_columns(
    iterations: Sequence[Row], requests: Sequence[Row], span: tuple[int, int] | None
) -> dict[str, Any]:
    """Server-side evidence inside the window; None wherever it was not measured completely.

    Pauses, recomputed and hidden tokens need every record: with a gap in `iter` they are None,
    not a lower bound. recomputed = sum of context tokens - sum of prompts.
    """
    names = (
        "iterations", "pauses", "recomputed_tokens", "hidden_tokens", "peak_blocks",
        "pool_blocks", "residents_max", "telemetry_coverage",
    )  # fmt: skip
    inside = [r for r in iterations if span and span[0] < r["t_ns"] <= span[1]]
    if not inside:
        return dict.fromkeys(names)
    numbers = [r["iter"] for r in inside if r["iter"] is not None]
    run = max(numbers) - min(numbers) + 1 if numbers else None
    coverage = len(set(numbers)) / run if run else None
    whole = coverage == 1.0

    def total(name: str) -> int | None:
        values = [r[name] for r in inside]
        return int(sum(values)) if whole and all(v is not None for v in values) else None

    def peak(name: str) -> int | None:
        values = [r[name] for r in inside if r[name] is not None]
        return max(values) if values else None

    context, pauses = total("context_tokens"), total("paused_requests")
    prompts = sum(r["planned_input_tokens"] for r in requests)
    return {
        "iterations": run if whole else None,
        "pauses": pauses,
        "recomputed_tokens": None if context is None else context - prompts,
        "hidden_tokens": _hidden(total("generation_requests"), pauses, requests),
        "peak_blocks": peak("used_blocks"),
        "pool_blocks": peak("max_blocks"),
        "residents_max": peak("scheduled_requests"),
        "telemetry_coverage": coverage,
    }


def _hidden(
    generation_steps: int | None, pauses: int | None, requests: Sequence[Row]
) -> int | None:
    """Tokens the model made minus tokens streamed.

    Each context phase that ends makes one token: one per request, and one more per pause. The
    count is exact unless a request is paused in the middle of its prompt, which adds one each.
    """
    if generation_steps is None or pauses is None:
        return None
    chunks = sum(int(r["chunk_count"]) for r in requests)
    return generation_steps + len(requests) + pauses - chunks

"""Consistency audit of one cell: which reason codes its own rows call for."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kvstudy.base.reasons import INVALID
from kvstudy.base.units import NS_PER_MS
from kvstudy.metrics.per_cell import mean_in_flight, window

Row = Mapping[str, Any]
LOOP_LAG_LIMIT_MS = 50.0
CPU_SHARE_LIMIT = 0.95
IN_FLIGHT_TOLERANCE = 0.02
HANDOVER_WALL_NS = 10 * NS_PER_MS
"""A lane may be idle so long between two requests, in wall time: the client's own turn."""


def audit_requests(requests: Sequence[Row], planned: int, prefix_reuse: bool) -> list[str]:
    """Reason codes of a cell's request rows, in the order of `base.reasons`."""
    ok = [r for r in requests if r["outcome"] == "ok"]
    found = {
        "requests_missing": len(requests) < planned,
        "requests_failed": len(ok) < len(requests),
        "input_tokens_differ": any(
            r["server_input_tokens"] is not None
            and r["server_input_tokens"] != r["planned_input_tokens"]
            for r in requests
        ),
        "cached_tokens": not prefix_reuse and any((r["cached_tokens"] or 0) > 0 for r in requests),
        "time_order": any(not in_order(r) for r in requests),
        "token_count_low": any(r["chunk_count"] == 0 for r in ok),
        "early_ended": any(r["chunk_count"] < r["planned_output_tokens"] for r in ok),
    }
    return [code for code, bad in found.items() if bad]


def in_order(row: Row) -> bool:
    """Scheduled <= send <= first byte <= first chunk <= ... <= last chunk <= end, TTFT > 0."""
    times = [row["scheduled_ns"], row["send_ns"], row["first_byte_ns"], *row["chunk_ns"]]
    times.append(row["end_ns"])
    known = [t for t in times if t is not None]
    if known != sorted(known):
        return False
    if row["chunk_ns"] and (
        row["first_chunk_ns"] != row["chunk_ns"][0] or row["last_chunk_ns"] != row["chunk_ns"][-1]
    ):
        return False
    return row["ttft_ns"] is None or bool(row["ttft_ns"] > 0)


def audit_load(requests: Sequence[Row], concurrency: int, time_scale: float = 1.0) -> list[str]:
    """Whether the closed loop held its concurrency while there was work for every lane."""
    sent = [r for r in requests if r["send_ns"] is not None and r["end_ns"] is not None]
    lanes = min(concurrency, len(sent))
    if not lanes or window(requests) is None:
        return []
    last_send = max(r["send_ns"] for r in sent)
    events = sorted(
        [(r["send_ns"], 1) for r in sent] + [(r["end_ns"], -1) for r in sent],
        # A lane's next send may carry the very time of its last end: the end comes first.
        key=lambda event: (event[0], event[1]),
    )
    in_flight, peak = 0, 0
    area, before = 0.0, events[0][0]
    for time_ns, change in events:
        if time_ns <= last_send:
            area += in_flight * (time_ns - before)
            before = time_ns
        in_flight += change
        peak = max(peak, in_flight)
    if peak > lanes:
        return ["concurrency_not_held"]
    busy_ns = last_send - events[0][0]
    handover_ns = (len(sent) - lanes) * HANDOVER_WALL_NS * time_scale
    held = lanes * busy_ns * (1 - IN_FLIGHT_TOLERANCE) - handover_ns
    if busy_ns > 0 and len(sent) > lanes and area < held:
        return ["concurrency_not_held"]
    return []


def audit_client(audit: Mapping[str, Any]) -> list[str]:
    """Whether the client was too slow for its load, or was stopped."""
    codes = []
    if audit["clock_jumps"]:
        codes.append("clock_jump")
    lag_ms = audit["loop_lag_p99_ms"]
    if (lag_ms is not None and lag_ms > LOOP_LAG_LIMIT_MS) or audit["cpu_share"] > CPU_SHARE_LIMIT:
        codes.append("client_saturated")
    return codes


def littles_law_holds(requests: Sequence[Row]) -> bool:
    """Mean in flight equals arrival rate times mean residence, by two separate sums."""
    span = window(requests)
    held = mean_in_flight(requests)
    sent = [r for r in requests if r["send_ns"] is not None and r["end_ns"] is not None]
    if span is None or held is None or not sent:
        return True
    rate_per_ns = len(sent) / (span[1] - span[0])
    mean_residence_ns = sum(r["end_ns"] for r in sent) / len(sent)
    mean_residence_ns -= sum(r["send_ns"] for r in sent) / len(sent)
    return bool(abs(rate_per_ns * mean_residence_ns - held) <= 1e-6 * max(held, 1.0))


def valid(codes: Sequence[str]) -> bool:
    """Whether a cell with these reason codes may carry a verdict."""
    return not any(code in INVALID for code in codes)

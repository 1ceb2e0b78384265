"""What a run gives: one summary, one row per request, one row per step."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvstudy.base.units import ns_to_ms, ns_to_s
from kvstudy.sim.engine import Engine, Step
from kvstudy.sim.request import SimRequest


@dataclass(frozen=True, slots=True)
class Result:
    """A finished run: the engine as it ended, the requests in submission order, their lanes.

    A lane is None in an open loop.
    """

    engine: Engine
    requests: Sequence[SimRequest]
    lanes: Sequence[int | None]

    def summary(self) -> dict[str, Any]:
        """The output object of `kvstudy simulate`; what is undefined is null, never 0.

        `output_tok_per_s` is all streamed tokens / `wall_s`, the end of the last step. TTFT, TPOT
        and e2e are properties of `SimRequest`; percentiles interpolate linearly. `hidden_tokens`
        were decoded without being streamed. `max_gap_ms` is the longest time between two
        successive tokens of one request. `residents_max` counts requests that hold blocks.
        """
        engine, requests = self.engine, self.requests
        output_tokens = sum(r.streamed for r in requests)
        ttft = [r.ttft_ns for r in requests if r.ttft_ns is not None]
        tpot = [r.tpot_ns for r in requests if r.tpot_ns is not None]
        e2e = [r.e2e_ns for r in requests if r.e2e_ns is not None]
        gaps = [r.max_gap_ns for r in requests if r.max_gap_ns is not None]
        wall_s = ns_to_s(engine.now_ns)
        return {
            "wall_s": wall_s,
            "output_tok_per_s": output_tokens / wall_s if wall_s > 0 else None,
            "ttft_p50_ms": percentile(ttft, 50, ns_to_ms),
            "ttft_p99_ms": percentile(ttft, 99, ns_to_ms),
            "tpot_p50_ms": percentile(tpot, 50, ns_to_ms),
            "tpot_p99_ms": percentile(tpot, 99, ns_to_ms),
            "e2e_p50_s": percentile(e2e, 50, ns_to_s),
            "e2e_p99_s": percentile(e2e, 99, ns_to_s),
            "iterations": engine.iteration,
            "pauses": engine.counters.pauses,
            "recomputed_tokens": engine.counters.recomputed_tokens,
            "prefilled_tokens": engine.counters.prefilled_tokens,
            "hidden_tokens": engine.counters.hidden_tokens,
            "peak_blocks": engine.pool.peak_blocks,
            "residents_max": engine.counters.residents_max,
            "requests": len(requests),
            "output_tokens": output_tokens,
            "paused_requests": sum(r.pauses > 0 for r in requests),
            "max_gap_ms": ns_to_ms(max(gaps)) if gaps else None,
        }

    def request_rows(self) -> list[dict[str, Any]]:
        """One row per request, in submission order; times are ns of study time."""
        return [
            {
                "request_id": request.request_id,
                "submit_order": order,
                "lane": lane,
                "input_tokens": request.input_tokens,
                "output_tokens": request.output_tokens,
                "output_cap_tokens": request.output_cap_tokens,
                "submitted_ns": request.submitted_ns,
                "first_token_ns": request.first_token_ns,
                "last_token_ns": request.last_token_ns,
                "ttft_ns": request.ttft_ns,
                "tpot_ns": request.tpot_ns,
                "e2e_ns": request.e2e_ns,
                "max_gap_ns": request.max_gap_ns,
                "pauses": request.pauses,
                "recomputed_tokens": request.recomputed_tokens,
                "hidden_tokens": request.hidden_tokens,
            }
            for order, (request, lane) in enumerate(zip(self.requests, self.lanes, strict=True))
        ]


def percentile(
    values: Sequence[float], percent: float, convert: Callable[[float], float]
) -> float | None:
    """The percentile by linear interpolation, converted; None of no values."""
    return convert(float(np.percentile(values, percent))) if values else None


def iteration_row(step: Step, max_blocks: int) -> dict[str, Any]:
    """One step under the names of the iterations table; no request queues before the list."""
    return {
        "t_ns": step.end_ns,
        "iter": step.index,
        "scheduled_requests": step.scheduled,
        "context_requests": step.context_requests,
        "generation_requests": step.generation_requests,
        "paused_requests": len(step.paused),
        "context_tokens": step.context_tokens,
        "active_requests": step.active_requests,
        "queued_requests": 0,
        "used_blocks": step.used_blocks,
        "free_blocks": step.free_blocks,
        "max_blocks": max_blocks,
        "iter_latency_ns": step.end_ns - step.start_ns,
    }

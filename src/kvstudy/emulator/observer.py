"""What the engine lets others see: iteration records, Prometheus pages, per-request timings."""

from __future__ import annotations

import sys
import time
from collections import deque
from datetime import UTC, datetime
from typing import Any, cast

from kvstudy.base.clock import StudyClock
from kvstudy.base.units import NS_PER_S, ns_to_ms, ns_to_s
from kvstudy.emulator.answer import Answer
from kvstudy.emulator.metrics_text import Histogram, Sample, label, render
from kvstudy.emulator.records import Pool, Record, RecordBuffer, release
from kvstudy.emulator.settings import Dialect, Launch
from kvstudy.sim.engine import Engine, Step

_WINDOW_STATS_SINCE = (1, 3, 0, 8)
_GAUGES_SINCE = (1, 3, 0, 8)


class Observer:
    """Sees every delivered step."""

    def __init__(self, launch: Launch, engine: Engine, clock: StudyClock) -> None:
        self._server = launch.server
        self._telemetry = launch.server.telemetry
        self._engine = engine
        self._clock = clock
        self._unix_offset_ns = time.time_ns() - time.monotonic_ns()
        version = release(launch.emulation.version)
        is_trtllm = launch.server.dialect is Dialect.TRTLLM
        self._has_gauges = is_trtllm and version >= _GAUGES_SINCE
        self._is_drained = (
            self._has_gauges and self._telemetry.perf_metrics and self._telemetry.iteration_stats
        )
        self.records = RecordBuffer(
            Pool(
                max_blocks=engine.pool.total_blocks,
                block_tokens=launch.server.block_tokens,
                max_active=launch.server.max_batch_size,
                has_window_stats=is_trtllm and version >= _WINDOW_STATS_SINCE,
            )
        )
        self._last: Step | None = None
        self._allocated = self._held = 0
        self._previous_ms: float | None = None
        self._finished = {"length": 0, "stop": 0}
        self._retracted = 0
        self._prompt_tokens = self._generation_tokens = 0
        self._e2e, self._ttft, self._tpot, self._queue = (Histogram() for _ in range(4))
        self._timings: deque[dict[str, Any]] = deque(
            maxlen=self._telemetry.perf_metrics_max_requests
        )

    def see(self, step: Step, due_ns: int, joined: list[Answer]) -> None:
        """A step was delivered; its end was scheduled for monotonic time `due_ns`."""
        self._last = step
        self._allocated += max(0, step.used_blocks - self._held)
        self._held = self._engine.pool.held_blocks
        self._generation_tokens += len(step.emitted)
        if step.paused:
            self._retracted = len(step.paused)
        end_unix_ns = due_ns + self._unix_offset_ns
        if self._telemetry.iteration_stats and not self._is_drained:
            self.records.append(
                Record.of(
                    step,
                    end_unix_ns=end_unix_ns,
                    joined=len(joined),
                    allocated_blocks=self._allocated,
                )
            )
        for answer in cast("list[Answer]", step.finished):
            self._ended(answer)
        if self._telemetry.iteration_log:
            self._log(step, end_unix_ns)
        if step.paused and self._server.dialect is Dialect.SGLANG:
            _write(f"KV cache pool is full. Retract requests. #retracted_reqs: {len(step.paused)}")

    def _ended(self, answer: Answer) -> None:
        self._finished[answer.finish_reason] += 1
        self._prompt_tokens += answer.input_tokens
        if answer.e2e_ns is not None and answer.ttft_ns is not None:
            self._e2e.observe(ns_to_s(answer.e2e_ns))
            self._ttft.observe(ns_to_s(answer.ttft_ns))
            self._queue.observe(0.0)
        if answer.tpot_ns is not None:
            self._tpot.observe(ns_to_s(answer.tpot_ns))
        if self._telemetry.perf_metrics:
            self._timings.append(self._timing(answer))

    def _timing(self, answer: Answer) -> dict[str, Any]:
        blocks = -(-(answer.input_tokens + answer.output_tokens) // self._server.block_tokens)
        blocks += answer.recomputed_tokens // self._server.block_tokens
        times = {
            "server_arrival_time": answer.submitted_ns,
            "arrival_time": answer.submitted_ns,
            "first_scheduled_time": answer.submitted_ns,
            "first_token_time": answer.first_token_ns or 0,
            "server_first_token_time": answer.first_token_ns or 0,
            "last_token_time": answer.last_token_ns or 0,
        }
        return {
            "request_id": answer.request_id,
            "perf_metrics": {
                "first_iter": answer.first_iteration,
                "last_iter": answer.last_iteration,
                "timing_metrics": {name: ns_to_s(ns) for name, ns in times.items()},
                "kv_cache_metrics": {
                    "num_total_allocated_blocks": blocks,
                    "num_new_allocated_blocks": blocks,
                    "num_reused_blocks": 0,
                    "num_missed_blocks": 0,
                },
            },
        }

    def drain_timings(self) -> list[dict[str, Any]]:
        """The answer to GET /perf_metrics: each ended request once."""
        timings = list(self._timings)
        self._timings.clear()
        return timings

    def _log(self, step: Step, end_unix_ns: int) -> None:
        """One line of `print_iter_log: true`."""
        latency_ms = ns_to_ms(step.end_ns - step.start_ns)
        previous = "N/A" if self._previous_ms is None else f"{self._previous_ms:.3f}ms"
        self._previous_ms = latency_ms
        moment = datetime.fromtimestamp(end_unix_ns / NS_PER_S, UTC)
        batch = self._server.max_batch_size
        states = {
            "num_ctx_requests": step.context_requests,
            "num_ctx_tokens": step.context_tokens,
            "num_generation_tokens": step.generation_requests,
        }
        _write(
            f"[{moment:%m/%d/%Y-%H:%M:%S}] [TRT-LLM] [RANK 0] [I] iter = {step.index}, "
            f"global_rank = 0, rank = 0, currank_total_requests = {step.active_requests}/{batch}, "
            f"host_step_time = {latency_ms:.3f}ms, prev_device_step_time = {previous}, "
            f"timestamp = {moment:%Y-%m-%d %H:%M:%S}, num_scheduled_requests: {step.scheduled}, "
            f"states = {states}"
        )

    # --- Prometheus ---------------------------------------------------------------------------

    def page(self) -> str:
        """The Prometheus page of the dialect."""
        dialect = self._server.dialect
        if dialect is Dialect.VLLM:
            return self._vllm_page()
        return self._sglang_page() if dialect is Dialect.SGLANG else self._trtllm_page()

    @property
    def _running(self) -> int:
        return self._last.scheduled if self._last and self._engine.has_work else 0

    @property
    def _waiting(self) -> int:
        return max(0, len(self._engine.active) - self._running)

    @property
    def _usage(self) -> float:
        return self._engine.pool.held_blocks / max(1, self._engine.pool.total_blocks)

    def _trtllm_page(self) -> str:
        labels = f'model_name="{label(self._server.model_name)}",engine_type="undefined"'
        prefix = "trtllm_"
        samples = [
            Sample(f"{prefix}request_success_total", "counter", count, f'finished_reason="{why}"')
            for why, count in self._finished.items()
        ]
        if self._has_gauges:
            samples += [Sample(prefix + n, kind, v) for n, kind, v in self._gauges()]
        histograms = [
            (f"{prefix}e2e_request_latency_seconds", self._e2e),
            (f"{prefix}time_to_first_token_seconds", self._ttft),
            (f"{prefix}time_per_output_token_seconds", self._tpot),
            (f"{prefix}request_queue_time_seconds", self._queue),
        ]
        return render(samples, histograms, labels)

    def _gauges(self) -> list[tuple[str, str, float]]:
        pool, last = self._engine.pool, self._last
        return [
            ("num_requests_running", "gauge", self._running),
            ("num_requests_waiting", "gauge", self._waiting),
            ("num_requests_completed_total", "counter", sum(self._finished.values())),
            ("kv_cache_utilization", "gauge", self._usage),
            ("kv_cache_hit_rate", "gauge", 0.0),
            ("kv_cache_max_blocks", "gauge", pool.total_blocks),
            ("kv_cache_free_blocks", "gauge", pool.free_blocks),
            ("kv_cache_used_blocks", "gauge", pool.held_blocks),
            ("kv_cache_tokens_per_block", "gauge", self._server.block_tokens),
            ("num_context_requests", "gauge", last.context_requests if last else 0),
            ("num_generation_requests", "gauge", last.generation_requests if last else 0),
            ("num_paused_requests", "gauge", len(last.paused) if last else 0),
            ("num_scheduled_requests", "gauge", last.scheduled if last else 0),
            ("total_context_tokens", "gauge", last.context_tokens if last else 0),
            (
                "iteration_latency_seconds",
                "gauge",
                ns_to_s(last.end_ns - last.start_ns) if last else 0.0,
            ),
            ("prompt_tokens_total", "counter", self._prompt_tokens),
            ("generation_tokens_total", "counter", self._generation_tokens),
        ]

    def _vllm_page(self) -> str:
        server = self._server
        labels = f'engine="0",model_name="{label(server.model_name)}"'
        cache = ",".join(
            f'{name}="{label(str(v))}"' for name, v in server.resolved["cache"].items()
        )
        iterations = self._engine.iteration
        samples = [
            Sample("vllm:num_requests_running", "gauge", self._running),
            Sample("vllm:num_requests_waiting", "gauge", self._waiting),
            Sample("vllm:kv_cache_usage_perc", "gauge", self._usage),
            Sample("vllm:num_preemptions_total", "counter", self._engine.counters.pauses),
            Sample("vllm:prompt_tokens_total", "counter", self._engine.counters.prefilled_tokens),
            Sample("vllm:generation_tokens_total", "counter", self._generation_tokens),
            Sample("vllm:iteration_tokens_total_count", "counter", iterations),
            Sample("vllm:cache_config_info", "gauge", 1.0, cache),
            *(
                Sample("vllm:request_success_total", "counter", count, f'finished_reason="{why}"')
                for why, count in self._finished.items()
            ),
        ]
        histograms = [
            ("vllm:e2e_request_latency_seconds", self._e2e),
            ("vllm:time_to_first_token_seconds", self._ttft),
            ("vllm:request_time_per_output_token_seconds", self._tpot),
            ("vllm:request_queue_time_seconds", self._queue),
        ]
        return render(samples, histograms, labels)

    def _sglang_page(self) -> str:
        engine, server = self._engine, self._server
        labels = f'model_name="{label(server.model_name)}",engine_type="unified",tp_rank="0"'
        held = engine.pool.held_blocks * server.block_tokens
        total = engine.pool.total_blocks * server.block_tokens
        samples = [
            Sample("sglang:num_running_reqs", "gauge", self._running),
            Sample("sglang:num_queue_reqs", "gauge", self._waiting),
            Sample("sglang:token_usage", "gauge", self._usage),
            Sample("sglang:num_used_tokens", "gauge", held),
            Sample("sglang:kv_used_tokens", "gauge", held),
            Sample("sglang:kv_available_tokens", "gauge", total - held),
            Sample("sglang:kv_evictable_tokens", "gauge", 0),
            Sample("sglang:max_total_num_tokens", "gauge", total),
            Sample("sglang:num_retracted_reqs", "gauge", self._retracted),
            Sample("sglang:num_paused_reqs", "gauge", 0),
            Sample("sglang:num_retracted_requests_total", "counter", engine.counters.pauses),
            Sample("sglang:prompt_tokens_total", "counter", engine.counters.prefilled_tokens),
            Sample("sglang:generation_tokens_total", "counter", self._generation_tokens),
            Sample("sglang:num_requests_total", "counter", sum(self._finished.values())),
        ]
        histograms = [
            ("sglang:e2e_request_latency_seconds", self._e2e),
            ("sglang:time_to_first_token_seconds", self._ttft),
            ("sglang:inter_token_latency_seconds", self._tpot),
        ]
        return render(samples, histograms, labels)


def _write(line: str) -> None:
    sys.stderr.write(line + "\n")

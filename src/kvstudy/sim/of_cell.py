"""The simulated counterpart of a cell: same requests, same order, virtual time, no sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

from kvstudy.base.units import ms_to_ns
from kvstudy.sim.engine import Engine, Step
from kvstudy.sim.load import AdmissionLag
from kvstudy.sim.model import ChunkPolicy, EngineSpec, Pause, Policy, VllmOptions
from kvstudy.sim.request import SimRequest
from kvstudy.sim.timing import StepTime

Row = dict[str, Any]


def pause_of(mode: str | Mapping[str, int]) -> Pause:
    """The pause mode of a config's `emulate.pause`."""
    if isinstance(mode, Mapping):
        return Pause(truncate_to_tokens=mode["truncate_to_tokens"])
    return Pause(never_release=mode == "never_release")


def policy_of(adapter: str, options: Mapping[str, Any]) -> Policy:
    """The capacity policy an arm asks of its engine; TensorRT-LLM's default is no-evict."""
    if adapter == "vllm":
        return Policy.VLLM_RECOMPUTE
    if adapter == "sglang":
        return Policy.SGLANG_RETRACT
    scheduler = options.get("scheduler_config") or {}
    return Policy(str(scheduler.get("capacity_scheduler_policy", "GUARANTEED_NO_EVICT")).lower())


def engine_spec(values: Mapping[str, Any]) -> EngineSpec:
    """What the engine of a prediction slice is told (`study.plan.prediction_spec`)."""
    server, options = values["server"], values["arm_options"]
    pool = server["kv_pool"]
    policy = policy_of(values["adapter"], options)
    chunking = (options.get("scheduler_config") or {}).get("context_chunking_policy")
    null_block = policy is Policy.VLLM_RECOMPUTE
    return EngineSpec(
        policy=policy,
        # The declared pool is usable tokens; vLLM's adapter adds its null block on top.
        pool_blocks=pool["tokens"] // pool["block_tokens"] + null_block,
        pause=pause_of(values["pause"]),
        block_tokens=pool["block_tokens"],
        max_batch_size=int(options.get("max_num_seqs", server["max_batch_size"])),
        max_num_tokens=server["max_num_tokens"],
        chunked_prefill=server["chunked_prefill"],
        chunk_policy=(
            ChunkPolicy.EQUAL_PROGRESS if chunking == "EQUAL_PROGRESS" else ChunkPolicy.FCFS
        ),
        step_time=StepTime(**values["emulator"]["step_time"]),
        vllm=VllmOptions(watermark=float(options.get("watermark", 0.0))),
    )


class Prediction:
    """One cell run in virtual time: request rows, iteration rows and totals."""

    def __init__(self, values: Mapping[str, Any], planned: Sequence[Mapping[str, Any]]) -> None:
        self._engine = Engine(engine_spec(values))
        self._planned = list(planned)
        self._stall_ns = ms_to_ns(values.get("stall_threshold_ms", 1000.0))
        self._lag: AdmissionLag[SimRequest] = AdmissionLag(
            values["emulator"]["admission_lag_steps"]
        )
        self._chunks: dict[str, list[int]] = {}
        self._lanes: dict[str, int] = {}
        self._orders: dict[str, int] = {}
        self._requests: list[SimRequest] = []
        self.iterations: list[Row] = []
        self._run(min(values["concurrency"], len(self._planned)))

    def _run(self, lanes: int) -> None:
        for lane in range(lanes):
            self._engine.join(self._next(lane, 0))
        while self._engine.has_work or len(self._lag):
            for request in self._lag.take_due(self._engine.iteration + 1):
                self._engine.join(request)
            step = self._engine.try_step()
            if step is None:
                if not len(self._lag):
                    raise self._engine.livelock()
                for request in self._lag.take_all():
                    self._engine.join(request)
                continue
            self._after(step)

    def _next(self, lane: int, now_ns: int) -> SimRequest:
        order = len(self._requests)
        plan = self._planned[order]
        request = SimRequest(
            plan["request_id"],
            plan["input_tokens"],
            plan["output_tokens"],
            plan["output_cap_tokens"],
            now_ns,
        )
        self._requests.append(request)
        self._chunks[request.request_id] = []
        self._lanes[request.request_id] = lane
        self._orders[request.request_id] = order
        return request

    def _after(self, step: Step) -> None:
        for request in step.emitted:
            self._chunks[request.request_id].append(step.end_ns)
        for request in step.finished:
            if len(self._requests) < len(self._planned):
                lane = self._lanes[request.request_id]
                self._lag.ended(step.index, self._next(lane, step.end_ns))
        self.iterations.append(
            {
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
                "max_blocks": step.used_blocks + step.free_blocks,
                "iter_latency_ns": step.end_ns - step.start_ns,
            }
        )

    @property
    def totals(self) -> Row:
        """Iterations, pauses, recomputed and hidden tokens, peak blocks, residents."""
        counters = self._engine.counters
        return {
            "iterations": self._engine.iteration,
            "pauses": counters.pauses,
            "recomputed_tokens": counters.recomputed_tokens,
            "hidden_tokens": counters.hidden_tokens,
            "peak_blocks": self._engine.pool.peak_blocks,
            "residents_max": counters.residents_max,
        }

    @property
    def wall_s(self) -> float:
        """Length of the run in seconds of study time."""
        return self._engine.now_ns / 1e9

    def peak_chunks_per_s(self, over_s: float = 10.0) -> float:
        """Largest chunk rate over any span of `over_s` seconds that starts at a chunk."""
        times = sorted(t for chunks in self._chunks.values() for t in chunks)
        span = ms_to_ns(over_s * 1000)
        best, start = 0, 0
        for end, time_ns in enumerate(times):
            while times[start] <= time_ns - span:
                start += 1
            best = max(best, end - start + 1)
        return best / over_s

    def request_rows(self) -> list[Row]:
        """Rows of `tables.CLIENT_REQUESTS`, in submission order."""
        return [self._row(request) for request in self._requests]

    def _row(self, request: SimRequest) -> Row:
        chunks = self._chunks[request.request_id]
        gaps = [after - before for before, after in pairwise(chunks)]
        first, last = (chunks[0], chunks[-1]) if chunks else (None, None)
        send = request.submitted_ns
        return {
            "request_id": request.request_id,
            "submit_order": self._orders[request.request_id],
            "lane": self._lanes[request.request_id],
            "scheduled_ns": send,
            "send_ns": send,
            "first_byte_ns": first,
            "first_chunk_ns": first,
            "last_chunk_ns": last,
            "end_ns": last,
            "chunk_ns": chunks,
            "chunk_count": len(chunks),
            "empty_chunk_count": 0,
            "read_count": None,
            "planned_input_tokens": request.input_tokens,
            "server_input_tokens": request.input_tokens,
            "cached_tokens": 0,
            "planned_output_tokens": request.output_tokens,
            "output_cap_tokens": request.output_cap_tokens,
            "usage_tokens": len(chunks),
            "finish_reason": "stop" if len(chunks) < request.output_cap_tokens else "length",
            "outcome": "ok",
            "http_status": None,
            "error": None,
            "output_sha256": None,
            "ttft_ns": None if first is None else first - send,
            "tpot_chunks_ns": (chunks[-1] - chunks[0]) / (len(chunks) - 1) if gaps else None,
            "e2e_ns": None if last is None else last - send,
            "max_gap_ns": max(gaps) if gaps else None,
            "stall_count": sum(gap > self._stall_ns for gap in gaps) if gaps else None,
        }

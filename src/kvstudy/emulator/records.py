"""Iteration records as trtllm-serve's GET /metrics gives them: at most 1,000, each read once."""

from __future__ import annotations

import json
import re
from collections import deque
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from kvstudy.base.units import NS_PER_S, ns_to_ms
from kvstudy.sim.engine import Step

MOST_RECORDS = 1000
_GPU_BYTES = 139_586_437_120
_UNKNOWN_SIZES = (
    "maxBatchSizeStatic",
    "maxBatchSizeRuntime",
    "maxBatchSizeTunerRecommended",
    "maxNumTokensStatic",
    "maxNumTokensRuntime",
    "maxNumTokensTunerRecommended",
)


@dataclass(frozen=True, slots=True)
class Pool:
    """What a record says about the pool and the executor besides the step."""

    max_blocks: int
    block_tokens: int
    max_active: int
    has_window_stats: bool = False


@dataclass(frozen=True, slots=True)
class Record:
    """The numbers of one delivered step; `end_unix_ns` is when its end was scheduled."""

    iteration: int
    latency_ns: int
    end_unix_ns: int
    joined: int
    finished: int
    scheduled: int
    context_requests: int
    generation_requests: int
    paused: int
    context_tokens: int
    active: int
    used_blocks: int
    free_blocks: int
    allocated_blocks: int

    @staticmethod
    def of(step: Step, *, end_unix_ns: int, joined: int, allocated_blocks: int) -> Record:
        """The record of a step of the simulator core."""
        return Record(
            iteration=step.index,
            latency_ns=step.end_ns - step.start_ns,
            end_unix_ns=end_unix_ns,
            joined=joined,
            finished=len(step.finished),
            scheduled=step.scheduled,
            context_requests=step.context_requests,
            generation_requests=step.generation_requests,
            paused=len(step.paused),
            context_tokens=step.context_tokens,
            active=step.active_requests,
            used_blocks=step.used_blocks,
            free_blocks=step.free_blocks,
            allocated_blocks=allocated_blocks,
        )


class RecordBuffer:
    """The last records nobody has read, ready to be sent: a read must not hold up the engine."""

    def __init__(self, pool: Pool) -> None:
        self._template = _template(pool)
        self._max_active = pool.max_active
        self._records: deque[bytes] = deque()
        self.dropped = 0

    def append(self, record: Record) -> None:
        """Keep one more; the oldest is lost when there are too many."""
        if len(self._records) == MOST_RECORDS:
            self._records.popleft()
            self.dropped += 1
        active = min(record.active, self._max_active)
        self._records.append(
            self._template
            % {
                b"iteration": record.iteration,
                b"latency_ms": ns_to_ms(record.latency_ns),
                b"timestamp": timestamp(record.end_unix_ns).encode(),
                b"active": active,
                b"queued": record.active - active,
                b"joined": record.joined,
                b"finished": record.finished,
                b"scheduled": record.scheduled,
                b"context_requests": record.context_requests,
                b"generation_requests": record.generation_requests,
                b"paused": record.paused,
                b"context_tokens": record.context_tokens,
                b"used_blocks": record.used_blocks,
                b"free_blocks": record.free_blocks,
                b"allocated_blocks": record.allocated_blocks,
            }
        )

    def drain(self) -> bytes:
        """All records nobody has read as a JSON list, oldest first; they are gone afterwards."""
        drained = b"[" + b",".join(self._records) + b"]"
        self._records.clear()
        return drained


def _template(pool: Pool) -> bytes:
    """One record as JSON with places for its values, field by field as `facts/engines.md` 4.4."""
    batch = {
        "numScheduledRequests": "<scheduled>",
        "numContextRequests": "<context_requests>",
        "numGenRequests": "<generation_requests>",
        "numPausedRequests": "<paused>",
        "numCtxTokens": "<context_tokens>",
        "microBatchId": 0,
        "avgNumDecodedTokensPerIter": 0.0,
    }
    shaped: dict[str, Any] = {
        "cpuMemUsage": 0,
        "gpuMemUsage": _GPU_BYTES,
        "pinnedMemUsage": 0,
        "iter": "<iteration>",
        "iterLatencyMS": "<latency_ms>",
        "timestamp": "%(timestamp)b",
        "numActiveRequests": "<active>",
        "numNewActiveRequests": "<joined>",
        "numQueuedRequests": "<queued>",
        "numCompletedRequests": "<finished>",
        "maxNumActiveRequests": pool.max_active,
        "newActiveRequestsQueueLatencyMS": 0.0,
        **dict.fromkeys(_UNKNOWN_SIZES, 0),
        "inflightBatchingStats": batch,
        "kvCacheStats": _cache(pool),
        "staticBatchingStats": None,
        "specDecodingStats": None,
    }
    if pool.has_window_stats:
        shaped["kvCacheIterationStats"] = _window(pool)
    text = json.dumps(shaped, separators=(",", ":"))
    return re.sub(r'"<(\w+)>"', r"%(\1)a", text).encode()


def _cache(pool: Pool) -> dict[str, Any]:
    return {
        "maxNumBlocks": pool.max_blocks,
        "freeNumBlocks": "<free_blocks>",
        "usedNumBlocks": "<used_blocks>",
        "tokensPerBlock": pool.block_tokens,
        "allocTotalBlocks": "<allocated_blocks>",
        "allocNewBlocks": "<allocated_blocks>",
        "reusedBlocks": 0,
        "missedBlocks": 0,
        "cacheHitRate": 0.0,
    }


def _window(pool: Pool) -> dict[str, Any]:
    return {
        str(pool.max_blocks * pool.block_tokens): {
            "primaryMaxNumBlocks": pool.max_blocks,
            "primaryFreeNumBlocks": "<free_blocks>",
            "primaryUsedNumBlocks": "<used_blocks>",
            "secondaryMaxNumBlocks": 0,
            "secondaryFreeNumBlocks": 0,
            "secondaryUsedNumBlocks": 0,
            "iterReusedBlocks": 0,
            "iterMissedBlocks": 0,
            "iterCacheHitRate": 0.0,
        }
    }


def timestamp(unix_ns: int) -> str:
    """`MM-DD-YYYY HH:MM:SS.ffffff`, in UTC."""
    seconds, rest = divmod(unix_ns, NS_PER_S)
    moment = datetime.fromtimestamp(seconds, UTC)
    return f"{moment:%m-%d-%Y %H:%M:%S}.{rest // 1000:06d}"


def release(version: str) -> tuple[int, int, int, int]:
    """(major, minor, patch, candidate) of a version; a final release comes after its candidates."""
    found = re.match(r"(\d+)\.(\d+)\.(\d+)(?:rc(\d+))?", version)
    if found is None:
        return (0, 0, 0, 0)
    major, minor, patch, candidate = found.groups()
    return (int(major), int(minor), int(patch), 1 << 16 if candidate is None else int(candidate))

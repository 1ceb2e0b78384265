"""The client watches itself: loop lag, CPU share, garbage collection, clock jumps, in flight."""

from __future__ import annotations

import asyncio
import gc
import time
from array import array
from collections.abc import Iterable
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import numpy as np

from kvstudy.base.units import NS_PER_S, ns_to_ms, ns_to_s
from kvstudy.client.model import Audit
from kvstudy.client.recording import Recording

_PROBE_S = 0.05
_JUMP_NS = 2 * NS_PER_S
_SLEPT_NS = NS_PER_S // 10


class Watcher:
    """Measures the process between entering and leaving; then `audit` says what it saw.

    What exists at the start is kept out of the garbage collector's sight, so that a collection
    during the run walks only what the run made.
    """

    def __init__(self) -> None:
        self._lags_ns: array[int] = array("q")
        self._pauses_ns: array[int] = array("q")
        self._gc_start_ns = 0
        self._slept = 0
        self._cpu_ns = self._wall_ns = 0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        gc.collect()
        gc.freeze()
        gc.callbacks.append(self._on_gc)
        self._cpu_ns, self._wall_ns = time.process_time_ns(), time.monotonic_ns()
        self._task = asyncio.create_task(self._probe())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._cpu_ns = time.process_time_ns() - self._cpu_ns
        self._wall_ns = time.monotonic_ns() - self._wall_ns
        gc.callbacks.remove(self._on_gc)
        gc.unfreeze()
        if self._task is not None:
            self._task.cancel()
            with suppress(asyncio.CancelledError):
                await self._task

    def audit(self, recordings: Iterable[Recording], chunks: int, reads: int) -> Audit:
        """The verdict of the watch over the requests that were sent."""
        lags = np.asarray(self._lags_ns if self._lags_ns else [0])
        mean, most, window_ns = in_flight(recordings)
        return Audit(
            loop_lag_p50_ms=ns_to_ms(float(np.percentile(lags, 50))),
            loop_lag_p99_ms=ns_to_ms(float(np.percentile(lags, 99))),
            loop_lag_max_ms=ns_to_ms(float(lags.max())),
            cpu_share=self._cpu_ns / max(self._wall_ns, 1),
            gc_pauses=len(self._pauses_ns),
            gc_pause_max_ms=ns_to_ms(max(self._pauses_ns, default=0)),
            clock_jumps=int((lags > _JUMP_NS).sum()) + self._slept,
            mean_in_flight=mean,
            max_in_flight=most,
            chunks=chunks,
            reads=reads,
            wall_s=ns_to_s(window_ns),
            chunk_rate_per_s=chunks / ns_to_s(window_ns) if window_ns else 0.0,
        )

    async def _probe(self) -> None:
        loop = asyncio.get_running_loop()
        asleep_ns = _asleep_ns()
        while True:
            due = loop.time() + _PROBE_S
            await asyncio.sleep(_PROBE_S)
            self._lags_ns.append(max(0, round((loop.time() - due) * NS_PER_S)))
            slept_ns = _asleep_ns() - asleep_ns
            if slept_ns > _SLEPT_NS:
                self._slept += 1
                asleep_ns += slept_ns

    def _on_gc(self, phase: str, _info: dict[str, Any]) -> None:
        now_ns = time.monotonic_ns()
        if phase == "start":
            self._gc_start_ns = now_ns
        else:
            self._pauses_ns.append(now_ns - self._gc_start_ns)


def in_flight(recordings: Iterable[Recording]) -> tuple[float, int, int]:
    """Time-weighted mean and most requests in flight, and the window (first send, last end) in ns.

    A request is in flight from its send to its end. One that ends as another is sent is not
    counted with it.
    """
    moves = []
    for one in recordings:
        if one.send_ns is not None and one.end_ns is not None:
            moves += [(one.send_ns, 1), (one.end_ns, -1)]
    if not moves:
        return 0.0, 0, 0
    moves.sort()
    window_ns = moves[-1][0] - moves[0][0]
    busy_ns = -sum(at_ns * step for at_ns, step in moves)
    now = most = 0
    for _, step in moves:
        now += step
        most = max(most, now)
    return busy_ns / max(window_ns, 1), most, window_ns


def _asleep_ns() -> int:
    """Time the machine was suspended since boot: the boot clock runs on, the monotonic does not."""
    return time.clock_gettime_ns(time.CLOCK_BOOTTIME) - time.monotonic_ns()

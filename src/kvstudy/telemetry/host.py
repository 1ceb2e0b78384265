"""Host samples: CPU share and memory of process trees, and the machine's load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from dataclasses import dataclass
from typing import Self

import psutil

from kvstudy.base.clock import StudyClock
from kvstudy.base.units import NS_PER_MS, NS_PER_S


@dataclass(frozen=True, slots=True)
class TreeUse:
    """What a process tree has used: CPU seconds since its start, resident bytes now."""

    cpu_s: float
    rss_bytes: int
    processes: int


@dataclass(frozen=True, slots=True)
class HostSample:
    """One moment. Shares are CPU seconds per wall second since the sample before (1.0: a core)."""

    t_ns: int
    client_cpu_share: float | None
    server_cpu_share: float | None
    client_rss_bytes: int
    server_rss_bytes: int
    server_processes: int
    load_1min: float


def tree_use(pid: int) -> TreeUse:
    """Use of the tree below and with `pid`; zeros for a process that is gone."""
    cpu_s, rss, count = 0.0, 0, 0
    with contextlib.suppress(psutil.Error):
        root = psutil.Process(pid)
        for process in [root, *root.children(recursive=True)]:
            with contextlib.suppress(psutil.Error):
                times = process.cpu_times()
                cpu_s += times.user + times.system
                rss += process.memory_info().rss
                count += 1
    return TreeUse(cpu_s, rss, count)


def share(before_s: float, now_s: float, wall_ns: int) -> float | None:
    """CPU seconds per wall second; None for no time, or if a process left with its seconds."""
    if wall_ns <= 0 or now_s < before_s:
        return None
    return (now_s - before_s) * NS_PER_S / wall_ns


class HostSampler:
    """Samples client (this process alone) and server tree while a cell runs.

    `async with HostSampler(clock, server_pid=server.pid) as host: …; host.samples`
    """

    def __init__(self, clock: StudyClock, *, server_pid: int, interval_ms: int = 1000) -> None:
        self.samples: list[HostSample] = []
        self._clock = clock
        self._server_pid = server_pid
        self._interval_s = interval_ms * NS_PER_MS / NS_PER_S
        self._task: asyncio.Task[None] | None = None
        self._before: tuple[int, float, float] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="host-telemetry")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        self.take()

    async def _run(self) -> None:
        while True:
            self.take()
            await asyncio.sleep(self._interval_s)

    def take(self) -> None:
        """One sample, now."""
        now_ns = time.monotonic_ns()
        own = psutil.Process(os.getpid())
        times = own.cpu_times()
        client_s = times.user + times.system
        server = tree_use(self._server_pid)
        client_share = server_share = None
        if self._before is not None:
            then_ns, client_before_s, server_before_s = self._before
            client_share = share(client_before_s, client_s, now_ns - then_ns)
            server_share = share(server_before_s, server.cpu_s, now_ns - then_ns)
        self._before = (now_ns, client_s, server.cpu_s)
        self.samples.append(
            HostSample(
                t_ns=self._clock.from_wall_ns(now_ns),
                client_cpu_share=client_share,
                server_cpu_share=server_share,
                client_rss_bytes=own.memory_info().rss,
                server_rss_bytes=server.rss_bytes,
                server_processes=server.processes,
                load_1min=os.getloadavg()[0],
            )
        )

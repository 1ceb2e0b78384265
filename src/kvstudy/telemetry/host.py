"""Host samples: CPU share and memory of process trees, and the machine's load."""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Self

import psutil

from kvstudy.base.clock import StudyClock
from kvstudy.base.units import NS_PER_MS, NS_PER_S

_TREE_EVERY = 10


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


def tree(pid: int) -> list[psutil.Process]:
    """The processes at and below `pid`; none for one that is gone. Looks at every process."""
    try:
        root = psutil.Process(pid)
        return [root, *root.children(recursive=True)]
    except psutil.Error:
        return []


def use_of(processes: Iterable[psutil.Process]) -> TreeUse:
    """What the processes use that are still there."""
    cpu_s, rss, count = 0.0, 0, 0
    for process in processes:
        with contextlib.suppress(psutil.Error):
            times, memory = process.cpu_times(), process.memory_info()
            cpu_s += times.user + times.system
            rss += memory.rss
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
        self._tree: list[psutil.Process] = []

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._run(), name="host-telemetry")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None:
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task
        await asyncio.to_thread(self.take)

    async def _run(self) -> None:
        while True:
            await asyncio.to_thread(self.take)
            await asyncio.sleep(self._interval_s)

    def take(self) -> None:
        """One sample, now. The tree's members are looked up only every few samples: it is dear."""
        now_ns = time.monotonic_ns()
        own = psutil.Process(os.getpid())
        times = own.cpu_times()
        client_s = times.user + times.system
        if len(self.samples) % _TREE_EVERY == 0:
            self._tree = tree(self._server_pid)
        server = use_of(self._tree)
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

"""Open loop: requests go out by the clock, whatever the answers do."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence

import numpy as np

from kvstudy.base.clock import StudyClock
from kvstudy.base.units import s_to_ns
from kvstudy.client.sending import Sender


def constant_arrivals(count: int, rate_per_s: float) -> list[float]:
    """Arrival times in s, one every 1/rate, the first at 0."""
    return [number / rate_per_s for number in range(count)]


def poisson_arrivals(count: int, rate_per_s: float, seed: int) -> list[float]:
    """Arrival times in s of a Poisson process, the first after one gap."""
    gaps = np.random.default_rng(seed).exponential(1 / rate_per_s, count)
    return [float(at) for at in np.cumsum(gaps)]


async def run(sender: Sender, arrivals_s: Sequence[float], clock: StudyClock) -> None:
    """Send request i at `arrivals_s[i]` study seconds after now, in order of time.

    The scheduled time goes into the row: what a late send adds stays visible as
    `send_ns - scheduled_ns`.
    """
    start_ns = clock.now_ns()
    async with asyncio.TaskGroup() as group:
        for order in sorted(range(len(arrivals_s)), key=arrivals_s.__getitem__):
            due_ns = start_ns + s_to_ns(arrivals_s[order])
            await asyncio.sleep(max(0.0, clock.wall_s_until(due_ns)))
            if sender.stopping:
                return
            group.create_task(sender.send(order, scheduled_ns=clock.to_wall_ns(due_ns)))

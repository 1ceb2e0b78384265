"""Closed loop: N lanes, each sends its next request the moment its last one ended."""

from __future__ import annotations

import asyncio

from kvstudy.client.sending import Sender


async def run(sender: Sender, lanes: int) -> None:
    """Send all requests in submission order, with exactly `lanes` in flight until they run out."""
    queue = iter(range(sender.planned_count))

    async def lane(number: int) -> None:
        for order in queue:
            if sender.stopping:
                return
            await sender.send(order, lane=number)

    async with asyncio.TaskGroup() as group:
        for number in range(min(lanes, sender.planned_count)):
            group.create_task(lane(number))

"""One phase of load against one server: send, watch, keep, and only then read what came.

Nothing of a response is parsed while requests are in flight.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstudy.base.clock import StudyClock
from kvstudy.base.errors import UsageError
from kvstudy.client import closed_loop, open_loop
from kvstudy.client.audit import Watcher
from kvstudy.client.chores import Chores
from kvstudy.client.journal import Journal
from kvstudy.client.model import Audit, Limits, Load, Planned, Progress, Target
from kvstudy.client.recording import Ending, Recording
from kvstudy.client.request import Reading, Row, row_of
from kvstudy.client.sending import Sender


@dataclass
class PhaseResult:
    """Rows of CLIENT_REQUESTS and of OUTPUTS in submission order, and the client's self-audit."""

    rows: list[Row]
    texts: list[Row]
    audit: Audit


class PhaseCancelled(asyncio.CancelledError):
    """The task that ran the phase was cancelled; `result` holds what was seen until then."""

    def __init__(self, result: PhaseResult) -> None:
        super().__init__("the phase was cancelled")
        self.result = result


async def run_phase(
    target: Target,
    planned: Sequence[Planned],
    load: Load,
    limits: Limits,
    clock: StudyClock,
    *,
    journal: Path | None = None,
    on_progress: Callable[[Progress], None] | None = None,
    stop: asyncio.Event | None = None,
) -> PhaseResult:
    """Send the planned requests in their order and return one row for each.

    A request that was never sent has a row too (cancelled, without times). When `stop` is set no
    further request starts and those in flight are waited for. At `limits.max_duration_s` those in
    flight become timeouts. `on_progress` is called about once a second.

    Raises UsageError for a load that cannot be run, and PhaseCancelled (a CancelledError that
    carries the result) when the task is cancelled; the journal is complete by then.
    """
    _check(planned, load)
    reading = Reading(clock, target.promises_done, limits.stall_threshold_ms)
    writer = Journal(journal, reading) if journal is not None else None
    cancelled = False
    try:
        async with Sender(target, planned, limits) as sender:
            chores = Chores(sender, limits.no_progress_s, writer, on_progress, stop)
            await sender.warm(min(load.concurrency or 0, len(planned)))
            async with Watcher() as watcher:
                try:
                    work = _load(sender, load, planned, clock)
                    await _drive(work, chores, sender, limits.max_duration_s)
                except asyncio.CancelledError:
                    cancelled = True
            await chores.finish()
    finally:
        if writer is not None:
            writer.close()
    result = await _result(sender, watcher, reading)
    if cancelled:
        raise PhaseCancelled(result)
    return result


async def _drive(
    load: Coroutine[Any, Any, None], chores: Chores, sender: Sender, max_duration_s: float | None
) -> None:
    """Run the load to its end, its time limit or a cancellation; no task of it is left then."""
    sending, minding = asyncio.create_task(load), asyncio.create_task(chores.run())
    try:
        done, _ = await asyncio.wait(
            {sending, minding}, timeout=max_duration_s, return_when=asyncio.FIRST_COMPLETED
        )
        if not done:
            sender.stop_with = (Ending.TIMEOUT, f"the phase took longer than {max_duration_s:g} s")
    finally:
        for task in (sending, minding):
            task.cancel()
        await asyncio.wait({sending, minding})
    for task in (sending, minding):
        if not task.cancelled():
            task.result()


def _load(
    sender: Sender, load: Load, planned: Sequence[Planned], clock: StudyClock
) -> Coroutine[Any, Any, None]:
    if load.concurrency is not None:
        return closed_loop.run(sender, load.concurrency)
    return open_loop.run(sender, [one.arrival_s or 0.0 for one in planned], clock)


def _check(planned: Sequence[Planned], load: Load) -> None:
    if load.concurrency is not None and load.concurrency < 1:
        raise UsageError(f"concurrency: expected at least 1 lane, got {load.concurrency}")
    if load.concurrency is None:
        for one in planned:
            if one.arrival_s is None or one.arrival_s < 0:
                raise UsageError(
                    f"request {one.request_id}: an open loop needs an arrival_s of 0 or more, "
                    f"got {one.arrival_s}"
                )


async def _result(sender: Sender, watcher: Watcher, reading: Reading) -> PhaseResult:
    """Read every recording. Yields between requests: others may share the loop."""
    flights = {one.facts.submit_order: one for one in sender.ended}
    rows: list[Row] = []
    texts: list[Row] = []
    for order in range(sender.planned_count):
        flight = flights.get(order)
        if flight is None:
            row, text = row_of(sender.facts(order), _never_sent(), reading)
        else:
            row, text = row_of(flight.facts, flight.recording, reading)
        rows.append(row)
        if text is not None:
            texts.append({"request_id": row["request_id"], "text": text})
        await asyncio.sleep(0)
    audit = watcher.audit(
        [one.recording for one in sender.ended],
        chunks=sum(row["chunk_count"] for row in rows),
        reads=sum(row["read_count"] or 0 for row in rows),
    )
    return PhaseResult(rows, texts, audit)


def _never_sent() -> Recording:
    return Recording(ending=Ending.CANCELLED, error="never sent: the phase had ended")

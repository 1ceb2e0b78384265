"""What is done about twice a second while requests run: watchdog, progress, journal, stop."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from kvstudy.base.units import NS_PER_S, s_to_ns
from kvstudy.client.journal import Journal
from kvstudy.client.model import Progress
from kvstudy.client.recording import Ending, Recording
from kvstudy.client.sending import Sender

_TICK_S = 0.5
_MARK = b"data:"
_DONE_TAIL_BYTES = 64


class Chores:
    """The watch over one phase. All of it is cheap: nothing here reads a stream."""

    def __init__(
        self,
        sender: Sender,
        no_progress_s: float,
        journal: Journal | None,
        on_progress: Callable[[Progress], None] | None,
        stop: asyncio.Event | None,
    ) -> None:
        self._sender = sender
        self._no_progress_s = no_progress_s
        self._journal = journal
        self._written = 0
        self._writing: asyncio.Future[None] | None = None
        self._stop = stop
        self._on_progress = on_progress
        self._tally = Tally(sender)

    async def run(self) -> None:
        """Go round until cancelled."""
        shown_ns = time.monotonic_ns()
        while True:
            await asyncio.sleep(min(_TICK_S, self._no_progress_s / 4))
            now_ns = time.monotonic_ns()
            if self._stop is not None and self._stop.is_set():
                self._sender.stopping = True
            self._end_silent(now_ns)
            if self._on_progress is not None and now_ns - shown_ns >= NS_PER_S:
                shown_ns = now_ns
                self._on_progress(self._tally.progress())
            await self._write()

    async def finish(self) -> None:
        """Write and show the end of the phase."""
        await self._write()
        if self._on_progress is not None:
            self._on_progress(self._tally.progress())

    async def _write(self) -> None:
        if self._writing is not None:
            await self._writing
        if self._journal is None or self._written == len(self._sender.ended):
            return
        batch = [(one.facts, one.recording) for one in self._sender.ended[self._written :]]
        self._written += len(batch)
        # A cancellation must not cut a line in two: the thread finishes what it was given.
        self._writing = asyncio.ensure_future(asyncio.to_thread(self._journal.write, batch))
        await asyncio.shield(self._writing)

    def _end_silent(self, now_ns: int) -> None:
        longest_ns = s_to_ns(self._no_progress_s)
        for flight in tuple(self._sender.active):
            last_ns = flight.recording.last_sign_ns
            if last_ns is not None and now_ns - last_ns > longest_ns:
                flight.exchange.end(Ending.TIMEOUT, f"no byte came for {self._no_progress_s:g} s")


class Tally:
    """Counts for the progress, each byte looked at once."""

    def __init__(self, sender: Sender) -> None:
        self._sender = sender
        self._ended = self._failed = 0
        self._events = 0
        self._counted: dict[int, int] = {}

    def progress(self) -> Progress:
        """How far the phase is."""
        sender = self._sender
        for flight in sender.ended[self._ended :]:
            self._failed += _looks_failed(flight.recording)
            self._count(flight.facts.submit_order, flight.recording)
            self._counted.pop(flight.facts.submit_order, None)
        self._ended = len(sender.ended)
        for flight in sender.active:
            self._count(flight.facts.submit_order, flight.recording)
        return Progress(
            sent=self._ended + len(sender.active),
            finished=self._ended,
            failed=self._failed,
            chunks=self._events,
            in_flight=len(sender.active),
        )

    def _count(self, order: int, recording: Recording) -> None:
        seen = self._counted.get(order, 0)
        self._events += recording.body.count(_MARK, max(0, seen - len(_MARK) + 1))
        self._counted[order] = len(recording.body)


def _looks_failed(recording: Recording) -> bool:
    if recording.ending is Ending.CLIENT_CLOSE:
        return False
    return recording.ending is not Ending.COMPLETE or recording.status != 200

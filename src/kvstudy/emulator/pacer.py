"""The engine on the wall clock: steps are computed ahead and delivered when their end is due.

The schedule is absolute. A step ends at a time of study that the core decides; it is delivered
when the wall clock gets there, or at once if that has passed. Nothing that happens late on the
wall (a slow wake-up, a client that is slow to send) moves the study: the pacer catches up.
"""

from __future__ import annotations

import asyncio
import sys
import time
from collections.abc import Callable
from typing import cast

from kvstudy.base.clock import StudyClock
from kvstudy.base.units import NS_PER_MS
from kvstudy.emulator.answer import Answer
from kvstudy.emulator.expected import Expected, Workload
from kvstudy.emulator.lanes import Lanes
from kvstudy.emulator.settings import Launch
from kvstudy.emulator.tally import Tally
from kvstudy.emulator.timer import Timer
from kvstudy.sim.engine import Engine, Step
from kvstudy.sim.request import State

_FAR_BEHIND_NS = 3 * NS_PER_MS
_SILENT_AHEAD_NS = 2 * NS_PER_MS
_STEPS_PER_TURN = 4
_SILENT_STEPS_PER_TURN = 64

StepSeen = Callable[[Step, int, list[Answer]], None]


class Pacer:
    """Drives one engine; requests come in by `submit` and go out by `cancel` or by ending."""

    def __init__(self, launch: Launch, workload: Workload, clock: StudyClock) -> None:
        self.engine = Engine(launch.engine_spec())
        self.lanes: Lanes[Answer] = Lanes(workload, launch.emulation.admission_lag_steps)
        self.tally = Tally(workload)
        self.clock = clock
        self.on_step: list[StepSeen] = []
        self._emulation = launch.emulation
        self._gathers = not workload
        self._timer = Timer()
        self._arrived = asyncio.Event()
        self._turn = 0.0

    # --- the connections' side ----------------------------------------------------------------

    def submit(self, answer: Answer) -> None:
        """A request came."""
        answer.arrived_ns = self.clock.now_ns()
        self.lanes.arrive(answer, answer.expected, answer.arrived_ns)
        self._arrived.set()

    def excuse(self, expected: Expected | None) -> None:
        """A request of the workload file was refused."""
        if expected is not None:
            self.lanes.excuse(expected, self.clock.now_ns())
            self._arrived.set()

    def cancel(self, answer: Answer) -> None:
        """A client went away before its answer was closed; its lane reserves nobody."""
        answer.leave()
        if self.lanes.leave(answer, answer.expected, self.clock.now_ns()):
            self.tally.requests_cancelled += 1
        elif answer.state is not State.FINISHED:
            self.engine.cancel(answer)
            self._count_end(answer, cancelled=True)
        self._arrived.set()

    # --- the engine's side --------------------------------------------------------------------

    async def run(self) -> None:
        """Run for ever."""
        while True:
            if not (self.engine.has_work or self.lanes.has_reservations):
                await self._idle()
            joined = await self._fill(everyone=not self.engine.has_work)
            step = self.engine.try_step()
            if step is None and self.lanes.has_reservations:
                joined += await self._fill(everyone=True)
                step = self.engine.try_step()
            if step is None:
                await self._stuck()
                continue
            await self._until(step)
            self._deliver(step, joined)

    async def _idle(self) -> None:
        """Nothing runs and nobody is reserved: study time goes on with the wall clock."""
        lanes = self.lanes
        opening_until: float | None = None
        while lanes.next_ready_ns is None:
            self._arrived.clear()
            if not lanes.is_opening:
                opening_until = None
                await self._arrived.wait()
                continue
            now = time.monotonic()
            opening_until = opening_until or now + self._emulation.opening_s
            if now >= opening_until:
                self._say("not all first requests of a phase came in time; going on without them")
                lanes.open_incomplete(self.clock.now_ns())
            else:
                await self._wait_for_arrival(opening_until - now)
        if self._gathers:
            while await self._wait_for_arrival(self._emulation.gather_s):
                pass
            self.engine.idle_until(self.clock.now_ns())
        else:
            self.engine.idle_until(lanes.next_ready_ns)

    async def _wait_for_arrival(self, seconds: float) -> bool:
        self._arrived.clear()
        try:
            async with asyncio.timeout(seconds):
                await self._arrived.wait()
        except TimeoutError:
            return False
        return True

    async def _fill(self, *, everyone: bool) -> list[Answer]:
        """Let those join who are due before the next step; wait for them first, if they are not."""
        iteration = self.engine.iteration + 1
        self.lanes.call(iteration, everyone=everyone)
        if self.lanes.awaited:
            await self._await_due()
        joined = []
        for answer, since_ns in self.lanes.take(self.engine.now_ns):
            answer.submitted_ns = since_ns
            answer.first_iteration = iteration
            self.engine.join(answer)
            joined.append(answer)
            if answer.expected is not None:
                phase = answer.expected.phase
                self.tally.joined(phase, iteration=iteration, now_ns=self.engine.now_ns)
        return joined

    async def _await_due(self) -> None:
        began = time.monotonic_ns()
        until = time.monotonic() + self._emulation.grace_s
        while self.lanes.awaited:
            left = until - time.monotonic()
            if left <= 0 or not await self._wait_for_arrival(left):
                absent = self.lanes.give_up()
                if absent:
                    positions = [one.position for one in absent]
                    self._say(f"late: step {self.engine.iteration + 1} runs without {positions}")
        self.tally.waited(time.monotonic_ns() - began)

    async def _stuck(self) -> None:
        """Nothing can be scheduled, and no reservation can change that: wait for the outside."""
        if not self.engine.has_work:
            return
        if not self.tally.is_stuck:
            self._say(str(self.engine.livelock()))
        self.tally.is_stuck = True
        await self._wait_for_arrival(1.0)
        self.engine.idle_until(self.clock.now_ns())

    async def _until(self, step: Step) -> None:
        """Sleep until the step's end is due; when behind, give the connections their turn.

        Far behind, several steps are delivered before that. A step that streams nothing may be
        run a little early, since nobody sees when.
        """
        due_ns = self.clock.to_wall_ns(step.end_ns)
        ahead_ns = due_ns - time.monotonic_ns()
        if ahead_ns > (0 if step.emitted else _SILENT_AHEAD_NS):
            await self._timer.sleep_until(due_ns)
            self._turn = 0.0
            return
        self._turn += self._share_of_turn(step, ahead_ns)
        if self._turn >= 1:
            await asyncio.sleep(0)
            self._turn = 0.0

    def _share_of_turn(self, step: Step, ahead_ns: int) -> float:
        if not step.emitted:
            return 1 / _SILENT_STEPS_PER_TURN
        return 1 / _STEPS_PER_TURN if ahead_ns < -_FAR_BEHIND_NS else 1.0

    def _deliver(self, step: Step, joined: list[Answer]) -> None:
        due_ns = self.clock.to_wall_ns(step.end_ns)
        for answer in cast("list[Answer]", step.emitted):
            answer.emit()
        late_ns = max(0, time.monotonic_ns() - due_ns)
        self.tally.stepped(step, self.engine.counters, late_ns)
        for answer in cast("list[Answer]", step.finished):
            answer.last_iteration = step.index
            self._count_end(answer, cancelled=False)
            if not answer.is_gone:
                self.lanes.ended(step.index, step.end_ns, answer.expected)
        for seen in self.on_step:
            seen(step, due_ns, joined)

    def _count_end(self, answer: Answer, *, cancelled: bool) -> None:
        expected = answer.expected
        self.tally.ended(None if expected is None else expected.phase, cancelled=cancelled)

    def _say(self, text: str) -> None:
        print(f"[emulator] {text}", file=sys.stderr, flush=True)  # noqa: T201  the server's log

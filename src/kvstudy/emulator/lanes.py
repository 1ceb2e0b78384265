"""Who joins at which step: closed-loop lanes by step number, everyone else by arrival.

Pure bookkeeping without clock or socket. A phase opens when its first requests are all there;
from then on every request that ends reserves the next position of its phase, due at
s + 1 + lag, and the step it is due in is not run before it is there or given up.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Generic, TypeVar

from kvstudy.emulator.expected import Expected, Phase, Workload
from kvstudy.sim.load import AdmissionLag

R = TypeVar("R")


@dataclass(slots=True)
class Arrivals:
    """How the requests came. `late`: after its step had been run without it (or never yet)."""

    late: int = 0
    missing: int = 0
    unexpected: int = 0
    foreign: int = 0


@dataclass(slots=True)
class _Progress(Generic[R]):
    phase: Phase
    next_position: int
    is_open: bool = False
    first_ns: int | None = None
    lobby: dict[int, R] = field(default_factory=dict)
    seen: set[int] = field(default_factory=set)
    excused: int = 0
    given_up: set[int] = field(default_factory=set)


class Lanes(Generic[R]):
    """The requests that have arrived or are awaited, but have not joined."""

    def __init__(self, workload: Workload, lag_steps: int) -> None:
        self.arrivals = Arrivals()
        self.opened: list[int] = []
        self._progress: list[_Progress[R]] = [
            _Progress(phase, phase.first_count, is_open=phase.concurrency == 0)
            for phase in workload.phases
        ]
        self._lag: AdmissionLag[Expected] = AdmissionLag(lag_steps)
        self._due: list[Expected] = []
        self._there: dict[Expected, R] = {}
        self._reserved: dict[Expected, int] = {}
        self._ready: list[tuple[R, int]] = []

    # --- what comes in ------------------------------------------------------------------------

    def arrive(self, request: R, expected: Expected | None, at_ns: int) -> None:
        """A request came over the wire at study time `at_ns`."""
        if expected is None:
            self.arrivals.foreign += 1
            self._ready.append((request, at_ns))
            return
        mine = self._progress[expected.phase]
        mine.seen.add(expected.position)
        if not mine.is_open and expected.position < mine.phase.first_count:
            mine.lobby[expected.position] = request
            mine.first_ns = at_ns if mine.first_ns is None else mine.first_ns
            self._open_if_complete(expected.phase, at_ns)
        elif expected in self._reserved:
            self._there[expected] = request
        else:
            self._count_unforeseen(expected, mine)
            self._ready.append((request, at_ns))

    def _count_unforeseen(self, expected: Expected, mine: _Progress[R]) -> None:
        if expected.position in mine.given_up:
            self.arrivals.late += 1
            self.arrivals.missing -= 1
        elif mine.phase.concurrency:
            self.arrivals.unexpected += 1

    def excuse(self, expected: Expected, at_ns: int) -> None:
        """A request came and was refused: nobody waits for it, and its lane reserves nobody."""
        mine = self._progress[expected.phase]
        mine.seen.add(expected.position)
        if not mine.is_open and expected.position < mine.phase.first_count:
            mine.excused += 1
            self._open_if_complete(expected.phase, at_ns)
        self._reserved.pop(expected, None)

    def leave(self, request: R, expected: Expected | None, at_ns: int) -> bool:
        """A client went away; whether its request was still in here."""
        for index, (ready, _) in enumerate(self._ready):
            if ready is request:
                del self._ready[index]
                return True
        if expected is None:
            return False
        was_here = self._there.pop(expected, None) is not None
        if self._progress[expected.phase].lobby.pop(expected.position, None) is not None:
            was_here = True
        if was_here:
            self.excuse(expected, at_ns)
        return was_here

    def ended(self, step_index: int, end_ns: int, expected: Expected | None) -> None:
        """A step that ended at `end_ns` ended a request; its lane reserves the next position."""
        if expected is None:
            return
        mine = self._progress[expected.phase]
        if not mine.phase.concurrency:
            return
        while mine.next_position in mine.seen:
            mine.next_position += 1
        if mine.next_position < len(mine.phase.requests):
            successor = mine.phase.requests[mine.next_position]
            mine.next_position += 1
            self._reserved[successor] = end_ns
            self._lag.ended(step_index, successor)

    # --- phases -------------------------------------------------------------------------------

    @property
    def is_opening(self) -> bool:
        """Whether a phase has some, but not all, of its first requests."""
        return any(progress.lobby for progress in self._progress)

    def open_incomplete(self, at_ns: int) -> None:
        """Stop waiting for the rest of the first requests; those that are there go on."""
        for index, progress in enumerate(self._progress):
            if progress.lobby:
                absent = set(range(progress.phase.first_count)) - progress.lobby.keys()
                progress.given_up |= absent
                self.arrivals.missing += len(absent)
                self._open(index, at_ns)

    def _open_if_complete(self, index: int, at_ns: int) -> None:
        mine = self._progress[index]
        if len(mine.lobby) + mine.excused == mine.phase.first_count:
            self._open(index, at_ns)

    def _open(self, index: int, at_ns: int) -> None:
        mine = self._progress[index]
        mine.is_open = True
        self.opened.append(index)
        # The phase starts when its first request came: how long the wire takes to bring the
        # others is wall time, which a time scale would stretch; the first steps catch up instead.
        at_ns = at_ns if mine.first_ns is None else mine.first_ns
        self._ready += [(mine.lobby[position], at_ns) for position in sorted(mine.lobby)]
        mine.lobby.clear()

    # --- what joins ---------------------------------------------------------------------------

    @property
    def has_reservations(self) -> bool:
        """Whether someone is due, now or in a later step."""
        return bool(self._due or len(self._lag))

    @property
    def next_ready_ns(self) -> int | None:
        """When the first of those came who wait for no step; None if there is none."""
        return min((at_ns for _, at_ns in self._ready), default=None)

    def call(self, step_index: int, *, everyone: bool = False) -> None:
        """Reservations that are due before step `step_index` (or all of them) fall due."""
        self._due += self._lag.take_all() if everyone else self._lag.take_due(step_index)

    @property
    def awaited(self) -> list[Expected]:
        """Those due whose request has not come."""
        return [one for one in self._due if one in self._reserved and one not in self._there]

    def give_up(self) -> list[Expected]:
        """Stop waiting for those due: the step is run without them. Returns them."""
        absent = self.awaited
        for expected in absent:
            self._progress[expected.phase].given_up.add(expected.position)
            del self._reserved[expected]
        self.arrivals.missing += len(absent)
        return absent

    def take(self, now_ns: int) -> list[tuple[R, int]]:
        """Who joins now, each with the time it counts from.

        Those due come first, by due step and position, then the others that came by `now_ns`.
        """
        taken = []
        for expected in self._due:
            if expected in self._there:
                taken.append((self._there.pop(expected), self._reserved.pop(expected)))
        self._due.clear()
        taken += [one for one in self._ready if one[1] <= now_ns]
        self._ready = [one for one in self._ready if one[1] > now_ns]
        return taken

"""What happened, counted: the run, each phase of the workload file, and how late steps came."""

from __future__ import annotations

from dataclasses import asdict, dataclass, field
from typing import Any

from kvstudy.base.clock import StudyClock
from kvstudy.base.units import NS_PER_MS, ns_to_ms
from kvstudy.emulator.expected import Workload
from kvstudy.emulator.lanes import Arrivals
from kvstudy.sim.engine import Counters, Engine, Step

_LATE_STEP_NS = 10 * NS_PER_MS


@dataclass(slots=True)
class Lateness:
    """Wall time between the scheduled end of steps that streamed something and their delivery."""

    steps: int = 0
    late_steps: int = 0
    total_ns: int = 0
    max_ns: int = 0
    max_iteration: int = 0

    def add(self, iteration: int, late_ns: int) -> None:
        """One delivery."""
        self.steps += 1
        self.total_ns += late_ns
        self.late_steps += late_ns > _LATE_STEP_NS
        if late_ns > self.max_ns:
            self.max_ns, self.max_iteration = late_ns, iteration

    def as_json(self) -> dict[str, Any]:
        """Milliseconds of wall time."""
        return {
            "max_lateness_ms": ns_to_ms(self.max_ns),
            "mean_lateness_ms": ns_to_ms(self.total_ns / self.steps) if self.steps else 0.0,
            "max_lateness_iteration": self.max_iteration,
            "steps_over_10_ms": self.late_steps,
        }


@dataclass(slots=True)
class PhaseTally:
    """One phase from the step its first request joined in to the step its last one ended in."""

    name: str
    requests: int
    concurrency: int
    joined: int = 0
    ended: int = 0
    cancelled: int = 0
    first_iteration: int = 0
    last_iteration: int = 0
    start_ns: int = 0
    end_ns: int = 0
    tokens: int = 0
    context_tokens: int = 0
    pauses: int = 0
    recomputed_tokens: int = 0
    hidden_tokens: int = 0
    peak_blocks: int = 0
    scheduled_max: int = 0
    lateness: Lateness = field(default_factory=Lateness)

    @property
    def is_running(self) -> bool:
        """Whether some of its requests are inside the engine."""
        return self.joined > self.ended + self.cancelled

    def as_json(self, clock: StudyClock) -> dict[str, Any]:
        """All of it, with the wall-clock readings of both ends."""
        shaped = asdict(self)
        del shaped["lateness"]
        shaped["iterations"] = self.last_iteration - self.first_iteration + 1 if self.joined else 0
        shaped["start_monotonic_ns"] = clock.to_wall_ns(self.start_ns)
        shaped["end_monotonic_ns"] = clock.to_wall_ns(self.end_ns)
        return shaped | self.lateness.as_json()


class Tally:
    """Counts of the whole run and of each phase."""

    def __init__(self, workload: Workload) -> None:
        self.phases = [
            PhaseTally(phase.name, len(phase.requests), phase.concurrency)
            for phase in workload.phases
        ]
        self.lateness = Lateness()
        self.tokens = 0
        self.requests_ended = 0
        self.requests_cancelled = 0
        self.waited_ns = 0
        self.longest_wait_ns = 0
        self.is_stuck = False
        self._before = Counters()

    def joined(self, phase: int, *, iteration: int, now_ns: int) -> None:
        """A request of a phase joins before step `iteration`."""
        mine = self.phases[phase]
        if mine.joined == 0:
            mine.first_iteration = mine.last_iteration = iteration
            mine.start_ns = mine.end_ns = now_ns
        mine.joined += 1

    def waited(self, wall_ns: int) -> None:
        """The engine waited for requests that were due."""
        self.waited_ns += wall_ns
        self.longest_wait_ns = max(self.longest_wait_ns, wall_ns)

    def stepped(self, step: Step, counters: Counters, late_ns: int) -> None:
        """A step was delivered; `counters` are the engine's right after it."""
        before = self._before
        recomputed = counters.recomputed_tokens - before.recomputed_tokens
        hidden = counters.hidden_tokens - before.hidden_tokens
        before.recomputed_tokens = counters.recomputed_tokens
        before.hidden_tokens = counters.hidden_tokens
        self.tokens += len(step.emitted)
        if step.emitted:
            self.lateness.add(step.index, late_ns)
        for mine in self.phases:
            if not mine.is_running:
                continue
            mine.last_iteration, mine.end_ns = step.index, step.end_ns
            mine.tokens += len(step.emitted)
            mine.context_tokens += step.context_tokens
            mine.pauses += len(step.paused)
            mine.recomputed_tokens += recomputed
            mine.hidden_tokens += hidden
            mine.peak_blocks = max(mine.peak_blocks, step.used_blocks)
            mine.scheduled_max = max(mine.scheduled_max, step.scheduled)
            if step.emitted:
                mine.lateness.add(step.index, late_ns)

    def ended(self, phase: int | None, *, cancelled: bool = False) -> None:
        """A request left the engine."""
        self.requests_ended += not cancelled
        self.requests_cancelled += cancelled
        if phase is not None:
            self.phases[phase].ended += not cancelled
            self.phases[phase].cancelled += cancelled

    def as_json(self, engine: Engine, arrivals: Arrivals, clock: StudyClock) -> dict[str, Any]:
        """The answer to GET /emulator/summary."""
        return {
            "iterations": engine.iteration,
            "now_ns": engine.now_ns,
            "active_requests": len(engine.active),
            **asdict(engine.counters),
            "peak_blocks": engine.pool.peak_blocks,
            "pool_blocks": engine.pool.total_blocks,
            "tokens": self.tokens,
            "requests_ended": self.requests_ended,
            "requests_cancelled": self.requests_cancelled,
            "late_arrivals": arrivals.late + arrivals.missing,
            "arrived_late": arrivals.late,
            "never_arrived": arrivals.missing,
            "unexpected_arrivals": arrivals.unexpected,
            "foreign_requests": arrivals.foreign,
            "waited_ms": ns_to_ms(self.waited_ns),
            "longest_wait_ms": ns_to_ms(self.longest_wait_ns),
            "is_stuck": self.is_stuck,
            **self.lateness.as_json(),
            "time_scale": clock.scale,
            "origin_monotonic_ns": clock.origin_wall_ns,
            "phases": [phase.as_json(clock) for phase in self.phases],
        }

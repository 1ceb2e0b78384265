"""Who joins when: the closed loop's admission lag, and open-loop arrival times."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Generic, TypeVar

import numpy as np

from kvstudy.base.digest import sha256_text
from kvstudy.base.units import s_to_ns

T = TypeVar("T")


class AdmissionLag(Generic[T]):
    """The successors of a closed loop that wait for the step in which they join.

    When step s ends a request, its lane's next one joins at step s + 1 + lag (rule 1). `T` is
    whatever the driver needs to join it: a request, a lane number, None for a mere count. A driver
    calls `ended` for each successor, and before step s joins `take_due(s)`; where nothing can be
    scheduled in a step it joins `take_all()` instead of running an empty step.
    """

    def __init__(self, lag_steps: int) -> None:
        if lag_steps < 0:
            raise ValueError(f"lag_steps: expected a whole number >= 0, got {lag_steps}")
        self.lag_steps = lag_steps
        self._waiting: deque[tuple[int, T]] = deque()

    def __len__(self) -> int:
        return len(self._waiting)

    @property
    def next_due_step(self) -> int | None:
        """The step at which the next successor joins; None when none waits."""
        return self._waiting[0][0] if self._waiting else None

    def ended(self, step_index: int, successor: T) -> None:
        """Step `step_index` ended a request whose lane goes on with `successor`."""
        due_step = step_index + 1 + self.lag_steps
        if self._waiting and self._waiting[-1][0] > due_step:
            raise ValueError(f"step {step_index} came before one that was already reported")
        self._waiting.append((due_step, successor))

    def due_count(self, step_index: int) -> int:
        """How many successors are due to join before step `step_index` runs."""
        return sum(1 for due_step, _ in self._waiting if due_step <= step_index)

    def take_due(self, step_index: int) -> list[T]:
        """Take those due to join before step `step_index`, in the order in which they wait."""
        taken = []
        while self._waiting and self._waiting[0][0] <= step_index:
            taken.append(self._waiting.popleft()[1])
        return taken

    def take_all(self) -> list[T]:
        """Take all of them: nothing could be scheduled in this step."""
        taken = [successor for _, successor in self._waiting]
        self._waiting.clear()
        return taken


def constant_arrivals_ns(count: int, per_s: float) -> list[int]:
    """Arrival times of `count` requests at a steady rate; the first comes at 0."""
    return [s_to_ns(index / per_s) for index in range(count)]


def poisson_arrivals_ns(count: int, per_s: float, seed: int) -> list[int]:
    """Arrival times with independent exponential gaps of mean 1 / `per_s`, the first included.

    The generator is derived by name from `seed`, so that nothing else drawn from it moves them.
    """
    name = int(sha256_text("sim.arrivals")[:16], 16)
    rng = np.random.Generator(np.random.PCG64([seed, name]))
    times_s = np.cumsum(rng.standard_exponential(count) / per_s)
    return [s_to_ns(float(time_s)) for time_s in times_s]


def first_disorder(times_s: list[float]) -> int | None:
    """Index of the first time that is before its predecessor; None if there is none."""
    return next((i + 1 for i, (a, b) in enumerate(pairwise(times_s)) if b < a), None)

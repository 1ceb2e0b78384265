"""A closed-loop run as a linear function of the step-time constants.

In a closed loop, requests join by step number, so which step does what does not depend on how
long steps take. A step's length is linear in the five constants, and so is every time of the run:
five runs, one constant at a time, give all runs.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from kvstudy.base.errors import SpecError
from kvstudy.base.units import NS_PER_MS, NS_PER_S
from kvstudy.explain.scenario import Scenario
from kvstudy.sim.model import Pause, Policy
from kvstudy.sim.replay import run
from kvstudy.sim.spec import SimSpec
from kvstudy.sim.timing import PUBLISHED_FIT, StepTime

Reals = NDArray[np.float64]

CONSTANTS = tuple(field.name for field in fields(StepTime))
METRICS = (
    "output_tok_per_s",
    "ttft_p50_ms",
    "ttft_p99_ms",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "e2e_p50_s",
    "e2e_p99_s",
)


def step_time_of(values: Iterable[float]) -> StepTime:
    """Constants in the order of `CONSTANTS`."""
    return StepTime(**dict(zip(CONSTANTS, map(float, values), strict=True)))


def values_of(step_time: StepTime) -> Reals:
    """The constants as an array, in the order of `CONSTANTS`."""
    return np.array([getattr(step_time, name) for name in CONSTANTS])


@dataclass(frozen=True)
class Basis:
    """Times per unit of each constant: arrays of (constant, request), in ns."""

    unit: Reals
    ttft: Reals
    e2e: Reals
    spans: Reals
    wall: Reals
    streamed: Reals

    def metrics(self, constants: Reals) -> dict[str, float]:
        """The summary's numbers for these constants."""
        scale = constants / self.unit
        tpot = (scale @ self.spans) / np.maximum(self.streamed - 1, 1)
        tpot = tpot[self.streamed > 1]
        ttft, e2e = scale @ self.ttft, scale @ self.e2e
        wall_s = float(scale @ self.wall) / NS_PER_S
        found = {
            "output_tok_per_s": float(self.streamed.sum()) / wall_s,
            "ttft_p50_ms": float(np.percentile(ttft, 50)) / NS_PER_MS,
            "ttft_p99_ms": float(np.percentile(ttft, 99)) / NS_PER_MS,
            "e2e_p50_s": float(np.percentile(e2e, 50)) / NS_PER_S,
            "e2e_p99_s": float(np.percentile(e2e, 99)) / NS_PER_S,
        }
        if len(tpot):
            found["tpot_p50_ms"] = float(np.percentile(tpot, 50)) / NS_PER_MS
            found["tpot_p99_ms"] = float(np.percentile(tpot, 99)) / NS_PER_MS
        return found


def basis_of(
    scenario: Scenario, policy: Policy, pause: Pause | None = None, unit: StepTime = PUBLISHED_FIT
) -> Basis:
    """Run the scenario once per constant. LivelockError where it cannot end.

    `unit` sets the size of each run's constant, so that whole nanoseconds are fine enough.
    """
    if scenario.arrivals_ns is not None:
        raise SpecError("arrivals: a fit needs a closed loop, where times are linear in constants")
    sizes = values_of(unit)
    if not (sizes > 0).all():
        raise SpecError("step_time: expected five constants above 0 to start from")
    columns = []
    for index, size in enumerate(sizes):
        alone = np.zeros(len(sizes))
        alone[index] = size
        columns.append(_times(scenario.with_step_time(step_time_of(alone)), policy, pause))
    stacked = {
        name: np.array([column[name] for column in columns])
        for name in ("ttft", "e2e", "spans", "wall")
    }
    return Basis(unit=sizes, streamed=columns[0]["streamed"], **stacked)


def _times(scenario: Scenario, policy: Policy, pause: Pause | None) -> dict[str, Reals]:
    engine = scenario.replaced(policy, pause)
    result = run(
        SimSpec(
            engine, scenario.requests, scenario.concurrency, scenario.admission_lag_steps, None, 0
        )
    )
    rows = [
        (r.submitted_ns, r.first_token_ns or 0, r.last_token_ns or 0, r.streamed)
        for r in result.requests
    ]
    submitted, first, last, streamed = np.array(rows, dtype=np.float64).T
    return {
        "ttft": first - submitted,
        "e2e": last - submitted,
        "spans": last - first,
        "wall": np.float64(result.engine.now_ns),
        "streamed": streamed,
    }

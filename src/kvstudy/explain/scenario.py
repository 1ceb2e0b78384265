"""One engine and one load, run under whatever policy and pause mode a question needs."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from kvstudy.base.errors import LivelockError
from kvstudy.base.units import NS_PER_S, ns_to_s
from kvstudy.sim.model import EngineSpec, Pause, Policy
from kvstudy.sim.of_cell import engine_spec
from kvstudy.sim.replay import run
from kvstudy.sim.request import blocks_of
from kvstudy.sim.spec import RequestShape, SimSpec
from kvstudy.sim.timing import StepTime

STALL_S = 60.0
"""A gap between two chunks of a request above this is a stalled request."""

BASELINE, TREATMENT = Policy.GUARANTEED_NO_EVICT, Policy.MAX_UTILIZATION

LengthsOf = Callable[[Mapping[str, Any], int], list[RequestShape]]
"""Workload values and repeat to the requests in submission order."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """A run's summary, or where it got stuck for ever."""

    summary: Mapping[str, Any]
    stalled_requests: int = 0
    stuck: str | None = None

    def value(self, name: str) -> float | None:
        """One number of the summary; None where it is undefined or the run got stuck."""
        found = self.summary.get(name)
        return None if found is None else float(found)


@dataclass(frozen=True, slots=True)
class Scenario:
    """An engine, its requests in submission order, and how they are offered.

    `arrivals_ns` is None in a closed loop of `concurrency` lanes.
    """

    engine: EngineSpec
    requests: tuple[RequestShape, ...]
    concurrency: int
    admission_lag_steps: int = 2
    arrivals_ns: tuple[int, ...] | None = None

    def run(self, policy: Policy, pause: Pause | None = None) -> Outcome:
        """Run under a policy and a pause mode; a livelock is an outcome, not an error."""
        spec = SimSpec(
            engine=self.replaced(policy, pause),
            requests=self.requests,
            concurrency=self.concurrency,
            admission_lag_steps=self.admission_lag_steps,
            arrivals_ns=self.arrivals_ns,
            seed=0,
        )
        try:
            result = run(spec)
        except LivelockError as error:
            return Outcome({}, stuck=stuck_words(str(error)))
        gaps = [r.max_gap_ns for r in result.requests if r.max_gap_ns is not None]
        stalled = sum(gap > STALL_S * NS_PER_S for gap in gaps)
        return Outcome(result.summary(), stalled_requests=stalled)

    def replaced(self, policy: Policy, pause: Pause | None = None) -> EngineSpec:
        """The engine under another policy and pause mode."""
        return replace(self.engine, policy=policy, pause=pause or Pause())

    def with_pool(self, blocks: int) -> Scenario:
        """The same with another pool."""
        return replace(self, engine=replace(self.engine, pool_blocks=blocks))

    def with_step_time(self, step_time: StepTime) -> Scenario:
        """The same with other constants."""
        return replace(self, engine=replace(self.engine, step_time=step_time))

    @property
    def full_blocks(self) -> int:
        """Blocks of the largest request: prompt and cap."""
        tokens = max(r.input_tokens + r.output_cap_tokens for r in self.requests)
        return blocks_of(tokens, self.engine.block_tokens)

    @property
    def input_blocks(self) -> int:
        """Blocks of the longest prompt."""
        tokens = max(r.input_tokens for r in self.requests)
        return blocks_of(tokens, self.engine.block_tokens)

    @property
    def demand_ratio(self) -> float:
        """Blocks that all lanes want at their full lengths / blocks of the pool."""
        return self.concurrency * self.full_blocks / self.engine.usable_blocks


def scenario_of(values: Mapping[str, Any], lengths_of: LengthsOf) -> Scenario:
    """The scenario of a prediction slice (`study.plan.Study.prediction_spec`)."""
    return Scenario(
        engine=engine_spec(values),
        requests=tuple(lengths_of(values["workload"], values["repeat"])),
        concurrency=values["concurrency"],
        admission_lag_steps=values["emulator"]["admission_lag_steps"],
    )


def exact_lengths(workload: Mapping[str, Any], _repeat: int) -> list[RequestShape]:
    """Requests of a workload whose lengths are all exact: no draw, no order."""
    shape = RequestShape(
        workload["input_tokens"], workload["output_tokens"], workload["output_cap_tokens"]
    )
    return [shape] * int(workload["requests"])


def ratio(treatment: float | None, baseline: float | None) -> float | None:
    """Treatment over baseline; None where a side is undefined or the baseline is zero."""
    if treatment is None or not baseline:
        return None
    return treatment / baseline


def stuck_words(message: str) -> str:
    """What a livelock looks like from outside, from the simulator's error."""
    found = re.search(r"after step (\d+) \(t = (\d+) ns.*?(\d+) active\)", message)
    if found is None:
        return "the server stops making progress"
    step, time_ns, active = (int(part) for part in found.groups())
    return (
        f"the server stops making progress after step {step:,} at {ns_to_s(time_ns):.1f} s: "
        f"{active} requests are active and none can be scheduled again"
    )


def shapes(rows: Sequence[tuple[int, int, int]]) -> tuple[RequestShape, ...]:
    """(input, output, cap) triples as requests."""
    return tuple(RequestShape(*row) for row in rows)

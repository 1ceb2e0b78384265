"""How far predictions move within what the fitted rows leave open about the constants."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from kvstudy.explain.basis import Reals, basis_of, values_of
from kvstudy.explain.evidence import PublishedValue
from kvstudy.explain.fit import fit
from kvstudy.explain.scenario import BASELINE, TREATMENT, Scenario
from kvstudy.explain.tables import RATIOS
from kvstudy.explain.targets import published_targets
from kvstudy.sim.model import Pause
from kvstudy.sim.timing import StepTime
from kvstudy.study.plan import Study


def open_constants(study: Study, published: Sequence[PublishedValue]) -> list[Reals]:
    """The ends of every constant's profile, from the published rows the config was fitted to.

    Empty where the config names no fitted row, or none that was published.
    """
    patterns = study.config.emulator.fitted_to
    rows = [t for t in published_targets(study, published) if t.matches(patterns)]
    if sum(len(row.observed) for row in rows) < 2:
        return []
    return list(fit(rows, StepTime(**study.config.emulator.step_time.model_dump())).extremes)


def ratio_spreads(
    scenario: Scenario, pauses: Mapping[str, Pause], constants: Sequence[Reals]
) -> dict[str, dict[str, float]]:
    """Per pause mode and ratio: half the range of ln ratio over the constants.

    `pauses` must not name a mode under which the run gets stuck.
    """
    if not constants:
        return {name: {} for name in pauses}
    unit = scenario.engine.step_time
    points = [*constants, values_of(unit)]
    baseline = basis_of(scenario, BASELINE)
    bottom = [baseline.metrics(values) for values in points]
    found = {}
    for name, pause in pauses.items():
        treated = basis_of(scenario, TREATMENT, pause)
        top = [treated.metrics(values) for values in points]
        found[name] = {
            ratio: _half_range([math.log(t[m] / b[m]) for t, b in zip(top, bottom, strict=True)])
            for ratio, m in RATIOS.items()
            if all(m in side for side in (*top, *bottom))
        }
    return found


def _half_range(values: Sequence[float]) -> float:
    return (max(values) - min(values)) / 2

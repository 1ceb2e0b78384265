"""Calibration as a document: constants, residuals, what cannot be separated, and predictions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from kvstudy.explain.basis import basis_of, step_time_of, values_of
from kvstudy.explain.fit import Fit, fit
from kvstudy.explain.regimes import pause_words
from kvstudy.explain.scenario import Outcome
from kvstudy.explain.targets import WEIGHTS, Target
from kvstudy.sim.timing import PUBLISHED_FIT, StepTime

Document = dict[str, Any]

COUNTERS = ("pauses", "recomputed_tokens", "hidden_tokens", "iterations")


def calibrate(
    targets: Sequence[Target], patterns: Sequence[str], start: StepTime = PUBLISHED_FIT
) -> Document:
    """Fit to the rows that match a pattern, predict the others."""
    fitted = [t for t in targets if t.matches(patterns)]
    rest = [t for t in targets if not t.matches(patterns)]
    found = fit(fitted, start)
    return {
        "basis": "fitted",
        "step_time": asdict(found.step_time),
        "extremes": [asdict(step_time_of(values)) for values in found.extremes],
        "constants": [asdict(r) for r in found.ranges],
        "not_separable": found.not_separable,
        "directions": [asdict(d) for d in found.directions],
        "weights": {"others": 1.0, **WEIGHTS},
        "noise": found.noise,
        "sum_of_squares": found.cost,
        "numbers_fitted": found.count,
        "fitted": [row for t in fitted for row in _rows(t, found, basis="fitted")],
        "predicted": [row for t in rest for row in _rows(t, found)],
    }


def _basis(target: Target, outcome: Outcome) -> str:
    """`assumed` where pauses happened whose cost the config assumes, else `held_out`."""
    assumed = outcome.stuck is not None or outcome.summary["pauses"]
    return "assumed" if assumed and pause_words(target.pause) != "recompute" else "held_out"


def _rows(target: Target, found: Fit, basis: str | None = None) -> list[Document]:
    """One row per observed metric: observed, modelled, the miss, and the range of the model.

    The range is over the ends of the constants' profiles: what the fitted rows leave open.
    """
    outcome = target.scenario.with_step_time(found.step_time).run(target.policy, target.pause)
    head = {
        "id": target.id,
        "policy": target.policy.value,
        "pause": pause_words(target.pause),
        "source": target.source,
        "basis": basis or _basis(target, outcome),
    }
    counters = {name: outcome.summary.get(name) for name in COUNTERS}
    if outcome.stuck is not None:
        nothing = {"observed": None, "modelled": None, "miss": None, "low": None, "high": None}
        return [{**head, "metric": None, **nothing, **counters, "stuck": outcome.stuck}]
    linear = basis_of(target.scenario, target.policy, target.pause)
    others = [linear.metrics(values) for values in (*found.extremes, values_of(found.step_time))]
    rows = []
    for metric, observed in target.observed.items():
        modelled = outcome.value(metric) or 0.0
        rows.append(
            {
                **head,
                "metric": metric,
                "observed": observed,
                "modelled": modelled,
                "miss": modelled / observed - 1,
                "low": min(other[metric] for other in others),
                "high": max(other[metric] for other in others),
                **counters,
                "stuck": None,
            }
        )
    return rows

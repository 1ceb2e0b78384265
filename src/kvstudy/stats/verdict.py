"""Claims against a run: one verdict per published number and source.

Only a measured number can be reproduced. An emulated or predicted one says whether the model
agrees, and that is all it says.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from kvstudy.base.errors import EXIT_INVALID, EXIT_NOT_REPRODUCED, EXIT_OK
from kvstudy.stats.claims import Claim
from kvstudy.stats.data import Data, Row, worst_basis
from kvstudy.stats.expression import Evaluated, evaluate

MEASURED_VERDICTS = ("reproduced", "not_reproduced", "not_measured", "invalid")
MODEL_VERDICTS = ("model_agrees", "model_differs", "not_modelled")


def judge(
    claims: Sequence[Claim], data: Data, *, spoilt: Mapping[str, str] | None = None
) -> list[Row]:
    """Verdict rows, claims in file order, each for every source that has cells.

    `spoilt` maps cell ids of one contrast to what makes it unfair (see `stats.audit`): a claim
    that compares such cells is invalid.
    """
    return [
        _row(claim, evaluate(claim.compute, data, source), source, spoilt or {})
        for claim in claims
        for source in data.sources
    ]


def _row(claim: Claim, found: Evaluated, source: str, spoilt: Mapping[str, str]) -> Row:
    tolerance = allowed(claim, found)
    verdict, why = _verdict(claim, found, source, tolerance, spoilt)
    shown = None if verdict == "not_modelled" else found.value
    return {
        "claim_id": claim.id,
        "group": claim.group,
        "label": claim.label,
        "published": claim.value,
        "observed": shown,
        "unit": claim.unit,
        "tolerance": tolerance,
        "tolerance_reason": claim.tolerance.reason if claim.tolerance else "no test: not computed",
        "distance": distance(claim.value, shown),
        "basis": worst_basis(found.cells, "measured" if source == "measured" else "assumed"),
        "source": source,
        "verdict": verdict,
        "why": why,
        "cells": sorted({row["cell_id"] for row in found.cells}),
    }


def allowed(claim: Claim, found: Evaluated) -> float | None:
    """Allowed |observed - published|, in the claim's unit; None for a claim without a test."""
    tolerance = claim.tolerance
    if tolerance is None:
        return None
    rounding = claim.step / 2
    if tolerance.absolute is not None:
        return tolerance.absolute + rounding
    if tolerance.relative is not None:
        return tolerance.relative * abs(claim.value) + rounding
    floor = (tolerance.noise or 0.0) * abs(claim.value)
    return max(floor, found.noise or 0.0) + rounding


def distance(published: float, observed: float | None) -> float | None:
    """(observed - published) / |published|; the plain difference where the published is zero."""
    if observed is None:
        return None
    return (observed - published) / (abs(published) or 1.0)


def _verdict(
    claim: Claim,
    found: Evaluated,
    source: str,
    tolerance: float | None,
    spoilt: Mapping[str, str],
) -> tuple[str, str | None]:
    measured = source == "measured"
    unknown = "not_measured" if measured else "not_modelled"
    if not measured and claim.not_modelled is not None:
        return unknown, claim.not_modelled
    invalid = [row for row in found.cells if not row["valid"]]
    if invalid:
        codes = sorted({code for row in invalid for code in row["reasons"]})
        why = f"{_cells(invalid)} not valid: {', '.join(codes) or 'no reason given'}"
        return ("invalid" if measured else unknown), why
    if found.value is None or tolerance is None:
        return unknown, found.problem
    unfair = sorted({spoilt[row["cell_id"]] for row in found.cells if row["cell_id"] in spoilt})
    if unfair and claim.compute.over is not None:
        return ("invalid" if measured else unknown), "; ".join(unfair)
    close = within(claim, found.value, tolerance)
    good, bad = MEASURED_VERDICTS[:2] if measured else MODEL_VERDICTS[:2]
    return (good if close else bad), _few(claim, found)


def within(claim: Claim, observed: float, tolerance: float) -> bool:
    """Whether an observed value agrees with the claim. The edge itself agrees."""
    slack = 1e-9 * max(1.0, abs(claim.value))
    if claim.holds == "at_most":
        return observed <= claim.value + tolerance + slack
    if claim.holds == "at_least":
        return observed >= claim.value - tolerance - slack
    return abs(observed - claim.value) <= tolerance + slack


def _few(claim: Claim, found: Evaluated) -> str | None:
    repeats = {row["repeat"] for row in found.cells}
    asked_for_one = isinstance(claim.compute.of.repeat, int)
    return "from one repeat" if len(repeats) == 1 and not asked_for_one else None


def _cells(rows: Iterable[Row]) -> str:
    return ", ".join(sorted({row["cell_id"] for row in rows}))


def exit_code(verdicts: Iterable[Mapping[str, Any]]) -> int:
    """0: every measured claim is reproduced. 1: one is not. 2: one is invalid or not measured.

    2 wins over 1. Only measured rows count, so a study without any (emulated) gives 2. Claims
    without a test (`op: none`, no tolerance) do not count.
    """
    measured = [
        row["verdict"]
        for row in verdicts
        if row["source"] == "measured" and row["tolerance"] is not None
    ]
    if not measured or any(verdict in ("invalid", "not_measured") for verdict in measured):
        return EXIT_INVALID
    return EXIT_NOT_REPRODUCED if "not_reproduced" in measured else EXIT_OK


def sentence(verdicts: Sequence[Mapping[str, Any]]) -> str:
    """The exit code in one plain sentence."""
    code = exit_code(verdicts)
    if code == EXIT_OK:
        return "Every published number that can be tested was reproduced."
    if code == EXIT_NOT_REPRODUCED:
        return "At least one published number was measured and not reproduced."
    if not any(row["source"] == "measured" for row in verdicts):
        return "Nothing was measured: emulated and predicted numbers reproduce nothing."
    return "At least one published number was not measured, or its cells are not valid."

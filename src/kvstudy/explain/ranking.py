"""How likely each hypothesis makes the evidence; every assumption is a constant of this module.

log likelihood = sum over ratios of w * log t4((ln predicted - ln observed) / s)
s^2            = (stated spread of the observed ratio)^2 + (model error)^2
weight         = prior * exp(log likelihood), scaled to sum to 1 over an engine's hypotheses
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from scipy.stats import t as student

from kvstudy.explain.evidence import Evidence
from kvstudy.explain.probe import UNLIMITED_TOKENS, CutProbe

DEGREES = 4
LEAST_MODEL_ERROR = 0.02
SHARES = {"tpot_p99_ratio": 0.5, "e2e_p99_ratio": 0.5}
"""The same few requests set TPOT p99 and e2e p99, so together they count as one number."""
OVERRIDDEN, CONTRADICTED = 0.05, 0.001
"""How likely a cut other than the probed default is, with and without a caller that may pass
another value."""


@dataclass(frozen=True, slots=True)
class Rated:
    """One hypothesis before scaling: its family, its cut, its predicted ratios."""

    family: str
    cut_tokens: int | None
    ratios: Mapping[str, float | None]
    ends: bool
    spreads: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Score:
    """A hypothesis against the evidence; `log_likelihood` is None where it is ruled out."""

    log_likelihood: float | None
    weight: float
    rank: int
    against: str | None


def model_error(predicted: Mapping[str, float | None], observed: Evidence) -> float:
    """Largest |ln predicted / observed| of the baseline's own values, at least the floor.

    The cost model was fitted to baseline rows; how far it is off there is how far it may be off.
    """
    errors = [
        abs(math.log(value / observed.baseline[metric]))
        for metric, value in predicted.items()
        if value and observed.baseline.get(metric)
    ]
    return max([LEAST_MODEL_ERROR, *errors])


def log_likelihood(rated: Rated, evidence: Evidence, error: float) -> float:
    """Sum of weighted log densities over the ratios that both sides define."""
    total = 0.0
    for name, observed in evidence.ratios.items():
        predicted = rated.ratios.get(name)
        if predicted is None:
            continue
        scale = math.hypot(evidence.spreads[name], error, rated.spreads.get(name, 0.0))
        distance = math.log(predicted / observed) / scale
        total += SHARES.get(name, 1.0) * (
            float(student.logpdf(distance, DEGREES)) - math.log(scale)
        )
    return total


def scores(
    rated: Sequence[Rated], evidence: Evidence, error: float, probe: CutProbe | None
) -> list[Score]:
    """One score per hypothesis, in their order.

    Families have equal priors, shared equally between the members of a family.
    """
    sizes = {r.family: sum(other.family == r.family for other in rated) for r in rated}
    logs: list[float | None] = []
    terms = []
    for one in rated:
        likelihood = log_likelihood(one, evidence, error) if one.ends else None
        logs.append(likelihood)
        factor, _ = probe_factor(one, probe)
        prior = factor / sizes[one.family]
        terms.append(-math.inf if likelihood is None else likelihood + math.log(prior))
    top = max(terms)
    shares = [math.exp(term - top) if math.isfinite(term) else 0.0 for term in terms]
    total = sum(shares)
    order = sorted(range(len(rated)), key=lambda index: -shares[index])
    return [
        Score(logs[i], shares[i] / total, order.index(i) + 1, _against(rated[i], evidence, probe))
        for i in range(len(rated))
    ]


def probe_factor(rated: Rated, probe: CutProbe | None) -> tuple[float, str | None]:
    """What the probed default does to a hypothesis about the cut: a factor, and why."""
    if probe is None or rated.family not in ("H1", "H2"):
        return 1.0, None
    cuts = probe.default_tokens < UNLIMITED_TOKENS
    agrees = rated.cut_tokens == probe.default_tokens if cuts else rated.cut_tokens is None
    if agrees:
        return 1.0, None
    return (OVERRIDDEN if probe.may_be_overridden else CONTRADICTED), probe.words


def _against(rated: Rated, evidence: Evidence, probe: CutProbe | None) -> str | None:
    if not rated.ends:
        return f"every request ended in the {evidence.source} run, and this predicts that none can"
    return probe_factor(rated, probe)[1]


def assumptions(evidence: Evidence, error: float, probe: CutProbe | None) -> str:
    """What a score takes for granted, in sentences."""
    names = ", ".join(sorted(name.removesuffix("_ratio") for name in evidence.ratios))
    spreads = ", ".join(
        f"{name.removesuffix('_ratio')} {100 * spread:.1f} %"
        for name, spread in sorted(evidence.spreads.items())
    )
    found = probe.words if probe else "no probe of the image has run"
    return (
        f"Compared with {evidence.source} ratios ({names}). Errors are of log ratios, Student t "
        f"with {DEGREES} degrees of freedom, independent, except that TPOT p99 and e2e p99 count "
        f"half each, as the same few requests set both. Spread of the evidence: {spreads}. Model "
        f"error: {100 * error:.1f} %, the largest miss of the cost model on the baseline, at least "
        f"{100 * LEAST_MODEL_ERROR:.0f} %; beside it, per hypothesis, what the fitted rows leave "
        f"open about the constants. Equal priors for H0, H1, H2 and H3; H1's is shared by "
        f"the cuts scanned. The cut: {found}."
    )

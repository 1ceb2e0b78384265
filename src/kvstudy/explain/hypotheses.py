"""Rival hypotheses side by side: what each predicts, what was published, what this run says.

H0  no effect: MAX_UTILIZATION behaves as GUARANTEED_NO_EVICT
H1  a pause cuts the request to its first L tokens; what was cut is decoded in silence
H2  a pause recomputes prompt and generated tokens (H1 with no cut)
H3  a paused request's blocks are never released
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

from kvstudy.explain import ranking
from kvstudy.explain.basis import Reals
from kvstudy.explain.deciders import deciders
from kvstudy.explain.evidence import (
    Evidence,
    PublishedValue,
    Side,
    published_evidence,
    run_evidence,
)
from kvstudy.explain.probe import CutProbe
from kvstudy.explain.scenario import (
    BASELINE,
    TREATMENT,
    LengthsOf,
    Outcome,
    Scenario,
    ratio,
    scenario_of,
)
from kvstudy.explain.spread import open_constants, ratio_spreads
from kvstudy.explain.tables import HYPOTHESES, OBSERVED, RATIOS
from kvstudy.sim.model import Pause, Policy
from kvstudy.sim.of_cell import policy_of
from kvstudy.study.plan import Cell, Study
from kvstudy.study.sense import resolve_arm

Row = dict[str, Any]

CUTS = (512, 768, 1024, 1536, 2048, 3072, 4096)
_SHOWN = ("pauses", "recomputed_tokens", "hidden_tokens", "iterations")


@dataclass(frozen=True, slots=True)
class Hypothesis:
    """One way a pause might work; `pause` None: there is no effect at all."""

    id: str
    family: str
    label: str
    pause: Pause | None

    @property
    def cut_tokens(self) -> int | None:
        """Where a pause cuts; None where it does not."""
        return None if self.pause is None else self.pause.truncate_to_tokens


def hypotheses(cuts: Sequence[int] = CUTS) -> list[Hypothesis]:
    """All of them, with H1 scanned over `cuts`."""
    return [
        Hypothesis("H0", "H0", "no effect: both policies behave alike", None),
        *(
            Hypothesis(
                f"H1.{cut}",
                "H1",
                f"a pause keeps the first {cut:,} tokens, the rest is decoded in silence",
                Pause(truncate_to_tokens=cut),
            )
            for cut in sorted(set(cuts))
        ),
        Hypothesis("H2", "H2", "a pause recomputes the whole context (no cut)", Pause()),
        Hypothesis(
            "H3", "H3", "a paused request's blocks are never released", Pause(never_release=True)
        ),
    ]


@dataclass(frozen=True)
class Runs:
    """The baseline's run and one run per hypothesis, all of one scenario."""

    scenario: Scenario
    baseline: Outcome
    treated: Mapping[str, Outcome]
    spreads: Mapping[str, Mapping[str, float]]

    def ratios(self, hypothesis: Hypothesis) -> dict[str, float | None]:
        """Every ratio of the table."""
        outcome = self.treated[hypothesis.id]
        return {
            name: ratio(outcome.value(metric), self.baseline.value(metric))
            for name, metric in RATIOS.items()
        }


def run_all(
    scenario: Scenario, wanted: Sequence[Hypothesis], constants: Sequence[Reals] = ()
) -> Runs:
    """Run the baseline once and the treatment under every hypothesis.

    `constants` are those that a fit leaves open; they give each predicted ratio its spread.
    """
    baseline = scenario.run(BASELINE)
    treated = {
        h.id: baseline if h.pause is None else scenario.run(TREATMENT, h.pause) for h in wanted
    }
    ends = {h.id: h.pause for h in wanted if h.pause and treated[h.id].stuck is None}
    return Runs(scenario, baseline, treated, ratio_spreads(scenario, ends, constants))


def explain(
    study: Study,
    cells: Sequence[Mapping[str, Any]],
    *,
    published: Sequence[PublishedValue] = (),
    probes: Mapping[str, CutProbe | None] | None = None,
    lengths_of: LengthsOf,
    cuts: Sequence[int] = CUTS,
) -> list[Row]:
    """All rows of `tables.HYPOTHESES`; none where no TensorRT-LLM pair is under KV pressure."""
    rows: list[Row] = []
    constants = open_constants(study, published)
    for baseline, treatment in pressured_pairs(study):
        engine = study.config.engines[baseline.engine]
        probe = (probes or {}).get(baseline.engine)
        values = json.loads(study.prediction_spec(SimpleNamespace(cell=treatment.id)))
        scenario = scenario_of(values, lengths_of)
        wanted = hypotheses([*cuts, *probed_cut(probe, scenario)])
        runs = run_all(scenario, wanted, constants)
        side = Side(
            baseline.engine, baseline.workload, baseline.concurrency, baseline.arm, treatment.arm
        )
        found = _evidence(side, published, cells)
        head = {
            **dict.fromkeys(HYPOTHESES.names),
            "engine": side.engine,
            "engine_version": engine.version,
            "workload": side.workload,
            "concurrency": side.concurrency,
            "baseline": side.baseline,
            "treatment": side.treatment,
        }
        rows += [head | _observed(evidence) for evidence in found.values()]
        rows += [head | row for row in _hypothesis_rows(wanted, runs, found, probe)]
    return rows


def probed_cut(probe: CutProbe | None, scenario: Scenario) -> list[int]:
    """The probed default where it can cut a request of the scenario; else nothing."""
    longest = max(r.input_tokens + r.output_cap_tokens for r in scenario.requests)
    return [probe.default_tokens] if probe and probe.default_tokens < longest else []


def pressured_pairs(study: Study) -> list[tuple[Cell, Cell]]:
    """Per TensorRT-LLM engine, the first repeats of the first pair of arms under KV pressure."""
    pairs: dict[str, tuple[Cell, Cell]] = {}
    for engine in study.engines_in_use:
        for cell in study.cells:
            if cell.engine != engine or cell.repeat != 1 or engine in pairs:
                continue
            if policy_of_cell(study, cell) is not BASELINE or not _is_pressured(study, cell):
                continue
            for other in study.allocations[cell.allocation]:
                if other.repeat == 1 and policy_of_cell(study, other) is TREATMENT:
                    pairs.setdefault(engine, (cell, other))
    return list(pairs.values())


def policy_of_cell(study: Study, cell: Cell) -> Policy | None:
    """The capacity policy of a TensorRT-LLM cell; None for other engines."""
    adapter = study.config.engines[cell.engine].adapter
    if adapter != "trtllm":
        return None
    return policy_of(adapter, resolve_arm(study.config.arms, cell.arm).options)


def _is_pressured(study: Study, cell: Cell) -> bool:
    """Whether the lanes at their longest want more than the pool."""
    values = study.cell_values(cell)
    pool = values["server"]["kv_pool"]["tokens"]
    longest = values["workload"]["input_tokens"]
    longest = longest if isinstance(longest, int) else max(longest["uniform"])
    return bool(cell.concurrency * (longest + values["workload"]["output_cap_tokens"]) > pool)


def _evidence(
    side: Side, published: Sequence[PublishedValue], cells: Sequence[Mapping[str, Any]]
) -> dict[str, Evidence]:
    """Everything observed, by source; only published and measured rows are evidence."""
    found = {"published": published_evidence(side, published)}
    found |= {source: run_evidence(side, source, cells) for source in OBSERVED[1:]}
    return {source: evidence for source, evidence in found.items() if evidence is not None}


def _observed(evidence: Evidence) -> Row:
    words = {
        "published": "published",
        "measured": "measured in this run",
        "emulated": "emulated in this run (a model: no evidence)",
        "predicted": "predicted for this study (a model: no evidence)",
    }
    counts = {name: evidence.counts.get(name) for name in _SHOWN}
    gap_ms = evidence.counts.get("max_gap_ms")
    return {
        "kind": evidence.source,
        "label": words[evidence.source],
        "outcome": "observed",
        **{name: evidence.ratios.get(name) for name in RATIOS},
        **{name.replace("_ratio", "_spread"): evidence.spreads.get(name) for name in RATIOS},
        **{f"treatment_{m}": evidence.treatment.get(m) for m in RATIOS.values()},
        **{name: None if value is None else round(value) for name, value in counts.items()},
        "max_gap_s": None if gap_ms is None else gap_ms / 1000,
        "deciders": [],
    }


def _hypothesis_rows(
    wanted: Sequence[Hypothesis],
    runs: Runs,
    found: Mapping[str, Evidence],
    probe: CutProbe | None,
) -> list[Row]:
    evidence = found.get("measured") or found.get("published")
    scored: list[Row] = [{}] * len(wanted)
    if evidence is not None:
        scored = _scored(wanted, runs, evidence, probe)
    return [
        _predicted(hypothesis, runs) | score
        for hypothesis, score in zip(wanted, scored, strict=True)
    ]


def _scored(
    wanted: Sequence[Hypothesis], runs: Runs, evidence: Evidence, probe: CutProbe | None
) -> list[Row]:
    baseline = {metric: runs.baseline.value(metric) for metric in RATIOS.values()}
    error = ranking.model_error(baseline, evidence)
    rated = [
        ranking.Rated(
            h.family,
            h.cut_tokens,
            runs.ratios(h),
            runs.treated[h.id].stuck is None,
            runs.spreads.get(h.id, {}),
        )
        for h in wanted
    ]
    assumptions = ranking.assumptions(evidence, error, probe)
    return [
        {
            "evidence": evidence.source,
            "log_likelihood": score.log_likelihood,
            "weight": score.weight,
            "rank": score.rank,
            "against": score.against,
            "assumptions": assumptions,
        }
        for score in ranking.scores(rated, evidence, error, probe)
    ]


def _predicted(hypothesis: Hypothesis, runs: Runs) -> Row:
    outcome = runs.treated[hypothesis.id]
    others = {"recompute": runs.treated["H2"], "baseline": runs.baseline}
    gap_ms = outcome.value("max_gap_ms")
    ends = outcome.stuck is None
    return {
        "kind": "hypothesis",
        "hypothesis": hypothesis.id,
        "family": hypothesis.family,
        "label": hypothesis.label,
        "truncate_to_tokens": hypothesis.cut_tokens,
        "outcome": "ends" if ends else "livelock",
        "outcome_words": outcome.stuck,
        **runs.ratios(hypothesis),
        **{
            name.replace("_ratio", "_spread"): runs.spreads.get(hypothesis.id, {}).get(name)
            for name in RATIOS
        },
        **{f"treatment_{metric}": outcome.value(metric) for metric in RATIOS.values()},
        **{name: outcome.summary.get(name) for name in _SHOWN},
        "max_gap_s": None if gap_ms is None else gap_ms / 1000,
        "stalled_requests": outcome.stalled_requests if ends else None,
        "deciders": deciders(
            hypothesis.family, hypothesis.cut_tokens, runs.scenario, outcome, others
        ),
    }

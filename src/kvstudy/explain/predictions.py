"""Outcomes registered before a run, per hypothesis, and how a run compares with them.

python -m kvstudy.explain.predictions register overlays/NAME.yaml
python -m kvstudy.explain.predictions compare overlays/NAME.predictions.json CELLS.parquet
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from kvstudy.base import files, tables
from kvstudy.explain.evidence import Side, run_evidence
from kvstudy.explain.hypotheses import Hypothesis, hypotheses, policy_of_cell
from kvstudy.explain.published import lengths_of
from kvstudy.explain.ranking import LEAST_MODEL_ERROR
from kvstudy.explain.scenario import BASELINE, TREATMENT, LengthsOf, Outcome, ratio, scenario_of
from kvstudy.explain.tables import RATIOS
from kvstudy.sim.model import Pause
from kvstudy.study.parse import read_config
from kvstudy.study.plan import Cell, Study

Document = dict[str, Any]

CUTS = (1024, 2048)
"""The cuts that are registered: what fits the published row best, and what an old source says."""
BOUND = 2.0
"""A run rules a hypothesis out where a log ratio is further off than so many standard errors."""

_COUNTS = ("pauses", "recomputed_tokens", "hidden_tokens", "iterations", "residents_max")
_KEYS = ("workload", "concurrency", "engine", "baseline", "treatment")


def register(base: Study, changed: Study, lengths: LengthsOf = lengths_of) -> Document:
    """Predictions for every pair of policies whose cells the overlay adds or changes."""
    known = {base.cell_digest(cell) for cell in base.cells}
    groups = [
        _group(changed, baseline, treatment, lengths)
        for baseline, treatment in _pairs(changed)
        if changed.cell_digest(treatment) not in known
    ]
    return {
        "what": "predicted MAX_UTILIZATION over GUARANTEED_NO_EVICT, registered before any run",
        "step_time": changed.config.emulator.step_time.model_dump(),
        "hypotheses": {h.id: h.label for h in hypotheses(CUTS)},
        "groups": groups,
    }


def _pairs(study: Study) -> list[tuple[Cell, Cell]]:
    """First repeats of the two policies, per allocation of a TensorRT-LLM engine."""
    pairs = []
    for cells in study.allocations.values():
        first = [cell for cell in cells if cell.repeat == 1]
        sides = {policy_of_cell(study, cell): cell for cell in first}
        if BASELINE in sides and TREATMENT in sides:
            pairs.append((sides[BASELINE], sides[TREATMENT]))
    return pairs


def _group(study: Study, baseline: Cell, treatment: Cell, lengths: LengthsOf) -> Document:
    values = json.loads(study.prediction_spec(SimpleNamespace(cell=treatment.id)))
    scenario = scenario_of(values, lengths)
    reserved = scenario.run(BASELINE)
    engine = study.config.engines[treatment.engine].model_dump()
    predicted = {}
    for hypothesis in hypotheses(CUTS):
        pause = _pause(hypothesis, patched=engine.get("site") is not None)
        outcome = reserved if pause is None else scenario.run(TREATMENT, pause)
        predicted[hypothesis.id] = _prediction(outcome, reserved)
    return {
        "workload": treatment.workload,
        "concurrency": treatment.concurrency,
        "engine": treatment.engine,
        "baseline": baseline.arm,
        "treatment": treatment.arm,
        "pool_blocks": scenario.engine.usable_blocks,
        "predicted": predicted,
    }


def _pause(hypothesis: Hypothesis, *, patched: bool) -> Pause | None:
    """The pause mode at work: a patched engine cuts nothing, whatever H1 says of it."""
    return Pause() if patched and hypothesis.family == "H1" else hypothesis.pause


def _prediction(outcome: Outcome, baseline: Outcome) -> Document:
    gap_ms = outcome.value("max_gap_ms")
    return {
        "outcome": "ends" if outcome.stuck is None else "livelock",
        **{
            name: _rounded(ratio(outcome.value(metric), baseline.value(metric)))
            for name, metric in RATIOS.items()
        },
        **{name: outcome.summary.get(name) for name in _COUNTS},
        "max_gap_s": None if gap_ms is None else _rounded(gap_ms / 1000),
    }


def _rounded(value: float | None) -> float | None:
    """Five significant digits: files stay equal where the last bits of a float may not."""
    return None if value is None else float(f"{value:.5g}")


def compare(
    registered: Mapping[str, Any], cells: Sequence[Mapping[str, Any]], source: str = "measured"
) -> list[Document]:
    """One row per registered group that was run: each hypothesis' distance, and which remain.

    A hypothesis remains where no ratio is further off than `BOUND` standard errors, which are
    those of the run's repeats together with the model's error.
    """
    rows = []
    for group in registered["groups"]:
        side = Side(
            group["engine"],
            group["workload"],
            group["concurrency"],
            group["baseline"],
            group["treatment"],
        )
        evidence = run_evidence(side, source, cells)
        if evidence is None:
            continue
        distances = {
            name: _distance(predicted, evidence.ratios, evidence.spreads)
            for name, predicted in group["predicted"].items()
        }
        finite = {name: d for name, d in distances.items() if d is not None}
        rows.append(
            {
                **{key: group[key] for key in _KEYS},
                "source": source,
                "observed": dict(evidence.ratios),
                "distances": distances,
                "remain": [name for name, d in finite.items() if d <= BOUND],
                "nearest": min(finite, key=lambda name: finite[name], default=None),
            }
        )
    return rows


def _distance(
    predicted: Mapping[str, Any], ratios: Mapping[str, float], spreads: Mapping[str, float]
) -> float | None:
    """Largest distance in standard errors; None for a hypothesis under which nothing ends."""
    if predicted["outcome"] != "ends":
        return None
    return max(
        abs(math.log(predicted[name] / observed)) / math.hypot(spreads[name], LEAST_MODEL_ERROR)
        for name, observed in ratios.items()
        if predicted[name] is not None
    )


def predictions_path(overlay: Path) -> Path:
    """Where an overlay's registered predictions stand."""
    return overlay.with_suffix(".predictions.json")


def registered_of(config: Path, overlay: Path) -> Document:
    """Predictions of one overlay laid on a configuration."""
    return register(Study(read_config(config)), Study(read_config(config, overlay)))


def main(argv: list[str] | None = None) -> None:
    """Write predictions, or print how a run compares with them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("command", choices=["register", "compare"])
    parser.add_argument("file", type=Path, help="overlays/NAME.yaml, or NAME.predictions.json")
    parser.add_argument("cells", type=Path, nargs="?", help="tables/cells.parquet of the run")
    parser.add_argument("--config", type=Path, default=Path("config.yaml"))
    parser.add_argument("--source", default="measured", choices=["measured", "emulated"])
    args = parser.parse_args(argv)
    if args.command == "register":
        path = predictions_path(args.file)
        files.write_json(path, registered_of(args.config, args.file))
        return
    if args.cells is None:
        parser.error("compare needs the run's tables/cells.parquet")
    rows = tables.read(args.cells, tables.CELLS).to_pylist()
    found = compare(files.read_json(args.file), rows, args.source)
    print(json.dumps(found, indent=2, sort_keys=True))  # noqa: T201 - the command's result


if __name__ == "__main__":
    main()

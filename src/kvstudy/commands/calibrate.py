"""`kvstudy calibrate`: fit the step-time constants to chosen rows and predict all others."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import yaml

from kvstudy.base import files, tables
from kvstudy.base.errors import ConfigError, UsageError
from kvstudy.commands.parser import Parser
from kvstudy.commands.terminal import note, out, out_json, table
from kvstudy.explain.calibrate import calibrate
from kvstudy.explain.model_card import read_card
from kvstudy.explain.published import published_values
from kvstudy.explain.roofline import GPUS, gpu_named, step_time
from kvstudy.explain.targets import Target, cell_targets, inline_targets, published_targets
from kvstudy.sim.timing import PUBLISHED_FIT, StepTime
from kvstudy.study.parse import read_config
from kvstudy.study.plan import Study, study_from

_EPILOG = """examples:
  kvstudy calibrate                                     the published baseline rows of config.yaml
  kvstudy calibrate --results results/measured --fit 'W-B.*' --fit '*.gne.*'
  kvstudy calibrate --rows rows.yaml --fit 'mine-*' --json > constants.json
  kvstudy calibrate --model DIR --gpu H200              a roofline prior alone, uncalibrated
what the output means: docs/calibrate.md"""


def main(argv: list[str]) -> int:
    """Collect rows, fit, print."""
    args = _parser().parse_args(argv)
    prior = _prior(args)
    if prior is not None and not (args.rows or args.row or args.results or args.published):
        _print_prior(prior, args)
        return 0
    targets, patterns = _targets(args)
    document = calibrate(targets, args.fit or patterns, prior or PUBLISHED_FIT)
    document["prior"] = None if prior is None else {**asdict(prior), "basis": "uncalibrated"}
    if args.json:
        out_json(document)
    else:
        _print(document)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kvstudy calibrate",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--configfile", type=Path, nargs="+", default=[Path("config.yaml")])
    parser.add_argument("--published", type=Path, nargs="+", help="default: the config's files")
    parser.add_argument("--results", type=Path, help="results/<backend>: fit to its cells instead")
    parser.add_argument("--source", choices=["measured", "emulated", "predicted"])
    parser.add_argument("--rows", type=Path, help="YAML or JSON list of {id, spec, values}")
    parser.add_argument("--row", action="append", default=[], help="one such row as JSON")
    parser.add_argument("--fit", action="append", help="pattern of row ids; others are predicted")
    parser.add_argument("--model", type=Path, help="folder with config.json, for a prior")
    parser.add_argument("--gpu", help=f"one of {', '.join(gpu.name for gpu in GPUS)}")
    parser.add_argument("--tp", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="for machines")
    return parser


def _prior(args: argparse.Namespace) -> StepTime | None:
    if (args.model is None) != (args.gpu is None):
        raise UsageError("--model and --gpu: a roofline prior needs both")
    if args.model is None:
        return None
    if args.tp < 1:
        raise UsageError(f"--tp: expected a whole number >= 1, got {args.tp}")
    return step_time(read_card(args.model), gpu_named(args.gpu), args.tp)


def _targets(args: argparse.Namespace) -> tuple[list[Target], list[str]]:
    """The rows, and the patterns of those to fit if none are given."""
    if args.rows is not None or args.row:
        documents = [*_documents(args.rows), *(_json(text) for text in args.row)]
        return inline_targets(documents), ["*"]
    if args.results is not None:
        study = study_from(files.read_json(args.results / "study.json")["config"], [])
        cells = tables.read(args.results / "tables" / "cells.parquet", tables.CELLS).to_pylist()
        return cell_targets(study, cells, args.source), study.config.emulator.fitted_to
    study = Study(read_config(*args.configfile))
    paths = args.published or [Path(name) for name in study.config.published]
    return published_targets(study, published_values(paths)), study.config.emulator.fitted_to


def _documents(path: Path | None) -> list[Any]:
    if path is None:
        return []
    try:
        found = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise ConfigError([f"cannot be read: {error}"], source=str(path)) from None
    if not isinstance(found, list):
        raise ConfigError(["expected a list of {id, spec, values}"], source=str(path))
    return found


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        raise UsageError(f"--row: not valid JSON ({error})") from None


def _print_prior(prior: StepTime, args: argparse.Namespace) -> None:
    if args.json:
        out_json({"basis": "uncalibrated", "step_time": asdict(prior), "gpu": args.gpu})
        return
    table(
        ["constant", "roofline"], [[name, f"{value:.4g}"] for name, value in asdict(prior).items()]
    )
    note("uncalibrated: datasheet numbers with assumed efficiencies; fit them to measured rows")


def _print(document: dict[str, Any]) -> None:
    rows = [
        [
            r["name"],
            f"{r['value']:.4g}",
            f"{r['low']:.4g}",
            "no limit" if r["high"] is None else f"{r['high']:.4g}",
            "yes" if r["separable"] else "no",
        ]
        for r in document["constants"]
    ]
    table(["constant", "value", "low", "high", "separable"], rows)
    out("")
    head = ["row", "basis", "metric", "observed", "modelled", "miss", "low", "high"]
    table(head, [_line(row) for row in [*document["fitted"], *document["predicted"]]])
    out("")
    weights = ", ".join(f"{name} {weight:g}" for name, weight in document["weights"].items())
    out(f"Weights of log ratios: {weights}. Noise taken: {100 * document['noise']:.1f} %.")
    names = document["not_separable"]
    if names:
        out(f"These rows do not separate: {', '.join(names)}.")
        weakest = document["directions"][-1]["parts"]
        out("Weakest direction: " + ", ".join(f"{v:+.2f} {n}" for n, v in weakest.items()) + ".")
    else:
        out("All constants are determined by these rows.")


def _line(row: dict[str, Any]) -> list[str]:
    if row["metric"] is None:
        return [row["id"], row["basis"], row["stuck"], "", "", "", "", ""]
    return [
        row["id"],
        row["basis"],
        row["metric"],
        f"{row['observed']:,.1f}",
        f"{row['modelled']:,.1f}",
        f"{100 * row['miss']:+.1f} %",
        f"{row['low']:,.1f}",
        f"{row['high']:,.1f}",
    ]

"""Step: rival hypotheses against published and measured numbers, and what would decide them."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kvstudy.base import files, tables
from kvstudy.explain.hypotheses import CUTS, explain
from kvstudy.explain.probe import cut_probe
from kvstudy.explain.published import lengths_of, published_values
from kvstudy.explain.tables import HYPOTHESES
from kvstudy.steps.run import run
from kvstudy.study.plan import study_from


def parser() -> argparse.ArgumentParser:
    """Files in, file out."""
    flags = argparse.ArgumentParser(prog="explain_study", description=__doc__)
    flags.add_argument("--spec", type=json.loads, required=True, help="Study.why_spec")
    flags.add_argument("--cells", type=Path, required=True)
    flags.add_argument("--published", type=Path, nargs="*", default=[])
    flags.add_argument("--probes", type=Path, nargs="*", default=[], help="<engine>.probe.json")
    flags.add_argument("--out", type=Path, required=True)
    return flags


def main(argv: list[str] | None = None) -> None:
    """Read, explain, write."""
    args = parser().parse_args(argv)
    probes = [files.read_json(path) for path in args.probes]
    rows = explain(
        study_from(args.spec["config"], []),
        tables.read(args.cells, tables.CELLS).to_pylist(),
        published=published_values(args.published),
        probes={probe["engine"]: cut_probe(probe) for probe in probes},
        lengths_of=lengths_of,
        cuts=args.spec.get("hypotheses", {}).get("cuts", CUTS),
    )
    tables.write(args.out, rows, HYPOTHESES)


if __name__ == "__main__":
    run(main)

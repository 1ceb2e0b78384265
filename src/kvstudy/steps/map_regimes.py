"""Step: where MAX_UTILIZATION wins, loses and equals, and the cliff around the study's pool."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kvstudy.base import tables
from kvstudy.explain.regimes import Grid, regimes
from kvstudy.explain.tables import REGIMES
from kvstudy.steps.run import run
from kvstudy.study.plan import study_from


def main(argv: list[str] | None = None) -> None:
    """Simulate the grid, write the map."""
    parser = argparse.ArgumentParser(prog="map_regimes", description=__doc__)
    parser.add_argument("--spec", type=json.loads, required=True, help="Study.why_spec")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args(argv)
    grid = Grid.of(args.spec.get("regime_map", {}))
    rows = regimes(study_from(args.spec["config"], []), grid)
    tables.write(args.out, rows, REGIMES)


if __name__ == "__main__":
    run(main)

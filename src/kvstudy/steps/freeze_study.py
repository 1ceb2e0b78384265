"""Record the resolved study beside its results, and the plan that the tables stage reads."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kvstudy.base.files import write_json
from kvstudy.steps.run import run
from kvstudy.study.parse import parse_config
from kvstudy.study.plan import Study


def main(argv: list[str] | None = None) -> None:
    """Write study.json and plan.json from the whole configuration."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--config", required=True, type=json.loads)
    parser.add_argument("--study", required=True, type=Path)
    parser.add_argument("--plan", required=True, type=Path)
    args = parser.parse_args(argv)
    study = Study(parse_config(args.config))
    write_json(args.study, study.resolved())
    write_json(args.plan, study.tables_plan())


if __name__ == "__main__":
    run(main)

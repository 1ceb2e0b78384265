"""Step: cells and requests to contrasts with intervals, and to one verdict per published number."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from kvstudy.base import files, tables
from kvstudy.stats.audit import audit, spoilt
from kvstudy.stats.claims import read_published
from kvstudy.stats.contrast import Pair, aa_pairs, contrast_rows, pairs_of
from kvstudy.stats.data import REQUEST_COLUMNS, data_of
from kvstudy.stats.verdict import judge
from kvstudy.steps.run import run


def parser() -> argparse.ArgumentParser:
    """Files in, files out."""
    flags = argparse.ArgumentParser(prog="compare_arms", description=__doc__)
    flags.add_argument("--spec", type=json.loads, required=True, help="Study.stats_spec")
    flags.add_argument("--cells", type=Path, required=True)
    flags.add_argument("--requests", type=Path, required=True)
    flags.add_argument("--published", type=Path, nargs="*", default=[])
    flags.add_argument("--runs", type=Path, help="what each server was given and resolved")
    flags.add_argument("--study", type=Path, help="study.json; needed beside --runs")
    flags.add_argument("--contrasts", type=Path, required=True)
    flags.add_argument("--verdicts", type=Path, required=True)
    return flags


def main(argv: list[str] | None = None) -> None:
    """Read, compare, write."""
    args = parser().parse_args(argv)
    data = data_of(
        tables.read(args.cells, tables.CELLS),
        tables.read(args.requests, tables.REQUESTS, REQUEST_COLUMNS),
    )
    claims = [claim for file in read_published(args.published) for claim in file.claims]
    pairs = pairs_of(args.spec["contrasts"], data)
    unfair = _unfair(args, pairs)
    rows = contrast_rows([*pairs, *aa_pairs(data)], data, seed=args.spec["seed"], spoilt=unfair)
    tables.write(args.contrasts, rows, tables.CONTRASTS)
    tables.write(args.verdicts, judge(claims, data, spoilt=unfair), tables.VERDICTS)


def _unfair(args: argparse.Namespace, pairs: list[Pair]) -> dict[str, str]:
    if args.runs is None or args.study is None:
        return {}
    arms: dict[str, Any] = files.read_json(args.study)["config"]["arms"]
    return spoilt(audit(pairs, files.read_json(args.runs), arms), pairs)


if __name__ == "__main__":
    run(main)

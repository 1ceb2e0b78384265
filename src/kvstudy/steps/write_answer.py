"""Step: the reply to the issue, from the run's tables."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvstudy.base import files, tables
from kvstudy.explain.tables import HYPOTHESES, REGIMES
from kvstudy.report.answer import answer_of, render
from kvstudy.steps.run import run


def main(argv: list[str] | None = None) -> None:
    """Read, compose, write."""
    parser = argparse.ArgumentParser(prog="write_answer", description=__doc__)
    for name in ("hypotheses", "regimes", "cells", "verdicts", "templates", "out"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    args = parser.parse_args(argv)
    answer = answer_of(
        tables.read(args.hypotheses, HYPOTHESES).to_pylist(),
        tables.read(args.regimes, REGIMES).to_pylist(),
        tables.read(args.cells, tables.CELLS).to_pylist(),
        tables.read(args.verdicts, tables.VERDICTS).to_pylist(),
    )
    files.write_text(args.out, render(answer, args.templates))


if __name__ == "__main__":
    run(main)

"""Step: tables to figures, each an SVG with its data beside it, listed in manifest.json."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvstudy.base import tables
from kvstudy.explain.tables import HYPOTHESES, REGIMES
from kvstudy.report.drawn import write_figures
from kvstudy.report.figures import draw_all
from kvstudy.report.frames import Frames
from kvstudy.report.inputs import published_first
from kvstudy.report.why_figures import figure_cliff, figure_hypotheses, figure_regimes
from kvstudy.stats.claims import read_published
from kvstudy.stats.data import Row
from kvstudy.steps.run import run


def parser() -> argparse.ArgumentParser:
    """Files in, a folder out."""
    flags = argparse.ArgumentParser(prog="draw_figures", description=__doc__)
    for name in ("cells", "requests", "iterations", "contrasts", "out"):
        flags.add_argument(f"--{name}", type=Path, required=True)
    flags.add_argument("--published", type=Path, nargs="*", default=[])
    flags.add_argument("--hypotheses", type=Path, help="optional table for the chapter Why")
    flags.add_argument("--regimes", type=Path, help="optional table for the regime map")
    return flags


def main(argv: list[str] | None = None) -> None:
    """Read, draw, write."""
    args = parser().parse_args(argv)
    published = read_published(args.published)

    def rows(path: Path, table: tables.Table) -> list[Row]:
        return published_first(tables.read(path, table).to_pylist(), published)

    frames = Frames(
        cells=rows(args.cells, tables.CELLS),
        requests=tables.read(args.requests, tables.REQUESTS),
        iterations=tables.read(args.iterations, tables.ITERATIONS),
        contrasts=rows(args.contrasts, tables.CONTRASTS),
        published=published,
    )
    hypotheses = tables.read(args.hypotheses, HYPOTHESES).to_pylist() if args.hypotheses else []
    regimes = tables.read(args.regimes, REGIMES).to_pylist() if args.regimes else []
    why = (figure_hypotheses(hypotheses), figure_regimes(regimes), figure_cliff(regimes))
    write_figures(args.out, [*draw_all(frames), *(figure for figure in why if figure)])


if __name__ == "__main__":
    run(main)

"""Step: tables to figures, each an SVG with its data beside it, listed in manifest.json."""

from __future__ import annotations

import argparse
from pathlib import Path

from kvstudy.base import tables
from kvstudy.report.drawn import write_figures
from kvstudy.report.figures import draw_all
from kvstudy.report.frames import Frames
from kvstudy.stats.claims import read_published
from kvstudy.steps.run import run


def parser() -> argparse.ArgumentParser:
    """Files in, a folder out."""
    flags = argparse.ArgumentParser(prog="draw_figures", description=__doc__)
    for name in ("cells", "requests", "iterations", "contrasts", "out"):
        flags.add_argument(f"--{name}", type=Path, required=True)
    flags.add_argument("--published", type=Path, nargs="*", default=[])
    return flags


def main(argv: list[str] | None = None) -> None:
    """Read, draw, write."""
    args = parser().parse_args(argv)
    frames = Frames(
        cells=tables.read(args.cells, tables.CELLS).to_pylist(),
        requests=tables.read(args.requests, tables.REQUESTS),
        iterations=tables.read(args.iterations, tables.ITERATIONS),
        contrasts=tables.read(args.contrasts, tables.CONTRASTS).to_pylist(),
        published=read_published(args.published),
    )
    write_figures(args.out, draw_all(frames))


if __name__ == "__main__":
    run(main)

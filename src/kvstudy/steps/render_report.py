"""Step: tables, statistics and figures to one self-contained HTML page and its Markdown."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import pyarrow.parquet as pq

from kvstudy.base import files, tables
from kvstudy.report.drawn import read_figures
from kvstudy.report.inputs import Inputs
from kvstudy.report.numbers import page_of
from kvstudy.report.render import html, markdown_report
from kvstudy.stats.audit import audit
from kvstudy.stats.claims import read_published
from kvstudy.stats.contrast import pairs_of
from kvstudy.stats.data import REQUEST_COLUMNS, Row, data_of
from kvstudy.steps.run import run


def parser() -> argparse.ArgumentParser:
    """Files in, files out."""
    flags = argparse.ArgumentParser(prog="render_report", description=__doc__)
    flags.add_argument("--spec", type=json.loads, required=True, help="Study.report_spec")
    for name in ("study", "cells", "requests", "runs", "contrasts", "verdicts"):
        flags.add_argument(f"--{name}", type=Path, required=True)
    for name in ("figures", "templates", "html", "markdown"):
        flags.add_argument(f"--{name}", type=Path, required=True)
    flags.add_argument("--published", type=Path, nargs="*", default=[])
    flags.add_argument("--hypotheses", type=Path, help="optional table for the chapter Why")
    flags.add_argument("--regimes", type=Path, help="optional table for the regime map")
    return flags


def main(argv: list[str] | None = None) -> None:
    """Read, compose, write both."""
    args = parser().parse_args(argv)
    cells = tables.read(args.cells, tables.CELLS)
    data = data_of(cells, tables.read(args.requests, tables.REQUESTS, REQUEST_COLUMNS))
    runs = files.read_json(args.runs)
    config = files.read_json(args.study)["config"]
    inputs = Inputs(
        spec=args.spec,
        data=data,
        contrasts=tables.read(args.contrasts, tables.CONTRASTS).to_pylist(),
        verdicts=tables.read(args.verdicts, tables.VERDICTS).to_pylist(),
        runs=runs,
        published=read_published(args.published),
        findings=audit(pairs_of(config["contrasts"], data), runs, config["arms"]),
        figures=read_figures(args.figures),
        hypotheses=_optional(args.hypotheses),
        regimes=_optional(args.regimes),
    )
    page = page_of(inputs)
    files.write_text(args.html, html(page, args.templates))
    files.write_text(args.markdown, markdown_report(page, args.templates))


def _optional(path: Path | None) -> list[Row]:
    return [] if path is None else pq.read_table(path).to_pylist()


if __name__ == "__main__":
    run(main)

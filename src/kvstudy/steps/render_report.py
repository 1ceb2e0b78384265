"""Step: tables, statistics and figures to one self-contained HTML page and its Markdown."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from kvstudy.base import files
from kvstudy.report.load import load
from kvstudy.report.numbers import page_of
from kvstudy.report.render import html, markdown_report
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
    page = page_of(load(args.spec, vars(args)))
    files.write_text(args.html, html(page, args.templates))
    files.write_text(args.markdown, markdown_report(page, args.templates))


if __name__ == "__main__":
    run(main)

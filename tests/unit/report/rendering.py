"""The report's three steps, run by their command lines on a synthetic study."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from synthetic import ROOT, Tables

from kvstudy.steps import compare_arms, draw_figures, render_report

PUBLISHED = [
    str(ROOT / "report/published" / name) for name in ("issue-16827.yaml", "issue-16827-rc22.yaml")
]
TEMPLATES = ROOT / "report/templates"


@dataclass(frozen=True)
class Rendered:
    """A folder with every file of a report."""

    folder: Path

    @property
    def html(self) -> str:
        return (self.folder / "index.html").read_text(encoding="utf-8")

    @property
    def markdown(self) -> str:
        return (self.folder / "report.md").read_text(encoding="utf-8")


def render(tables: Tables, folder: Path, *, figures: bool = True) -> Rendered:
    """All three steps, by their command lines."""
    tables.write(folder)
    f = {name: str(folder / f"{name}.parquet") for name in ("cells", "requests", "iterations")}
    f |= {name: str(folder / f"{name}.parquet") for name in ("contrasts", "verdicts")}
    f |= {name: str(folder / f"{name}.json") for name in ("runs", "study")}
    read = ["--cells", f["cells"], "--requests", f["requests"]]
    compare_arms.main(
        ["--spec", tables.study.stats_spec(), *read, "--published", *PUBLISHED]
        + ["--runs", f["runs"], "--study", f["study"]]
        + ["--contrasts", f["contrasts"], "--verdicts", f["verdicts"]]
    )
    drawn = folder / "figures"
    if figures:
        draw_figures.main(
            [*read, "--iterations", f["iterations"], "--contrasts", f["contrasts"]]
            + ["--published", *PUBLISHED, "--out", str(drawn)]
        )
    else:
        drawn.mkdir(exist_ok=True)
        (drawn / "manifest.json").write_text('{"figures": []}')
    render_report.main(
        ["--spec", tables.study.report_spec(), "--study", f["study"], *read]
        + ["--runs", f["runs"], "--contrasts", f["contrasts"], "--verdicts", f["verdicts"]]
        + ["--published", *PUBLISHED, "--figures", str(drawn), "--templates", str(TEMPLATES)]
        + ["--html", str(folder / "index.html"), "--markdown", str(folder / "report.md")]
    )
    return Rendered(folder)

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
        """The page."""
        return (self.folder / "index.html").read_text(encoding="utf-8")

    @property
    def markdown(self) -> str:
        """Its Markdown."""
        return (self.folder / "report.md").read_text(encoding="utf-8")


def render(tables: Tables, folder: Path, *, figures: bool = True) -> Rendered:
    """All three steps, by their command lines."""
    tables.write(folder)
    f = {name: str(folder / f"{name}.parquet") for name in ("cells", "requests", "iterations")}
    f |= {name: str(folder / f"{name}.parquet") for name in ("contrasts", "verdicts")}
    f |= {name: str(folder / f"{name}.json") for name in ("runs", "study")}
    published = ["--published", *PUBLISHED]
    read = ["--cells", f["cells"], "--requests", f["requests"]]
    asked = ["--runs", f["runs"], "--study", f["study"]]
    stats = ["--contrasts", f["contrasts"], "--verdicts", f["verdicts"]]
    spec = ["--spec", tables.study.stats_spec()]
    compare_arms.main([*spec, *read, *published, *asked, *stats])

    drawn = folder / "figures"
    if figures:
        steps = ["--iterations", f["iterations"], "--contrasts", f["contrasts"]]
        draw_figures.main([*read, *steps, *published, "--out", str(drawn)])
    else:
        drawn.mkdir(exist_ok=True)
        (drawn / "manifest.json").write_text('{"figures": []}')

    spec = ["--spec", tables.study.report_spec()]
    sources = ["--figures", str(drawn), "--templates", str(TEMPLATES)]
    out = ["--html", str(folder / "index.html"), "--markdown", str(folder / "report.md")]
    render_report.main([*spec, *read, *asked, *stats, *published, *sources, *out])
    return Rendered(folder)

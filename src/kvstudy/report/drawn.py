"""Figures as they lie in their folder: manifest.json, one SVG and one CSV each."""

from __future__ import annotations

from dataclasses import asdict
from pathlib import Path

from kvstudy.base import files
from kvstudy.base.errors import DataError
from kvstudy.report.page import Figure, Toggle

MANIFEST = "manifest.json"


def write_figures(folder: Path, figures: list[Figure]) -> None:
    """Write every figure and the manifest that lists them in order."""
    folder.mkdir(parents=True, exist_ok=True)
    for figure in figures:
        files.write_text(folder / f"{figure.name}.svg", figure.svg)
        files.write_bytes(folder / f"{figure.name}.csv", figure.csv)
    fields = ("name", "title", "caption", "alternative", "section", "axes", "folded")
    rows = [
        {name: getattr(figure, name) for name in fields}
        | {"toggles": [asdict(toggle) for toggle in figure.toggles]}
        for figure in figures
    ]
    files.write_json(folder / MANIFEST, {"figures": rows})


def read_figures(folder: Path) -> list[Figure]:
    """Read the figures of a folder, in the manifest's order."""
    figures = []
    for row in files.read_json(folder / MANIFEST)["figures"]:
        paths = [folder / f"{row['name']}.{kind}" for kind in ("svg", "csv")]
        missing = [path for path in paths if not path.is_file()]
        if missing:
            raise DataError(f"{missing[0]}: no such file; draw the figures again")
        svg, csv = paths[0].read_text(encoding="utf-8"), paths[1].read_bytes()
        toggles = [Toggle(**toggle) for toggle in row["toggles"]]
        figures.append(Figure(**{**row, "toggles": toggles}, svg=svg, csv=csv))
    return figures

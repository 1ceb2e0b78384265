"""The step writes a folder that the report can read back."""

from __future__ import annotations

import sys
from pathlib import Path

from kvstudy.base import tables
from kvstudy.report.drawn import read_figures
from kvstudy.steps import draw_figures

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))
from synthetic import small_study


def test_each_figure_has_an_svg_a_csv_and_a_line_in_the_manifest(tmp_path: Path) -> None:
    small_study("emulated").write(tmp_path)
    tables.write(tmp_path / "contrasts.parquet", [], tables.CONTRASTS)
    names = ("cells", "requests", "iterations", "contrasts")
    flags = [word for n in names for word in (f"--{n}", str(tmp_path / f"{n}.parquet"))]

    draw_figures.main([*flags, "--out", str(tmp_path / "figures")])

    figures = read_figures(tmp_path / "figures")
    written = {path.name for path in (tmp_path / "figures").iterdir()}
    expected = {f"{f.name}.{kind}" for f in figures for kind in ("svg", "csv")}
    assert written == expected | {"manifest.json"}
    assert len(figures) >= 5

"""The step renders from what earlier steps wrote, and takes the optional tables."""

from __future__ import annotations

import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kvstudy.base import tables
from kvstudy.steps import render_report

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))
from synthetic import ROOT, small_study


def test_optional_tables_fill_the_chapter_why(tmp_path: Path) -> None:
    study = small_study("emulated")
    study.write(tmp_path)
    tables.write(tmp_path / "contrasts.parquet", [], tables.CONTRASTS)
    tables.write(tmp_path / "verdicts.parquet", [], tables.VERDICTS)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/manifest.json").write_text('{"figures": []}')
    hypotheses = [
        {"hypothesis": "H1 <truncates>", "ratio": 0.592, "pauses": 4, "differs": None},
        {"hypothesis": "H2", "ratio": 0.992, "pauses": 5, "differs": ["a", "b"]},
    ]
    pq.write_table(pa.Table.from_pylist(hypotheses), tmp_path / "hypotheses.parquet")
    flags = ["--spec", study.study.report_spec()]
    for name in ("cells", "requests", "contrasts", "verdicts", "hypotheses"):
        flags += [f"--{name}", str(tmp_path / f"{name}.parquet")]
    for name in ("study", "runs"):
        flags += [f"--{name}", str(tmp_path / f"{name}.json")]

    flags += ["--figures", str(tmp_path / "figures")]
    flags += ["--templates", str(ROOT / "report/templates")]
    flags += ["--html", str(tmp_path / "r/index.html"), "--markdown", str(tmp_path / "r/report.md")]

    render_report.main(flags)

    html = (tmp_path / "r/index.html").read_text()
    assert 'id="why"' in html
    assert "H1 &lt;truncates&gt;" in html
    assert "a, b" in html

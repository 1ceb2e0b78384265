"""The step renders from what earlier steps wrote, and takes the optional tables."""

from __future__ import annotations

import sys
from pathlib import Path

import yaml

from kvstudy.base import tables
from kvstudy.explain.hypotheses import explain
from kvstudy.explain.published import lengths_of, published_values
from kvstudy.explain.tables import HYPOTHESES
from kvstudy.steps import render_report
from kvstudy.study.parse import parse_config
from kvstudy.study.plan import Study

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))
from synthetic import ROOT, small_study


def test_optional_tables_fill_the_chapter_why(tmp_path: Path) -> None:
    study = small_study("emulated")
    study.write(tmp_path)
    tables.write(tmp_path / "contrasts.parquet", [], tables.CONTRASTS)
    tables.write(tmp_path / "verdicts.parquet", [], tables.VERDICTS)
    (tmp_path / "figures").mkdir()
    (tmp_path / "figures/manifest.json").write_text('{"figures": []}')
    document = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    published = published_values([ROOT / name for name in document["published"]])
    whole = Study(parse_config({**document, "backend": "emulated"}))
    hypotheses = explain(whole, [], published=published, lengths_of=lengths_of)
    tables.write(tmp_path / "hypotheses.parquet", hypotheses, HYPOTHESES)
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
    assert "cut at 1,024" in html
    assert "<summary>Why</summary>" in (tmp_path / "r/report.md").read_text()

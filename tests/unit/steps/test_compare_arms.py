"""The step writes both tables under their schemas, and says what is wrong with its inputs."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from kvstudy.base import tables
from kvstudy.base.errors import ConfigError, DataError
from kvstudy.steps import compare_arms

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "report"))
from synthetic import ROOT, small_study


def arguments(folder: Path, *published: Path) -> list[str]:
    study = small_study("measured")
    study.write(folder)
    return [
        "--spec", study.study.stats_spec(),
        "--cells", str(folder / "cells.parquet"),
        "--requests", str(folder / "requests.parquet"),
        "--published", *map(str, published),
        "--contrasts", str(folder / "stats/contrasts.parquet"),
        "--verdicts", str(folder / "stats/verdicts.parquet"),
    ]  # fmt: skip


def test_every_claim_has_a_row_per_source(tmp_path: Path) -> None:
    compare_arms.main(arguments(tmp_path, ROOT / "report/published/issue-16827.yaml"))

    rows = tables.read(tmp_path / "stats/verdicts.parquet", tables.VERDICTS).to_pylist()
    assert {r["source"] for r in rows} == {"measured", "predicted"}
    by_source = [
        {r["claim_id"] for r in rows if r["source"] == s} for s in ("measured", "predicted")
    ]
    assert by_source[0] == by_source[1]
    contrasts = tables.read(tmp_path / "stats/contrasts.parquet", tables.CONTRASTS).to_pylist()
    assert {r["contrast"] for r in contrasts} == {"mu vs gne", "A/A"}


def test_the_same_seed_gives_the_same_bytes(tmp_path: Path) -> None:
    found = []
    for name in ("a", "b"):
        compare_arms.main(arguments(tmp_path / name))
        found.append((tmp_path / name / "stats/contrasts.parquet").read_bytes())
    assert found[0] == found[1]


def test_a_wrong_claims_file_stops_before_anything_is_written(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text("study: x\ntitle: y\nclaims: []\n")
    with pytest.raises(ConfigError, match="claims"):
        compare_arms.main(arguments(tmp_path, wrong))
    assert not (tmp_path / "stats").exists()


def test_a_missing_table_is_named(tmp_path: Path) -> None:
    argv = arguments(tmp_path)
    (tmp_path / "cells.parquet").unlink()
    with pytest.raises(DataError, match=r"cells\.parquet"):
        compare_arms.main(argv)

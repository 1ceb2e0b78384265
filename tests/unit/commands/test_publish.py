"""`kvstudy publish`: one bundle, said in words and in JSON."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvstudy.base.errors import KvstudyError
from kvstudy.commands.publish import main

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle"))

from bundle_made import made

__all__ = ["made"]


def words(made: SimpleNamespace, out: Path, *more: str) -> list[str]:
    return [
        *("--backend", "emulated", "--results", str(made.results), "--out", str(out)),
        *("--checkout", str(made.checkout), *more),
    ]


def test_a_bundle_is_made_and_described(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "a.zip"
    assert main(words(made, out)) == 0
    said = capsys.readouterr()
    assert f"{out}: " in said.out
    assert "content: sha256 " in said.out
    assert "absent: stats/regimes.parquet" in said.err
    assert f"kvstudy verify {out}" in said.err


def test_for_machines(
    made: SimpleNamespace, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words(made, tmp_path / "a.zip", "--json")) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["bytes"] == (tmp_path / "a.zip").stat().st_size
    assert document["scrubbed"] == {}


def test_secrets_of_the_environment_are_masked(
    made: SimpleNamespace,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("SOME_PASSWORD", "server down")
    assert main(words(made, tmp_path / "a.zip")) == 0
    cell = made.study.cells[0].id
    assert f"masked: cells/{cell}/server.log (1 line)" in capsys.readouterr().out


def test_results_that_are_not_there(made: SimpleNamespace, tmp_path: Path) -> None:
    with pytest.raises(KvstudyError, match="run the study to its end first"):
        main(["--results", str(tmp_path), "--out", str(tmp_path / "a.zip")])


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out

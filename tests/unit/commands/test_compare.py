"""`kvstudy compare`: differences of making first, then of numbers, in words a reader can use."""

from __future__ import annotations

import json
import shutil
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvstudy.base.errors import UsageError
from kvstudy.commands.compare import main

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle"))

from bundle_made import bundle, made

__all__ = ["bundle", "made"]


def test_making_comes_before_numbers(
    made: SimpleNamespace, bundle: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    copy = Path(shutil.copytree(made.results / "emulated", tmp_path / "copy"))
    study = json.loads((copy / "study.json").read_text())
    study["config"]["seed"] = 7
    (copy / "study.json").write_text(json.dumps(study))
    assert main([str(bundle), str(copy)]) == 0
    said = capsys.readouterr().out
    assert said.index("seed: 16827 -> 7") < said.index("environment: the same")
    assert said.index("environment: the same") < said.index("output_tok_per_s")
    assert "none: equal" in said


def test_for_machines(
    made: SimpleNamespace, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [str(bundle), str(made.results), "--json", "--metric", "e2e_p99_s"]
    assert main(words) == 0
    document = json.loads(capsys.readouterr().out)
    assert {row["metric"] for row in document["rows"]} == {"e2e_p99_s"}
    assert document["configuration"] == []


def test_another_workload_is_refused(made: SimpleNamespace, bundle: Path, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(made.results / "emulated", tmp_path / "copy"))
    path = copy / "workloads" / "W-B.json"
    document = json.loads(path.read_text())
    document["requests"].popitem()
    path.write_text(json.dumps(document))
    with pytest.raises(UsageError, match="workload_differs") as caught:
        main([str(bundle), str(copy)])
    assert caught.value.exit_code == 64


def test_unknown_metrics_get_a_hint(bundle: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'ttft_p50_ms'"):
        main([str(bundle), str(bundle), "--metric", "ttft_p50"])


def test_help_shows_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    assert ended.value.code == 0
    assert "examples:" in capsys.readouterr().out

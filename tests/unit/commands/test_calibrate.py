"""`kvstudy calibrate`: published rows, given rows, a results folder, a roofline prior."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstudy.base import files, tables
from kvstudy.base.errors import UsageError
from kvstudy.commands import advise
from kvstudy.commands.calibrate import main
from kvstudy.sim.replay import simulate
from kvstudy.study.parse import read_config
from kvstudy.study.plan import Study

ROOT = Path(__file__).resolve().parents[3]
MODEL = {
    "model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
    "vocab_size": 128256, "quantization_config": {"quant_algo": "FP8"},
}  # fmt: skip
TRUE = {
    "fixed_s": 0.01, "per_generation_s": 5e-5, "per_generation_context_token_s": 3e-8,
    "per_context_token_s": 1e-4, "per_context_attention_s": 2e-9,
}  # fmt: skip


@pytest.fixture
def in_checkout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)


def row(name: str, lanes: int, count: int, prompt: int, output: int) -> dict[str, Any]:
    spec = {
        "policy": "guaranteed_no_evict", "pool_tokens": 368640, "concurrency": lanes,
        "requests": {"count": count, "input_tokens": prompt, "output_tokens": output},
    }  # fmt: skip
    found = simulate({**spec, "step_time": TRUE})
    names = ("output_tok_per_s", "ttft_p50_ms", "tpot_p50_ms", "tpot_p99_ms", "e2e_p99_s")
    return {"id": name, "spec": spec, "values": {name: found[name] for name in names}}


ROWS = [
    row("a", 64, 128, 64, 128),
    row("b", 1, 4, 512, 128),
    row("c", 16, 32, 16384, 64),
    row("other", 32, 64, 2048, 128),
]


def test_published_rows_by_default(in_checkout: None, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 0
    said = capsys.readouterr().out
    assert "These rows do not separate: per_generation_s" in said
    assert "W-C.c32.trtllm-1.3.0rc22.mu" in said


def test_given_rows_and_predictions_of_the_rest(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "rows.yaml"
    path.write_text(yaml.safe_dump(ROWS[:3]), encoding="utf-8")
    extra = json.dumps(ROWS[3])
    assert main(["--rows", str(path), "--row", extra, "--fit", "[abc]", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["step_time"] == pytest.approx(TRUE, rel=0.05)
    assert {r["id"] for r in document["predicted"]} == {"other"}
    assert all(abs(r["miss"]) < 0.01 for r in document["predicted"])
    saved = tmp_path / "constants.json"
    saved.write_text(json.dumps(document), encoding="utf-8")
    words = f"--constants {saved} --pool-tokens 9999 --version 1.2.1"
    assert advise.main([*words.split(), "--input-tokens", "99", "--output-tokens", "9"]) == 0
    assert "fitted by kvstudy calibrate" in capsys.readouterr().out


def test_a_results_folder(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    study = Study(read_config(ROOT / "config.yaml", overrides={"backend": "emulated"}))
    files.write_json(tmp_path / "study.json", study.resolved())
    cells = []
    for cell in study.cells:
        if cell.repeat == 1 and cell.arm == "gne" and cell.workload in ("W-B", "W-C"):
            blank = dict.fromkeys(tables.CELLS.names)
            speed = 160.0 if cell.workload == "W-C" else 575.0
            cells.append(
                blank
                | {
                    "cell_id": cell.id, "source": "emulated", "study": "s", "engine": cell.engine,
                    "engine_version": "1", "arm": cell.arm, "workload": cell.workload,
                    "concurrency": 32, "repeat": 1, "basis": "fitted", "valid": True,
                    "reasons": [], "spec_digest": "d", "requests": 1, "allocation": "a",
                    "output_tok_per_s": speed,
                    "ttft_p50_ms": 2500.0 if cell.workload == "W-B" else 35900.0,
                }
            )  # fmt: skip
    tables.write(tmp_path / "tables" / "cells.parquet", cells, tables.CELLS)
    assert main(["--results", str(tmp_path), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["numbers_fitted"] == 4
    assert {r["id"] for r in document["predicted"]} == {
        "W-C.c32.trtllm-1.3.0rc22.gne",
        "W-B.c32.trtllm-1.3.0rc22.gne",
    }


def test_a_roofline_prior_is_marked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(MODEL), encoding="utf-8")
    assert main(["--model", str(tmp_path), "--gpu", "H200", "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert document["basis"] == "uncalibrated"
    assert document["step_time"]["fixed_s"] == pytest.approx(0.0188, rel=0.1)
    assert document["step_time"]["per_context_token_s"] == pytest.approx(1.31e-4, rel=0.1)
    assert main(["--model", str(tmp_path), "--gpu", "H200"]) == 0
    assert "uncalibrated" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("argv", "problem"),
    [
        (["--model", "x"], "needs both"),
        (["--rows", "/nowhere"], "cannot be read"),
        (["--row", "{"], "not valid JSON"),
        (["--row", "[]"], "id, spec and values"),
        (["--row", json.dumps(ROWS[0]), "--fit", "none-*"], "nothing to fit"),
        (["--model", "x", "--gpu", "H200", "--tp", "0"], "--tp"),
    ],
)
def test_bad_input_is_refused(argv: list[str], problem: str) -> None:
    with pytest.raises(UsageError, match=problem):
        main(argv)

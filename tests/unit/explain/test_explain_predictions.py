"""Overlays: they parse on the configuration, and their registered predictions are the code's."""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstudy.base import files, tables
from kvstudy.explain import predictions
from kvstudy.explain.predictions import compare, predictions_path, registered_of
from kvstudy.study.model import Engine
from kvstudy.study.parse import read_config

ROOT = Path(__file__).resolve().parents[3]
CONFIG, OVERLAYS = ROOT / "config.yaml", ROOT / "overlays"
NAMES = sorted(path.stem for path in OVERLAYS.glob("*.yaml"))
NEEDS_SITE = "overlays/patched-cut.yaml waits for the key engines.<name>.site"


def overlay(name: str) -> Path:
    if name == "patched-cut" and "site" not in Engine.model_fields:
        pytest.skip(NEEDS_SITE)
    return OVERLAYS / f"{name}.yaml"


def registered(name: str) -> dict[str, Any]:
    return files.read_json(predictions_path(overlay(name)))


def of(document: dict[str, Any], workload: str, lanes: int = 32) -> dict[str, Any]:
    return next(
        g["predicted"]
        for g in document["groups"]
        if (g["workload"], g["concurrency"]) == (workload, lanes)
    )


@pytest.mark.parametrize("name", NAMES)
def test_registered_predictions_are_what_the_code_gives(name: str) -> None:
    """Run `python -m kvstudy.explain.predictions register overlays/NAME.yaml` after a change."""
    path = overlay(name)
    assert registered_of(CONFIG, path) == files.read_json(predictions_path(path))


@pytest.mark.parametrize("name", NAMES)
def test_every_overlay_changes_cells_and_says_how_to_run_it(name: str) -> None:
    path = overlay(name)
    assert registered(name)["groups"]
    assert f"--configfile config.yaml overlays/{name}.yaml" in path.read_text(encoding="utf-8")
    assert read_config(CONFIG, path)


def test_short_prompts_make_a_truncating_pause_ordinary() -> None:
    document = registered("short-prompts")
    group = of(document, "W-S")
    assert group["H1.1024"] == group["H1.2048"] == group["H2"]
    assert group["H2"]["pauses"] > 50
    assert group["H2"]["hidden_tokens"] == 0
    config = read_config(CONFIG, overlay("short-prompts"))
    base, short = config.workloads["W-C"], config.workloads["W-S"]
    pool = short.server["kv_pool"]["tokens"]
    wanted = base.concurrency[0] * (16384 + 512) / config.server.kv_pool.tokens
    assert short.concurrency[0] * (768 + 256) / pool == pytest.approx(wanted, rel=0.01)


def test_the_sweeps_tell_hypotheses_apart_and_tie_where_arithmetic_says() -> None:
    pools = registered("pool-sweep")
    for workload in ("W-C-p11264", "W-C-p11616"):
        ratios = {p["throughput_ratio"] for p in of(pools, workload).values()}
        assert ratios == {1.0}
    cut, plain = of(pools, "W-C-p11336")["H1.1024"], of(pools, "W-C-p11336")["H2"]
    assert cut["throughput_ratio"] < 0.7 < plain["throughput_ratio"]
    lanes = registered("concurrency-sweep")
    assert {p["throughput_ratio"] for p in of(lanes, "W-C-lanes", 21).values()} == {1.0}
    assert of(lanes, "W-C-lanes", 22)["H3"]["outcome"] == "livelock"


def test_a_patched_engine_cuts_nothing() -> None:
    group = registered("patched-cut")["groups"][0]
    assert group["engine"] == "trtllm-1.2.1-uncut"
    assert group["predicted"]["H1.1024"] == group["predicted"]["H2"]


def cells(ratio: float) -> list[dict[str, Any]]:
    base = dict.fromkeys(tables.CELLS.names) | {
        "source": "measured", "engine": "trtllm-1.2.1", "workload": "W-C-p11336", "valid": True,
        "concurrency": 32,
    }  # fmt: skip
    return [
        base | {"arm": "gne", "output_tok_per_s": 160.0},
        base | {"arm": "mu", "output_tok_per_s": 160.0 * ratio},
    ]


@pytest.mark.parametrize(
    ("ratio", "nearest", "remain"),
    [
        (0.62, "H1.1024", ["H1.1024", "H1.2048"]),
        (0.97, "H2", ["H0", "H2"]),
        (0.8, "H2", []),
    ],
)
def test_a_run_is_compared_with_what_was_registered(
    ratio: float, nearest: str, remain: list[str]
) -> None:
    rows = compare(registered("pool-sweep"), cells(ratio))
    assert [row["workload"] for row in rows] == ["W-C-p11336"]
    assert (rows[0]["nearest"], rows[0]["remain"]) == (nearest, remain)
    assert rows[0]["distances"]["H3"] is None


def test_the_command_registers_and_compares(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "one.yaml"
    sweep = yaml.safe_load(overlay("pool-sweep").read_text(encoding="utf-8"))
    one = {"W-C-p11264": sweep["workloads"]["W-C-p11264"]}
    path.write_text(yaml.safe_dump({"workloads": one}), encoding="utf-8")
    predictions.main(["register", str(path), "--config", str(CONFIG)])
    assert len(files.read_json(predictions_path(path))["groups"]) == 1
    tables.write(tmp_path / "cells.parquet", [], tables.CELLS)
    predictions.main(["compare", str(predictions_path(path)), str(tmp_path / "cells.parquet")])
    assert json.loads(capsys.readouterr().out) == []


EXECUTORS = {
    "positional": ("def __init__(self, a, b=1, max_input_len: int = 2048, c=3):", "2147483647"),
    "keyword": ("def __init__(self, *, max_input_len: int = 2048):", "2147483647"),
    "absent": ("def __init__(self, a=1):", "nothing was patched"),
    "no default": ("def __init__(self, max_input_len):", "nothing was patched"),
}


@pytest.mark.parametrize("kind", EXECUTORS)
def test_the_patch_raises_the_default_in_a_fresh_python(kind: str, tmp_path: Path) -> None:
    signature, expected = EXECUTORS[kind]
    folder = tmp_path / "tensorrt_llm" / "_torch" / "pyexecutor"
    folder.mkdir(parents=True)
    for place in (folder, folder.parent, folder.parent.parent):
        (place / "__init__.py").touch()
    (folder / "py_executor.py").write_text(
        f"class PyExecutor:\n    {signature}\n        self.cut = locals().get('max_input_len')\n",
        encoding="utf-8",
    )
    code = "from tensorrt_llm._torch.pyexecutor.py_executor import PyExecutor as P; import inspect;"
    code += "print({n: p.default for n, p in inspect.signature(P.__init__).parameters.items()})"
    result = subprocess.run(
        [sys.executable, "-c", code],
        env={
            "PYTHONPATH": f"{OVERLAYS / 'patched-cut'}:{tmp_path}",
            "PYTHONDONTWRITEBYTECODE": "1",
        },
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr.startswith("kvstudy patched-cut: ")
    assert expected in result.stdout + result.stderr
    if "2147483647" in expected:
        assert "'max_input_len': 2147483647" in result.stdout
        assert "'c': 3" in result.stdout or kind == "keyword"


def test_the_overlay_pins_the_patch_by_its_hash() -> None:
    document = yaml.safe_load((OVERLAYS / "patched-cut.yaml").read_text(encoding="utf-8"))
    site = document["engines"]["trtllm-1.2.1-uncut"]["site"]
    content = (ROOT / site["file"]).read_bytes()
    assert site["sha256"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    base = yaml.safe_load(CONFIG.read_text(encoding="utf-8"))["engines"]["trtllm-1.2.1"]
    assert document["engines"]["trtllm-1.2.1-uncut"]["image"] == base["image"]

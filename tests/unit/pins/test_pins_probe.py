"""The probe, run on constructed package trees in a Python of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pins_engine_tree
import pins_parts
import pytest

from kvstudy.base.errors import PinError
from kvstudy.pins import probe
from kvstudy.pins.at_rest import stamp
from kvstudy.pins.spec import EngineSpec


def look(folder: Path) -> dict[str, Any]:
    """Run the probe's script on stdin, as in an image, with `folder` on the path."""
    result = subprocess.run(
        [sys.executable, "-S", "-B", "-"],
        input=probe.script(),
        env={"PYTHONPATH": str(folder), "PATH": os.environ["PATH"], "CUDA_VERSION": "13.0.1"},
        capture_output=True,
        check=True,
    )
    return probe.parse_probe(result.stdout.decode(), "probe")


def trtllm(tmp_path: Path, version: str = "1.2.1", **parts: Any) -> dict[str, Any]:
    """Facts of a constructed TensorRT-LLM."""
    files = pins_engine_tree.trtllm_tree(version, **parts)
    return look(pins_engine_tree.write_tree(tmp_path / "site", files))


def test_the_decisive_default_is_read_without_importing_the_engine(tmp_path: Path) -> None:
    facts = trtllm(tmp_path)

    executor = facts["engines"]["tensorrt_llm"]["executor"]
    assert executor["max_input_len_default"] == 2048
    assert executor["has_max_input_len"] is True
    assert executor["calls"] == [
        {"file": "creator.py", "line": 3, "passes_max_input_len": None, "may_pass_more": False}
    ]
    assert facts["packages"] == {
        "tensorrt_llm": "1.2.1",
        "torch": "2.9.0",
        "transformers": "4.57.1",
    }
    assert facts["system"]["libraries"]["cuda"] == "13.0.1"
    assert facts["entry_points"] == {"trtllm-serve": "tensorrt_llm.commands.serve:main"}
    assert facts["notes"] == []


@pytest.mark.parametrize(
    ("parts", "default", "present", "passed"),
    [
        ({"argument": ", max_input_len: int = 0x7fffffff"}, 2147483647, True, None),
        ({"argument": ", max_input_len=LIMIT * 2"}, "LIMIT * 2", True, None),
        ({"argument": ", max_input_len"}, None, True, None),
        ({"argument": "", "value": "1"}, None, False, None),
        ({"passed": ", max_input_len=args.max_input_len"}, 2048, True, "args.max_input_len"),
    ],
)
def test_other_defaults_and_callers_that_pass_one(
    tmp_path: Path, parts: dict[str, str], default: object, present: bool, passed: str | None
) -> None:
    executor = trtllm(tmp_path, **parts)["engines"]["tensorrt_llm"]["executor"]

    assert executor["max_input_len_default"] == default
    assert executor["has_max_input_len"] is present
    assert executor["calls"][0]["passes_max_input_len"] == passed


def test_scheduler_options_and_defaults_are_read(tmp_path: Path) -> None:
    engine = trtllm(tmp_path)["engines"]["tensorrt_llm"]

    assert engine["capacity_scheduler_policies"] == [
        "MAX_UTILIZATION",
        "GUARANTEED_NO_EVICT",
        "STATIC_BATCH",
    ]
    assert engine["context_chunking_policies"] == ["FIRST_COME_FIRST_SERVED"]
    assert engine["scheduler_config_defaults"] == {
        "capacity_scheduler_policy": "CapacitySchedulerPolicy.GUARANTEED_NO_EVICT",
        "context_chunking_policy": None,
    }
    assert engine["kv_cache_config_defaults"] == {
        "enable_block_reuse": True,
        "free_gpu_memory_fraction": 0.9,
    }


def test_how_command_line_and_yaml_merge(tmp_path: Path) -> None:
    old = trtllm(tmp_path / "old")["engines"]["tensorrt_llm"]["merge"]
    new = trtllm(tmp_path / "new", key_by_key=True)["engines"]["tensorrt_llm"]["merge"]

    assert old["kv_cache_config"] == "yaml replaces the command line's"
    assert new["kv_cache_config"] == "yaml over command line, key by key"
    assert old["other_keys"] == new["other_keys"] == "yaml replaces the command line's"
    assert old["source_sha256"] != new["source_sha256"]
    assert old["function"].startswith("llmapi/llm_args.py:")


def test_a_layout_that_is_not_known_gives_nulls_and_notes(tmp_path: Path) -> None:
    site = pins_engine_tree.write_tree(tmp_path / "site", pins_engine_tree.trtllm_tree("9.9.9"))
    (site / "tensorrt_llm/llmapi/llm_args.py").unlink()
    (site / "tensorrt_llm/_torch/pyexecutor/py_executor.py").unlink()

    facts = look(site)

    engine = facts["engines"]["tensorrt_llm"]
    assert engine["executor"]["max_input_len_default"] is None
    assert engine["capacity_scheduler_policies"] is None
    assert engine["merge"]["kv_cache_config"] is None
    assert len(facts["notes"]) == 2


def test_a_vllm_is_read_too(tmp_path: Path) -> None:
    files = pins_engine_tree.vllm_tree("0.33.0")
    facts = look(pins_engine_tree.write_tree(tmp_path, files))

    assert facts["engines"]["vllm"]["scheduler_policies"] == ["fcfs", "priority"]
    assert facts["packages"]["vllm"] == "0.33.0"


@pytest.mark.parametrize(
    ("pinned", "found", "same"),
    [
        ("1.2.1", "1.2.1", True),
        ("1.3.0rc22", "1.3.0-rc22", True),
        ("v1.3.0.rc22", "1.3.0rc22", True),
        ("1.3", "1.3.0", True),
        ("0.33.0", "0.33.0+cpu", True),
        ("0.33.0+cpu", "0.33.0", False),
        ("1.2.1", "1.2.10", False),
        ("1.3.0", "1.3.0rc22", False),
        ("1.3.0rc22", "1.3.0rc22.post1", False),
        ("1.2", "1.20", False),
    ],
)
def test_versions_mean_the_same_release(pinned: str, found: str, same: bool) -> None:
    assert probe.same_version(pinned, found) is same


def test_an_answer_is_found_among_banners() -> None:
    noise = "banner\n" + probe.MARK + '{"packages": {}}\nbye\n'

    assert probe.parse_probe(noise, "x") == {"packages": {}}
    for bad in ("", probe.MARK + "{", probe.MARK + "[]", "a banner only"):
        with pytest.raises(PinError, match=r"x: the probe gave no answer"):
            probe.parse_probe(bad, "x")


@pytest.fixture
def image(tmp_path: Path) -> dict[str, Any]:
    """An image part whose file is there; the fake tool runs this machine's Python instead."""
    sif = tmp_path / "image.sif"
    sif.write_bytes(b"constructed")
    return {
        "engine": "trtllm-1.2.1",
        "kind": "image",
        "verified": True,
        "place": stamp(sif),
    }


def test_the_probe_runs_closed_in_the_image_and_gates_the_version(
    tmp_path: Path,
    parts: pins_parts.Parts,
    tool_log: Path,
    image: dict[str, Any],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    site = pins_engine_tree.write_tree(tmp_path / "s", pins_engine_tree.trtllm_tree("1.2.1"))
    monkeypatch.setenv("PYTHONPATH", str(site))
    monkeypatch.setenv("HF_TOKEN", "planted")
    monkeypatch.setenv("APPTAINER_DOCKER_PASSWORD", "planted")
    values = pins_parts.engine_values(parts)

    found = probe.probe_engine(EngineSpec.of(values), image)

    (call,) = pins_parts.tool_calls(tool_log)
    assert call["argv"][:6] == ["exec", "--cleanenv", "--containall", "--no-home", "--pwd", "/"]
    assert call["argv"][6:] == [image["place"]["path"], "python3", "-B", "-"]
    assert "planted" not in str(call["env"].values())
    assert found["verified"] is True
    assert found["version"] == "1.2.1"
    wrong = EngineSpec.of({**values, "version": "1.3.0rc22"})
    with pytest.raises(PinError, match=r"expected tensorrt_llm 1\.3\.0rc22 .*found 1\.2\.1"):
        probe.probe_engine(wrong, image)


def test_an_image_without_the_engine_or_of_another_one_stops(
    tmp_path: Path, parts: pins_parts.Parts, tool_log: Path, image: dict[str, Any]
) -> None:
    spec = EngineSpec.of(pins_parts.engine_values(parts))

    with pytest.raises(PinError, match=r"found none installed"):
        probe.probe_engine(spec, image)
    with pytest.raises(PinError, match=r"image file is of 'other'"):
        probe.probe_engine(spec, {**image, "engine": "other"})
    with pytest.raises(PinError, match=r"not verified"):
        probe.probe_engine(spec, {**image, "verified": False})
    Path(image["place"]["path"]).write_bytes(b"CONSTRUCTED")
    with pytest.raises(PinError, match=r"altered"):
        probe.probe_engine(spec, image)


def test_a_command_of_the_host_is_probed_with_its_own_python(
    tmp_path: Path, parts: pins_parts.Parts, monkeypatch: pytest.MonkeyPatch
) -> None:
    site = pins_engine_tree.write_tree(tmp_path / "s", pins_engine_tree.vllm_tree("0.33.0+cpu"))
    monkeypatch.setenv("PYTHONPATH", str(site))
    program = tmp_path / "vllm"
    program.write_text(f"#!{sys.executable}\n", encoding="utf-8")
    program.chmod(0o755)
    values = {**pins_parts.engine_values(parts), "adapter": "vllm", "version": "0.33.0"}
    image = {"engine": "trtllm-1.2.1", "kind": "host", "executable": str(program)}

    found = probe.probe_engine(EngineSpec.of({**values, "image": None}), image)

    assert found["version"] == "0.33.0+cpu"


@pytest.mark.parametrize(
    ("said", "good"), [("version: 8123 (abc)", True), ("version: 81234", False)]
)
def test_a_command_without_python_says_its_version(
    tmp_path: Path, parts: pins_parts.Parts, said: str, good: bool
) -> None:
    program = tmp_path / "llama-server"
    program.write_text(f"#!/bin/sh\necho '{said}' >&2\n", encoding="utf-8")
    program.chmod(0o755)
    values = {**pins_parts.engine_values(parts), "adapter": "llamacpp", "version": "8123"}
    spec = EngineSpec.of({**values, "image": None, "command": ["llama-server"]})
    image = {"engine": "trtllm-1.2.1", "kind": "host", "executable": str(program)}

    if good:
        assert probe.probe_engine(spec, image)["version"] == "8123"
    else:
        with pytest.raises(PinError, match=r"expected llama-server --version 8123 .*found version"):
            probe.probe_engine(spec, image)

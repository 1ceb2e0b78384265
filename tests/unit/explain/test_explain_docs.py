"""The guides' examples and numbers are what the code gives."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kvstudy.explain.roofline import GPUS
from kvstudy.sim import spec
from kvstudy.sim.replay import simulate

DOCS = Path(__file__).resolve().parents[3] / "docs"


def read(name: str) -> str:
    return (DOCS / name).read_text(encoding="utf-8")


def test_the_worked_example_gives_its_result() -> None:
    blocks = re.findall(r"```json\n(.*?)```", read("simulate.md"), re.DOTALL)
    given, printed = (json.loads(block) for block in blocks)
    found = simulate(given)
    assert {name: found[name] for name in printed} == printed
    assert simulate({**given, "policy": "guaranteed_no_evict"})["iterations"] == 16


def test_every_spec_key_is_documented() -> None:
    text = read("simulate.md")
    keys = re.findall(r"^    ([a-z_]+)(?:, ([a-z_]+))?  ", str(spec.__doc__), re.MULTILINE)
    names = {name for pair in keys for name in pair if name}
    assert {"policy", "pause", "arrivals", "sglang"} <= names
    assert {name for name in names if f"`{name}`" not in text} == set()


def test_the_guide_prints_the_table_of_gpus() -> None:
    text = read("calibrate.md")
    for gpu in GPUS:
        fp8 = "–" if gpu.fp8_tflop_s is None else f"{gpu.fp8_tflop_s:g}"  # noqa: RUF001
        line = f"| {gpu.name} | {gpu.memory_gb:g} | {gpu.bandwidth_tb_s:.3f}".rstrip("0").rstrip(
            "."
        )
        row = next(row for row in text.splitlines() if row.startswith(f"| {gpu.name} |"))
        assert row.startswith(line)
        assert f"| {gpu.bf16_tflop_s:g} | {fp8} | {gpu.source} |" in row


def test_the_decision_quotes_the_scan(hypothesis_rows: list[dict[str, Any]]) -> None:
    text = read("decisions/0002-pause-length.md").replace("\N{MINUS SIGN}", "-")
    rows = {
        row["truncate_to_tokens"]: row
        for row in hypothesis_rows
        if row["family"] == "H1" and row["engine"] == "trtllm-1.2.1"
    }
    lines = re.findall(
        r"^\| ([\d,]+) \| -([\d.]+) % .* \| (\d) \| ([\d,]+) \|$", text, re.MULTILINE
    )
    assert len(lines) == 4
    for cut, change, pauses, hidden in lines:
        row = rows[int(cut.replace(",", ""))]
        assert 100 * (1 - row["throughput_ratio"]) == pytest.approx(float(change), abs=0.06)
        assert (row["pauses"], f"{row['hidden_tokens']:,}") == (int(pauses), hidden)
    assert f"2,048 about {100 * rows[2048]['weight']:.0f} %" in text
    assert rows[1024]["weight"] == pytest.approx(0.3, abs=0.03)
    assert rows[1024]["throughput_spread"] == pytest.approx(0.07, abs=0.005)

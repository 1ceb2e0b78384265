"""Raw results of other clients: constructed files, numbers taken by hand, nulls where not said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstudy.base.errors import ConfigError, DataError, UsageError
from kvstudy.bundle.foreign import Foreign, import_foreign
from kvstudy.bundle.mapping import Mapping, cell_of, parse_mapping, read_mapping
from kvstudy.bundle.ready import READY
from kvstudy.bundle.sides import results_of

CLAIMS = """
study: theirs
title: constructed claims
defaults: {engine: e-1.0, concurrency: 2, workload: W-C}
claims:
  - {id: gne.tput, group: t, label: throughput, value: 6.0, unit: tok/s, step: 0.1, where: here,
     compute: {op: value, of: {arm: gne, metric: output_tok_per_s, repeat: mean}},
     tolerance: {absolute: 0, reason: recomputed from the raw rows}}
  - {id: gne.tpot, group: t, label: tpot, value: 999.0, unit: ms, step: 0.1, where: here,
     compute: {op: value, of: {arm: gne, metric: tpot_p50_ms, repeat: mean}},
     tolerance: {absolute: 0, reason: recomputed from the raw rows}}
  - {id: gne.short, group: t, label: short streams, value: 1, unit: requests, step: 1, where: here,
     compute: {op: count, of: {arm: gne}, where: {chunk_count: {below: 4}}},
     tolerance: {absolute: 0, reason: a count}}
"""


def brought(
    tmp_path: Path, mapping: Mapping, files: dict[str, Any], **settings: Any
) -> tuple[Foreign, dict[str, dict[str, Any]]]:
    """Import constructed files; the result and the request rows by id."""
    for name, content in files.items():
        text = content if isinstance(content, str) else json.dumps(content)
        (tmp_path / name).write_text(text, encoding="utf-8")
    place = tmp_path / "results" / "imported" / "theirs"
    found = import_foreign(tmp_path, mapping, place, **settings)
    with results_of("theirs", tmp_path / "results") as side:
        return found, {row["request_id"]: row for row in side.requests().to_pylist()}


def mapped(name: str, *cells: str, **changes: Any) -> Mapping:
    document = {"use": name, **changes}
    mapping = parse_mapping(document, source="test")
    return mapping.model_copy(update={"cells": [cell_of(cell) for cell in cells]})


ISSUE_ROWS = [
    {"id": "b", "send_time": 100.5, "first_chunk_time": 101.5, "last_chunk_time": 102.0,
     "n_chunks": 3, "output_tokens": 2},
    {"id": "a", "send_time": 100.0, "first_chunk_time": 100.25, "last_chunk_time": 101.0,
     "n_chunks": 4, "output_tokens": 4},
]  # fmt: skip
FIXED = {"planned_input_tokens": 16, "planned_output_tokens": 4, "output_cap_tokens": 4}
CELL = "gne-1.json=W-C.c2.e-1.0.gne.r1"


def test_rows_of_the_issues_kind(tmp_path: Path) -> None:
    claims = tmp_path / "claims.yaml"
    claims.write_text(CLAIMS, encoding="utf-8")
    mapping = mapped("issue-rows", CELL, values=FIXED)
    found, rows = brought(tmp_path, mapping, {"gne-1.json": ISSUE_ROWS}, published=[claims])
    assert rows["a"]["submit_order"] == 0
    assert rows["a"]["ttft_ns"] == 250_000_000
    assert rows["a"]["tpot_ns"] == pytest.approx(250_000_000)
    assert rows["b"]["tpot_ns"] == pytest.approx(500_000_000)
    assert rows["b"]["tpot_chunks_ns"] == pytest.approx(250_000_000)
    assert rows["b"]["e2e_ns"] == 1_500_000_000
    for column in ("usage_tokens", "finish_reason", "cached_tokens", "max_gap_ns", "lane"):
        assert rows["a"][column] is None
    (cell,) = found.cells
    assert cell["wall_s"] == 2.0
    assert cell["output_tok_per_s"] == 3.0
    assert cell["output_tok_per_s_nominal"] == 4.0
    assert cell["output_tok_per_s_usage"] is None
    assert (cell["early_ended"], cell["valid"], cell["reasons"]) == (1, True, ["early_ended"])
    assert {v["claim_id"]: v["verdict"] for v in found.verdicts} == {
        "gne.tput": "not_reproduced", "gne.tpot": "not_reproduced", "gne.short": "reproduced",
    }  # fmt: skip


def test_what_a_file_does_not_say_is_null(tmp_path: Path) -> None:
    rows = [{key: row[key] for key in ("send_time", "last_chunk_time")} for row in ISSUE_ROWS]
    found, requests = brought(tmp_path, mapped("issue-rows", CELL), {"gne-1.json": rows})
    assert sorted(requests) == ["0", "1"]
    for column in ("chunk_count", "empty_chunk_count", "output_cap_tokens", "ttft_ns", "tpot_ns"):
        assert requests["0"][column] is None
    (cell,) = found.cells
    for column in (
        "output_tok_per_s", "output_tok_per_s_nominal", "output_chunks", "early_ended",
        "ttft_p50_ms", "goodput_req_per_s", "pauses",
    ):  # fmt: skip
        assert cell[column] is None, column
    assert cell["e2e_max_s"] == 1.5
    assert cell["completed"] == 2


VLLM = {
    "duration": 4.0,
    "input_lens": [16, 16, 16],
    "output_lens": [3, 2, 0],
    "start_times": [10.0, 10.5, 11.0],
    "ttfts": [0.5, 0.25, 0.0],
    "itls": [[0.1, 0.3], [0.75], []],
    "generated_texts": ["a b c", "a b", ""],
    "errors": ["", "", "Traceback: refused"],
}
VLLM_CELL = "vb.json=W.c2.vllm-0.32.0.base.r1"


def test_vllm_bench_serve_save_detailed(tmp_path: Path) -> None:
    found, rows = brought(tmp_path, mapped("vllm-bench", VLLM_CELL), {"vb.json": VLLM})
    assert rows["0"]["chunk_ns"] == [500_000_000, 600_000_000, 900_000_000]
    assert rows["0"]["chunk_count"] == 3
    assert rows["0"]["e2e_ns"] == 900_000_000
    assert rows["0"]["max_gap_ns"] == 300_000_000
    assert rows["0"]["usage_tokens"] == 3
    assert rows["2"]["outcome"] == "stream_error"
    assert rows["2"]["ttft_ns"] is None
    (cell,) = found.cells
    assert (cell["completed"], cell["failed"], cell["valid"]) == (2, 1, False)
    assert cell["engine"] == "vllm-0.32.0"
    assert cell["wall_s"] == 1.5
    assert cell["output_tok_per_s_usage"] == pytest.approx(5 / 1.5)


def test_vllm_files_without_start_times_use_the_duration(tmp_path: Path) -> None:
    old = {key: value for key, value in VLLM.items() if key != "start_times"}
    found, rows = brought(tmp_path, mapped("vllm-bench", VLLM_CELL), {"vb.json": old})
    assert rows["0"]["send_ns"] is None
    assert rows["0"]["ttft_ns"] == 500_000_000
    assert rows["0"]["e2e_ns"] == 900_000_000
    assert rows["0"]["tpot_chunks_ns"] == pytest.approx(200_000_000)
    assert found.cells[0]["wall_s"] == 4.0
    assert found.cells[0]["output_tok_per_s_usage"] == 1.25


def aiperf(start_ns: int, **metrics: Any) -> dict[str, Any]:
    return {
        "metadata": {"x_request_id": f"r{start_ns}", "request_start_ns": start_ns,
                     "request_end_ns": start_ns + 900_000_000, "benchmark_phase": "profiling",
                     "was_cancelled": False},
        "metrics": {
            "time_to_first_token": {"value": 250.0, "unit": "ms"},
            "inter_chunk_latency": {"value": [100.0, 300.0], "unit": "ms"},
            "request_latency": {"value": 650.0, "unit": "ms"},
            "output_sequence_length": {"value": 3, "unit": "tokens"},
            **metrics,
        },
        "error": None,
    }  # fmt: skip


def test_aiperf_records(tmp_path: Path) -> None:
    start = 1_759_813_207_532_900_363
    warm = aiperf(start - 10**9)
    warm["metadata"]["benchmark_phase"] = "warmup"
    failed = {**aiperf(start + 5), "metrics": {}, "error": {"code": 500, "type": "X"}}
    lines = "\n".join(json.dumps(row) for row in (warm, aiperf(start), failed)) + "\n"
    mapping = mapped("aiperf", "p.jsonl=W.c2.e.base.r1")
    found, rows = brought(tmp_path, mapping, {"p.jsonl": lines})
    row = rows[f"r{start}"]
    assert len(rows) == 2
    assert row["send_ns"] == 0
    assert row["chunk_ns"] == [ms * 10**6 for ms in (250, 350, 650)]
    assert row["e2e_ns"] == 650_000_000
    assert row["end_ns"] == 900_000_000
    assert row["retokenized_tokens"] == 3
    assert rows[f"r{start + 5}"]["outcome"] == "stream_error"
    assert found.cells[0]["requests"] == 2


def test_a_mapping_file_of_ones_own(tmp_path: Path) -> None:
    document = {
        "use": "issue-rows", "study": "mine", "source": "measured", "rows": {"at": "run.rows"},
        "columns": {"send_ns": {"field": "t.sent", "unit": "ms"},
                    "chunk_ns": {"field": "t.chunks", "unit": "ms"}},
        "values": FIXED,
        "cells": [{"file": "x.json", "workload": "W", "concurrency": 1, "engine": "e", "arm": "a",
                   "repeat": 1, "values": {"output_cap_tokens": 9}}],
    }  # fmt: skip
    path = tmp_path / "mapping.yaml"
    path.write_text(yaml.safe_dump(document), encoding="utf-8")
    mapping, folder = read_mapping(str(path))
    rows = {"run": {"rows": [{"id": 1, "t": {"sent": 5, "chunks": [7, 8.5, 9]}, "text": "x"}]}}
    _, requests = brought(tmp_path, mapping, {"x.json": rows})
    assert folder == tmp_path
    assert requests["1"]["chunk_ns"] == [2_000_000, 3_500_000, 4_000_000]
    assert (requests["1"]["output_cap_tokens"], requests["1"]["planned_input_tokens"]) == (9, 16)
    assert requests["1"]["ttft_ns"] == 2_000_000
    assert requests["1"]["study"] == "mine"


def test_texts_are_counted_by_a_tokenizer(tmp_path: Path, made: Any) -> None:
    tokenizer = made.results / "emulated" / "tokenizer"
    mapping = mapped("vllm-bench", VLLM_CELL)
    _, rows = brought(tmp_path, mapping, {"vb.json": VLLM}, tokenizer=tokenizer)
    assert rows["0"]["retokenized_tokens"] > 0
    assert rows["2"]["retokenized_tokens"] is None


@pytest.mark.parametrize(
    ("content", "what"),
    [
        ("{", "not valid JSON"),
        ("{}", "expected a list of rows"),
        ("[]", "no rows"),
        ('[{"send_time": "soon"}]', "row 0: .*not a time"),
        ('[{"n_chunks": 1.5}]', "row 0: .*not a count"),
    ],
)
def test_a_file_that_does_not_fit_is_named(content: str, what: str, tmp_path: Path) -> None:
    with pytest.raises(DataError, match=f"gne-1.json.*{what}"):
        brought(tmp_path, mapped("issue-rows", CELL), {"gne-1.json": content})
    assert not list((tmp_path / "results" / "imported").glob("*"))


def test_columns_of_unequal_length_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="unequal length"):
        brought(tmp_path, mapped("vllm-bench", VLLM_CELL), {"vb.json": {**VLLM, "ttfts": [1]}})


def test_every_ready_mapping_is_sound() -> None:
    for name in READY:
        assert read_mapping(name)[0].columns.send_ns is not None


def test_the_documented_mapping_is_sound(root: Path) -> None:
    text = (root / "docs" / "publish.md").read_text(encoding="utf-8")
    block = text.split("```yaml\n")[1].split("```")[0]
    mapping = parse_mapping(yaml.safe_load(block), source="docs/publish.md")
    assert mapping.cells[0].cell_id == "W-C.c32.trtllm-1.2.1.gne.r1"
    assert mapping.columns.first_chunk_ns is not None


def test_wrong_mappings_say_what_is_wrong() -> None:
    with pytest.raises(UsageError, match="did you mean 'vllm-bench'"):
        read_mapping("vllm-bnch")
    with pytest.raises(ConfigError, match="did you mean 'aiperf'"):
        parse_mapping({"use": "aiprf"}, source="m.yaml")
    with pytest.raises(ConfigError, match=r"columns\.sendns"):
        parse_mapping({"use": "aiperf", "columns": {"sendns": {"field": "a"}}}, source="m.yaml")
    with pytest.raises(UsageError, match=r"expected FILE=WORKLOAD"):
        cell_of("a.json=nothing")


def test_cells_are_needed_and_distinct(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="no cells"):
        brought(tmp_path, mapped("issue-rows"), {})
    with pytest.raises(UsageError, match="stands twice"):
        brought(tmp_path, mapped("issue-rows", CELL, CELL), {"gne-1.json": ISSUE_ROWS})

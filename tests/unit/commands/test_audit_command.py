"""`kvstudy audit`: each broken identity is a reason code and a line; a sound run has none."""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from kvstudy.base import tables
from kvstudy.base.reasons import describe
from kvstudy.bundle.null_contrast import LEAST, Rate, null_rates, tail
from kvstudy.commands.audit import main
from kvstudy.stats.data import Data

sys.path.insert(0, str(Path(__file__).parents[1] / "bundle"))

from bundle_made import bundle, made

__all__ = ["bundle", "made"]

Rows = list[dict[str, Any]]


@pytest.fixture
def copy(made: SimpleNamespace, tmp_path: Path) -> Path:
    """A copy of the results to change."""
    return Path(shutil.copytree(made.results / "emulated", tmp_path / "copy"))


def edit(folder: Path, name: str, change: Callable[[Rows], object]) -> None:
    table = {"cells": tables.CELLS, "requests": tables.REQUESTS}[name]
    path = folder / "tables" / f"{name}.parquet"
    rows = tables.read(path, table).to_pylist()
    change(rows)
    loose = pa.schema([pa.field(c.name, c.type) for c in table.columns])
    tables.write(path, pa.Table.from_pylist(rows, schema=loose), table)


def codes(folder: Path, capsys: pytest.CaptureFixture[str]) -> set[str]:
    assert main([str(folder), "--json"]) == 2
    document = json.loads(capsys.readouterr().out)
    assert all(describe(v["code"]) and v["line"] for v in document["violations"])
    return {v["code"] for v in document["violations"]}


def test_a_sound_run_and_its_bundle_have_none(
    made: SimpleNamespace, bundle: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for place in (made.results / "emulated", bundle):
        assert main([str(place)]) == 0
        assert "8 cells audited, no violations" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("table", "change", "code"),
    [
        ("cells", {"mean_in_flight": 3.0}, "littles_law"),
        ("cells", {"output_tok_per_s": 1.0}, "throughput_differs"),
        ("cells", {"wall_s": 1.0}, "throughput_differs"),
        ("cells", {"e2e_p90_s": 10.0**6}, "percentile_order"),
        ("cells", {"ttft_mean_ms": 10.0**9}, "percentile_order"),
        ("cells", {"completed": 11}, "counts_differ"),
        ("cells", {"early_ended": 13}, "counts_differ"),
        ("cells", {"peak_blocks": 1}, "peak_below_mean"),
        ("cells", {"concurrency": 3}, "concurrency_not_held"),
        ("requests", {"ttft_ns": 0}, "time_order"),
        ("requests", {"end_ns": 0}, "time_order"),
        ("requests", {"cached_tokens": 5}, "cached_tokens"),
        ("requests", {"server_input_tokens": 5}, "input_tokens_differ"),
        ("requests", {"outcome": "timeout"}, "requests_failed"),
    ],
)
def test_a_broken_identity_has_its_code(
    table: str,
    change: dict[str, Any],
    code: str,
    copy: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    edit(copy, table, lambda rows: rows[0].update(change))
    assert code in codes(copy, capsys)


def test_a_prompt_that_stands_twice(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = copy / "workloads" / "W-B.json"
    document = json.loads(path.read_text())
    first, second, *_ = document["requests"].values()
    second["prompt_sha256"] = first["prompt_sha256"]
    path.write_text(json.dumps(document))
    assert codes(copy, capsys) == {"duplicate_prompts"}


def test_missing_rows(copy: Path, capsys: pytest.CaptureFixture[str]) -> None:
    edit(copy, "requests", lambda rows: rows.pop(0))
    assert {"requests_missing", "counts_differ"} <= codes(copy, capsys)


def study_of(values: list[np.ndarray]) -> Data:
    """Repeats of one arm with these times."""
    cells = [
        {"cell_id": f"c{n}", "source": "measured", "valid": True, "workload": "W",
         "concurrency": 1, "engine": "e", "arm": "a"}
        for n in range(len(values))
    ]  # fmt: skip
    arrays = {
        ("measured", f"c{n}"): dict.fromkeys(("ttft_ns", "tpot_ns", "e2e_ns"), found)
        for n, found in enumerate(values)
    }
    return Data(cells, arrays)


def test_random_halves_rarely_differ() -> None:
    rng = np.random.default_rng(1)
    rates = null_rates(study_of([rng.lognormal(size=128) for _ in range(2)]), seed=1)
    assert [rate.metric for rate in rates] == [
        "ttft_p50_ms", "tpot_p50_ms", "tpot_p99_ms", "e2e_p99_s",
    ]  # fmt: skip
    assert not any(rate.too_often for rate in rates)


def test_few_requests_or_one_repeat_have_no_null_contrast() -> None:
    assert null_rates(study_of([np.ones(4 * LEAST)]), seed=1) == []
    assert null_rates(study_of([np.ones(2 * LEAST - 1)] * 2), seed=1) == []


def test_too_often_is_what_chance_does_not_explain() -> None:
    assert tail(0, 40, 0.05) == 1
    assert tail(1, 1, 0.05) == pytest.approx(0.05)
    assert not Rate("a", "m", 6, 40).too_often
    assert Rate("a", "m", 12, 40).too_often


def test_the_null_contrast_is_reported_as_a_violation(
    copy: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        "kvstudy.commands.audit.null_rates", lambda *_: [Rate("W.c1.e.a", "ttft_p50_ms", 20, 40)]
    )
    assert codes(copy, capsys) == {"aa_difference"}
    assert main([str(copy)]) == 2
    said = capsys.readouterr()
    assert "aa_difference: W.c1.e.a: ttft_p50_ms: 20 of 40" in said.out
    assert describe("aa_difference") in said.err

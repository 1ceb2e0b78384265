"""Two sides: what differs in their making comes first, other workloads are refused."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pytest

from kvstudy.base import tables
from kvstudy.base.errors import DataError, UsageError
from kvstudy.base.files import read_json, write_json
from kvstudy.bundle.compare import METRICS, Comparison, compare
from kvstudy.bundle.sides import results_of


@pytest.fixture
def copy(made: SimpleNamespace, tmp_path: Path) -> Path:
    """A copy of the results to change."""
    return Path(shutil.copytree(made.results / "emulated", tmp_path / "copy"))


def compared(made: SimpleNamespace, other: Path, **settings: Any) -> Comparison:
    here = str(made.results / "emulated")
    with results_of(here, made.results) as left, results_of(str(other), made.results) as right:
        return compare(left, right, **settings)


def edit(path: Path, change: Callable[[Any], object]) -> None:
    document = read_json(path)
    change(document)
    write_json(path, document)


def slower(folder: Path, factor: float) -> None:
    """The measured cells with longer waits before the first token."""
    for name, table, column in (
        ("requests", tables.REQUESTS, "ttft_ns"),
        ("cells", tables.CELLS, "ttft_p50_ms"),
    ):
        path = folder / "tables" / f"{name}.parquet"
        rows = tables.read(path, table).to_pylist()
        for row in rows:
            row[column] = type(row[column])(row[column] * factor)
        loose = pa.schema([pa.field(c.name, c.type) for c in table.columns])
        tables.write(path, pa.Table.from_pylist(rows, schema=loose), table)


def test_a_run_equals_itself(made: SimpleNamespace) -> None:
    found = compared(made, made.results / "emulated", metrics=METRICS)
    assert found.equal
    assert not found.config
    assert not found.environment
    assert found.cells == ["W-B.c4.trtllm-1.2.1.gne", "W-B.c4.trtllm-1.2.1.mu"]
    assert all(row["repeats"] == 2 for row in found.rows if row["metric"] == "ttft_p50_ms")


def test_a_bundle_equals_its_results(made: SimpleNamespace, bundle: Path) -> None:
    assert compared(made, bundle).equal


def test_a_slower_side_is_seen_with_an_interval(made: SimpleNamespace, copy: Path) -> None:
    slower(copy, 3.0)
    found = compared(made, copy)
    assert not found.equal
    rows = [row for row in found.rows if row["metric"] == "ttft_p50_ms"]
    assert len(rows) == 2
    for row in rows:
        assert row["ratio"] == pytest.approx(3, rel=1e-6)
        assert row["ratio_low"] <= row["ratio"] <= row["ratio_high"]
        assert "unpaired" in row["remark"]


def test_configuration_and_environment_differences_are_listed(
    made: SimpleNamespace, copy: Path
) -> None:
    edit(copy / "study.json", lambda d: d["config"]["server"].update(max_num_tokens=4096))
    edit(
        copy / "tables" / "runs.json",
        lambda d: [run["host"].update(node="other") for run in d.values()],
    )
    found = compared(made, copy)
    assert [(c.key, c.left, c.right) for c in found.config] == [
        ("server.max_num_tokens", "8192", "4096")
    ]
    assert [(c.key, c.left, c.right) for c in found.environment] == [
        ("host.node", "constructed", "other")
    ]


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda r: next(iter(r.values())).update(prompt_sha256="0" * 64), "1 of 12 prompts differ"),
        (lambda r: next(iter(r.values())).update(input_tokens=65), "input_tokens 64 against 64 to"),
        (lambda r: r.popitem(), "12 requests against 11"),
    ],
)
def test_another_workload_is_refused_by_name(
    change: Callable[[Any], object], why: str, made: SimpleNamespace, copy: Path
) -> None:
    edit(copy / "workloads" / "W-B.json", lambda d: change(d["requests"]))
    with pytest.raises(UsageError, match=f"workload_differs: .*W-B: {why}") as caught:
        compared(made, copy)
    assert caught.value.exit_code == 64


def test_without_digests_counts_and_lengths_decide(made: SimpleNamespace, copy: Path) -> None:
    shutil.rmtree(copy / "workloads")
    assert any("does not say its prompts" in line for line in compared(made, copy).remarks)
    path = copy / "tables" / "requests.parquet"
    rows = tables.read(path, tables.REQUESTS).to_pylist()
    loose = pa.schema([pa.field(c.name, c.type) for c in tables.REQUESTS.columns])
    for row in rows:
        row["planned_input_tokens"] = 63
    tables.write(path, pa.Table.from_pylist(rows, schema=loose), tables.REQUESTS)
    with pytest.raises(UsageError, match="planned_input_tokens 64 against 63"):
        compared(made, copy)


def test_nothing_in_common_is_said(made: SimpleNamespace, copy: Path) -> None:
    path = copy / "tables" / "cells.parquet"
    table = tables.read(path, tables.CELLS)
    at = table.schema.get_field_index("concurrency")
    fives = pa.array([5] * table.num_rows, pa.int64())
    tables.write(path, table.set_column(at, table.schema.field(at), fives), tables.CELLS)
    with pytest.raises(
        UsageError, match=r"no cell in common: .*c4.* has W-B\.c5|no cell in common"
    ):
        compared(made, copy)


def test_unknown_workloads_get_a_hint(made: SimpleNamespace, copy: Path) -> None:
    with pytest.raises(UsageError, match="did you mean 'W-B'"):
        compared(made, copy, workloads=["W-b"])


def test_predictions_can_be_compared(made: SimpleNamespace, copy: Path) -> None:
    found = compared(made, copy, predicted=True)
    assert found.equal
    assert {row["source"] for row in found.rows} == {"predicted"}


def test_a_damaged_bundle_is_not_compared(
    made: SimpleNamespace, bundle: Path, tmp_path: Path
) -> None:
    from bundle_made import members, packed

    files = members(bundle)
    files["tables/runs.json"] = json.dumps({}).encode()
    bad = packed(tmp_path / "bad.zip", files, checksums=False)
    with pytest.raises(DataError, match=r"tables/runs\.json: sha256"):
        compared(made, bad)


def test_a_side_is_found_by_name_or_named_with_a_hint(made: SimpleNamespace) -> None:
    with results_of("emulated", made.results) as side:
        assert side.cells.num_rows == 8
    with results_of(str(made.results), made.results) as side:
        assert side.config["study"] == "made"
    with (
        pytest.raises(UsageError, match="did you mean 'emulated'"),
        results_of("emulatd", made.results),
    ):
        pass

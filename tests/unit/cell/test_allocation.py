"""An allocation runs what is missing; a cell that fails spoils only itself."""

from __future__ import annotations

import errno
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvstudy.base import tables
from kvstudy.base.errors import CellError
from kvstudy.base.files import read_json, write_json
from kvstudy.base.store import Attempt
from kvstudy.cell import allocation as under_test
from kvstudy.cell.measure import Job
from kvstudy.study.plan import Study
from kvstudy.workload.generate import generate
from kvstudy.workload.tokens import HubTokenizer
from kvstudy.workload.train import SHIPPED

NAME = "W-B.c2.trtllm-1.2.1"
Measure = Callable[[Job, Attempt], dict[str, Any]]


@pytest.fixture
def study(study_with: Callable[..., Study]) -> Study:
    def small(document: dict[str, Any]) -> None:
        document["workloads"]["W-B"] |= {
            "requests": 4,
            "input_tokens": 64,
            "output_tokens": 8,
            "concurrency": [2],
            "warmup": None,
        }

    return study_with(small)


@pytest.fixture
def inputs(tmp_path: Path, study: Study) -> under_test.Inputs:
    rows = generate(study.workload_values("W-B"), HubTokenizer(SHIPPED))
    tables.write(tmp_path / "w.parquet", rows, tables.WORKLOAD)
    part = {"backend": "emulated", "engine": "trtllm-1.2.1"}
    for name in ("image", "probe", "model"):
        write_json(tmp_path / f"{name}.json", part)
    return under_test.Inputs(
        workload=tmp_path / "w.parquet",
        tokenizer=SHIPPED,
        image=tmp_path / "image.json",
        probe=tmp_path / "probe.json",
        model=tmp_path / "model.json",
        store=tmp_path / "store",
        progress=tmp_path / "progress.json",
    )


@pytest.fixture
def run(
    monkeypatch: pytest.MonkeyPatch, study: Study, inputs: under_test.Inputs
) -> Callable[[Measure], tuple[under_test.Allocation, list[str]]]:
    """Runs the allocation with another way of measuring; returns it and what it said."""

    def go(measure: Measure) -> tuple[under_test.Allocation, list[str]]:
        async def fake(job: Job, attempt: Attempt, _progress: object) -> dict[str, Any]:
            return measure(job, attempt)

        monkeypatch.setattr(under_test, "measure", fake)
        said: list[str] = []
        spec = json.loads(study.allocation_spec(SimpleNamespace(allocation=NAME)))
        allocation = under_test.Allocation(spec, inputs, said.append)
        try:
            allocation.run()
        except CellError as error:
            said.append(str(error))
        return allocation, said

    return go


def good(_job: Job, attempt: Attempt) -> dict[str, Any]:
    attempt.seal({})
    return {"reasons": []}


def test_the_manifest_names_every_cell(run: Any, tmp_path: Path) -> None:
    allocation, _ = run(good)
    allocation.write_manifest(tmp_path / "manifest.json")

    cells = read_json(tmp_path / "manifest.json")["cells"]
    assert sorted(cells) == [f"{NAME}.{arm}.r{r}" for arm in ("gne", "mu") for r in (1, 2)]
    assert {entry["attempt"] for entry in cells.values()} == {1}


@pytest.mark.parametrize(
    "error",
    [CellError("server_died", "the server died"), OSError(errno.ENOSPC, "No space left on device")],
)
def test_a_failing_cell_spoils_only_itself_and_the_next_run_does_only_it(
    run: Any, tmp_path: Path, error: Exception
) -> None:
    def bad(job: Job, attempt: Attempt) -> dict[str, Any]:
        if job.values["cell_id"].endswith("mu.r1"):
            raise error
        return good(job, attempt)

    allocation, said = run(bad)
    measured: list[str] = []

    assert "1 of 4 cells failed" in said[-1]
    assert f"{NAME}.mu.r1" in said[-1]
    with pytest.raises(CellError, match=r"mu\.r1: no finished attempt"):
        allocation.write_manifest(tmp_path / "manifest.json")
    assert not (tmp_path / "manifest.json").exists()

    def note(job: Job, attempt: Attempt) -> dict[str, Any]:
        measured.append(f"{job.values['cell_id']} {attempt.number}")
        return good(job, attempt)

    run(note)
    assert measured == [f"{NAME}.mu.r1 2"]


def test_a_late_emulator_is_tried_again_at_half_the_pace(run: Any) -> None:
    scales: list[float] = []

    def late(job: Job, attempt: Attempt) -> dict[str, Any]:
        attempt.seal({})
        scales.append(job.place.time_scale)
        return {"reasons": ["emulator_late"] if len(scales) == 1 else []}

    run(late)

    assert len(scales) == 5
    assert scales[1] == pytest.approx(scales[0] / 2)
    assert scales[2] == pytest.approx(scales[0])


def test_the_emulator_is_told_true_lengths_and_order_by_digest(run: Any) -> None:
    expected: dict[str, list[dict[str, Any]]] = {}

    def look(job: Job, attempt: Attempt) -> dict[str, Any]:
        rows = tables.read(attempt.folder / "expected.parquet", tables.EXPECTED).to_pylist()
        expected[job.values["cell_id"]] = rows
        return good(job, attempt)

    run(look)
    one, two = expected[f"{NAME}.gne.r1"], expected[f"{NAME}.gne.r2"]

    assert [row["position"] for row in one] == [0, 1, 2, 3]
    assert {row["output_tokens"] for row in one} == {8}
    assert sorted(r["prompt_sha256"] for r in one) == sorted(r["prompt_sha256"] for r in two)
    assert [r["prompt_sha256"] for r in one] != [r["prompt_sha256"] for r in two]

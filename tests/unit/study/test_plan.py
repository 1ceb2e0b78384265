"""The plan: which cells there are, in which order, and what a change touches."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kvstudy.study.plan import Study

Make = Callable[..., Study]


def digests(study: Study) -> dict[str, str]:
    return {cell.id: study.cell_digest(cell) for cell in study.cells}


def changed(before: Study, after: Study) -> set[str]:
    old, new = digests(before), digests(after)
    return {cell_id for cell_id in new if old.get(cell_id) != new[cell_id]}


def test_the_published_study_has_these_cells(study_with: Make) -> None:
    study = study_with()
    published = [c for c in study.cells if c.workload in ("W-B", "W-C")]

    assert len(published) == 16
    assert "W-C.c32.trtllm-1.2.1.mu.r1" in study.cell_ids
    assert len(study.allocations) == 5


def test_an_allocation_runs_a_b_b_a(study_with: Make) -> None:
    cells = study_with().allocations["W-C.c32.trtllm-1.2.1"]

    assert [(c.arm, c.repeat) for c in cells] == [("gne", 1), ("mu", 1), ("mu", 2), ("gne", 2)]


@pytest.mark.parametrize(
    ("change", "touched"),
    [
        (lambda d: d.update(title="another"), 0),
        (lambda d: d.update(contrasts=[]), 0),
        (lambda d: d.update(published=[]), 0),
        (lambda d: d.update(slo={}), 0),
        (lambda d: d["emulator"].update(fitted_to=[]), 0),
        (lambda d: d.update(attempts={"*": 2}), 0),
        (lambda d: d.update(seed=1), 18),
        (lambda d: d["server"].update(max_batch_size=63), 16),
        (lambda d: d["workloads"]["W-C"].update(input_tokens=16000), 8),
        (lambda d: d["workloads"]["W-B"].update(warmup=None), 8),
        (lambda d: d["arms"]["mu"].update(options={"x": 1}), 9),
        (lambda d: d["engines"]["trtllm-1.2.1"].update(version="1.2.2"), 8),
        (lambda d: d["engines"]["trtllm-1.2.1"]["image"].update(uri="docker://mirror/x"), 0),
    ],
)
def test_a_change_touches_exactly_the_cells_it_can_change(
    study_with: Make, change: Callable[[dict[str, Any]], object], touched: int
) -> None:
    assert len(changed(study_with(), study_with(change))) == touched


def test_a_new_engine_version_adds_its_cells_and_touches_no_other(study_with: Make) -> None:
    def bump(document: dict[str, Any]) -> None:
        engine = dict(document["engines"]["trtllm-1.3.0rc22"], version="1.4.0rc1")
        document["engines"]["trtllm-1.4.0rc1"] = engine
        document["arms"]["gne"]["engines"].append("trtllm-1.4.0rc1")

    touched = changed(study_with(), study_with(bump))

    assert len(touched) == 8
    assert all(".trtllm-1.4.0rc1." in cell_id for cell_id in touched)


def test_attempts_are_forced_by_pattern(study_with: Make) -> None:
    study = study_with(lambda d: d.update(attempts={"W-C.*.mu.*": 2, "*.r1": 3}))

    assert study.attempt(study.cell("W-C.c32.trtllm-1.2.1.mu.r2")) == 2
    assert study.attempt(study.cell("W-C.c32.trtllm-1.2.1.mu.r1")) == 3
    assert study.attempt(study.cell("W-B.c32.trtllm-1.2.1.gne.r2")) == 1


def test_an_unpinned_engine_stops_only_its_own_measured_cells(study_with: Make) -> None:
    measured = study_with(lambda d: d.update(backend="measured"))
    waiting = set(measured.cell_ids) - set(measured.runnable_ids)

    assert waiting == {c for c in measured.cell_ids if ".trtllm-1.3.0rc22." in c}
    assert len(measured.notices()) == 1
    assert "engines.trtllm-1.3.0rc22.image.digest" in measured.notices()[0]
    assert study_with().notices() == []


def test_a_measured_cell_does_not_depend_on_the_emulator(study_with: Make) -> None:
    def measured(chunks_per_s: float) -> Study:
        return study_with(
            lambda d: (
                d.update(backend="measured"),
                d["emulator"].update(chunks_per_s=chunks_per_s),
            )
        )

    base, other = measured(6000.0), measured(1.0)

    assert changed(base, other) == set()


def test_slices_are_small_enough_for_a_command_line(study_with: Make) -> None:
    study = study_with()
    for allocation in study.allocations:
        spec = study.allocation_spec(SimpleNamespace(allocation=allocation))
        assert len(spec) < 8_000

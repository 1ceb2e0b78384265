"""The cell store keeps every attempt and lets no damaged one through."""

from pathlib import Path

import pytest

from kvstudy.base.errors import DataError
from kvstudy.base.store import CellStore, materialise


def finished(store: CellStore, wanted: int = 1) -> Path:
    attempt = store.start(wanted)
    (attempt.folder / "run.json").write_text("{}\n")
    attempt.seal({"cell_id": "c"})
    return attempt.folder


def test_attempts_are_numbered_and_kept(tmp_path: Path) -> None:
    store = CellStore(tmp_path, "cell", "d1")
    first, second = finished(store), finished(store)

    assert [first.name, second.name] == ["attempt-1", "attempt-2"]
    newest = store.finished(1)
    assert newest is not None
    assert newest.folder == second


def test_a_partial_attempt_is_never_a_result(tmp_path: Path) -> None:
    store = CellStore(tmp_path, "cell", "d1")
    (store.start(1).folder / "run.json").write_text("{}\n")

    assert store.finished(1) is None
    assert store.start(1).number == 2


def test_a_wanted_attempt_number_asks_for_a_newer_one(tmp_path: Path) -> None:
    store = CellStore(tmp_path, "cell", "d1")
    finished(store)

    assert store.finished(2) is None
    assert finished(store, wanted=5).name == "attempt-5"
    assert store.finished(2) is not None


def test_another_digest_is_another_cell(tmp_path: Path) -> None:
    finished(CellStore(tmp_path, "cell", "d1"))

    assert CellStore(tmp_path, "cell", "d2").finished(1) is None


@pytest.mark.parametrize("harm", ["flip", "delete"])
def test_a_damaged_attempt_is_found_and_refused(tmp_path: Path, harm: str) -> None:
    store = CellStore(tmp_path / "store", "cell", "d1")
    folder = finished(store)
    attempt = store.finished(1)
    assert attempt is not None
    if harm == "flip":
        (folder / "run.json").write_text("{ }\n")
    else:
        (folder / "run.json").unlink()

    assert store.finished(1) is None
    with pytest.raises(DataError, match=r"run\.json"):
        materialise(attempt, ["run.json"], tmp_path / "cell")


def test_what_is_done_to_a_copy_does_not_reach_the_store(tmp_path: Path) -> None:
    store = CellStore(tmp_path / "store", "cell", "d1")
    finished(store)
    attempt = store.finished(1)
    assert attempt is not None
    materialise(attempt, ["run.json"], tmp_path / "cell")
    (tmp_path / "cell" / "run.json").write_text("changed")

    assert store.finished(1) is not None

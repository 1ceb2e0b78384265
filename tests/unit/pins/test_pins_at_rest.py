"""Files at rest: cheap look, full hash, locks and room."""

from __future__ import annotations

import os
import shutil
import threading
import time
from pathlib import Path

import pins_parts
import pytest

from kvstudy.base.errors import PinError
from kvstudy.pins import holding
from kvstudy.pins.at_rest import progress_of, recheck, stamp, unchanged


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """A file at rest."""
    path = tmp_path / "image.sif"
    path.write_bytes(b"content")
    return path


def test_an_untouched_file_passes_without_being_read(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known = stamp(file)
    monkeypatch.setattr("kvstudy.pins.at_rest.sha256_file", lambda *_: pytest.fail("was read"))

    assert recheck(known, "image") == known


def test_a_touched_or_copied_file_is_hashed_and_passes(file: Path, tmp_path: Path) -> None:
    known = stamp(file)
    copy = tmp_path / "copy"
    shutil.copy(file, copy)
    copy.replace(file)

    assert not unchanged(known)
    renewed = recheck(known, "image")
    assert renewed["sha256"] == known["sha256"]
    assert unchanged(renewed)


def test_an_altered_file_stops_naming_both_hashes(file: Path) -> None:
    known = stamp(file)
    file.write_bytes(b"CONTENT")
    os.utime(file, ns=(1, 1))

    with pytest.raises(PinError, match=f"expected sha256 {known['sha256']}, found "):
        recheck(known, "image")


def test_the_cheap_look_can_be_fooled_and_the_full_one_cannot(file: Path) -> None:
    known = stamp(file)
    pins_parts.touch_same_size(file)

    recheck(known, "image")
    with pytest.raises(PinError, match="altered after it was verified"):
        recheck(known, "image", full=True)


def test_a_truncated_or_missing_file_is_said(file: Path) -> None:
    known = stamp(file)
    file.write_bytes(b"con")
    with pytest.raises(PinError, match="expected 7 bytes, found 3"):
        recheck(known, "image")
    file.unlink()
    with pytest.raises(PinError, match="is gone"):
        recheck(known, "image")


def test_progress_is_a_line_every_few_seconds(
    file: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    now = iter([0, 1_000_000_000, 6_000_000_000, 7_000_000_000, 12_000_000_000])
    show = progress_of(file, lambda: next(now))
    show(1)
    show(4)

    assert capsys.readouterr().err == "hashing image.sif: 0.0 of 0.0 GB, 57 %\n"


def test_one_holder_at_a_time_and_the_others_say_they_wait(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lock = tmp_path / "locks" / "x.lock"
    order: list[str] = []
    started = threading.Event()

    def second() -> None:
        started.set()
        with holding.held(lock, "image x"):
            order.append("second")

    with holding.held(lock, "image x"):
        thread = threading.Thread(target=second)
        thread.start()
        started.wait(5)
        time.sleep(0.05)
        order.append("first")
    thread.join(5)

    assert order == ["first", "second"]
    assert "image x: another job is at it; waiting" in capsys.readouterr().err


def test_a_file_system_without_locks_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(37, "No locks available")

    monkeypatch.setattr("kvstudy.pins.holding.fcntl.flock", refuse)

    with (
        pytest.raises(PinError, match=r"no file locks.*KVSTUDY_CACHE"),
        holding.held(tmp_path / "x", "image x"),
    ):
        pytest.fail("held without a lock")


def test_room_is_added_up_per_file_system(tmp_path: Path) -> None:
    free = shutil.disk_usage(tmp_path).free
    holding.need_space({tmp_path / "a": 0.4 * free, tmp_path / "b": 0.4 * free}, "image x")

    with pytest.raises(PinError, match=r"image x: needs about .* GB free. Nothing was fetched"):
        holding.need_space({tmp_path / "a": 0.6 * free, tmp_path / "b": 0.6 * free}, "image x")

"""Files appear whole or not at all."""

from pathlib import Path

import pytest

from kvstudy.base.errors import DataError
from kvstudy.base.files import read_json, replacing, write_json


def test_a_failed_write_leaves_the_old_file_and_no_trace(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    write_json(path, {"a": 1})
    with pytest.raises(RuntimeError), replacing(path) as temporary:
        temporary.write_text("half")
        raise RuntimeError

    assert read_json(path) == {"a": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["a.json"]


def test_nan_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="JSON compliant"):
        write_json(tmp_path / "a.json", {"a": float("nan")})
    assert list(tmp_path.iterdir()) == []


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('{"a": ')
    with pytest.raises(DataError, match=r"a\.json: not valid JSON"):
        read_json(path)

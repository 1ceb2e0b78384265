"""The step: the parts go into one deterministic file."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvstudy.base.errors import PinError
from kvstudy.base.files import read_json, write_json
from kvstudy.steps.write_lock import main


def test_parts_become_one_lock_whatever_their_order(tmp_path: Path) -> None:
    part = {"backend": "emulated", "verified": False}
    for name in ("a", "b"):
        write_json(tmp_path / f"{name}.json", {**part, "engine": name})
    write_json(tmp_path / "model.json", part)

    def lock(names: list[str]) -> bytes:
        files = [str(tmp_path / f"{name}.json") for name in names]
        out = tmp_path / "lock.json"
        main(
            [
                *("--spec", '{"study":"x"}', "--image", *files, "--probe", *files[::-1]),
                *("--model", str(tmp_path / "model.json"), "--out", str(out)),
            ]
        )
        return out.read_bytes()

    assert lock(["a", "b"]) == lock(["b", "a"])
    assert sorted(read_json(tmp_path / "lock.json")["engines"]) == ["a", "b"]
    assert read_json(tmp_path / "lock.json")["spec"] == {"study": "x"}
    assert len(read_json(tmp_path / "lock.json")["digest"]) == 64


def test_an_image_without_its_probe_is_refused(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"backend": "emulated", "engine": "a"})

    with pytest.raises(PinError, match=r"do not come together for a"):
        main(
            [
                *("--image", str(tmp_path / "a.json"), "--model", str(tmp_path / "a.json")),
                *("--out", str(tmp_path / "lock.json")),
            ]
        )

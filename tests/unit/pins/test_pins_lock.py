"""The lock and its runtime: deterministic, and the same wherever the same bytes ran."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest

from kvstudy.base.digest import canonical_json
from kvstudy.base.errors import PinError
from kvstudy.pins.at_rest import stamp
from kvstudy.pins.lock import Runtime, engine_digest, lock_of, ready_runtime, runtime_for
from kvstudy.pins.tool import Tool


def image_part(engine: str, sif: Path) -> dict[str, Any]:
    """An image part as the image rule writes it, shortened."""
    known = stamp(sif)
    return {
        "backend": "measured",
        "engine": engine,
        "kind": "image",
        "verified": True,
        "manifest_digest": "sha256:" + "1" * 64,
        "pinned": {"digest": "sha256:" + "1" * 64},
        "sif_sha256": known["sha256"],
        "place": known,
        "tool": {"name": "apptainer", "version": "1.4.5"},
    }


@pytest.fixture
def parts_of_lock(tmp_path: Path) -> tuple[list[Any], list[Any], dict[str, Any]]:
    """Images, probes and a model."""
    sif = tmp_path / "x.sif"
    sif.write_bytes(b"constructed")
    engines = ("a", "b")
    probes = [{"backend": "measured", "engine": e, "facts": {"packages": {}}} for e in engines]
    model = {
        "backend": "measured",
        "repo": "acme/tiny",
        "revision": "0" * 40,
        "path": "/somewhere",
        "files": {"x": {"size": 1, "sha256": "2" * 64}},
    }
    return [image_part(e, sif) for e in engines], probes, model


def test_the_same_parts_give_the_same_lock_in_any_order(parts_of_lock: Any) -> None:
    images, probes, model = parts_of_lock

    one = lock_of(images, probes, model)
    two = lock_of(images[::-1], probes[::-1], copy.deepcopy(model))

    assert canonical_json(one) == canonical_json(two)
    assert one["engines"]["a"]["digest"] == engine_digest(images[0], probes[0], model)


def test_the_digest_is_of_what_ran_not_of_where(parts_of_lock: Any, tmp_path: Path) -> None:
    images, probes, model = parts_of_lock
    first = lock_of(images, probes, model)
    other_pull = tmp_path / "other pull.sif"
    other_pull.write_bytes(b"the same image has other SIF bytes")
    elsewhere = [image_part(e, other_pull) for e in ("a", "b")]

    assert lock_of(elsewhere, probes, {**model, "path": "/x"})["digest"] == first["digest"]
    altered = [{**images[0], "manifest_digest": "sha256:" + "9" * 64}, images[1]]
    assert lock_of(altered, probes, model)["digest"] != first["digest"]
    probed = [{**probes[0], "facts": {"packages": {"torch": "2"}}}, probes[1]]
    assert lock_of(images, probed, model)["digest"] != first["digest"]
    files = {"x": {"size": 1, "sha256": "3" * 64}}
    assert lock_of(images, probes, {**model, "files": files})["digest"] != first["digest"]


def test_parts_that_do_not_belong_together_are_refused(parts_of_lock: Any) -> None:
    images, probes, model = parts_of_lock

    with pytest.raises(PinError, match=r"do not come together for b"):
        lock_of(images, probes[:1], model)
    with pytest.raises(PinError, match=r"parts of several backends"):
        lock_of(images, probes, {**model, "backend": "emulated"})


def test_a_runtime_comes_from_the_lock_or_the_engines_own_part(parts_of_lock: Any) -> None:
    images, probes, model = parts_of_lock
    lock = lock_of(images, probes, model)

    assert runtime_for(lock, "a") == runtime_for(images[0], "a")
    assert runtime_for(lock, "a").sif == Path(images[0]["place"]["path"])
    with pytest.raises(PinError, match=r"engine c: not in the lock"):
        runtime_for(lock, "c")
    with pytest.raises(PinError, match=r"is of engine 'a'"):
        runtime_for(images[0], "b")
    with pytest.raises(PinError, match=r"its image is not verified"):
        runtime_for({**images[0], "verified": False}, "a")
    emulated = {"backend": "emulated", "engine": "a", "verified": False}
    assert (
        runtime_for(emulated, "a")
        == ready_runtime(emulated, "a")
        == Runtime("emulated", "a", verified=False)
    )


def test_a_runtime_is_ready_only_while_the_file_is_as_it_was(
    parts_of_lock: Any, tool_log: Path
) -> None:
    images, _, _ = parts_of_lock
    ready = ready_runtime(images[0], "a")
    assert ready.record()["tool"] == {"name": "apptainer", "version": "1.4.5"}

    Path(images[0]["place"]["path"]).write_bytes(b"CONSTRUCTED")
    with pytest.raises(PinError, match=r"altered after it was verified"):
        ready_runtime(images[0], "a")


def test_the_command_line_in_an_image_is_closed_and_holds_no_secret() -> None:
    runtime = Runtime(
        "image",
        "a",
        verified=True,
        sif=Path("/c/x.sif"),
        tool=Tool("apptainer", "/b/apptainer", "1"),
    )

    argv = runtime.argv(["serve"], scratch=Path("/s"), binds={Path("/models/m"): "/model"})

    assert argv == [
        *("/b/apptainer", "exec", "--cleanenv", "--containall", "--pwd", "/tmp"),  # noqa: S108
        *("--workdir", "/s", "--nv", "--bind", "/models/m:/model:ro", "/c/x.sif", "serve"),
    ]
    assert "--nv" not in runtime.argv(["serve"], scratch=Path("/s"), gpu=False)
    assert runtime.environment({"KEY": "planted"}) == {
        "APPTAINER_NO_EVAL": "1",
        "APPTAINERENV_KEY": "planted",
    }
    with pytest.raises(PinError, match=r"is no variable name"):
        runtime.environment({"A B": "x"})
    for bad in ("/a:b", "/a,b", "relative"):
        with pytest.raises(PinError, match=r"a path bound into an image"):
            runtime.argv(["serve"], scratch=Path("/s"), binds={Path(bad): "/x"})


def test_on_the_host_the_command_is_its_own() -> None:
    host = Runtime("host", "a", verified=False)

    assert host.argv(["serve", "x"], scratch=Path("/s")) == ["serve", "x"]
    assert host.environment({"KEY": "v"}) == {"KEY": "v"}

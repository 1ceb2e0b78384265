"""The image rule with a constructed registry and a stand-in for the container tool."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

import pins_parts
import pytest

from kvstudy.base.digest import sha256_file
from kvstudy.base.errors import PinError
from kvstudy.pins import image as rule
from kvstudy.pins.resolve import resolve
from kvstudy.pins.spec import EngineSpec
from kvstudy.pins.store import ImageStore


@pytest.fixture
def registry(parts: pins_parts.Parts, monkeypatch: pytest.MonkeyPatch) -> pins_parts.FakeRegistry:
    """A registry in memory that the rule asks."""
    fake = pins_parts.FakeRegistry(parts)
    monkeypatch.setattr(
        rule,
        "resolve",
        lambda ref, pinned=None: resolve(ref, pinned=pinned, transport=fake.transport),
    )
    return fake


def verify(cache: Path, values: dict[str, Any], *, full: bool = False) -> dict[str, Any]:
    """Run the rule."""
    return rule.verify_image(EngineSpec.of(values), cache, full=full)


def test_a_pull_is_by_digest_and_everything_is_recorded(
    tmp_path: Path, parts: pins_parts.Parts, registry: pins_parts.FakeRegistry, tool_log: Path
) -> None:
    values = pins_parts.engine_values(parts, index_digest=parts.index_digest, sif_sha256="a" * 64)

    lock = verify(tmp_path / "cache", values)

    (call,) = pins_parts.tool_calls(tool_log)
    assert call["argv"][0] == "pull"
    assert call["argv"][-1] == f"docker://{pins_parts.HOST}/{pins_parts.NAME}@{parts.digest}"
    assert lock["verified"] is True
    assert lock["manifest_digest"] == parts.digest
    assert lock["index_digest"] == parts.index_digest
    assert lock["config_digest"] == pins_parts.sha(parts.settings)
    assert lock["layers"] == [
        {"digest": pins_parts.sha(parts.layer), "size": len(parts.layer), "media_type": "layer"}
    ]
    assert lock["labels"] == {"com.nvidia.build.id": "constructed"}
    assert lock["platform"] == "linux/amd64"
    assert lock["tool"] == {"name": "apptainer", "version": "1.4.5"}
    sif = Path(lock["place"]["path"])
    assert lock["sif_sha256"] == lock["place"]["sha256"] == sha256_file(sif)
    assert lock["sif_published_sha256"] == "a" * 64
    assert list((tmp_path / "cache" / "work").iterdir()) == []


def test_a_second_run_asks_nobody(
    tmp_path: Path, parts: pins_parts.Parts, registry: pins_parts.FakeRegistry, tool_log: Path
) -> None:
    values = pins_parts.engine_values(parts)
    first = verify(tmp_path / "cache", values)
    asked = len(registry.requests)

    assert verify(tmp_path / "cache", values) == first
    assert verify(tmp_path / "cache", values, full=True) == first
    assert len(registry.requests) == asked
    assert len(pins_parts.tool_calls(tool_log)) == 1


def test_a_moved_cache_is_still_good(
    tmp_path: Path, parts: pins_parts.Parts, registry: pins_parts.FakeRegistry, tool_log: Path
) -> None:
    values = pins_parts.engine_values(parts)
    first = verify(tmp_path / "cache", values)
    (tmp_path / "cache").rename(tmp_path / "moved")

    second = verify(tmp_path / "moved", values)

    assert second["sif_sha256"] == first["sif_sha256"]
    assert Path(second["place"]["path"]).is_relative_to(tmp_path / "moved")


def test_a_swapped_tag_pulls_nothing(
    tmp_path: Path, parts: pins_parts.Parts, registry: pins_parts.FakeRegistry, tool_log: Path
) -> None:
    registry.parts = pins_parts.make_parts("another")
    registry.tags = {"v1": registry.parts.index}

    with pytest.raises(PinError, match=f"expected manifest digest {parts.digest}"):
        verify(tmp_path / "cache", pins_parts.engine_values(parts))
    assert pins_parts.tool_calls(tool_log) == []


def test_a_failed_pull_leaves_nothing_that_looks_complete(
    tmp_path: Path,
    parts: pins_parts.Parts,
    registry: pins_parts.FakeRegistry,
    tool_log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    values = pins_parts.engine_values(parts)
    monkeypatch.setenv("FAKE_FAULT", "connection reset")
    with pytest.raises(
        PinError, match=r"ended with 255; nothing of it is used.*\n.*connection reset"
    ):
        verify(tmp_path / "cache", values)

    cache = tmp_path / "cache"
    assert list(cache.rglob("*.sif")) == list(cache.rglob("*.json")) == []
    monkeypatch.delenv("FAKE_FAULT")
    assert verify(cache, values)["verified"] is True


def test_a_file_without_its_record_is_pulled_again(
    tmp_path: Path, parts: pins_parts.Parts, registry: pins_parts.FakeRegistry, tool_log: Path
) -> None:
    sif = ImageStore(tmp_path / "cache").sif(parts.digest)
    sif.parent.mkdir(parents=True)
    sif.write_bytes(b"half of a pull")
    leftover = tmp_path / "cache" / "work" / f"{sif.stem}.dead"
    leftover.mkdir(parents=True)

    lock = verify(tmp_path / "cache", pins_parts.engine_values(parts))

    assert lock["place"]["size"] == sif.stat().st_size != 14
    assert not leftover.exists()


def test_an_altered_cached_file_stops_the_run(
    tmp_path: Path, parts: pins_parts.Parts, registry: pins_parts.FakeRegistry, tool_log: Path
) -> None:
    values = pins_parts.engine_values(parts)
    sif = Path(verify(tmp_path / "cache", values)["place"]["path"])
    sif.write_bytes(sif.read_bytes()[:-1] + b"!")

    with pytest.raises(PinError, match="altered after it was verified"):
        verify(tmp_path / "cache", values)


def test_room_is_checked_before_the_pull(
    tmp_path: Path,
    parts: pins_parts.Parts,
    registry: pins_parts.FakeRegistry,
    tool_log: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("kvstudy.pins.store.UNPACKED_SHARE", 1e18)

    with pytest.raises(PinError, match=r"needs about .* GB below"):
        verify(tmp_path / "cache", pins_parts.engine_values(parts))
    assert pins_parts.tool_calls(tool_log) == []


def test_a_staged_sif_is_gated_by_its_pinned_hash(tmp_path: Path, parts: pins_parts.Parts) -> None:
    sif = tmp_path / "staged.sif"
    sif.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0rest")
    digest = sha256_file(sif)

    good = verify(
        tmp_path / "cache", pins_parts.engine_values(parts, staged=str(sif), sif_sha256=digest)
    )
    assert good["gate"] == "sif_sha256"
    assert good["place"]["path"] == str(sif)
    assert good["manifest_digest"] is None
    with pytest.raises(PinError, match=f"expected sha256 {'0' * 64} .*sif_sha256.*found {digest}"):
        verify(tmp_path, pins_parts.engine_values(parts, staged=str(sif), sif_sha256="0" * 64))
    with pytest.raises(PinError, match=r"pin its hash in engines.trtllm-1.2.1.image.sif_sha256"):
        verify(tmp_path, pins_parts.engine_values(parts, staged=str(sif)))


@pytest.mark.parametrize("form", ["layout", "archive", "docker"])
def test_staged_layouts_and_archives_are_verified_then_converted(
    tmp_path: Path, parts: pins_parts.Parts, tool_log: Path, form: str
) -> None:
    values = pins_parts.engine_values(parts)
    source = pins_parts.write_layout(tmp_path / "layout", parts)
    if form == "archive":
        with tarfile.open(tmp_path / "image.tar", "w") as tar:
            tar.add(source, arcname=".")
        source = tmp_path / "image.tar"
    if form == "docker":
        source = pins_parts.write_docker_archive(tmp_path / "docker.tar", parts)
        values["image"]["digest"] = pins_parts.sha(parts.settings)
        values["image"]["uri"] = f"docker-archive://{source}"
    else:
        values["image"]["staged"] = str(source)

    lock = verify(tmp_path / "cache", values)

    (call,) = pins_parts.tool_calls(tool_log)
    assert call["argv"][0] == "build"
    wanted = f"docker-archive:{source}" if form == "docker" else "oci:"
    assert call["argv"][2].startswith(wanted)
    assert lock["manifest_digest"] == (None if form == "docker" else parts.digest)
    assert lock["config_digest"] == pins_parts.sha(parts.settings)
    assert lock["source"] == {"layout": "oci-layout", "archive": "oci-archive"}.get(
        form, "docker-archive"
    )


def test_an_engine_of_the_host_is_recorded_as_not_pinned(
    tmp_path: Path, parts: pins_parts.Parts
) -> None:
    program = pins_parts.fake_tool(tmp_path, "llama-server")
    values = {**pins_parts.engine_values(parts), "image": None, "command": [str(program)]}

    lock = verify(tmp_path / "cache", values)

    assert (lock["kind"], lock["verified"]) == ("host", False)
    assert lock["executable_sha256"] == sha256_file(program)
    with pytest.raises(PinError, match="is no executable here"):
        verify(tmp_path, {**values, "command": ["no-such-program"]})


def test_nothing_of_a_secret_is_written(
    tmp_path: Path,
    parts: pins_parts.Parts,
    registry: pins_parts.FakeRegistry,
    tool_log: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("HF_TOKEN", "planted-hub")
    monkeypatch.setenv("APPTAINER_DOCKER_USERNAME", "planted-user")
    monkeypatch.setenv("APPTAINER_DOCKER_PASSWORD", "planted-registry")

    lock = verify(tmp_path / "cache", pins_parts.engine_values(parts))

    written = json.dumps(lock) + capsys.readouterr().err
    written += "".join(p.read_text() for p in (tmp_path / "cache").rglob("*.json"))
    (call,) = pins_parts.tool_calls(tool_log)
    assert "planted" not in written + json.dumps(call["argv"])
    assert "HF_TOKEN" not in call["env"]
    assert call["env"]["APPTAINER_DOCKER_PASSWORD"] == "planted-registry"

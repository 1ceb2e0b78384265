"""`kvstudy pin`: finds what is to be pinned, writes it down; and how each pin stands."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pins_hub_server as hubs
import pins_parts
import pytest
import yaml

from kvstudy.base.digest import sha256_file
from kvstudy.base.errors import PinError, UsageError
from kvstudy.pins import hub, pin
from kvstudy.pins.hub import HubFile, Listing
from kvstudy.pins.resolve import resolve
from kvstudy.study.model import Config
from kvstudy.study.parse import parse_config
from kvstudy.study.plan import Study

RC = "trtllm-1.3.0rc22"
KEYS = ("engines", RC, "image")


@pytest.fixture
def registry(parts: pins_parts.Parts, monkeypatch: pytest.MonkeyPatch) -> pins_parts.FakeRegistry:
    """A registry in memory."""
    fake = pins_parts.FakeRegistry(parts, {"1.3.0rc22": parts.index})
    monkeypatch.setattr(pin, "resolve", lambda ref: resolve(ref, transport=fake.transport))
    return fake


@pytest.fixture
def config_with(document: dict[str, Any]) -> Callable[[Callable[[dict[str, Any]], object]], Config]:
    """The published configuration after a change."""

    def make(change: Callable[[dict[str, Any]], object]) -> Config:
        changed = copy.deepcopy(document)
        change(changed)
        return parse_config(changed)

    return make


def test_an_image_is_found_by_its_tag_and_written_in_place(
    parts: pins_parts.Parts,
    registry: pins_parts.FakeRegistry,
    document: dict[str, Any],
    root: Path,
    tmp_path: Path,
) -> None:
    found = pin.find_pins(parse_config(document))

    assert [(entry.key, entry.new) for entry in found] == [
        (".".join((*KEYS, "index_digest")), parts.index_digest),
        (".".join((*KEYS, "digest")), parts.digest),
    ]
    assert "linux/amd64 manifest digest of docker://" in found[1].note
    path = tmp_path / "config.yaml"
    before = (root / "config.yaml").read_text(encoding="utf-8")
    path.write_text(before, encoding="utf-8")
    assert pin.write_pins(path, found) is True
    after = path.read_text(encoding="utf-8")
    image = yaml.safe_load(after)["engines"][RC]["image"]
    assert (image["digest"], image["index_digest"]) == (parts.digest, parts.index_digest)
    kept = [line for line in after.splitlines() if parts.digest not in line]
    assert [line for line in before.splitlines() if "digest: to-be-pinned" not in line] == [
        line for line in kept if parts.index_digest not in line
    ]
    assert pin.find_pins(parse_config(yaml.safe_load(after))) == []
    assert pin.write_pins(path, []) is False


def test_only_what_is_named_is_looked_up(
    registry: pins_parts.FakeRegistry, document: dict[str, Any]
) -> None:
    config = parse_config(document)

    assert pin.find_pins(config, ["trtllm-1.2.1", "model"]) == []
    assert registry.requests == []
    with pytest.raises(UsageError, match=r"no such engine; known: trtllm-1\.2\.1, .*, model"):
        pin.find_pins(config, ["nothing"])


def test_a_model_is_pinned_by_commit_and_by_the_hash_of_its_index(
    config_with: Callable[..., Config], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    files = {name: HubFile(10, "git-sha1", "0" * 40) for name in pin.INDEX_FILES}
    asked = []

    def listing(repo: str, revision: str) -> Listing:
        asked.append((repo, revision))
        return Listing(repo, hubs.COMMIT, "hub", files)

    monkeypatch.setattr(hub, "fetch_listing", listing)
    monkeypatch.setattr(hub, "file_sha256", lambda *_: "4" * 64)
    config = config_with(
        lambda d: d.update(model={"repo": "acme/tiny", "revision": "to-be-pinned"})
    )

    found = pin.find_pins(config, ["model"])

    assert asked == [("acme/tiny", "main")]
    assert [(entry.path, entry.new) for entry in found] == [
        (("model", "revision"), hubs.COMMIT),
        (("model", "files", "model.safetensors.index.json"), "sha256:" + "4" * 64),
    ]
    path = tmp_path / "config.yaml"
    path.write_text("# keep\nmodel: {repo: acme/tiny, revision: to-be-pinned}\n", encoding="utf-8")
    pin.write_pins(path, found)
    loaded = yaml.safe_load(path.read_text())["model"]
    assert loaded["revision"] == hubs.COMMIT
    assert loaded["files"] == {"model.safetensors.index.json": "sha256:" + "4" * 64}


def test_staged_images_are_pinned_from_what_lies_there(
    config_with: Callable[..., Config], parts: pins_parts.Parts, tmp_path: Path
) -> None:
    layout = pins_parts.write_layout(tmp_path / "layout", parts)
    docker = pins_parts.write_docker_archive(tmp_path / "docker.tar", parts)
    sif = tmp_path / "x.sif"
    sif.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0rest")

    def found(path: Path) -> list[str]:
        config = config_with(lambda d: d["engines"][RC]["image"].update(staged=str(path)))
        return [f"{entry.path[-1]} {entry.new}" for entry in pin.find_pins(config, [RC])]

    assert found(layout) == [f"digest {parts.digest}"]
    assert found(docker) == [f"digest {pins_parts.sha(parts.settings)}"]
    assert found(sif) == [f"sif_sha256 {sha256_file(sif)}"]
    with pytest.raises(PinError, match=r"no such file"):
        found(tmp_path / "gone.sif")


def test_how_each_pin_stands(
    config_with: Callable[..., Config],
    parts: pins_parts.Parts,
    tool_log: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from kvstudy.pins import image
    from kvstudy.pins.spec import EngineSpec

    fake = pins_parts.FakeRegistry(parts, {"1.2.1": parts.index})
    monkeypatch.setattr(
        image, "resolve", lambda r, pinned=None: resolve(r, pinned=pinned, transport=fake.transport)
    )
    config = config_with(
        lambda d: d["engines"]["trtllm-1.2.1"]["image"].update(
            digest=parts.digest, index_digest=None
        )
    )
    study = Study(config)

    def states() -> dict[str, str]:
        return {row.key: row.state for row in pin.pin_state(study, tmp_path / "cache")}

    key = "engines.trtllm-1.2.1.image"
    assert states() == {key: "pinned", ".".join(KEYS): "missing", "model": "pinned"}
    values = pins_parts.engine_values(parts, uri=config.engines["trtllm-1.2.1"].image.uri)
    lock = image.verify_image(EngineSpec.of(values), tmp_path / "cache")
    assert states()[key] == "verified"
    Path(lock["place"]["path"]).write_bytes(b"x")
    assert states()[key] == "mismatched"

"""The tool's layer cache: swept before a pull, hashed after it."""

from __future__ import annotations

from pathlib import Path

import pins_parts
import pytest

from kvstudy.base.errors import PinError
from kvstudy.pins import layers
from kvstudy.pins.manifest import parse_manifest


def fill(cache: Path, parts: pins_parts.Parts) -> Path:
    """A layer cache as Apptainer lays it out; the folder of its blobs."""
    blobs = cache / "cache/blob/blobs/sha256"
    blobs.mkdir(parents=True)
    for digest, body in parts.blobs.items():
        (blobs / digest.removeprefix("sha256:")).write_bytes(body)
    (cache / "cache/oci-tmp").mkdir()
    (cache / "cache/oci-tmp/finished").write_bytes(b"an image made earlier")
    return blobs


def test_a_sweep_keeps_whole_blobs_and_nothing_else(
    tmp_path: Path, parts: pins_parts.Parts
) -> None:
    blobs = fill(tmp_path, parts)
    layer = blobs / pins_parts.sha(parts.layer).removeprefix("sha256:")
    pins_parts.touch_same_size(layer)
    (blobs / ("0" * 64)).write_bytes(b"half")

    layers.sweep(tmp_path)

    kept = {f"sha256:{path.name}" for path in blobs.iterdir()}
    assert kept == set(parts.blobs) - {pins_parts.sha(parts.layer)}
    assert not (tmp_path / "cache/oci-tmp").exists()


def test_every_blob_is_hashed_after_a_pull(tmp_path: Path, parts: pins_parts.Parts) -> None:
    manifest = parse_manifest(parts.manifest, "here")
    assert layers.check(tmp_path, manifest, "image") is False
    blobs = fill(tmp_path, parts)
    assert layers.check(tmp_path, manifest, "image") is True

    pins_parts.touch_same_size(blobs / pins_parts.sha(parts.layer).removeprefix("sha256:"))
    with pytest.raises(PinError, match=rf"not {pins_parts.sha(parts.layer)} but sha256:"):
        layers.check(tmp_path, manifest, "image")

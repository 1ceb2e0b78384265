"""Staged images: every blob hashed against the chain that starts at the pin."""

from __future__ import annotations

import io
import json
import tarfile
from pathlib import Path

import pins_parts
import pytest

from kvstudy.base.errors import PinError
from kvstudy.pins import local_image
from kvstudy.study.model import Image


@pytest.mark.parametrize("through_index", [True, False])
def test_a_layout_is_verified_blob_by_blob(
    tmp_path: Path, parts: pins_parts.Parts, through_index: bool
) -> None:
    layout = pins_parts.write_layout(tmp_path / "layout", parts, through_index=through_index)

    found = local_image.read_layout(layout, parts.digest, tmp_path / "work")

    assert local_image.kind_of(layout) == "oci-layout"
    assert found.manifest is not None
    assert found.manifest.digest == parts.digest
    assert found.index_digest == (parts.index_digest if through_index else None)
    assert found.settings["labels"] == {"com.nvidia.build.id": "constructed"}
    only = json.loads((tmp_path / "work" / "index.json").read_text())["manifests"]
    assert [entry["digest"] for entry in only] == [parts.digest]
    assert found.source == f"oci:{tmp_path / 'work'}"
    assert local_image.manifests_in(layout) == [parts.digest]


def test_an_altered_truncated_or_missing_blob_is_named(
    tmp_path: Path, parts: pins_parts.Parts
) -> None:
    layout = pins_parts.write_layout(tmp_path / "layout", parts)
    digest = pins_parts.sha(parts.layer)
    blob = layout / "blobs/sha256" / digest.removeprefix("sha256:")

    pins_parts.touch_same_size(blob)
    with pytest.raises(PinError, match=f"expected digest {digest}, found sha256:"):
        local_image.read_layout(layout, parts.digest, tmp_path / "a")
    blob.write_bytes(parts.layer[:5])
    with pytest.raises(PinError, match="bytes, found 5"):
        local_image.read_layout(layout, parts.digest, tmp_path / "b")
    blob.unlink()
    with pytest.raises(PinError, match=f"blob {digest} is missing"):
        local_image.read_layout(layout, parts.digest, tmp_path / "c")


def test_a_layout_of_another_image_says_what_it_holds(
    tmp_path: Path, parts: pins_parts.Parts
) -> None:
    layout = pins_parts.write_layout(tmp_path / "layout", parts)

    for pinned in ("sha256:" + "0" * 64, parts.index_digest[:-1] + "x"):
        with pytest.raises(PinError, match=f"expected manifest digest .*, found .*{parts.digest}"):
            local_image.read_layout(layout, pinned, tmp_path / "work")


def test_an_index_that_names_a_path_is_refused(tmp_path: Path, parts: pins_parts.Parts) -> None:
    layout = pins_parts.write_layout(tmp_path / "layout", parts)
    (layout / "index.json").write_bytes(
        pins_parts.dump({"manifests": [{"digest": "sha256:../../../../etc/passwd"}]})
    )

    with pytest.raises(PinError, match="is not a sha256 digest"):
        local_image.read_layout(layout, parts.digest, tmp_path / "work")


def test_a_docker_archive_is_pinned_by_its_image_id(
    tmp_path: Path, parts: pins_parts.Parts
) -> None:
    archive = pins_parts.write_docker_archive(tmp_path / "image.tar", parts)
    image_id = pins_parts.sha(parts.settings)

    found = local_image.read_docker_archive(archive, image_id)

    assert local_image.kind_of(archive) == "docker-archive"
    assert local_image.image_ids_in(archive) == [image_id]
    assert (found.manifest, found.config_digest) == (None, image_id)
    assert found.layers[0]["digest"] == pins_parts.sha(parts.layer_tar)
    with pytest.raises(PinError, match=f"expected image id .config digest. {parts.digest}"):
        local_image.read_docker_archive(archive, parts.digest)


def test_an_altered_layer_of_a_docker_archive_is_named(
    tmp_path: Path, parts: pins_parts.Parts
) -> None:
    archive = pins_parts.write_docker_archive(tmp_path / "i.tar", parts, parts.layer_tar + b"x")

    with pytest.raises(PinError, match=r"layer 0/layer.tar: expected diff id"):
        local_image.read_docker_archive(archive, pins_parts.sha(parts.settings))


def test_an_archive_that_would_leave_its_folder_is_refused(tmp_path: Path) -> None:
    archive = tmp_path / "bad.tar"
    with tarfile.open(archive, "w") as tar:
        info = tarfile.TarInfo("../outside")
        info.size = 1
        tar.addfile(info, io.BytesIO(b"x"))

    with pytest.raises(PinError, match="damaged or unsafe archive"):
        local_image.unpack_archive(archive, tmp_path / "inside")
    assert not (tmp_path / "outside").exists()


def test_kinds_are_told_by_content(tmp_path: Path, parts: pins_parts.Parts) -> None:
    layout = pins_parts.write_layout(tmp_path / "layout", parts)
    with tarfile.open(tmp_path / "oci.tar", "w") as tar:
        tar.add(layout, arcname=".")
    sif = tmp_path / "any.name"
    sif.write_bytes(b"#!/usr/bin/env run-singularity\n\0SIF_MAGIC\0rest")
    junk = tmp_path / "junk.sif"
    junk.write_bytes(b"<html>a proxy's error page</html>")

    assert local_image.kind_of(tmp_path / "oci.tar") == "oci-archive"
    assert local_image.kind_of(sif) == "sif"
    with pytest.raises(PinError, match="expected a SIF file, an OCI layout"):
        local_image.kind_of(junk)


def test_where_an_image_lies(tmp_path: Path) -> None:
    digest = "sha256:" + "0" * 64
    registry = Image(uri="docker://r.example/a:1", digest=digest)
    local = Image(uri=f"oci://{tmp_path}", digest=digest)
    gone = Image(uri="docker://r.example/a:1", digest=digest, staged=str(tmp_path / "gone.sif"))

    assert local_image.local_path(registry) is None
    assert local_image.local_path(local) == tmp_path
    with pytest.raises(PinError, match=r"gone\.sif: no such file"):
        local_image.local_path(gone)

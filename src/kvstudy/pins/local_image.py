"""Images that are already on the site: a SIF file, an OCI layout, an OCI or Docker archive.

Every blob of a layout or archive is hashed against the chain that starts at the pinned digest.
A SIF holds no trace of that chain (its bytes differ from pull to pull), so only a pinned
`sif_sha256` can gate it.
"""

from __future__ import annotations

import hashlib
import json
import tarfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvstudy.base.digest import sha256_file
from kvstudy.base.errors import PinError
from kvstudy.pins.at_rest import progress_of, say
from kvstudy.pins.manifest import (
    MOST_BYTES,
    Manifest,
    digest_of,
    is_index,
    parse_document,
    parse_manifest,
    platform_digest,
    settings_facts,
)
from kvstudy.study.model import Image

Kind = Literal["sif", "oci-layout", "oci-archive", "docker-archive"]

_SIF_MAGIC = b"SIF_MAGIC"
_SIF_MAGIC_AT = 32
_READ_BYTES = 1 << 22


@dataclass(frozen=True, slots=True)
class Found:
    """A local image whose every byte was compared; `source` is what the tool converts."""

    manifest: Manifest | None
    index_digest: str | None
    config_digest: str
    settings: dict[str, Any]
    layers: list[dict[str, Any]]
    source: str
    size_bytes: int


def local_path(image: Image) -> Path | None:
    """The folder or file that holds the image; None when it comes from a registry.

    Raises PinError for one that does not exist.
    """
    scheme, _, rest = image.uri.partition("://")
    name = image.staged or (None if scheme == "docker" else rest)
    if name is None:
        return None
    path = Path(name).expanduser().absolute()
    if not path.exists():
        raise PinError(f"{path}: no such file or folder; the staged image is not on this machine")
    return path


def kind_of(path: Path) -> Kind:
    """What a local image is, by its content; raises PinError for anything else."""
    if path.is_dir() and (path / "oci-layout").is_file() and (path / "index.json").is_file():
        return "oci-layout"
    if path.is_file():
        with path.open("rb") as handle:
            head = handle.read(_SIF_MAGIC_AT + len(_SIF_MAGIC))
        if head[_SIF_MAGIC_AT:] == _SIF_MAGIC:
            return "sif"
        if tarfile.is_tarfile(path):
            with tarfile.open(path) as archive:
                names = {name.removeprefix("./") for name in archive.getnames()}
            if {"oci-layout", "index.json"} <= names:
                return "oci-archive"
            if "manifest.json" in names:
                return "docker-archive"
    raise PinError(f"{path}: expected a SIF file, an OCI layout, or an OCI or Docker archive")


def read_layout(folder: Path, pinned: str, work: Path) -> Found:
    """Verify an OCI layout against a pinned manifest digest.

    `work` becomes a layout that lists this manifest alone and shares the blobs, so that the tool
    can convert nothing else. Raises PinError naming the blob that is missing or altered.
    """
    body, index_digest = _find_manifest(folder, pinned)
    manifest = parse_manifest(body, str(folder))
    for digest, size in [
        (manifest.config_digest, manifest.config_size),
        *((layer.digest, layer.size) for layer in manifest.layers),
    ]:
        _check_blob(folder, digest, size)
    settings = settings_facts(_read_blob(folder, manifest.config_digest), str(folder))
    work.mkdir(parents=True)
    (work / "oci-layout").write_text('{"imageLayoutVersion":"1.0.0"}', encoding="utf-8")
    (work / "blobs").symlink_to((folder / "blobs").resolve(), target_is_directory=True)
    entry = {
        "mediaType": json.loads(body).get(
            "mediaType", "application/vnd.oci.image.manifest.v1+json"
        ),
        "digest": manifest.digest,
        "size": len(body),
    }
    (work / "index.json").write_text(
        json.dumps({"schemaVersion": 2, "manifests": [entry]}), encoding="utf-8"
    )
    return Found(
        manifest=manifest,
        index_digest=index_digest,
        config_digest=manifest.config_digest,
        settings=settings,
        layers=layer_rows(manifest),
        source=f"oci:{work}",
        size_bytes=manifest.size_bytes,
    )


def layer_rows(manifest: Manifest) -> list[dict[str, Any]]:
    """Layers as a lock records them."""
    return [
        {"digest": layer.digest, "size": layer.size, "media_type": layer.media_type}
        for layer in manifest.layers
    ]


def unpack_archive(archive: Path, target: Path) -> None:
    """Unpack an OCI archive; members that would leave `target` are refused."""
    say(f"unpacking {archive.name}")
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(target, filter="data")
    except (tarfile.TarError, EOFError) as error:
        raise PinError(f"{archive}: damaged or unsafe archive ({error})") from None


def read_docker_archive(archive: Path, pinned: str) -> Found:
    """Verify a `docker save` archive, whose layers are unpacked tars.

    It holds no registry manifest, so `pinned` must be its image id: the config digest. Settings
    are hashed against it, and every layer against the settings.
    """
    where = str(archive)
    try:
        with tarfile.open(archive) as tar:
            listed = json.loads(_member(tar, "manifest.json", where))
            entry = _entry_of(listed, tar, pinned, where)
            settings = _member(tar, entry["Config"], where)
            diff_ids = parse_document(settings, where)["rootfs"]["diff_ids"]
            layers = [
                _check_layer(tar, name, diff_id, where)
                for name, diff_id in zip(entry["Layers"], diff_ids, strict=True)
            ]
    except (tarfile.TarError, EOFError, KeyError, TypeError, ValueError) as error:
        raise PinError(f"{archive}: damaged archive ({type(error).__name__}: {error})") from None
    return Found(
        manifest=None,
        index_digest=None,
        config_digest=pinned,
        settings=settings_facts(settings, where),
        layers=layers,
        source=f"docker-archive:{archive}",
        size_bytes=sum(layer["size"] for layer in layers),
    )


def manifests_in(folder: Path) -> list[str]:
    """Manifest digests for linux/amd64 that an OCI layout offers; what `kvstudy pin` picks from."""
    index = parse_document((folder / "index.json").read_bytes(), str(folder))
    found = []
    for entry in index.get("manifests", []):
        body = _read_blob(folder, str(entry.get("digest")))
        document = parse_document(body, str(folder))
        found.append(
            platform_digest(document, str(folder)) if is_index(document) else digest_of(body)
        )
    return found


def image_ids_in(archive: Path) -> list[str]:
    """Image ids (config digests) of a Docker archive."""
    with tarfile.open(archive) as tar:
        listed = json.loads(_member(tar, "manifest.json", str(archive)))
        return [digest_of(_member(tar, entry["Config"], str(archive))) for entry in listed]


def _find_manifest(folder: Path, pinned: str) -> tuple[bytes, str | None]:
    """The pinned manifest's bytes, and the digest of the index it was found through, if any."""
    index = parse_document((folder / "index.json").read_bytes(), str(folder))
    offered = []
    for entry in index.get("manifests", []):
        digest = str(entry.get("digest"))
        offered.append(digest)
        if digest == pinned:
            return _read_blob(folder, digest), None
        body = _read_blob(folder, digest)
        document = parse_document(body, str(folder))
        if is_index(document):
            inner = [str(item.get("digest")) for item in document.get("manifests", [])]
            offered += inner
            if pinned in inner:
                return _read_blob(folder, pinned), digest
    raise PinError(
        f"{folder}: expected manifest digest {pinned}, found {', '.join(offered) or 'nothing'}. "
        "An index digest or a config digest does not count: copy the image with its digests "
        "(`skopeo copy --preserve-digests`)"
    )


def _blob(folder: Path, digest: str) -> Path:
    algorithm, _, digits = digest.partition(":")
    if algorithm != "sha256" or not digits.isalnum():
        raise PinError(f"{folder}: {digest[:80]!r} is not a sha256 digest")
    path = folder / "blobs" / "sha256" / digits
    if not path.is_file():
        raise PinError(f"{folder}: blob {digest} is missing; copy the image again")
    return path


def _read_blob(folder: Path, digest: str) -> bytes:
    path = _blob(folder, digest)
    if path.stat().st_size > MOST_BYTES:
        raise PinError(f"{path}: larger than {MOST_BYTES} bytes; refused as a document")
    body = path.read_bytes()
    if digest_of(body) != digest:
        raise PinError(f"{path}: expected digest {digest}, found {digest_of(body)}")
    return body


def _check_blob(folder: Path, digest: str, size: int) -> None:
    path = _blob(folder, digest)
    found_size = path.stat().st_size
    if found_size != size:
        raise PinError(f"{path}: expected {size} bytes, found {found_size}; copy the image again")
    found = "sha256:" + sha256_file(path, progress_of(path))
    if found != digest:
        raise PinError(f"{path}: expected digest {digest}, found {found}; copy the image again")


def _member(tar: tarfile.TarFile, name: str, where: str) -> bytes:
    info = tar.getmember(name)
    handle = tar.extractfile(info)
    if handle is None or info.size > MOST_BYTES:
        raise PinError(f"{where}: {name} is not a small file")
    return handle.read()


def _entry_of(listed: Any, tar: tarfile.TarFile, pinned: str, where: str) -> dict[str, Any]:
    ids = []
    for entry in listed:
        ids.append(digest_of(_member(tar, entry["Config"], where)))
        if ids[-1] == pinned:
            return dict(entry)
    raise PinError(
        f"{where}: expected image id (config digest) {pinned}, found {', '.join(ids)}. A Docker "
        "archive holds no registry manifest, so its pin is the image id"
    )


def _check_layer(tar: tarfile.TarFile, name: str, diff_id: str, where: str) -> dict[str, Any]:
    handle = tar.extractfile(name)
    if handle is None:
        raise PinError(f"{where}: layer {name} is not a file")
    digest = hashlib.sha256()
    size = 0
    while piece := handle.read(_READ_BYTES):
        digest.update(piece)
        size += len(piece)
    found = "sha256:" + digest.hexdigest()
    if found != diff_id:
        raise PinError(f"{where}: layer {name}: expected diff id {diff_id}, found {found}")
    return {"digest": diff_id, "size": size, "media_type": "unpacked tar"}

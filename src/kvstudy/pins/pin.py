"""`kvstudy pin`: find what is to be pinned and write it down; and how each pin stands.

Finding asks the registry and the hub for digests and commits, and reads no layer and no weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvstudy.base.digest import sha256_file
from kvstudy.base.errors import PinError, UsageError
from kvstudy.base.files import write_text
from kvstudy.pins import hub, local_image
from kvstudy.pins.at_rest import progress_of, unchanged
from kvstudy.pins.model import ModelStore
from kvstudy.pins.reference import parse_reference
from kvstudy.pins.resolve import resolve
from kvstudy.pins.store import ImageStore
from kvstudy.pins.yaml_edit import Edit, apply_edits
from kvstudy.study.model import TO_BE_PINNED, Config, Image
from kvstudy.study.plan import Study

MODEL = "model"
INDEX_FILES = ("model.safetensors.index.json", "config.json")
"""The first of these that a commit has is pinned by its hash when model.files is empty."""

State = Literal["pinned", "verified", "missing", "mismatched"]


@dataclass(frozen=True, slots=True)
class Found:
    """One entry to write: its place in config.yaml, what stood there, what was found and how."""

    path: tuple[str, ...]
    old: str | None
    new: str
    note: str

    @property
    def key(self) -> str:
        """Dotted path for people."""
        return ".".join(self.path)


@dataclass(frozen=True, slots=True)
class PinRow:
    """How one pin stands."""

    key: str
    state: State
    detail: str


def find_pins(config: Config, names: Sequence[str] = ()) -> list[Found]:
    """Everything that is to be pinned, looked up; `names` are engines or "model" (default: all).

    Raises UsageError for a name that is not in the configuration, PinError when the registry or
    the hub cannot say.
    """
    known = [*config.engines, MODEL]
    for name in names:
        if name not in known:
            raise UsageError(f"pin {name}: no such engine; known: {', '.join(known)}")
    found = []
    for name, engine in config.engines.items():
        if engine.image is not None and (not names or name in names):
            found += _image_pins(("engines", name, "image"), engine.image)
    if not names or MODEL in names:
        found += _model_pins(config)
    return found


def write_pins(path: Path, found: Sequence[Found]) -> bool:
    """Write what was found into a configuration file; returns whether it changed.

    Comments, order and every other byte stay. Raises ConfigError when that cannot be done.
    """
    if not found:
        return False
    text = path.read_text(encoding="utf-8")
    edits = [Edit(entry.path, entry.new) for entry in found]
    write_text(path, apply_edits(text, edits, path.name))
    return True


def pin_state(study: Study, cache: Path) -> list[PinRow]:
    """How every pin of the study stands, by what is on this machine; asks no network.

    pinned: known, not fetched yet. verified: fetched, and as it was when it was verified.
    missing: to be pinned. mismatched: fetched, and altered since.
    """
    rows = []
    for name in study.engines_in_use:
        image = study.config.engines[name].image
        if image is not None:
            rows.append(_image_state(f"engines.{name}.image", image, ImageStore(cache)))
    rows.append(_model_state(study.config, cache))
    return rows


def _image_pins(at: tuple[str, ...], image: Image) -> list[Found]:
    path = local_image.local_path(image)
    if path is not None:
        return _local_pins(at, image, path)
    if image.digest != TO_BE_PINNED:
        return []
    resolved = resolve(parse_reference(image.uri))
    digest = resolved.manifest.digest
    size = resolved.manifest.size_bytes / 1e9
    note = f"linux/amd64 manifest digest of {image.uri}, {size:.3g} GB compressed"
    found = [Found((*at, "digest"), image.digest, digest, note)]
    if resolved.index_digest is not None and image.index_digest != resolved.index_digest:
        note = f"index digest of {image.uri}"
        old = image.index_digest
        found.insert(0, Found((*at, "index_digest"), old, resolved.index_digest, note))
    return found


def _local_pins(at: tuple[str, ...], image: Image, path: Path) -> list[Found]:
    kind = local_image.kind_of(path)
    if kind == "sif":
        if image.sif_sha256 is not None:
            return []
        found = sha256_file(path, progress_of(path))
        return [Found((*at, "sif_sha256"), None, found, f"SHA-256 of the staged file {path}")]
    if image.digest != TO_BE_PINNED:
        return []
    if kind == "oci-archive":
        raise PinError(
            f"{path}: unpack an OCI archive to pin it, and give the folder as `staged`; or pin it "
            "by hand (`skopeo inspect --format '{{.Digest}}' oci-archive:...`)"
        )
    docker = kind == "docker-archive"
    digests = local_image.image_ids_in(path) if docker else local_image.manifests_in(path)
    if len(set(digests)) != 1:
        raise PinError(f"{path}: holds {len(digests)} images ({', '.join(digests)}); pin by hand")
    meant = "image id (config digest)" if docker else "linux/amd64 manifest digest"
    return [Found((*at, "digest"), image.digest, digests[0], f"{meant} of {path}")]


def _model_pins(config: Config) -> list[Found]:
    model = config.model
    if model.revision != TO_BE_PINNED:
        return []
    listing = hub.fetch_listing(model.repo, "main")
    size = sum(file.size for file in listing.files.values()) / 1e9
    note = f"head of main of {model.repo}, {len(listing.files)} files, {size:.3g} GB"
    found = [Found(("model", "revision"), model.revision, listing.revision, note)]
    names = [] if model.files else [name for name in INDEX_FILES if name in listing.files]
    for name in names[:1]:
        digest = "sha256:" + hub.file_sha256(model.repo, listing.revision, name)
        found.append(Found(("model", "files", name), None, digest, f"hash of {name} at the commit"))
    return found


def _image_state(key: str, image: Image, store: ImageStore) -> PinRow:
    if image.digest == TO_BE_PINNED:
        return PinRow(key, "missing", f"digest is {TO_BE_PINNED}; run `kvstudy pin`")
    record: dict[str, Any] | None = store.record(image.digest)
    if record is None:
        where = f"staged at {image.staged}" if image.staged else "not fetched on this machine yet"
        return PinRow(key, "pinned", f"{image.digest}; {where}")
    place = record["place"]
    if unchanged(place):
        return PinRow(key, "verified", f"{image.digest}; {place['path']}")
    return PinRow(
        key, "mismatched", f"{place['path']} changed since it was verified; the run hashes it again"
    )


def _model_state(config: Config, cache: Path) -> PinRow:
    model = config.model
    if model.revision == TO_BE_PINNED:
        return PinRow(MODEL, "missing", f"revision is {TO_BE_PINNED}; run `kvstudy pin model`")
    folder = Path(model.path).expanduser().absolute() if model.path else None
    if folder is None:
        folder = hub.snapshot_folder(model.repo, model.revision)
    stamps = ModelStore(cache, model).known(folder)
    if not stamps:
        return PinRow(MODEL, "pinned", f"{model.repo} at {model.revision}; not verified here yet")
    changed = [name for name, known in stamps.items() if not unchanged(known)]
    if changed:
        return PinRow(MODEL, "mismatched", f"{folder}: changed since verified: {changed[0]}")
    return PinRow(MODEL, "verified", f"{model.repo} at {model.revision}; {len(stamps)} files")

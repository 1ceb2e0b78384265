"""The shared image cache: `images/<digest>.sif`, and beside it what is known of the file.

A file without its record is an interrupted pull and is removed by the next one. The record is
written last, so nothing that is not whole ever looks complete.
"""

from __future__ import annotations

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvstudy.base.files import read_json, sync, write_json
from kvstudy.pins.at_rest import say, stamp
from kvstudy.pins.holding import held, need_space
from kvstudy.pins.spec import Document

SIF_SHARE = 1.1
"""A SIF is about as large as the compressed layers; with some room, as a factor."""
UNPACKED_SHARE = 3.0
"""Unpacked layers against compressed ones, with some room, as a factor."""


@dataclass(frozen=True, slots=True)
class ImageStore:
    """Images of one shared cache folder, by digest."""

    root: Path

    def sif(self, digest: str) -> Path:
        """Where the image of a digest lies, or will."""
        return self.root / "images" / f"{_name(digest)}.sif"

    def record(self, digest: str) -> Document | None:
        """What is known of a complete image; None when there is none."""
        path = self._record(digest)
        if not path.is_file() or not self.sif(digest).is_file():
            return None
        record: Document = read_json(path)
        record["place"]["path"] = str(self.sif(digest))
        return record

    @contextmanager
    def locked(self, digest: str) -> Iterator[None]:
        """Be the only job that works on a digest."""
        with held(self.root / "locks" / f"{_name(digest)}.lock", f"image {digest}"):
            yield

    @contextmanager
    def working_folder(self, digest: str) -> Iterator[Path]:
        """A private folder for a pull or conversion, removed at the end; leftovers go first."""
        parent = self.root / "work"
        for old in parent.glob(f"{_name(digest)}.*"):
            shutil.rmtree(old, ignore_errors=True)
        folder = parent / f"{_name(digest)}.{secrets.token_hex(4)}"
        folder.mkdir(parents=True)
        try:
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def tool_cache(self, digest: str) -> Path:
        """The tool's own layers of one digest: kept after a fault, so that a pull goes on."""
        folder = self.root / "layers" / _name(digest)
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def forget_layers(self, digest: str) -> None:
        """Free the tool's layers once the image is complete."""
        shutil.rmtree(self.root / "layers" / _name(digest), ignore_errors=True)

    def need(self, size_bytes: int, what: str) -> None:
        """Raise PinError when there is no room for layers, their unpacked tree and the SIF."""
        need_space(
            {
                self.root / "images": SIF_SHARE * size_bytes,
                self.root / "layers": 1.0 * size_bytes,
                temporary_folder(self.root / "work"): UNPACKED_SHARE * size_bytes,
            },
            what,
        )

    def adopt(self, digest: str, made: Path, facts: Document) -> Document:
        """Take a finished file into the cache: hash, rename, then the record."""
        target = self.sif(digest)
        target.parent.mkdir(parents=True, exist_ok=True)
        self._record(digest).unlink(missing_ok=True)
        sync(made)
        known = stamp(made)
        made.replace(target)
        sync(target.parent)
        record = {**facts, "place": {**known, "path": str(target)}}
        write_json(self._record(digest), record)
        say(f"image {digest}: {known['size']} bytes, sha256 {known['sha256']}")
        return record

    def _record(self, digest: str) -> Path:
        return self.root / "images" / f"{_name(digest)}.json"


def temporary_folder(default: Path, environ: Mapping[str, str] = os.environ) -> Path:
    """Where the tool unpacks layers: the site's choice, else `default`."""
    named = environ.get("APPTAINER_TMPDIR") or environ.get("SINGULARITY_TMPDIR")
    return Path(named) if named else default


def _name(digest: str) -> str:
    return digest.replace(":", "-")

"""A zip whose bytes depend on its members alone: sorted names, fixed times and permissions."""

from __future__ import annotations

import hashlib
import stat
import zipfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from kvstudy.base.errors import DataError
from kvstudy.base.files import replacing

_EPOCH = (1980, 1, 1, 0, 0, 0)
_MODE = (stat.S_IFREG | 0o644) << 16
_LEVEL = 6
_READ_BYTES = 1 << 20
_PACKED_ALREADY = (".parquet", ".zip", ".gz", ".zst", ".png")


@dataclass(frozen=True, slots=True)
class Member:
    """One file of the archive: its name, the size to expect, and where its bytes come from."""

    name: str
    chunks: Callable[[], Iterator[bytes]]
    size: int
    sha256: str


def in_memory(name: str, content: bytes) -> Member:
    """A member whose bytes are at hand."""
    return Member(name, lambda: iter((content,)), len(content), hashlib.sha256(content).hexdigest())


def chunks_of(path: Path) -> Iterator[bytes]:
    """A file's bytes, a megabyte at a time."""
    with path.open("rb") as handle:
        while chunk := handle.read(_READ_BYTES):
            yield chunk


def write_zip(path: Path, members: Iterable[Member]) -> None:
    """Write the archive under a temporary name and rename it.

    Raises DataError when a member's bytes are not the ones that its checksum says: the file was
    written to while the bundle was made.
    """
    ordered = sorted(members, key=lambda member: member.name)
    with replacing(path) as temporary, zipfile.ZipFile(temporary, "w") as archive:
        for member in ordered:
            _add(archive, member)


def _add(archive: zipfile.ZipFile, member: Member) -> None:
    info = zipfile.ZipInfo(member.name, _EPOCH)
    info.create_system = 3
    info.external_attr = _MODE
    packed = member.name.endswith(_PACKED_ALREADY)
    info.compress_type = zipfile.ZIP_STORED if packed else zipfile.ZIP_DEFLATED
    info._compresslevel = None if packed else _LEVEL  # type: ignore[attr-defined]
    info.file_size = member.size
    digest = hashlib.sha256()
    with archive.open(info, "w") as target:
        for chunk in member.chunks():
            digest.update(chunk)
            target.write(chunk)
    if digest.hexdigest() != member.sha256:
        raise DataError(
            f"{member.name}: changed while the bundle was made; is a run writing to these "
            "results? Publish again when it has ended"
        )

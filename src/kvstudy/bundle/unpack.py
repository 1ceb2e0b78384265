"""Reading a zip that a stranger made: refused before a byte of it is written anywhere.

Everything that could reach outside the fresh folder, or fill the memory or the disk, is refused
by name: paths that climb, absolute paths, links and devices, names that stand twice (also by
case), encrypted or oddly packed members, overlapping members, and sizes or ratios of a bomb.
"""

from __future__ import annotations

import re
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from kvstudy.base.errors import DataError

_END, _END64_AT = b"PK\x05\x06", b"PK\x06\x07"
_END_BYTES, _COMMENT_BYTES = 22, 1 << 16
_READ_BYTES = 1 << 20
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_SMALL = 1 << 20
_LOCAL_HEADER = 30


@dataclass(frozen=True, slots=True)
class Limits:
    """What a bundle may be at most."""

    members: int = 100_000
    member_bytes: int = 8 << 30
    total_bytes: int = 32 << 30
    ratio: int = 200
    index_bytes: int = 64 << 20


class Archive:
    """A zip that passed every check on its names and declared sizes."""

    def __init__(self, path: Path, archive: zipfile.ZipFile, limits: Limits) -> None:
        self.path = path
        self._archive = archive
        self._infos = {info.filename: info for info in _checked(path, archive.infolist(), limits)}

    @property
    def names(self) -> list[str]:
        """Names of the files, sorted."""
        return sorted(self._infos)

    def size(self, name: str) -> int:
        """Declared size of a member; no more than that is ever read."""
        return self._infos[name].file_size

    def chunks(self, name: str) -> Iterator[bytes]:
        """A member's bytes; DataError, with the member's name, where they are damaged."""
        try:
            with self._archive.open(self._infos[name]) as handle:
                while chunk := handle.read(_READ_BYTES):
                    yield chunk
        except (zipfile.BadZipFile, zlib.error, EOFError, NotImplementedError) as error:
            raise DataError(f"{self.path}: {name}: damaged ({error})") from error

    def read(self, name: str, limit: int = 64 << 20) -> bytes:
        """A small member whole; DataError for one that is missing or larger than `limit`."""
        if name not in self._infos:
            raise DataError(f"{self.path}: holds no {name}; this is not a kvstudy bundle")
        if self.size(name) > limit:
            raise DataError(f"{self.path}: {name}: {self.size(name)} bytes, at most {limit} read")
        return b"".join(self.chunks(name))

    def extract(self, name: str, folder: Path) -> Path:
        """Write a member below `folder`, which must be fresh; existing files are never touched."""
        target = folder.joinpath(*PurePosixPath(name).parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with target.open("xb") as handle:
            for chunk in self.chunks(name):
                handle.write(chunk)
        return target


@contextmanager
def opened(path: Path, limits: Limits | None = None) -> Iterator[Archive]:
    """Open and check an archive; DataError says what is wrong with one that is refused."""
    limits = limits or Limits()
    try:
        _check_index(path, limits)
        with zipfile.ZipFile(path) as archive:
            yield Archive(path, archive, limits)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except IsADirectoryError:
        raise DataError(f"{path}: a folder, expected a bundle (.zip)") from None
    except (zipfile.BadZipFile, UnicodeDecodeError, struct.error) as error:
        raise DataError(f"{path}: not a readable zip file ({error})") from error


def _check_index(path: Path, limits: Limits) -> None:
    """Refuse an index that would fill the memory, before it is parsed."""
    with path.open("rb") as handle:
        length = handle.seek(0, 2)
        handle.seek(max(0, length - _END_BYTES - _COMMENT_BYTES))
        tail = handle.read()
        at = tail.rfind(_END)
        if at < 0 or len(tail) - at < _END_BYTES:
            raise DataError(f"{path}: not a zip file; expected a bundle made by kvstudy publish")
        count, index = struct.unpack_from("<HI", tail, at + 10)
        if at >= 20 and tail[at - 20 : at - 16] == _END64_AT:
            (where,) = struct.unpack_from("<Q", tail, at - 12)
            handle.seek(min(where, length))
            count, index = struct.unpack("<QQ", handle.read(48)[32:48])
    if count > limits.members or index > limits.index_bytes:
        raise DataError(f"{path}: refused: an index of {count} members and {index} bytes")


def _checked(path: Path, infos: list[zipfile.ZipInfo], limits: Limits) -> list[zipfile.ZipInfo]:
    """The files of the archive; DataError names the first member that is refused."""
    seen: set[str] = set()
    kept: list[zipfile.ZipInfo] = []
    total = packed = 0
    for info in infos:
        why = _refusal(info, limits)
        folded = info.filename.rstrip("/").casefold()
        if why is None and folded in seen:
            why = "the name stands twice"
        if why is not None:
            raise DataError(f"{path}: refused: member {info.filename!r}: {why}")
        seen.add(folded)
        if not info.is_dir():
            kept.append(info)
        total += info.file_size
        packed += info.compress_size
    if len(infos) > limits.members or total > limits.total_bytes:
        raise DataError(f"{path}: refused: {len(infos)} members, {total} bytes when unpacked")
    if total > _SMALL and total > limits.ratio * max(packed, 1):
        raise DataError(f"{path}: refused: unpacks to {total} bytes from {packed}")
    _check_overlap(path, infos)
    _check_nesting(path, kept)
    return kept


def _refusal(info: zipfile.ZipInfo, limits: Limits) -> str | None:
    """Why a member is refused; None for one that is fine."""
    kind = stat.S_IFMT(info.external_attr >> 16)
    wanted = stat.S_IFDIR if info.is_dir() else stat.S_IFREG
    ratio = info.file_size / max(info.compress_size, 1)
    reasons = (
        (_bad_name(info.orig_filename), "not a plain path below the archive's top"),
        (kind not in (0, wanted), "a link or a special file"),
        (bool(info.flag_bits & 0x1), "encrypted"),
        (
            info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED),
            "packed by a method other than deflate",
        ),
        (info.is_dir() and info.file_size > 0, "a folder with content"),
        (info.file_size > limits.member_bytes, f"{info.file_size} bytes when unpacked"),
        (
            info.file_size > _SMALL and ratio > limits.ratio,
            f"unpacks to {ratio:.0f} times its size",
        ),
    )
    return next((text for bad, text in reasons if bad), None)


def _bad_name(name: str) -> bool:
    parts = name.removesuffix("/").split("/")
    return (
        not name
        or name.startswith("/")
        or "\\" in name
        or ":" in name
        or bool(_CONTROL.search(name))
        or any(part in ("", ".", "..") or part != part.strip() for part in parts)
        or len(name.encode("utf-8", errors="replace")) > 1024
    )


def _check_overlap(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    """No two members may share bytes: that is how small files unpack to petabytes."""
    end = 0
    for info in sorted(infos, key=lambda info: info.header_offset):
        if info.header_offset < end:
            raise DataError(f"{path}: refused: member {info.filename!r}: overlaps another one")
        end = info.header_offset + _LOCAL_HEADER + info.compress_size


def _check_nesting(path: Path, infos: list[zipfile.ZipInfo]) -> None:
    """No file may stand where another one needs a folder."""
    names = {info.filename.casefold() for info in infos}
    for info in infos:
        for parent in PurePosixPath(info.filename.casefold()).parents:
            if str(parent) in names:
                raise DataError(
                    f"{path}: refused: member {info.filename!r}: below {str(parent)!r}, a file"
                )

"""A place for a side that came from elsewhere: made whole, or not at all."""

from __future__ import annotations

import hashlib
import re
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from kvstudy.base.digest import sha256_file
from kvstudy.base.errors import DataError, UsageError
from kvstudy.base.files import write_json
from kvstudy.bundle.publish import CHECKSUMS
from kvstudy.bundle.unpack import Limits, opened
from kvstudy.bundle.verify import Report, listing, unpacked

ORIGIN = "import.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,79}")
_RESERVED = ("measured", "emulated", "imported", "predicted")


def place_for(root: Path, name: str) -> Path:
    """Where an imported side of this name lies; UsageError for a name that cannot be taken."""
    if not _NAME.fullmatch(name) or name in _RESERVED:
        raise UsageError(
            f"--as {name!r}: expected letters, digits, '.', '_' and '-', beginning with a letter "
            f"or digit, at most 80, and not one of {', '.join(_RESERVED)}"
        )
    place = root / "imported" / name
    if place.exists():
        raise UsageError(f"--as {name}: {place} exists; choose another name, or delete it first")
    return place


@contextmanager
def arriving(place: Path) -> Iterator[Path]:
    """A fresh folder that becomes `place` on a clean exit, and vanishes on any other."""
    place.parent.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix=f".{place.name}.", dir=place.parent))
    try:
        yield folder
        folder.chmod(0o755)
        folder.rename(place)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def bring(report: Report, place: Path, limits: Limits | None = None) -> dict[str, Any]:
    """Unpack a bundle that was found sound; every file is hashed once more on its way.

    Raises DataError when the file is no longer the one that was verified.
    """
    with opened(report.bundle, limits) as archive, arriving(place) as folder:
        sums = archive.read(CHECKSUMS)
        if hashlib.sha256(sums).hexdigest() != report.content_sha256:
            raise DataError(f"{report.bundle}: changed after it was verified")
        files = folder / "files"
        bad = list(unpacked(archive, listing(sums, report.bundle), files, lambda _name: True))
        if bad:
            raise DataError(f"{report.bundle}: {bad[0].name}: changed after it was verified")
        for path in sorted(files.iterdir()):
            path.rename(folder / path.name)
        files.rmdir()
        (folder / CHECKSUMS).write_bytes(sums)
        origin = {
            "kind": "bundle",
            "file": report.bundle.name,
            "file_sha256": sha256_file(report.bundle),
            "content_sha256": report.content_sha256,
            "study": report.about.get("study"),
            "backend": report.about.get("backend"),
            "commits": report.about.get("commits"),
        }
        write_json(folder / ORIGIN, origin)
    return origin

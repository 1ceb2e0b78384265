"""Files at rest: a hash once, then a cheap look before each use.

The cheap look compares size, modification time and inode. When one of them differs the file is
hashed again: a file that was only copied or touched passes, an altered one does not.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from kvstudy.base.digest import sha256_file
from kvstudy.base.errors import PinError
from kvstudy.base.units import NS_PER_S

Stamp = dict[str, Any]
_EVERY_NS = 5 * NS_PER_S
_GB = 1e9


def stamp(path: Path, sha256: str | None = None) -> Stamp:
    """Path, size, mtime and inode of a file, with its SHA-256; hashed here when not given.

    Raises PinError when the file changes while it is hashed.
    """
    before = _look(path)
    if sha256 is None:
        sha256 = sha256_file(path, progress_of(path))
        if _look(path) != before:
            raise PinError(f"{path}: the file changes while it is hashed; let no job write it")
    return {"path": str(path), **before, "sha256": sha256}


def unchanged(known: Mapping[str, Any]) -> bool:
    """The cheap look: whether size, mtime and inode are as they were."""
    try:
        now = _look(Path(known["path"]))
    except OSError:
        return False
    return all(now[key] == known[key] for key in now)


def recheck(known: Mapping[str, Any], what: str, *, full: bool = False) -> Stamp:
    """Look at a file again, cheaply unless `full`; returns its stamp, renewed when it moved.

    Raises PinError naming the file, what was expected and what was found.
    """
    path = Path(known["path"])
    if not full and unchanged(known):
        return dict(known)
    if not path.is_file():
        raise PinError(f"{what}: {path} is gone; run the pin rules again")
    size = path.stat().st_size
    if size != known["size"]:
        raise PinError(f"{what}: {path}: expected {known['size']} bytes, found {size}")
    renewed = stamp(path)
    if renewed["sha256"] != known["sha256"]:
        raise PinError(
            f"{what}: {path} was altered after it was verified: expected sha256 "
            f"{known['sha256']}, found {renewed['sha256']}. Delete it and run the pin rules again"
        )
    return renewed


def progress_of(path: Path, clock: Callable[[], int] = time.monotonic_ns) -> Callable[[int], None]:
    """A callback that prints a line on stderr every few seconds while a file is hashed."""
    total = path.stat().st_size
    last = clock()

    def show(done: int) -> None:
        nonlocal last
        if clock() - last >= _EVERY_NS:
            last = clock()
            share = 100 * done / max(total, 1)
            say(f"hashing {path.name}: {done / _GB:.1f} of {total / _GB:.1f} GB, {share:.0f} %")

    return show


def say(line: str) -> None:
    """One line for the log of the step."""
    print(line, file=sys.stderr, flush=True)  # noqa: T201 - steps log to stderr


def _look(path: Path) -> dict[str, int]:
    found = os.stat(path)  # noqa: PTH116 - follows links, as an engine that opens it does
    return {"size": found.st_size, "mtime_ns": found.st_mtime_ns, "inode": found.st_ino}

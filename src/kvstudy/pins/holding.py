"""The shared cache: one writer at a time, and room for what is to come."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from kvstudy.base.errors import PinError
from kvstudy.pins.at_rest import say

_GB = 1e9


@contextmanager
def held(path: Path, what: str) -> Iterator[None]:
    """Hold a lock file for the time of a block; wait for the job that holds it, and say so.

    The kernel gives the lock back when its holder ends in any way. The file itself stays.
    Raises PinError where the file system has no locks.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except PermissionError:  # made by another user of a shared folder
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"{what}: another job is at it; waiting")
            fcntl.flock(descriptor, fcntl.LOCK_EX)
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP):
                raise
            raise PinError(
                f"{path.parent}: this file system has no file locks, so parallel jobs cannot share "
                "it. Set KVSTUDY_CACHE to a folder on another one"
            ) from None
        yield
    finally:
        os.close(descriptor)


def need_space(needs: Mapping[Path, float], what: str) -> None:
    """Raise PinError when a file system has less room than is about to be written.

    `needs` maps folders to bytes; folders on the same file system are added up.
    """
    by_device: dict[int, tuple[Path, float]] = {}
    for folder, amount in needs.items():
        folder.mkdir(parents=True, exist_ok=True)
        device = folder.stat().st_dev
        first, so_far = by_device.get(device, (folder, 0.0))
        by_device[device] = (first, so_far + amount)
    for folder, amount in by_device.values():
        free = shutil.disk_usage(folder).free
        if free < amount:
            raise PinError(
                f"{what}: needs about {amount / _GB:.3g} GB below {folder}, which has "
                f"{free / _GB:.3g} GB free. Nothing was fetched. Make room, or set KVSTUDY_CACHE "
                "(images) or HF_HOME (models) to a larger file system"
            )

"""Version texts of engines, made comparable."""

from __future__ import annotations

import re

_FINAL = 1 << 30

Release = tuple[int, int, int, int]


def release(version: str) -> Release:
    """(major, minor, patch, candidate); a final release comes after its candidates.

    A text that is no version is older than everything.
    """
    found = re.match(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:\.?rc(\d{1,6}))?", version)
    if found is None:
        return (0, 0, 0, 0)
    major, minor, patch, candidate = found.groups()
    return (
        int(major),
        int(minor),
        int(patch or 0),
        _FINAL if candidate is None else int(candidate),
    )


def same_version(pinned: str, found: str) -> bool:
    """Whether a reported version is the pinned one; a local suffix (`+cpu`) and a `v` are ignored.

    `0.32.0+cpu` is the pinned `0.32.0`; `1.3.0rc2` is not the pinned `1.3.0rc22`.
    """
    return _plain(pinned) == _plain(found)


def _plain(version: str) -> str:
    return version.strip().removeprefix("v").split("+", 1)[0]

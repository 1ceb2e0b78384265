"""Canonical JSON and SHA-256: the identities that specs, files and cells are known by."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

_READ_BYTES = 1 << 22


def canonical_json(value: Any) -> str:
    """One text per value: keys sorted, no spaces, ASCII only, no NaN or infinity.

    Raises ValueError for values JSON cannot hold.
    """
    return json.dumps(
        value, sort_keys=True, separators=(",", ":"), ensure_ascii=True, allow_nan=False
    )


def sha256_text(text: str) -> str:
    """Hex SHA-256 of the UTF-8 bytes of `text`."""
    return hashlib.sha256(text.encode()).hexdigest()


def sha256_json(value: Any) -> str:
    """Hex SHA-256 of the canonical JSON of `value`."""
    return sha256_text(canonical_json(value))


def sha256_token_ids(token_ids: list[int]) -> str:
    """Hex SHA-256 of token ids as little-endian unsigned 32-bit integers."""
    return hashlib.sha256(b"".join(i.to_bytes(4, "little") for i in token_ids)).hexdigest()


def sha256_file(path: Path, progress: Callable[[int], None] | None = None) -> str:
    """Hex SHA-256 of a file, streamed; `progress` is called with the bytes hashed so far."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as handle:
        while chunk := handle.read(_READ_BYTES):
            digest.update(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done)
    return digest.hexdigest()


def code_digest(package_root: Path, *modules: str) -> str:
    """One digest over source files or folders of the package.

    `modules` are dotted names below `kvstudy` (`"metrics"`, `"report.figures"`). Rules of cheap
    stages carry it as a parameter, so that a code change reruns what it touches.
    Raises FileNotFoundError for a module that does not exist.
    """
    digest = hashlib.sha256()
    for module in modules:
        base = package_root.joinpath(*module.split("."))
        files = sorted(base.rglob("*.py")) if base.is_dir() else [base.with_suffix(".py")]
        for path in files:
            digest.update(path.relative_to(package_root).as_posix().encode())
            digest.update(path.read_bytes())
    return digest.hexdigest()[:16]

"""A folder of model files against a commit's listing: every file, by the hub's own hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvstudy.base.errors import PinError
from kvstudy.pins.at_rest import Stamp, progress_of, say, unchanged
from kvstudy.pins.hub import HubFile, Listing

FOLDER_MANIFEST = "kvstudy-manifest.json"
"""A listing that travels inside a staged folder."""

_READ_BYTES = 1 << 22
_READ_BY_ENGINES = (
    *(".bin", ".gguf", ".pt", ".pth", ".safetensors", ".so"),
    *(".cfg", ".jinja", ".json", ".model", ".py", ".tiktoken", ".txt"),
)
_NOT_MODEL = (".cache/", ".git/", ".huggingface/")


@dataclass(frozen=True, slots=True)
class Report:
    """What was found in a folder."""

    stamps: dict[str, Stamp]
    extra: list[str]
    hashed: int


def verify_folder(
    folder: Path,
    listing: Listing,
    pinned: Mapping[str, str],
    known: Mapping[str, Stamp],
    *,
    full: bool = False,
) -> Report:
    """Verify every file; files whose stamp in `known` still holds are not read again.

    `pinned` are the hashes of the configuration. Raises PinError with every problem found: the
    file, what was expected and what was found.
    """
    what = f"model {listing.repo} at {listing.revision}"
    problems: list[str] = []
    stamps: dict[str, Stamp] = {}
    hashed = 0
    for name, expected in sorted(listing.files.items()):
        path = folder / name
        old = known.get(name)
        if old is not None and not full and old["path"] == str(path) and unchanged(old):
            stamps[name] = dict(old)
            continue
        found = _verify_file(path, name, expected, problems)
        if found is not None:
            stamps[name] = found
            hashed += 1
    problems += _pins(pinned, stamps, listing)
    extra = extra_files(folder, listing)
    problems += [
        f"{name}: not in the commit, and an engine would read it; remove it from {folder}"
        for name in extra
        if Path(name).suffix.lower() in _READ_BY_ENGINES
    ]
    for name in extra:
        say(f"{what}: {folder / name} is not in the commit")
    if problems:
        raise PinError("\n  ".join([f"{what}: {len(problems)} problem(s) in {folder}", *problems]))
    return Report(stamps, extra, hashed)


def extra_files(folder: Path, listing: Listing) -> list[str]:
    """Files of a folder that the commit does not have."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(
        name
        for name in names
        if name not in listing.files and name != FOLDER_MANIFEST and not name.startswith(_NOT_MODEL)
    )


def hashes_of(path: Path, size: int) -> tuple[str, str]:
    """SHA-256 and git blob id of a file of `size` bytes, in one pass."""
    sha256 = hashlib.sha256()
    blob = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    show = progress_of(path)
    done = 0
    with path.open("rb") as handle:
        while piece := handle.read(_READ_BYTES):
            sha256.update(piece)
            blob.update(piece)
            done += len(piece)
            show(done)
    return sha256.hexdigest(), blob.hexdigest()


def _verify_file(path: Path, name: str, expected: HubFile, problems: list[str]) -> Stamp | None:
    if not path.is_file():
        problems.append(f"{name}: missing; run again to fetch it")
        return None
    before = path.stat()
    if before.st_size != expected.size:
        problems.append(
            f"{name}: expected {expected.size} bytes, found {before.st_size}. {_remove(path)}"
        )
        return None
    sha256, blob = hashes_of(path, before.st_size)
    found = sha256 if expected.algorithm == "sha256" else blob
    if found != expected.digest:
        problems.append(
            f"{name}: expected {expected.algorithm} {expected.digest}, found {found}. "
            f"{_remove(path)}"
        )
        return None
    after = path.stat()
    if (before.st_mtime_ns, before.st_ino) != (after.st_mtime_ns, after.st_ino):
        problems.append(f"{name}: changes while it is hashed; let no job write it")
        return None
    return {
        "path": str(path),
        "size": before.st_size,
        "mtime_ns": before.st_mtime_ns,
        "inode": before.st_ino,
        "sha256": sha256,
    }


def _remove(path: Path) -> str:
    """What to delete before the next try: the file, and the blob a hub link leads to."""
    paths: Iterable[Path] = [path, path.resolve()] if path.is_symlink() else [path]
    return f"Delete {' and '.join(map(str, paths))}, then run again"


def _pins(pinned: Mapping[str, str], stamps: Mapping[str, Stamp], listing: Listing) -> list[str]:
    problems = []
    for name, digest in sorted(pinned.items()):
        wanted = digest.removeprefix("sha256:")
        if name not in listing.files:
            problems.append(f"{name}: pinned in model.files, but the commit has no such file")
        elif name in stamps and stamps[name]["sha256"] != wanted:
            problems.append(
                f"{name}: expected sha256 {wanted} (model.files), found {stamps[name]['sha256']}: "
                "the commit holds another file than the one pinned"
            )
    return problems

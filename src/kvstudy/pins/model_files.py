"""A folder of model files against a commit's listing: every file, by the hub's own hashes."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from kvstudy.base.errors import PinError
from kvstudy.pins.at_rest import Stamp, progress_of, say, unchanged
from kvstudy.pins.hub import HubFile, Listing

FOLDER_MANIFEST = "kvstudy-manifest.json"
"""A listing that travels inside a staged folder."""

_READ_BYTES = 1 << 22
_READERS = 4
"""Files hashed at the same time; hashing runs outside the interpreter's lock."""
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
    stamps: dict[str, Stamp] = {}
    unread = {}
    for name, expected in sorted(listing.files.items()):
        path = folder / name
        old = known.get(name)
        if old is not None and not full and old["path"] == str(path) and unchanged(old):
            stamps[name] = dict(old)
        else:
            unread[name] = expected
    read, problems = _read(folder, unread)
    stamps |= read
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
    return Report(stamps, extra, len(unread))


def _read(folder: Path, files: Mapping[str, HubFile]) -> tuple[dict[str, Stamp], list[str]]:
    """Hash files side by side: stamps of the good ones, a line for each of the others."""
    stamps: dict[str, Stamp] = {}
    problems = []
    with ThreadPoolExecutor(max_workers=_READERS) as pool:
        jobs = {name: pool.submit(_verify_file, folder / name, e) for name, e in files.items()}
        for name, job in jobs.items():
            found = job.result()
            if isinstance(found, str):
                problems.append(f"{name}: {found}")
            else:
                stamps[name] = found
    return stamps, problems


def extra_files(folder: Path, listing: Listing) -> list[str]:
    """Files of a folder that the commit does not have."""
    names = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(
        name
        for name in names
        if name not in listing.files and name != FOLDER_MANIFEST and not name.startswith(_NOT_MODEL)
    )


def hashes_of(path: Path, size: int, *, git: bool) -> tuple[str, str]:
    """SHA-256 of a file of `size` bytes and, when `git`, its git blob id, in one pass."""
    sha256 = hashlib.sha256()
    blob = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)
    show = progress_of(path)
    done = 0
    with path.open("rb") as handle:
        while piece := handle.read(_READ_BYTES):
            sha256.update(piece)
            if git:
                blob.update(piece)
            done += len(piece)
            show(done)
    return sha256.hexdigest(), blob.hexdigest() if git else ""


def _verify_file(path: Path, expected: HubFile) -> Stamp | str:
    """The file's stamp, or what is wrong with it."""
    if not path.is_file():
        return "missing; run again to fetch it"
    before = path.stat()
    if before.st_size != expected.size:
        return f"expected {expected.size} bytes, found {before.st_size}. {_remove(path)}"
    git = expected.algorithm == "git-sha1"
    sha256, blob = hashes_of(path, before.st_size, git=git)
    found = blob if git else sha256
    if found != expected.digest:
        return f"expected {expected.algorithm} {expected.digest}, found {found}. {_remove(path)}"
    after = path.stat()
    if (before.st_mtime_ns, before.st_ino) != (after.st_mtime_ns, after.st_ino):
        return "changes while it is hashed; let no job write it"
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

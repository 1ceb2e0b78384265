"""The cell store: attempts of cells, written once, checksummed, never deleted by a rule.

Layout: `<store>/<cell id>/<spec digest>/attempt-<n>/`. An attempt is finished once its
`manifest.json` (the SHA-256 of every other file) exists; without one it is partial: kept for the
reader, never used for a result. Folders are made exclusively, so two copies of one job can never
write the same attempt.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstudy.base.digest import sha256_file
from kvstudy.base.errors import DataError
from kvstudy.base.files import read_json, replacing, sync, write_json

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True)
class Attempt:
    """One numbered attempt at one cell."""

    folder: Path
    number: int

    @property
    def finished(self) -> bool:
        """Whether the attempt has its manifest."""
        return (self.folder / MANIFEST).is_file()

    def seal(self, facts: dict[str, Any]) -> None:
        """Finish the attempt: every file is synced and hashed, the manifest comes last."""
        hashes = {}
        for path in sorted(self.folder.rglob("*")):
            if path.is_file() and path.name != MANIFEST:
                sync(path)
                hashes[path.relative_to(self.folder).as_posix()] = sha256_file(path)
        write_json(self.folder / MANIFEST, {"files": hashes, "facts": facts})

    def damage(self) -> list[str]:
        """Files that are missing or do not match the manifest; empty when all is well."""
        if not self.finished:
            return [MANIFEST]
        files: dict[str, str] = read_json(self.folder / MANIFEST)["files"]
        bad = []
        for name, expected in files.items():
            path = self.folder / name
            if not path.is_file() or sha256_file(path) != expected:
                bad.append(name)
        return bad


class CellStore:
    """All attempts of one cell under one spec digest."""

    def __init__(self, root: Path, cell_id: str, digest: str) -> None:
        self.folder = root / cell_id / digest

    def attempts(self) -> list[Attempt]:
        """Every attempt, finished or not, by number."""
        found = []
        if self.folder.is_dir():
            for path in self.folder.iterdir():
                number = path.name.removeprefix("attempt-")
                if path.is_dir() and number.isdecimal():
                    found.append(Attempt(path, int(number)))
        return sorted(found, key=lambda attempt: attempt.number)

    def finished(self, wanted: int) -> Attempt | None:
        """The newest undamaged finished attempt with a number of at least `wanted`."""
        for attempt in reversed(self.attempts()):
            if attempt.number >= wanted and attempt.finished and not attempt.damage():
                return attempt
        return None

    def start(self, wanted: int) -> Attempt:
        """Make the folder of a new attempt: the first free number from `wanted` on."""
        self.folder.mkdir(parents=True, exist_ok=True)
        taken = [attempt.number for attempt in self.attempts()]
        number = max([wanted - 1, *taken]) + 1
        while True:
            folder = self.folder / f"attempt-{number}"
            try:
                folder.mkdir(mode=0o755)
            except FileExistsError:
                number += 1
                continue
            return Attempt(folder, number)


def materialise(attempt: Attempt, names: list[str], target: Path) -> None:
    """Copy an attempt's files into `target`, so that nothing done there can reach the store.

    Raises DataError when a file of the attempt does not match its manifest.
    """
    bad = attempt.damage()
    if bad:
        raise DataError(
            f"{attempt.folder}: damaged or missing: {', '.join(bad)}. The attempt is kept as "
            "it is; run the pipeline again to measure the cell anew"
        )
    for name in names:
        with replacing(target / name) as temporary:
            shutil.copyfile(attempt.folder / name, temporary)

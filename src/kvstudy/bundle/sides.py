"""A set of results wherever it lies: a results folder, an imported side, or a bundle."""

from __future__ import annotations

import difflib
import json
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvstudy.base import tables
from kvstudy.base.errors import DataError, UsageError
from kvstudy.base.files import read_json
from kvstudy.bundle.parquet import check_size
from kvstudy.bundle.publish import CHECKSUMS
from kvstudy.bundle.unpack import Archive, opened
from kvstudy.bundle.verify import listing, unpacked

_WANTED = ("study.json", "plan.json", "import.json", "pins/lock.json", "tables/", "stats/")
MAY_BE_NULL = (
    "chunk_count",
    "empty_chunk_count",
    "planned_input_tokens",
    "planned_output_tokens",
    "output_cap_tokens",
)
"""Columns of requests that foreign results need not state."""

FOREIGN_REQUESTS = tables.nullable(tables.REQUESTS, *MAY_BE_NULL)


@dataclass(frozen=True)
class Results:
    """Tables and documents of one side; a document that is not there is empty."""

    name: str
    cells: pa.Table
    folder: Path
    config: dict[str, Any]
    runs: dict[str, Any]
    lock: dict[str, Any]
    workloads: dict[str, dict[str, Any]]
    contrasts: list[dict[str, Any]] = field(default_factory=list)
    foreign: bool = False

    def requests(self, columns: list[str] | None = None) -> pa.Table:
        """Request rows, all or some columns."""
        schema = FOREIGN_REQUESTS if self.foreign else tables.REQUESTS
        return tables.read(self.folder / "tables" / "requests.parquet", schema, columns)

    def cell_rows(self, source: str, cell_id: str) -> list[dict[str, Any]]:
        """Request rows of one cell."""
        return self._filtered("requests", source, cell_id)

    def iteration_rows(self, source: str, cell_id: str) -> list[dict[str, Any]]:
        """Iteration rows of one cell."""
        return self._filtered("iterations", source, cell_id)

    def _filtered(self, table: str, source: str, cell_id: str) -> list[dict[str, Any]]:
        path = self.folder / "tables" / f"{table}.parquet"
        wanted = [("source", "=", source), ("cell_id", "=", cell_id)]
        rows: list[dict[str, Any]] = pq.read_table(path, filters=wanted).to_pylist()
        return rows


@contextmanager
def results_of(text: str, root: Path) -> Iterator[Results]:
    """The results that a word of the command line means.

    A path to a folder with `tables/`, a path to a bundle, the name of a backend, or the name of
    an imported side. Raises UsageError, with the closest name, for anything else.
    """
    path = _place(text, root)
    if path.is_dir():
        yield _loaded(text, path)
        return
    with opened(path) as archive, tempfile.TemporaryDirectory(prefix="kvstudy-") as tmp:
        folder = Path(tmp, "bundle")
        _take(archive, folder)
        yield _loaded(text, folder)


def _place(text: str, root: Path) -> Path:
    known = {
        **{name: root / name for name in ("measured", "emulated")},
        **{p.name: p for p in sorted((root / "imported").glob("*")) if p.is_dir()},
    }
    given = Path(text)
    for path in (given, known.get(text, given), given / "measured", given / "emulated"):
        if path.is_file() or (path / "tables" / "cells.parquet").is_file():
            return path
    names = [name for name, path in known.items() if (path / "tables").is_dir()]
    close = difflib.get_close_matches(text, names, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else f"; here are: {', '.join(names) or 'none'}"
    raise UsageError(
        f"{text!r}: neither a bundle, nor a folder with tables/, nor results of {root}{hint}"
    )


def _take(archive: Archive, folder: Path) -> None:
    """Unpack what a comparison reads; a file that does not match its checksum stops it."""
    listed = listing(archive.read(CHECKSUMS), archive.path)
    wanted = {name: sha for name, sha in listed.items() if _is_wanted(name)}
    known = set(archive.names)
    folder.mkdir()
    for found in unpacked(archive, wanted, folder / "files", lambda _name: True):
        if found.name in wanted or found.name not in known:
            raise DataError(f"{archive.path}: {found.name}: {found.what}; see kvstudy verify")
    for path in (folder / "files").iterdir():
        path.rename(folder / path.name)


def _is_wanted(name: str) -> bool:
    is_digests = name.startswith("workloads/") and name.endswith(".json")
    return name.startswith(_WANTED) or is_digests


def _loaded(name: str, folder: Path) -> Results:
    for path in (folder / "tables").glob("*.parquet"):
        check_size(path)
    origin = _json(folder / "import.json")
    contrasts = folder / "stats" / "contrasts.parquet"
    return Results(
        name=name,
        cells=tables.read(folder / "tables" / "cells.parquet", tables.CELLS),
        folder=folder,
        config=_json(folder / "study.json").get("config", {}),
        runs=_json(folder / "tables" / "runs.json"),
        lock=_json(folder / "pins" / "lock.json"),
        workloads={
            path.stem: read_json(path)["requests"]
            for path in sorted((folder / "workloads").glob("*.json"))
        },
        contrasts=(
            tables.read(contrasts, tables.CONTRASTS).to_pylist() if contrasts.is_file() else []
        ),
        foreign=origin.get("kind") == "foreign",
    )


def _json(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    found = read_json(path)
    if not isinstance(found, dict):
        raise DataError(f"{path}: expected a JSON object, got {json.dumps(found)[:40]}")
    return found

"""One results folder to one bundle: scrubbed, described, checksummed, the same bytes each time."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime, timedelta
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import kvstudy
from kvstudy.base.digest import code_digest
from kvstudy.base.errors import UsageError
from kvstudy.base.files import read_json
from kvstudy.bundle.contents import contents_of
from kvstudy.bundle.crate import README, Run, metadata
from kvstudy.bundle.pack import Member, chunks_of, in_memory, write_zip
from kvstudy.bundle.parquet import scrubbed_parquet
from kvstudy.bundle.scrub import Scrubber
from kvstudy.report.text import markdown

FORMAT = "kvstudy-bundle-1"
CHECKSUMS, ABOUT, CRATE = "checksums.json", "bundle.json", "ro-crate-metadata.json"
CODE_OF_NUMBERS = ("base.tables", "metrics", "stats", "steps.build_tables", "steps.compare_arms")
_TEXT = (
    ".json", ".jsonl", ".log", ".md", ".html", ".csv", ".svg", ".yaml", ".yml", ".txt", ".smk",
    ".cff", "Snakefile", "LICENSE",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Published:
    """What was written."""

    path: Path
    members: int
    bytes: int
    content_sha256: str
    absent: list[str]
    scrubbed: dict[str, int]


def publish(
    results: Path,
    out: Path,
    *,
    checkout: Path,
    licence: str,
    with_tokenizer: bool = False,
    scrubber: Scrubber | None = None,
) -> Published:
    """Write the bundle of a results folder to `out`, whole or not at all."""
    if out.suffix != ".zip":
        raise UsageError(f"--out {out}: expected a name that ends in .zip")
    found = contents_of(results, checkout, with_tokenizer=with_tokenizer)
    scrubber = scrubber or Scrubber()
    members, scrubbed = [], {}
    for name, path in sorted(found.files.items()):
        member, hits = _member(name, path, scrubber)
        members.append(member)
        if hits:
            scrubbed[name] = hits
    run = _run(results)
    members += [
        _document("launch_commands.json", _launches(results), scrubber),
        _document("environment.json", _environment(results), scrubber),
        _document(ABOUT, _about(results, run, found.absent, scrubbed), scrubber),
    ]
    members.append(in_memory(README, _readme(run).encode()))
    crate = metadata(run, {m.name: (m.size, m.sha256) for m in members}, licence)
    members.append(_document(CRATE, crate, scrubber))
    sums = _document(CHECKSUMS, checksums(members), None)
    write_zip(out, [*members, sums])
    size = out.stat().st_size
    return Published(out, len(members) + 1, size, sums.sha256, found.absent, scrubbed)


def checksums(members: list[Member]) -> dict[str, Any]:
    """The document that names every other member with its SHA-256 and size."""
    return {
        "format": FORMAT,
        "files": {m.name: {"bytes": m.size, "sha256": m.sha256} for m in members},
    }


def code_of_numbers() -> str:
    """Identity of the code between raw rows and tables: where it differs, numbers may."""
    return code_digest(Path(kvstudy.__file__).parent, *CODE_OF_NUMBERS)


def _member(name: str, path: Path, scrubber: Scrubber) -> tuple[Member, int]:
    """A file as a member, and how many of its lines or rows held a secret."""
    if name.endswith(".parquet"):
        content, hits = scrubbed_parquet(path, scrubber)
        if content is not None:
            return in_memory(name, content), hits
        return _hashed(name, partial(chunks_of, path))[0], 0
    if not name.endswith(_TEXT) or name.startswith("tokenizer/"):
        return _hashed(name, partial(chunks_of, path))[0], 0
    member, hits = _hashed(name, partial(_clean_lines, path, scrubber))
    if not hits:
        # Nothing to mask: the second pass copies the file as it is.
        member = Member(name, partial(chunks_of, path), member.size, member.sha256)
    return member, hits


class _Lines(Iterator[bytes]):
    """Scrubbed lines of a file; counts the lines that changed."""

    def __init__(self, path: Path, scrubber: Scrubber) -> None:
        self.hits = 0
        self._lines = self._read(path, scrubber)

    def _read(self, path: Path, scrubber: Scrubber) -> Iterator[bytes]:
        with path.open("rb") as handle:
            for line, changed in scrubber.lines(handle):
                self.hits += changed
                yield line

    def __next__(self) -> bytes:
        return next(self._lines)


def _clean_lines(path: Path, scrubber: Scrubber) -> _Lines:
    return _Lines(path, scrubber)


def _hashed(name: str, chunks: partial[Any]) -> tuple[Member, int]:
    digest, size = hashlib.sha256(), 0
    source = chunks()
    for chunk in source:
        digest.update(chunk)
        size += len(chunk)
    hits = source.hits if isinstance(source, _Lines) else 0
    return Member(name, chunks, size, digest.hexdigest()), hits


def _document(name: str, value: Any, scrubber: Scrubber | None) -> Member:
    text = json.dumps(value, indent=2, sort_keys=True, allow_nan=False).encode() + b"\n"
    if scrubber is not None:
        lines = text.splitlines(keepends=True)
        text = b"".join(line for line, _ in scrubber.lines(lines))
    return in_memory(name, text)


_README = """# {title}

Results of the study {study} on the {backend} backend, made by `kvstudy publish`.

- `report/index.html`: the report; `report/report.md`: the same numbers as Markdown.
- `tables/`, `stats/`: tidy Parquet tables; `figures/`: each figure with its data.
- `cells/`: for each cell the raw row of every request, the texts, telemetry as read, the
  server's log and files; `predicted/`: the same cell in virtual time.
- `study.json`: the exact configuration; `pins/lock.json`: everything that was pinned;
  `launch_commands.json`, `environment.json`: how and where each server ran.
- `bundle.json`: commits, what is absent and why, what was masked.
- `checksums.json`: the SHA-256 of every file; `ro-crate-metadata.json`: Workflow Run RO-Crate.

`kvstudy verify BUNDLE` hashes every file and recomputes every table from the raw rows.
"""


def _readme(run: Run) -> str:
    return _README.format(title=markdown(run.title), study=markdown(run.study), backend=run.backend)


# ---- what the run says of itself -------------------------------------------------------------


def _runs(results: Path) -> dict[str, dict[str, Any]]:
    runs: dict[str, dict[str, Any]] = read_json(results / "tables" / "runs.json")
    return runs


def _run(results: Path) -> Run:
    """Names, commits and times of the run; all of them from the results, none from today."""
    study, runs = read_json(results / "study.json"), _runs(results)
    starts = sorted(datetime.fromisoformat(run["started_at"]) for run in runs.values())
    ends = sorted(
        datetime.fromisoformat(run["started_at"])
        + timedelta(seconds=round(sum(run["phases_s"].values())))
        for run in runs.values()
    )
    return Run(
        study=study["config"]["study"],
        title=study["config"]["title"],
        backend=study["config"]["backend"],
        commits=tuple(sorted({run["commit"] for run in runs.values() if run["commit"]})),
        started_at=starts[0].isoformat() if starts else None,
        ended_at=ends[-1].isoformat() if ends else None,
    )


def _about(results: Path, run: Run, absent: list[str], scrubbed: dict[str, int]) -> dict[str, Any]:
    runs = _runs(results)
    return {
        "format": FORMAT,
        "study": run.study,
        "title": run.title,
        "backend": run.backend,
        "commits": list(run.commits),
        "dirty_checkout": any(found["dirty"] for found in runs.values()),
        "started_at": run.started_at,
        "ended_at": run.ended_at,
        "cells": len(read_json(results / "plan.json")["cells"]),
        "cells_run": len(runs),
        "kvstudy": version("kvstudy"),
        "code": code_of_numbers(),
        "absent": sorted(absent),
        "scrubbed": scrubbed,
    }


def _launches(results: Path) -> dict[str, Any]:
    """How each cell's server was started: command line, environment (masked), its files."""
    return {
        cell_id: {key: run.get(key) for key in ("argv", "env", "files", "versions", "resolved")}
        for cell_id, run in _runs(results).items()
    }


def _environment(results: Path) -> dict[str, Any]:
    """Where each cell ran, on what, with which pins and from which commit."""
    keys = ("host", "gpu", "versions", "pins", "commit", "dirty", "started_at", "time_scale")
    return {cell_id: {key: run.get(key) for key in keys} for cell_id, run in _runs(results).items()}

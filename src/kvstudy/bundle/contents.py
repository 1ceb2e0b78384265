"""What a bundle holds: which files of a results folder, under which names, and what is absent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstudy.base.errors import DataError
from kvstudy.base.files import read_json
from kvstudy.base.store import CellStore

REQUIRED = (
    "study.json",
    "plan.json",
    "tables/cells.parquet",
    "tables/requests.parquet",
    "tables/iterations.parquet",
    "tables/runs.json",
    "stats/contrasts.parquet",
    "stats/verdicts.parquet",
    "report/index.html",
    "report/report.md",
    "pins/lock.json",
    "tokenizer/tokenizer.digest.json",
)
OPTIONAL = {
    "stats/hypotheses.parquet": "the rival hypotheses",
    "stats/regimes.parquet": "the regime map",
    "figures/manifest.json": "the figures",
}
CELL_FILES = (
    "requests.parquet",
    "outputs.parquet",
    "iterations.parquet",
    "run.json",
    "check.json",
)
PREDICTED_FILES = ("requests.parquet", "iterations.parquet", "run.json")
_FOLDERS = ("tables", "stats", "figures", "report", "pins", "workloads", "allocations", "logs")


@dataclass(slots=True)
class Contents:
    """Bundle name to file, and what a reader might look for in vain."""

    files: dict[str, Path] = field(default_factory=dict)
    absent: list[str] = field(default_factory=list)

    def add(self, name: str, path: Path) -> bool:
        """Take a file; links are never followed."""
        if path.is_symlink():
            self.absent.append(f"{name}: a link, and links are not followed")
            return False
        if path.is_file():
            self.files[name] = path
        return path.is_file()


def contents_of(results: Path, checkout: Path, *, with_tokenizer: bool) -> Contents:
    """Every file that goes into the bundle of a results folder.

    Raises DataError naming the first file that is missing and must be there.
    """
    found = Contents()
    for name in REQUIRED:
        if not found.add(name, results / name):
            raise DataError(f"{results / name}: no such file; run the study to its end first")
    for name, what in OPTIONAL.items():
        if not found.add(name, results / name):
            found.absent.append(f"{name}: {what} were not made in this run")
    for folder in _FOLDERS:
        for path in _plain_files(results / folder):
            found.add(path.relative_to(results).as_posix(), path)
    plan, study = read_json(results / "plan.json"), read_json(results / "study.json")
    _add_cells(found, results, plan)
    _add_tokenizer(found, results, with_tokenizer or plan["source"] == "emulated")
    _add_published(found, study, checkout)
    _add_workflow(found, checkout)
    return found


def _plain_files(folder: Path) -> Iterator[Path]:
    """Files below a folder but hidden ones."""
    for path in sorted(folder.rglob("*")):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            yield path


def _add_cells(found: Contents, results: Path, plan: dict[str, Any]) -> None:
    for cell in plan["cells"]:
        cell_id = cell["cell_id"]
        for name in PREDICTED_FILES:
            _must(found, f"predicted/{cell_id}/{name}", results)
        if not cell["runnable"]:
            found.absent.append(f"cells/{cell_id}: not run, its engine is not pinned")
            continue
        for name in CELL_FILES:
            _must(found, f"cells/{cell_id}/{name}", results)
        _add_attempt(found, results, cell)


def _must(found: Contents, name: str, results: Path) -> None:
    if not found.add(name, results / name):
        raise DataError(f"{results / name}: no such file; run the study to its end first")


def _add_attempt(found: Contents, results: Path, cell: dict[str, Any]) -> None:
    """What only the store holds of the attempt shown: telemetry, log, server files, manifest."""
    cell_id = cell["cell_id"]
    shown = read_json(results / "cells" / cell_id / "run.json")["attempt"]
    attempts = CellStore(results / "store", cell_id, cell["digest"]).attempts()
    for attempt in attempts:
        if attempt.number == shown:
            for path in _plain_files(attempt.folder):
                name = path.relative_to(attempt.folder).as_posix()
                if name not in CELL_FILES:
                    found.add(f"cells/{cell_id}/{name}", path)
    others = sum(attempt.number != shown for attempt in attempts)
    if others:
        found.absent.append(f"cells/{cell_id}: {others} other attempts stay in the store")
    for name, what in (("telemetry.jsonl", "raw telemetry"), ("server.log", "server log")):
        if f"cells/{cell_id}/{name}" not in found.files:
            found.absent.append(f"cells/{cell_id}/{name}: no {what} in the store")


def _add_tokenizer(found: Contents, results: Path, wanted: bool) -> None:
    if not wanted:
        found.absent.append(
            "tokenizer/: the model's tokenizer has a licence of its own (--with-tokenizer adds "
            "it); verify takes one by --tokenizer, and without it trusts the token counts"
        )
        return
    for path in _plain_files(results / "tokenizer"):
        found.add(path.relative_to(results).as_posix(), path)


def _add_published(found: Contents, study: dict[str, Any], checkout: Path) -> None:
    """Files of published numbers, numbered: their order is the order of the verdicts."""
    for index, name in enumerate(study["config"]["published"], start=1):
        path = checkout / name
        if not found.add(f"published/{index:02d}-{path.name}", path):
            raise DataError(
                f"{path}: no such file, but the verdicts were given on it; is {checkout} the "
                "checkout that ran the study? --checkout names another one"
            )


def _add_workflow(found: Contents, checkout: Path) -> None:
    if not found.add("workflow/Snakefile", checkout / "Snakefile"):
        raise DataError(f"{checkout}: no Snakefile here; name the checkout by --checkout")
    for path in _plain_files(checkout / "rules"):
        found.add(f"workflow/rules/{path.name}", path)
    for name in ("LICENSE", "CITATION.cff"):
        if not found.add(f"workflow/{name}", checkout / name):
            found.absent.append(f"workflow/{name}: none in the checkout")

"""One allocation: which of its cells are missing, and running those, one after another."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstudy.base import tables
from kvstudy.base.errors import CellError, KvstudyError
from kvstudy.base.files import read_json, write_json
from kvstudy.base.store import Attempt, CellStore
from kvstudy.cell.facts import commit
from kvstudy.cell.launch import Place
from kvstudy.cell.measure import Job, measure
from kvstudy.cell.progress import ProgressFile
from kvstudy.pins.lock import engine_digest
from kvstudy.pins.runtime import ready_runtime
from kvstudy.serve.model import DIR
from kvstudy.sim.of_cell import Prediction
from kvstudy.workload.requests import PROMPTS, in_order

Row = dict[str, Any]
EXPECTED = "expected.parquet"
LATE_TRIES = 3
"""Attempts at an emulated cell whose emulator was late; each runs at half the pace."""


@dataclass(frozen=True, slots=True)
class Inputs:
    """The files an allocation works with."""

    workload: Path
    tokenizer: Path
    image: Path
    probe: Path
    model: Path
    store: Path
    progress: Path


class Allocation:
    """The cells of one job on one GPU."""

    def __init__(self, spec: Row, inputs: Inputs, say: Callable[[str], None]) -> None:
        self._spec = spec
        self._inputs = inputs
        self._say = say
        self._commit = commit(Path.cwd())
        self._progress = ProgressFile(inputs.progress, spec["allocation"])
        self._lock: Row = {
            "image": read_json(inputs.image),
            "probe": read_json(inputs.probe),
            "model": read_json(inputs.model),
        }

    def _cells(self) -> list[tuple[Row, Row]]:
        """(entry, complete values) of each cell, in running order."""
        return [(cell, {**self._spec["shared"], **cell["values"]}) for cell in self._spec["cells"]]

    def _store(self, entry: Row, values: Row) -> CellStore:
        return CellStore(self._inputs.store, values["cell_id"], entry["digest"])

    def run(self) -> None:
        """Run every cell that is missing; a cell that fails spoils only itself.

        Raises CellError at the end if any failed, after the others have had their turn.
        """
        failures = []
        for entry, values in self._cells():
            store = self._store(entry, values)
            if store.finished(entry["attempt"]) is not None:
                self._say(f"{values['cell_id']}: in the store")
                self._progress.finish(values["cell_id"])
                continue
            try:
                self._measure(store, entry, values)
            except (KvstudyError, OSError) as error:
                self._say(f"{values['cell_id']}: failed: {error}")
                failures.append(f"{values['cell_id']}: {error}")
        if failures:
            raise CellError(
                "not_run",
                f"{len(failures)} of {len(self._spec['cells'])} cells failed; the others are in "
                "the store, and the next run does only what is missing\n" + "\n".join(failures),
            )

    def _measure(self, store: CellStore, entry: Row, values: Row) -> None:
        for late_try in range(LATE_TRIES):
            attempt = store.start(entry["attempt"])
            started = time.monotonic()
            job = self._job(attempt, values, slower=2**late_try)
            facts = asyncio.run(measure(job, attempt, self._progress))
            self._say(
                f"{values['cell_id']}: attempt {attempt.number} finished in "
                f"{time.monotonic() - started:.1f} s at time scale {job.place.time_scale:.2f}"
            )
            if "emulator_late" not in facts["reasons"]:
                return
            self._say(f"{values['cell_id']}: the emulator was late; once more at half the pace")

    def _job(self, attempt: Attempt, values: Row, slower: int) -> Job:
        phases = in_order(self._inputs.workload, values["workload"], values["repeat"], PROMPTS)
        emulated = values["backend"] == "emulated"
        scale, expected = 1.0, None
        if emulated:
            scale = max(1.0, self._time_scale(values, phases["measured"]) / slower)
            _write_expected(attempt.folder / EXPECTED, values, phases)
            expected = Path(DIR) / EXPECTED
        model, engine = self._lock["model"], values["engine"]["name"]
        place = Place(
            model=self._inputs.tokenizer.resolve() if emulated else Path(model["path"]),
            served_name=self._inputs.tokenizer.name if emulated else model["repo"],
            runtime=None if emulated else ready_runtime(self._lock["image"], engine),
            time_scale=scale,
            expected=expected,
        )
        head, dirty = self._commit
        return Job(values, phases, place, self._pins(), head, dirty)

    def _pins(self) -> Row:
        """What the cell records of its pins."""
        image, model = self._lock["image"], self._lock["model"]
        return {
            "image_digest": image.get("manifest_digest"),
            "sif_sha256": image.get("sif_sha256"),
            "model_revision": model.get("revision"),
            "engine_digest": engine_digest(image, self._lock["probe"], model),
        }

    @staticmethod
    def _time_scale(values: Row, measured: list[Row]) -> float:
        """Study seconds per wall second: the pace at which the busiest seconds stay in reach."""
        slice_of_prediction = {
            **values,
            "adapter": values["engine"]["adapter"],
            "pause": values["engine"]["emulate"]["pause"],
        }
        peak = Prediction(slice_of_prediction, measured).peak_chunks_per_s()
        return float(values["emulator"]["chunks_per_s"] / peak)

    def write_manifest(self, path: Path) -> None:
        """Write which attempt of each cell stands for it."""
        entries = {}
        for entry, values in self._cells():
            attempt = self._store(entry, values).finished(entry["attempt"])
            if attempt is None:
                raise CellError("not_run", f"{values['cell_id']}: no finished attempt in the store")
            entries[values["cell_id"]] = {"digest": entry["digest"], "attempt": attempt.number}
        write_json(path, {"allocation": self._spec["allocation"], "cells": entries})


def _write_expected(path: Path, values: Row, phases: dict[str, list[Row]]) -> None:
    """What the emulator will be sent, by prompt digest: no API carries a true length."""
    warmup = values["workload"]["warmup"]
    lanes = {"warmup": warmup["concurrency"] if warmup else 0, "measured": values["concurrency"]}
    rows = [
        {
            "phase": phase,
            "position": position,
            "prompt_sha256": row["prompt_sha256"],
            "output_tokens": row["output_tokens"],
            "concurrency": lanes[phase],
        }
        for phase, members in phases.items()
        for position, row in enumerate(members)
    ]
    tables.write(path, rows, tables.EXPECTED)

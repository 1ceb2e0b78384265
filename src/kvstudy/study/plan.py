"""Config to the ordered plan: cells, allocations, and the JSON slices that rules hand to steps.

Methods named `*_spec` and `*_of` take Snakemake's wildcards object (anything with attributes) and
return values that depend on nothing else, so that a changed slice reruns exactly what it touches.
A slice is at once the step's data, its provenance and its rerun trigger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from functools import cached_property
from pathlib import Path
from typing import Any

from kvstudy.base.digest import canonical_json, code_digest, sha256_json
from kvstudy.study.cost import allocation_minutes
from kvstudy.study.model import TO_BE_PINNED, Config
from kvstudy.study.parse import parse_config
from kvstudy.study.sense import output_cap, resolve_arm, resolve_server

MEASURE_VERSION = "1"
"""Raised when the way of measuring changes a cell's numbers; part of every cell's identity."""

_PACKAGE = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Cell:
    """The unit of measuring: workload x concurrency x engine x arm x repeat."""

    workload: str
    concurrency: int
    engine: str
    arm: str
    repeat: int

    @property
    def id(self) -> str:
        """Stable id, also a folder name."""
        return f"{self.allocation}.{self.arm}.r{self.repeat}"

    @property
    def allocation(self) -> str:
        """Id of the allocation that runs it: one job on one GPU."""
        return f"{self.workload}.c{self.concurrency}.{self.engine}"


@dataclass(frozen=True)
class Study:
    """A checked configuration and everything that follows from it alone."""

    config: Config

    @property
    def backend(self) -> str:
        """`measured` or `emulated`; also the results folder's name."""
        return self.config.backend

    @cached_property
    def cells(self) -> list[Cell]:
        """Every cell, in the order in which allocations and cells run (A B, then B A, ...)."""
        return [cell for group in self._groups() for cell in group]

    def _groups(self) -> list[list[Cell]]:
        groups = []
        for workload_name, workload in self.config.workloads.items():
            for concurrency in workload.concurrency:
                for engine in self.config.engines:
                    arms = self._arms_for(workload_name, engine)
                    group = [
                        Cell(workload_name, concurrency, engine, arm, repeat)
                        for repeat in range(1, workload.repeats + 1)
                        for arm in (arms if repeat % 2 else arms[::-1])
                    ]
                    groups.append(group)
        return [group for group in groups if group]

    def _arms_for(self, workload_name: str, engine: str) -> list[str]:
        workload = self.config.workloads[workload_name]
        if workload.engines is not None and engine not in workload.engines:
            return []
        wanted = workload.arms if workload.arms is not None else list(self.config.arms)
        arms = []
        for arm in wanted:
            engines = resolve_arm(self.config.arms, arm).engines
            if engines is None or engine in engines:
                arms.append(arm)
        return arms

    @cached_property
    def cell_ids(self) -> list[str]:
        """Ids of all cells, in plan order."""
        return [cell.id for cell in self.cells]

    @cached_property
    def _by_id(self) -> dict[str, Cell]:
        return {cell.id: cell for cell in self.cells}

    def cell(self, cell_id: str) -> Cell:
        """The cell of an id; a KeyError for one that is not in the plan."""
        return self._by_id[cell_id]

    @cached_property
    def allocations(self) -> dict[str, list[Cell]]:
        """Allocation id to its cells, in running order."""
        groups: dict[str, list[Cell]] = {}
        for cell in self.cells:
            groups.setdefault(cell.allocation, []).append(cell)
        return groups

    @cached_property
    def workloads_in_use(self) -> list[str]:
        """Workloads that have at least one cell."""
        return [
            name for name in self.config.workloads if any(c.workload == name for c in self.cells)
        ]

    @cached_property
    def engines_in_use(self) -> list[str]:
        """Engines that have at least one cell."""
        return [name for name in self.config.engines if any(c.engine == name for c in self.cells)]

    # ---- what a cell is made of ------------------------------------------------------------

    def workload_values(self, name: str) -> dict[str, Any]:
        """Everything that fixes a workload's request set and orders."""
        workload = self.config.workloads[name]
        keep = ("requests", "input_tokens", "output_tokens", "warmup")
        dump = workload.model_dump()
        return {
            "name": name,
            "seed": self.config.seed,
            **{key: dump[key] for key in keep},
            "output_cap_tokens": output_cap(workload),
        }

    def cell_values(self, cell: Cell) -> dict[str, Any]:
        """Everything that can change a cell's outcome, and nothing else."""
        config = self.config
        workload = config.workloads[cell.workload]
        values: dict[str, Any] = {
            "backend": config.backend,
            "measure_version": MEASURE_VERSION,
            "cell_id": cell.id,
            "workload": self.workload_values(cell.workload),
            "ignore_eos": workload.ignore_eos,
            "concurrency": cell.concurrency,
            "repeat": cell.repeat,
            "engine": self._engine_values(cell.engine),
            "arm_options": resolve_arm(config.arms, cell.arm).options,
            "server": resolve_server(config.server, workload).model_dump(),
            "telemetry": config.telemetry.model_dump(),
            "client": config.client.model_dump(),
        }
        if config.backend == "measured":
            values["model"] = config.model.model_dump(exclude={"path"})
        else:
            values["emulator"] = config.emulator.model_dump(exclude={"fitted_to"})
        return values

    def _engine_values(self, name: str) -> dict[str, Any]:
        engine = self.config.engines[name].model_dump()
        image = engine["image"]
        if image is not None:
            # Where the bytes come from may change; which bytes they are may not.
            engine["image"] = {"digest": image["digest"]}
        if self.config.backend == "measured":
            engine.pop("emulate")
        if engine["site"] is None:
            engine.pop("site")
        return {"name": name, **engine}

    def cell_digest(self, cell: Cell) -> str:
        """Identity of a cell: 16 hex digits over everything that can change its outcome."""
        return sha256_json(self.cell_values(cell))[:16]

    def attempt(self, cell: Cell) -> int:
        """Wanted attempt number: the largest of the `attempts` patterns that match, else 1."""
        matching = [n for p, n in self.config.attempts.items() if fnmatchcase(cell.id, p)]
        return max(matching, default=1)

    def unpinned(self, engine: str) -> bool:
        """Whether an engine's measured cells cannot run for want of a pin."""
        image = self.config.engines[engine].image
        return image is not None and image.digest == TO_BE_PINNED

    # ---- slices for rules ------------------------------------------------------------------

    def config_spec(self, _wildcards: Any = None) -> str:
        """The whole configuration; only `freeze_study` takes it, and writes slices to files."""
        return canonical_json(self.config.model_dump())

    def resolved(self) -> dict[str, Any]:
        """The resolved study, as recorded beside the results."""
        return {
            "config": self.config.model_dump(),
            "cells": [
                {"cell_id": c.id, "digest": self.cell_digest(c), "attempt": self.attempt(c)}
                for c in self.cells
            ],
        }

    def workload_spec(self, wildcards: Any) -> str:
        """Slice of one workload."""
        return canonical_json(self.workload_values(wildcards.workload))

    def pins_spec(self, wildcards: Any) -> str:
        """Slice of one engine's pins."""
        engine = self.config.engines[wildcards.engine]
        return canonical_json(
            {
                "backend": self.backend,
                "engine": wildcards.engine,
                "adapter": engine.adapter,
                "version": engine.version,
                "image": engine.image.model_dump() if engine.image else None,
                "command": engine.command,
            }
        )

    def model_spec(self, _wildcards: Any = None) -> str:
        """Slice of the model's pins."""
        return canonical_json({"backend": self.backend, "model": self.config.model.model_dump()})

    def tokenizer_spec(self, _wildcards: Any = None) -> str:
        """Slice that decides which tokenizer is in use."""
        return canonical_json({"backend": self.backend})

    def allocation_spec(self, wildcards: Any) -> str:
        """Slice of one allocation: its cells in running order, shared parts once."""
        cells = self.allocations[wildcards.allocation]
        values = [self.cell_values(cell) for cell in cells]
        shared = {
            key: value
            for key, value in values[0].items()
            if all(other.get(key) == value for other in values)
        }
        return canonical_json(
            {
                "allocation": wildcards.allocation,
                "shared": shared,
                "cells": [
                    {
                        "digest": self.cell_digest(cell),
                        "attempt": self.attempt(cell),
                        "arm": cell.arm,
                        "values": {k: v for k, v in own.items() if k not in shared},
                    }
                    for cell, own in zip(cells, values, strict=True)
                ],
            }
        )

    def cell_spec(self, wildcards: Any) -> str:
        """Slice of one cell: its values, digest and wanted attempt."""
        cell = self.cell(wildcards.cell)
        return canonical_json(
            {
                "digest": self.cell_digest(cell),
                "attempt": self.attempt(cell),
                "arm": cell.arm,
                "values": self.cell_values(cell),
            }
        )

    def prediction_spec(self, wildcards: Any) -> str:
        """Slice of one cell's prediction: what the simulator sees, on either backend."""
        cell = self.cell(wildcards.cell)
        values = self.cell_values(cell)
        keep = ("cell_id", "workload", "concurrency", "repeat", "arm_options", "server")
        engine = self.config.engines[cell.engine]
        return canonical_json(
            {
                **{key: values[key] for key in keep},
                "adapter": engine.adapter,
                "pause": engine.emulate.model_dump()["pause"],
                "emulator": self.config.emulator.model_dump(exclude={"fitted_to", "chunks_per_s"}),
            }
        )

    def tables_plan(self) -> dict[str, Any]:
        """What the tables stage must know of each cell, in plan order."""
        return {
            "study": self.config.study,
            "source": self.backend,
            "slo": self.config.slo.model_dump(),
            "fitted_to": self.config.emulator.fitted_to,
            "cells": [self._cell_row(cell) for cell in self.cells],
        }

    def _cell_row(self, cell: Cell) -> dict[str, Any]:
        engine = self.config.engines[cell.engine]
        return {
            "cell_id": cell.id,
            "engine": cell.engine,
            "engine_version": engine.version,
            "arm": cell.arm,
            "workload": cell.workload,
            "concurrency": cell.concurrency,
            "repeat": cell.repeat,
            "allocation": cell.allocation,
            "digest": self.cell_digest(cell),
            "pause": engine.emulate.model_dump()["pause"],
            "planned": self.config.workloads[cell.workload].requests,
            "runnable": self.runnable(cell),
        }

    def stats_spec(self, _wildcards: Any = None) -> str:
        """Slice of the statistics stage."""
        return canonical_json(
            {
                "seed": self.config.seed,
                "backend": self.backend,
                "contrasts": [contrast.model_dump() for contrast in self.config.contrasts],
            }
        )

    def why_spec(self, _wildcards: Any = None) -> str:
        """Slice of the explanation: everything a simulated run depends on."""
        unused = {"attempts", "title", "slo", "client", "telemetry", "published"}
        return canonical_json({"config": self.config.model_dump(exclude=unused)})

    def report_spec(self, _wildcards: Any = None) -> str:
        """Slice of the report: titles and the study as declared."""
        return canonical_json(
            {
                "backend": self.backend,
                "config": self.config.model_dump(exclude={"attempts"}),
            }
        )

    def minutes(self, wildcards: Any, attempt: int) -> int:
        """Time limit of an allocation's job, in minutes."""
        return allocation_minutes(self, wildcards.allocation, attempt)

    def code(self, *modules: str) -> str:
        """Digest of package modules: a parameter of cheap stages, so code changes rerun them."""
        return code_digest(_PACKAGE, *modules)

    # ---- which files a rule asks for -------------------------------------------------------

    def of(self, template: str) -> Callable[[Any], str]:
        """An input function: `template` with the cell's or allocation's own names filled in.

        The template may use {allocation}, {workload}, {engine} and any wildcard of the rule.
        """

        def fill(wildcards: Any) -> str:
            known = dict(wildcards.items())
            if "cell" in known:
                cell = self.cell(known["cell"])
            else:
                cell = self.allocations[known["allocation"]][0]
            names = {
                "allocation": cell.allocation,
                "workload": cell.workload,
                "engine": cell.engine,
            }
            return template.format(**{**names, **known})

        return fill

    def published_in(self, base: str) -> list[str]:
        """Files of published numbers; a relative path is below `base`, the workflow's folder."""
        return [str(Path(base, name)) for name in self.config.published]

    def runnable(self, cell: Cell) -> bool:
        """Whether a cell can run: on the measured backend its engine must be pinned."""
        return self.backend == "emulated" or not self.unpinned(cell.engine)

    @cached_property
    def runnable_ids(self) -> list[str]:
        """Ids of the cells that can run."""
        return [cell.id for cell in self.cells if self.runnable(cell)]

    @cached_property
    def runnable_engines(self) -> list[str]:
        """Engines that have at least one cell that can run."""
        runnable = {cell.engine for cell in self.cells if self.runnable(cell)}
        return [name for name in self.config.engines if name in runnable]

    def notices(self) -> list[str]:
        """What a user must know before the run: cells that wait for a pin."""
        lines = []
        for engine in self.engines_in_use:
            waiting = [c for c in self.cells if c.engine == engine and not self.runnable(c)]
            if waiting:
                lines.append(
                    f"engines.{engine}.image.digest is {TO_BE_PINNED}: its {len(waiting)} cells "
                    f"are not measured. Run `kvstudy pin {engine}` on a machine that reaches the "
                    "registry; all other cells go on"
                )
        return lines


def study_from(document: Mapping[str, Any], files: list[str]) -> Study:
    """The study of a Snakemake `config` mapping; raises ConfigError with every problem."""
    return Study(parse_config(document, files=files))

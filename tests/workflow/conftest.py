"""The tiny study, run once for all workflow tests, and small tools around Snakemake."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent.parent
_JOB_LINE = re.compile(r"^([a-z_]+) +(\d+)$", re.MULTILINE)


@dataclass(frozen=True)
class Workflow:
    """One working folder."""

    folder: Path

    def snakemake(
        self, *arguments: str, overlays: list[Path] | None = None, check: bool = True
    ) -> subprocess.CompletedProcess[str]:
        """Run Snakemake on the tiny study, with more configuration laid over it."""
        configs = [ROOT / "config.yaml", ROOT / "tests" / "tiny.yaml", *(overlays or [])]
        done = subprocess.run(
            [
                *(sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile")),
                *("--profile", str(ROOT / "profiles" / "local"), "-d", str(self.folder)),
                *("--configfile", *map(str, configs)),
                *arguments,
            ],
            capture_output=True,
            text=True,
            timeout=280,
            env=environment(),
            check=False,
        )
        assert not check or done.returncode == 0, done.stdout[-3000:] + done.stderr[-6000:]
        return done

    def overlay(self, name: str, values: dict[str, Any]) -> Path:
        """A configuration file in the folder."""
        path = self.folder / f"{name}.yaml"
        path.write_text(yaml.safe_dump(values), encoding="utf-8")
        return path

    def would_run(self, values: dict[str, Any]) -> dict[str, int]:
        """Rule name to number of jobs that a changed configuration would run."""
        overlay = self.overlay("changed", values)
        text = self.snakemake("-n", overlays=[overlay]).stdout
        counts = {rule: int(count) for rule, count in _JOB_LINE.findall(text)}
        return {rule: n for rule, n in counts.items() if rule not in ("all", "total")}

    @property
    def results(self) -> Path:
        """The results of the emulated backend."""
        return self.folder / "results" / "emulated"

    def attempts(self) -> dict[str, list[int]]:
        """Cell id to the numbers of its finished attempts."""
        found: dict[str, list[int]] = {}
        for manifest in sorted((self.results / "store").glob("*/*/attempt-*/manifest.json")):
            cell = manifest.parent.parent.parent.name
            found.setdefault(cell, []).append(int(manifest.parent.name.split("-")[1]))
        return found


def environment() -> dict[str, str]:
    """An environment in which `python` is this interpreter."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path}


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Workflow:
    """The tiny study after one complete run; tests that change it take `copy_of_tiny`."""
    workflow = Workflow(tmp_path_factory.mktemp("tiny"))
    workflow.snakemake()
    return workflow


@pytest.fixture
def copy_of_tiny(tiny: Workflow, tmp_path: Path) -> Workflow:
    """A copy of the finished tiny study, with Snakemake's own records."""
    folder = tmp_path / "copy"
    shutil.copytree(tiny.folder, folder, copy_function=shutil.copy2)
    return Workflow(folder)


@pytest.fixture
def fresh(tmp_path: Path) -> Workflow:
    """An empty working folder."""
    return Workflow(tmp_path)


Change = Callable[[dict[str, Any]], object]

"""What the Slurm tests work with: a cluster, a copy of the checkout on it, and a look at its jobs.

By default the cluster is our own, made by `cluster.sh`. With KVSTUDY_SLURM_PROFILE=/path/to/profile
the same tests run against the cluster that profile describes; KVSTUDY_SLURM_FOLDER then names a
folder that its nodes share (default: results/ of the checkout). Tests that have to play the
administrator (node down, preemption, controller restart) run only on our own cluster.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent.parent
TOOLS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "scontrol", "sinfo")
COPIED = ("Snakefile", "config.yaml", "rules", "profiles", "report", "envs", "src")
FORMAT = "%i|%T|%P|%b|%N|%k"


@dataclass(frozen=True, slots=True)
class Site:
    """One cluster; `folder` is None for a cluster that is not ours."""

    folder: Path | None
    profile: Path
    has_accounting: bool = False

    def control(self, *words: str) -> None:
        """Ask the script of our own cluster for something."""
        script(self.folder, *words)

    def restrict_to_own(self) -> Path:
        """The cluster's folder; skips the test where the cluster is not ours."""
        if self.folder is None:
            pytest.skip("needs the rights of an administrator: only on the tests' own cluster")
        return self.folder


def missing(accounting: bool = False) -> str | None:
    """Why no cluster of our own can be made here; None if one can."""
    if os.geteuid() != 0:
        return "not root: no Slurm of our own; set KVSTUDY_SLURM_PROFILE to use yours"
    tools = [*TOOLS, "slurmdbd", "mariadbd"] if accounting else TOOLS
    lacking = [tool for tool in tools if shutil.which(tool) is None]
    if lacking:
        return f"not installed: {', '.join(lacking)} (tests/system/apt-packages.txt)"
    return None


def script(folder: Path | None, *words: str, accounting: bool = False) -> None:
    """Run cluster.sh; what it prints goes to the test's own output."""
    done = subprocess.run(
        [str(HERE / "cluster.sh"), *words],
        env={**os.environ, "FAKE_SLURM_DIR": str(folder), "ACCOUNTING": str(int(accounting))},
        # Daemons inherit the handles: a pipe would never be closed.
        stdout=subprocess.DEVNULL,
        timeout=150,
        check=False,
    )
    assert done.returncode == 0, f"cluster.sh {words}: {done.returncode}"


@dataclass(frozen=True, slots=True)
class Job:
    """A Slurm job as squeue shows it."""

    number: str
    state: str
    partition: str
    gres: str
    node: str
    comment: str

    def detail(self, key: str) -> str:
        """One value of `scontrol show job`."""
        text = output("scontrol", "show", "job", self.number)
        return next(w.partition("=")[2] for w in text.split() if w.startswith(f"{key}="))

    def at(self, key: str) -> float:
        """One time of `scontrol show job`, seconds since the epoch."""
        return datetime.fromisoformat(self.detail(key)).timestamp()


def output(*argv: str) -> str:
    """Output of a command that must succeed."""
    return subprocess.run(argv, capture_output=True, text=True, timeout=60, check=True).stdout


class Workflow:
    """A copy of the checkout in a folder of its own, run as a user would from a clone."""

    def __init__(self, folder: Path, site: Site, **changes: Any) -> None:
        self.folder = folder
        self.results = folder / "results" / "emulated"
        if not (folder / "Snakefile").exists():
            _copy_checkout(folder, site.profile)
        self._overlays = ["config.yaml", "tests/tiny.yaml"]
        self._change_profile({"latency-wait": 10, **changes})

    def _change_profile(self, changes: dict[str, Any]) -> None:
        """Shorter pauses than a real site wants; everything else stays as shipped."""
        path = self.folder / "profiles" / "slurm" / "config.yaml"
        profile = yaml.safe_load(path.read_text(encoding="utf-8"))
        profile["slurm-init-seconds-before-status-checks"] = 2
        partition = changes.pop("gpu_partition", None)
        if partition:
            profile["set-resources"]["measure_allocation"]["slurm_partition"] = partition
        path.write_text(yaml.safe_dump({**profile, **changes}), encoding="utf-8")

    def clone(self, folder: Path, site: Site, **changes: Any) -> Workflow:
        """The same folder somewhere else, without anything measured."""
        ignore = shutil.ignore_patterns("store", "allocations", "cells", "slurm-logs", "progress")
        shutil.copytree(self.folder, folder, symlinks=True, ignore=ignore)
        return Workflow(folder, site, **changes)

    def overlay(self, name: str, values: dict[str, Any]) -> None:
        """Lay more configuration over the tiny study, from now on."""
        (self.folder / f"{name}.yaml").write_text(yaml.safe_dump(values), encoding="utf-8")
        self._overlays.append(f"{name}.yaml")

    def start(self, *arguments: str, log: str = "run.log") -> subprocess.Popen[bytes]:
        """Start `snakemake --profile slurm` in the folder; its output goes to `log`."""
        with (self.folder / log).open("wb") as sink:
            return subprocess.Popen(
                [
                    *(sys.executable, "-m", "snakemake", "--profile", "slurm"),
                    *("--config", "backend=emulated", "--configfile", *self._overlays),
                    *arguments,
                ],
                cwd=self.folder,
                env=environment(self.folder),
                stdin=subprocess.DEVNULL,
                stdout=sink,
                stderr=sink,
            )

    def run(self, *arguments: str, timeout: float = 400, log: str = "run.log") -> str:
        """Run it to its end, which must be a good one; returns what it said."""
        process = self.start(*arguments, log=log)
        code = process.wait(timeout)
        said = (self.folder / log).read_text(encoding="utf-8", errors="replace")
        assert code == 0, said[-6000:]
        return said

    def jobs(self) -> list[Job]:
        """Every job of this folder that Slurm still knows, in order of submission."""
        lines = output("squeue", "-h", "-t", "all", "-o", f"{FORMAT}|%Z").splitlines()
        rows = [line.strip().split("|") for line in lines]
        found = [Job(*row[:6]) for row in rows if row[6] == str(self.folder)]
        return sorted(found, key=lambda job: int(job.number))

    def job_of(self, allocation: str, state: str = "RUNNING") -> Job | None:
        """The newest job of an allocation in a state."""
        found = [j for j in self.jobs() if j.state == state and j.comment.endswith(allocation)]
        return found[-1] if found else None

    def attempts(self) -> dict[str, list[int]]:
        """Cell id to the numbers of its finished attempts."""
        return self._attempts("manifest.json")

    def begun(self) -> dict[str, list[int]]:
        """Cell id to the numbers of all its attempts."""
        return self._attempts("")

    def _attempts(self, name: str) -> dict[str, list[int]]:
        found: dict[str, list[int]] = {}
        for folder in (self.results / "store").glob("*/*/attempt-*"):
            if (folder / name).exists():
                number = int(folder.name.removeprefix("attempt-"))
                found.setdefault(folder.parent.parent.name, []).append(number)
        return {cell: sorted(numbers) for cell, numbers in found.items()}

    def finished(self, allocation: str) -> int:
        """How many cells of an allocation have a finished attempt."""
        return sum(cell.startswith(f"{allocation}.") for cell in self.attempts())

    def servers(self) -> list[psutil.Process]:
        """Servers of this folder's cells, and all they started, on this machine."""
        found = []
        for process in psutil.process_iter():
            try:
                inside = process.cwd().startswith(str(self.results / "store"))
                marked = "KVSTUDY_RUN_MARK" in process.environ() and inside
            except psutil.Error:
                continue
            if marked and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        return found


def _copy_checkout(folder: Path, profile: Path) -> None:
    ignore = shutil.ignore_patterns("__pycache__", "*.egg-info")
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, folder / name, symlinks=True, ignore=ignore)
        else:
            shutil.copy2(source, folder / name)
    (folder / "tests").mkdir()
    shutil.copy2(ROOT / "tests" / "tiny.yaml", folder / "tests" / "tiny.yaml")
    shutil.copy2(profile / "config.yaml", folder / "profiles" / "slurm" / "config.yaml")
    (folder / "slurm").symlink_to("profiles/slurm")


def environment(folder: Path) -> dict[str, str]:
    """An environment in which `python` is this interpreter, and the package is the folder's."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    return {**os.environ, "PATH": path, "PYTHONPATH": str(folder / "src")}


def until(condition: Callable[[], Any], timeout_s: float, what: str) -> Any:
    """The first true value of `condition`; a failure that says what was waited for."""
    deadline = time.monotonic() + timeout_s
    while not (value := condition()):
        assert time.monotonic() < deadline, f"not within {timeout_s:g} s: {what}"
        time.sleep(0.3)
    return value


def run_json(workflow: Workflow, cell: str) -> Sequence[dict[str, Any]]:
    """What each finished attempt at a cell recorded, by number."""
    paths = sorted((workflow.results / "store" / cell).glob("*/attempt-*/run.json"))
    return [json.loads(path.read_text(encoding="utf-8")) for path in paths]

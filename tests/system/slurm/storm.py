"""Faults on a running study, each at a chosen moment: after an allocation's first finished cell."""

from __future__ import annotations

import contextlib
import signal
import subprocess
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import psutil
from slurm_site import Job, Site, Workflow, output, until

YOUNG_S = 4.0
"""A cell of slow.yaml lasts twice as long or more from the start of its server."""


@dataclass
class Event:
    """One fault: on which allocation, after how many finished cells, and what was there then."""

    allocation: str
    after: int
    strike: Callable[[Storm, Event, Job], None]
    job: Job | None = None
    kept: dict[str, list[int]] = field(default_factory=dict)
    interrupted: list[Path] = field(default_factory=list)

    def is_due(self, workflow: Workflow) -> bool:
        """Whether enough cells are finished, the next one is running, and so is the job."""
        if self.job is not None or workflow.finished(self.allocation) < self.after:
            return False
        self.interrupted = open_attempts(workflow, self.allocation)
        self.job = workflow.job_of(self.allocation)
        if not self.interrupted or self.job is None:
            self.job = None
            return False
        attempts = workflow.attempts()
        self.kept = {c: n for c, n in attempts.items() if c.startswith(f"{self.allocation}.")}
        return True


@dataclass
class Storm:
    """A study under way and the faults that meet it."""

    site: Site
    workflow: Workflow
    events: list[Event]
    said: str = ""
    code: int | None = None

    def run(self, *arguments: str, timeout_s: float = 500) -> None:
        """Run the study to its end; each event strikes once."""
        process = self.workflow.start(*arguments, log="storm.log")
        deadline = time.monotonic() + timeout_s
        try:
            while process.poll() is None and time.monotonic() < deadline:
                for event in self.events:
                    if event.is_due(self.workflow) and event.job is not None:
                        event.strike(self, event, event.job)
                time.sleep(0.4)
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGINT)
            self.code = process.wait(60)
        self.said = (self.workflow.folder / "storm.log").read_text(errors="replace")

    def server_is_gone(self, event: Event, timeout_s: float = 25) -> None:
        """Wait until nothing of the interrupted cell's server runs any more."""
        until(
            lambda: not in_folders(event.interrupted), timeout_s, f"{event.allocation}: no server"
        )


def open_attempts(workflow: Workflow, allocation: str) -> list[Path]:
    """Attempts of an allocation whose server was just started: far from their end."""
    store = workflow.results / "store"
    begun = [
        folder
        for folder in store.glob(f"{allocation}.*/*/attempt-*")
        if not (folder / "manifest.json").exists()
    ]
    starts = []
    for process in in_folders(begun):
        with contextlib.suppress(psutil.Error):
            starts.append(process.create_time())
    return begun if starts and time.time() - min(starts) < YOUNG_S else []


def in_folders(folders: list[Path]) -> list[psutil.Process]:
    """Processes that work in one of the folders: a cell's guard, its server and its workers."""
    found = []
    for process in psutil.process_iter():
        with contextlib.suppress(psutil.Error):
            if Path(process.cwd()) in folders and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
    return found


def kill_server(storm: Storm, event: Event, _: Job) -> None:
    """The engine is killed, as by the kernel for want of memory."""
    for process in in_folders(event.interrupted):
        with contextlib.suppress(psutil.Error):
            if "emulate" in process.cmdline():
                process.kill()
    storm.server_is_gone(event)


def cancel(storm: Storm, event: Event, job: Job) -> None:
    """Somebody cancels the job."""
    output("scancel", job.number)
    storm.server_is_gone(event)


def shorten(_: Storm, event: Event, job: Job) -> None:
    """The time limit comes too early."""
    output("scontrol", "update", f"jobid={job.number}", "TimeLimit=1")


def node_down(storm: Storm, event: Event, job: Job) -> None:
    """The node is taken away under the job, and comes back."""
    output("scontrol", "update", f"nodename={job.node}", "state=down", "reason=test")
    storm.server_is_gone(event)
    subprocess.run(
        ["scontrol", "update", f"nodename={job.node}", "state=resume"],
        capture_output=True,
        timeout=30,
        check=False,
    )


def preempt(storm: Storm, event: Event, job: Job) -> None:
    """A job of higher priority wants this node's GPU."""
    words = ("--gres=gpu:1", "-w", job.node, "-o", "/dev/null", "--wrap", "sleep 1")
    output("sbatch", "-p", "gpu", *words)
    storm.server_is_gone(event, 40)


def restart_controller(storm: Storm, *_: object) -> None:
    """Slurmctld is away for three seconds."""
    storm.site.control("controller", "3")

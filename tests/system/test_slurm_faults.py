"""Faults on a real Slurm: finished cells stay, only what is missing is measured, no server is left.

One run meets most of them, each on an allocation of its own: see `storm.py` for what each does.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml
from slurm_site import HERE, ROOT, Site, Workflow, environment, run_json, until
from storm import Event, Storm, cancel, kill_server, node_down, preempt, restart_controller, shorten

from kvstudy.base.store import CellStore
from kvstudy.study.parse import read_config
from kvstudy.study.plan import Study

pytestmark = [pytest.mark.system, pytest.mark.timeout(1200)]

KILLED, CANCELLED = "W-C.c6.trtllm-1.2.1", "W-C.c6.trtllm-1.3.0rc22"
DOWN, PREEMPTED = "W-C.c3.trtllm-1.2.1", "W-C.c3.trtllm-1.3.0rc22"
SHORT = "W-C.c1.trtllm-1.2.1"
STRUCK = [KILLED, CANCELLED, DOWN, PREEMPTED, SHORT]
EVENTS = {"killed": 0, "cancelled": 1, "down": 2, "preempted": 3, "short": 4}


@pytest.fixture(scope="session")
def storm(slurm: Site, slurm_study: Workflow, slurm_folder: Path) -> Storm:
    """One run of five allocations with a fault each, and a controller that restarts."""
    slurm.restrict_to_own()
    workflow = slurm_study.clone(slurm_folder / "storm", slurm, gpu_partition="low")
    workflow.overlay("slow", yaml.safe_load((HERE / "slow.yaml").read_text()))
    events = [
        Event(KILLED, 1, kill_server),
        Event(CANCELLED, 1, cancel),
        Event(DOWN, 1, node_down),
        Event(PREEMPTED, 1, preempt),
        Event(SHORT, 0, shorten),
        Event(SHORT, 1, restart_controller),
    ]
    storm = Storm(slurm, workflow, events)
    storm.run("--", *(f"results/emulated/allocations/{name}.json" for name in STRUCK))
    return storm


def test_the_run_ends_well_whatever_met_it(storm: Storm) -> None:
    assert storm.code == 0, storm.said[-6000:]
    assert [event.allocation for event in storm.events if event.job is None] == []
    assert {name: storm.workflow.finished(name) for name in STRUCK} == dict.fromkeys(STRUCK, 4)


@pytest.mark.parametrize("name", EVENTS)
def test_finished_cells_stay_and_are_not_measured_again(storm: Storm, name: str) -> None:
    event = storm.events[EVENTS[name]]
    after = storm.workflow.attempts()

    assert event.kept or name == "short"
    assert {cell: after[cell] for cell in event.kept} == event.kept


@pytest.mark.parametrize("name", EVENTS)
def test_only_the_interrupted_cell_has_a_second_attempt(storm: Storm, name: str) -> None:
    """Its first one stays as it was, partial and without a manifest."""
    allocation = storm.events[EVENTS[name]].allocation
    begun, done = storm.workflow.begun(), storm.workflow.attempts()
    own = {cell: numbers for cell, numbers in begun.items() if cell.startswith(f"{allocation}.")}
    again = [cell for cell, numbers in own.items() if numbers != [1]]

    assert len(own) == 4
    assert len(again) == 1
    assert own[again[0]] == [1, 2]
    assert done[again[0]] == [2]


@pytest.mark.parametrize(
    ("name", "state"), [("killed", "FAILED"), ("cancelled", "CANCELLED"), ("short", "TIMEOUT")]
)
def test_a_failed_job_is_named_and_tried_again(storm: Storm, name: str, state: str) -> None:
    """Squeue sees a cancelled job, which plugin 2.8.0 misses through sacct."""
    allocation = storm.events[EVENTS[name]].allocation
    jobs = [job for job in storm.workflow.jobs() if job.comment.endswith(allocation)]

    assert [job.state for job in jobs] == [state, "COMPLETED"]
    assert f"SLURM-job '{jobs[0].number}' failed, SLURM status is: '{state}'" in storm.said


@pytest.mark.parametrize("name", ["down", "preempted"])
def test_slurm_starts_the_same_job_again(storm: Storm, name: str) -> None:
    """No second job: two copies of one allocation would cost a GPU for nothing."""
    allocation = storm.events[EVENTS[name]].allocation
    [job] = [job for job in storm.workflow.jobs() if job.comment.endswith(allocation)]

    assert job.state == "COMPLETED"
    assert int(job.detail("Restarts")) >= 1


def test_the_log_names_the_cell_that_failed(storm: Storm) -> None:
    """The log file of the allocation is that of the last try; Slurm's log keeps the first."""
    folder = storm.workflow.folder / "slurm-logs" / "rule_measure_allocation"
    first = storm.events[EVENTS["killed"]]
    assert first.job is not None
    text = (folder / f"emulated_{KILLED}" / f"{first.job.number}.log").read_text()

    assert "Error in rule measure_allocation" in text
    assert KILLED in text


def test_no_server_is_left_on_any_node(storm: Storm) -> None:
    assert storm.workflow.servers() == []


def test_a_lost_login_session_costs_nothing(
    slurm: Site, slurm_study: Workflow, slurm_folder: Path
) -> None:
    """Snakemake is killed, its jobs finish alone; the rerun takes all from the store."""
    workflow = slurm_study.clone(slurm_folder / "lost", slurm)
    names = [KILLED, CANCELLED]
    targets = ["--", *(f"results/emulated/allocations/{name}.json" for name in names)]
    process = workflow.start(*targets, log="lost.log")
    until(lambda: all(workflow.begun().get(f"{n}.gne.r1") for n in names), 150, "both cells begun")
    os.kill(process.pid, signal.SIGKILL)
    process.wait(30)
    until(lambda: not [j for j in workflow.jobs() if j.state == "RUNNING"], 120, "no job runs")
    alone = workflow.attempts()
    workflow.run("--unlock", log="unlock.log")
    workflow.run(*targets, log="rerun.log")

    assert len(alone) == 8
    assert workflow.attempts() == alone
    assert workflow.begun() == alone
    assert workflow.servers() == []


def test_two_copies_of_one_allocation_never_write_the_same_attempt(
    slurm: Site, slurm_study: Workflow, slurm_folder: Path
) -> None:
    """Both start at once on two nodes; each cell has whole attempts, and each its one writer."""
    workflow = slurm_study.clone(slurm_folder / "copies", slurm)
    paths = [ROOT / "config.yaml", ROOT / "tests" / "tiny.yaml", HERE / "slow.yaml"]
    study = Study(read_config(*paths, overrides={"backend": "emulated"}))
    allocation = "W-B.c2.trtllm-1.2.1"
    copies = [_copy(workflow, study, allocation, number) for number in (1, 2)]
    codes = [copy.wait(150) for copy in copies]

    assert codes == [0, 0]
    for cell in study.allocations[allocation]:
        store = CellStore(workflow.results / "store", cell.id, study.cell_digest(cell))
        attempts = store.attempts()
        facts = run_json(workflow, cell.id)
        assert len({fact["started_at"] for fact in facts}) <= len(facts)
        assert all(attempt.finished and attempt.damage() == [] for attempt in attempts)
        assert [fact["attempt"] for fact in facts] == [attempt.number for attempt in attempts]
    first = study.allocations[allocation][0].id
    assert workflow.attempts()[first] == [1, 2], "the copies did not run side by side"
    assert workflow.servers() == []


def _copy(
    workflow: Workflow, study: Study, allocation: str, number: int
) -> subprocess.Popen[bytes]:
    """The allocation's own command line as a job step; it waits until both copies are there."""
    meet = f"touch here-{number}; until [ -e here-1 -a -e here-2 ]; do sleep .1; done; exec"
    spec = study.allocation_spec(SimpleNamespace(allocation=allocation))
    engine, results = study.allocations[allocation][0].engine, "results/emulated"
    with (workflow.folder / f"copy-{number}.log").open("wb") as sink:
        return subprocess.Popen(
            [
                *("srun", "-n1", "-c2", "--mem=500", "--gres=gpu:1"),
                *("bash", "-c", f'{meet} "$@"', "copy", sys.executable),
                *("-m", "kvstudy.steps.measure_allocation", "--spec", spec),
                *("--workload", f"{results}/workloads/W-B.parquet"),
                *("--tokenizer", f"{results}/tokenizer/tokenizer.digest.json"),
                *("--image", f"{results}/pins/{engine}.image.json"),
                *("--probe", f"{results}/pins/{engine}.probe.json"),
                *("--model", f"{results}/pins/model.json", "--store", f"{results}/store"),
                *("--progress", f"{results}/progress/{number}.json"),
                *("--manifest", f"{results}/{number}.json"),
            ],
            cwd=workflow.folder,
            env=environment(workflow.folder),
            stderr=sink,
        )

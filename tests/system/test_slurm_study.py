"""The tiny study on a real Slurm: what becomes a job, what a change runs again."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest
import slurm_site
import yaml
from slurm_site import Site, Workflow

from kvstudy.commands.preflight import check
from kvstudy.study.parse import read_config
from kvstudy.study.plan import Study

pytestmark = [pytest.mark.system, pytest.mark.timeout(900)]

FORCED = "W-C.c6.trtllm-1.2.1.mu.r1"
NEW_ENGINE = {
    "adapter": "trtllm",
    "version": "1.4.0rc1",
    "image": {"uri": "docker://example/x:1", "digest": "to-be-pinned"},
}
LOCAL = {
    "freeze_study", "verify_image", "verify_model", "write_lock", "prepare_tokenizer", "check_cell",
    "compare_arms", "draw_figures", "render_report", "simulate_cell",
}  # fmt: skip


def test_the_line_ends_in_a_report(slurm_study: Workflow) -> None:
    assert (slurm_study.results / "report" / "index.html").stat().st_size > 10_000
    runs = json.loads((slurm_study.results / "tables" / "runs.json").read_text())

    assert len(runs) == 14
    assert {run["ending"] for run in runs.values()} == {"stopped"}
    assert all(run["leftovers"] == 0 for run in runs.values())


def test_only_allocations_ask_for_a_gpu(slurm_study: Workflow) -> None:
    jobs = slurm_study.jobs()
    with_gpu = [job for job in jobs if "gpu" in job.gres]
    without = [job for job in jobs if "gpu" not in job.gres]

    assert len(with_gpu) == 5
    assert all("measure_allocation" in job.comment for job in with_gpu)
    assert without
    assert not any("measure_allocation" in job.comment for job in without)


def test_light_rules_are_no_jobs(slurm_study: Workflow) -> None:
    comments = " ".join(job.comment for job in slurm_study.jobs())

    assert not [rule for rule in LOCAL if f"rule_{rule}" in comments]


def test_job_comment_and_log_tell_the_allocation(slurm_study: Workflow) -> None:
    for job in slurm_study.jobs():
        if "gpu" not in job.gres:
            continue
        allocation = job.comment.rpartition("_emulated_")[2]
        assert (slurm_study.results / "allocations" / f"{allocation}.json").is_file()
        log = slurm_study.folder / "slurm-logs" / "rule_measure_allocation"
        assert (log / f"emulated_{allocation}" / f"{job.number}.log").is_file()
        assert job.detail("JobName").startswith("kvstudy_")


def test_the_time_limit_comes_from_the_plan(slurm_study: Workflow) -> None:
    """Four cells ask for more than two; both for minutes, not for the partition's maximum."""
    limits = {
        job.comment.rpartition("_emulated_")[2]: job.detail("TimeLimit")
        for job in slurm_study.jobs()
        if "gpu" in job.gres
    }

    assert limits["W-C.c6.trtllm-1.2.1"] > limits["W-B.c2.trtllm-1.2.1"] > "00:30:00"
    assert max(limits.values()) < "02:00:00"


def test_the_gpu_is_released_within_seconds_of_the_last_cell(slurm_study: Workflow) -> None:
    for job in slurm_study.jobs():
        if "gpu" in job.gres:
            allocation = job.comment.rpartition("_emulated_")[2]
            store = slurm_study.results / "store"
            sealed = [
                path.stat().st_mtime
                for path in store.glob(f"{allocation}.*/*/attempt-*/manifest.json")
            ]
            assert job.at("EndTime") - max(sealed) <= 5.0, allocation


def test_nothing_runs_twice(slurm_study: Workflow) -> None:
    before = len(slurm_study.jobs())
    said = slurm_study.run(log="again.log")

    assert "Nothing to be done" in said
    assert len(slurm_study.jobs()) == before
    assert all(numbers == [1] for numbers in slurm_study.attempts().values())
    assert slurm_study.servers() == []


@pytest.mark.parametrize("how", ["profiles/slurm", "slurm", "--workflow-profile"])
def test_every_way_to_name_the_profile(slurm_study: Workflow, how: str) -> None:
    option = [how, "profiles/slurm"] if how.startswith("-") else ["--profile", how]
    done = subprocess.run(
        [
            *(sys.executable, "-m", "snakemake", "-n", *option, "--config", "backend=emulated"),
            *("--configfile", "config.yaml", "tests/tiny.yaml"),
        ],
        cwd=slurm_study.folder,
        env=slurm_site.environment(slurm_study.folder),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "Nothing to be done" in done.stdout + done.stderr


def test_a_bump_runs_the_new_engine_and_attempts_one_cell(
    slurm: Site, slurm_study: Workflow, slurm_folder: Path
) -> None:
    """Both in one run, on a copy that has everything: nothing else is measured."""
    folder = slurm_folder / "bump"
    subprocess.run(["cp", "-a", slurm_study.folder, folder], check=True)
    workflow = Workflow(folder, slurm)
    workflow.overlay(
        "bump",
        {
            "engines": {"trtllm-1.4.0rc1": NEW_ENGINE},
            "arms": {"gne": {"engines": ["trtllm-1.2.1", "trtllm-1.3.0rc22", "trtllm-1.4.0rc1"]}},
            "workloads": {"W-C": {"engines": ["trtllm-1.2.1", "trtllm-1.3.0rc22"]}},
            "attempts": {FORCED: 2},
        },
    )
    before = workflow.attempts()
    workflow.run("--until", "measure_allocation")
    after = workflow.attempts()
    changed = {cell for cell in after if after[cell] != before.get(cell)}

    assert changed == {
        FORCED, "W-B.c2.trtllm-1.4.0rc1.gne.r1", "W-B.c2.trtllm-1.4.0rc1.mu.r1",
    }  # fmt: skip
    assert after[FORCED] == [1, 2]
    assert len([job for job in workflow.jobs() if "gpu" in job.gres]) == 2


def test_preflight_knows_the_cluster(slurm: Site, tmp_path: Path) -> None:
    """Asked of the real commands: the shipped profile fits, wrong names are told."""
    slurm.restrict_to_own()
    config = slurm_site.ROOT / "config.yaml"
    study = Study(read_config(config, overrides={"backend": "emulated"}))
    started = time.monotonic()
    assert check(study, slurm.profile) == []
    assert time.monotonic() - started < 60
    profile = yaml.safe_load((slurm.profile / "config.yaml").read_text(encoding="utf-8"))
    profile["default-resources"].update(slurm_partition="nope", slurm_account="nobody")
    profile["set-resources"]["measure_allocation"].update(gres="gpu:h100:1", runtime=6000)
    (tmp_path / "config.yaml").write_text(yaml.safe_dump(profile), encoding="utf-8")
    said = " | ".join(problem.what for problem in check(study, tmp_path))

    assert "partition nope does not exist (there are: cpu, gpu, low)" in said
    assert "no GPU of type h100 (it has gpu:h200)" in said
    assert "asks for 6000 min, partition gpu allows 600" in said
    assert ("account nobody is not one of yours (bench, root)" in said) == slurm.has_accounting

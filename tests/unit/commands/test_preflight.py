"""Preflight against a site that is played by scripts on PATH."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstudy.commands.preflight import check
from kvstudy.commands.slurm_site import gpus_of, minutes_of
from kvstudy.study.plan import Study

SINFO = """gpu|up|1-00:00:00|gpu:h200:4(S:0-1),nvme:1
gpu|up|1-00:00:00|gpu:a100:8
cpu|up|infinite|(null)
short|up|30:00|gpu:h200:1"""
ANSWERS = {
    "sbatch": "",
    "sinfo": SINFO,
    "squeue": "",
    "scontrol": "MinJobAge               = 300 sec",
    "sacctmgr": "bench\nother",
}


class Place:
    """A site of scripts, a profile and a study."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
        self.bin = folder / "bin"
        self.bin.mkdir()
        for name, text in {**ANSWERS, "apptainer": "apptainer version 1.4.5"}.items():
            self.answer(name, text)
        # Nothing of this machine is on PATH, whatever is installed on it.
        (self.bin / "cat").symlink_to("/bin/cat")
        monkeypatch.setenv("PATH", str(self.bin))
        monkeypatch.setenv("KVSTUDY_CACHE", str(folder / "cache"))
        monkeypatch.chdir(folder)
        self.profile = folder / "profile"
        self.profile.mkdir()
        text = (root / "profiles" / "slurm" / "config.yaml").read_text(encoding="utf-8")
        self.values: dict[str, Any] = yaml.safe_load(text)

    def answer(self, name: str, text: str, code: int = 0) -> None:
        """Let a command print `text`."""
        path = self.bin / name
        path.write_text(f"#!/bin/sh\ncat <<'E'\n{text}\nE\nexit {code}\n", encoding="utf-8")
        path.chmod(0o755)

    def problems(self, study: Study) -> list[str]:
        """What preflight says, on one line each."""
        (self.profile / "config.yaml").write_text(yaml.safe_dump(self.values), encoding="utf-8")
        return [f"{problem.what} -> {problem.fix}" for problem in check(study, self.profile)]

    @property
    def measure(self) -> dict[str, Any]:
        """Resources of the measuring rule."""
        resources: dict[str, Any] = self.values["set-resources"]["measure_allocation"]
        return resources


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, root: Path) -> Place:
    """A site on which everything is right."""
    return Place(tmp_path, monkeypatch, root)


@pytest.fixture
def study(study_with: Callable[..., Study]) -> Study:
    """The published study; emulated, so that this machine's disk and tools do not matter."""
    return study_with()


def test_a_site_that_fits_has_no_problem(place: Place, study: Study) -> None:
    assert place.problems(study) == []


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda p: p.measure.update(slurm_partition="gpux"), "partition gpux does not exist"),
        (lambda p: p.measure.update(slurm_partition="cpu"), "partition cpu has no GPUs"),
        (lambda p: p.measure.update(gres="gpu:h100:1"), "no GPU of type h100"),
        (lambda p: p.measure.update(gres="gpu:h200:5"), "no node of gpu has 5"),
        (lambda p: p.measure.update(gpu=1), "asks for GPUs twice"),
        (lambda p: p.measure.update(runtime=10), "time limit 10 min is shorter"),
        (lambda p: p.measure.update(slurm_partition="short"), "partition short allows 30"),
        (
            lambda p: p.values["default-resources"].update(slurm_account="nobody"),
            "account nobody is not one of yours (bench, other)",
        ),
        (lambda p: p.values.update({"slurm-array-jobs": "all"}), "slurm-array-jobs is set"),
        (lambda p: p.values.pop("slurm-requeue"), "slurm-requeue is not set"),
        (lambda p: p.values.update({"slurm-status-command": "sacct"}), "is not squeue"),
        (lambda p: p.answer("scontrol", "MinJobAge = 30 sec"), "forgets ended jobs after 30 s"),
        (lambda p: (p.bin / "sbatch").unlink(), "sbatch is not on PATH"),
    ],
)
def test_each_problem_is_named_with_its_cure(
    place: Place, study: Study, change: Callable[[Place], object], said: str
) -> None:
    change(place)
    problems = place.problems(study)

    assert len(problems) == 1, problems
    assert said in problems[0]
    assert len(problems[0].split(" -> ")[1]) > 10


def test_an_account_that_is_yours_and_a_site_without_accounting(place: Place, study: Study) -> None:
    place.values["default-resources"]["slurm_account"] = "Bench"
    assert place.problems(study) == []
    place.answer("sacctmgr", "", code=1)
    place.values["default-resources"]["slurm_account"] = "anything"
    assert place.problems(study) == []


def test_jobs_of_an_earlier_run_are_named(place: Place, study: Study) -> None:
    comment = "rule_measure_allocation_wildcards_emulated_W-C.c32.x"
    place.answer("squeue", f"7|{Path.cwd()}|{comment}\n8|/elsewhere|{comment}")
    [problem] = place.problems(study)

    assert "7 (emulated_W-C.c32.x)" in problem
    assert "8 (" not in problem


def test_a_measured_study_needs_a_container_tool_and_room(
    place: Place, study_with: Callable[..., Study]
) -> None:
    measured = study_with(lambda document: document.update(backend="measured"))
    (place.bin / "apptainer").unlink()
    problems = " | ".join(place.problems(measured))

    assert "neither apptainer nor singularity" in problems


def test_a_profile_that_cannot_be_read(place: Place, study: Study, tmp_path: Path) -> None:
    [problem] = check(study, tmp_path / "nowhere")

    assert "nowhere" in problem.what


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("gpu", (None, 1)),
        ("gpu:2", (None, 2)),
        ("gpu:h200", ("h200", 1)),
        ("gpu:h200:1", ("h200", 1)),
        ("gpu:h200:4(S:0-1)", ("h200", 4)),
        ("gpu:4(S:0-1)", (None, 4)),
        ("(null)", (None, 0)),
    ],
)
def test_gres_spellings(text: str, expected: tuple[str | None, int]) -> None:
    assert gpus_of(text) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("30", 30), ("1:30", 1.5), ("2:00:00", 120), ("1-12:00:00", 2160), ("2-0", 2880),
        ("infinite", None), ("2h", None),
    ],
)  # fmt: skip
def test_slurm_times(text: str, expected: float | None) -> None:
    assert minutes_of(text) == expected

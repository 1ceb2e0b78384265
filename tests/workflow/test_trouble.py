"""Trouble: bad input, damage between stages, and runs that are cut off."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from .conftest import ROOT, Workflow, environment

TARGET = "results/emulated/allocations/W-C.c6.trtllm-1.2.1.json"


def emulators() -> list[psutil.Process]:
    """Emulator servers that run on this machine below no living test step."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "emulate" in words and "serve" in words and process.status() != psutil.STATUS_ZOMBIE:
            found.append(process)
    return found


def test_a_wrong_configuration_stops_before_anything_is_made(fresh: Workflow) -> None:
    overlay = fresh.overlay("bad", {"server": {"tpp": 1}, "seed": "x"})
    done = fresh.snakemake("-n", overlays=[overlay], check=False)

    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "server.tpp: unknown key; did you mean 'tp'?" in said
    assert "seed: expected a valid integer, got 'x'" in said
    assert not fresh.results.exists()


def test_a_dry_run_needs_nothing(tmp_path: Path) -> None:
    """A fresh clone, measured backend: no image, model, network, GPU or Slurm."""
    clone = tmp_path / "clone"
    subprocess.run(["git", "clone", "-q", str(ROOT), str(clone)], check=True)
    done = subprocess.run(
        [sys.executable, "-m", "snakemake", "-n"],
        cwd=clone,
        env={**environment(), "CUDA_VISIBLE_DEVICES": ""},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert done.returncode == 0, done.stderr
    assert "engines.trtllm-1.3.0rc22.image.digest is to-be-pinned" in done.stderr
    assert not (clone / "results" / "measured").exists()


def test_a_damaged_store_is_measured_again_not_reported(copy_of_tiny: Workflow) -> None:
    """One flipped byte in the store: the cell is refused by name, then measured anew."""
    cell = "W-B.c2.trtllm-1.2.1.gne.r1"
    [rows] = (copy_of_tiny.results / "store" / cell).glob("*/attempt-1/requests.parquet")
    content = bytearray(rows.read_bytes())
    content[len(content) // 2] ^= 1
    rows.chmod(0o644)
    rows.write_bytes(bytes(content))
    target = f"results/emulated/cells/{cell}/check.json"
    done = copy_of_tiny.snakemake("--forcerun", "check_cell", "--", target, check=False)
    log = (copy_of_tiny.results / "logs" / "check_cell" / f"{cell}.log").read_text()

    assert done.returncode != 0
    assert cell in log
    (copy_of_tiny.results / "allocations" / "W-B.c2.trtllm-1.2.1.json").unlink()
    copy_of_tiny.snakemake("--", target)
    assert copy_of_tiny.attempts()[cell] == [1, 2]


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_a_run_that_was_cut_off_goes_on(fresh: Workflow, how: signal.Signals) -> None:
    """Cut off after its first finished cell: that cell stays, no server is left, a rerun ends."""
    before = {process.pid for process in emulators()}
    process = subprocess.Popen(
        [
            *(sys.executable, "-m", "snakemake", "-s", str(ROOT / "Snakefile")),
            *("--profile", str(ROOT / "profiles" / "local"), "-d", str(fresh.folder)),
            *("--configfile", str(ROOT / "config.yaml"), str(ROOT / "tests" / "tiny.yaml")),
            *("--", TARGET),
        ],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        env=environment(),
        start_new_session=True,
    )
    deadline = time.monotonic() + 120
    while not fresh.attempts() and time.monotonic() < deadline:
        time.sleep(0.05)
    kept = fresh.attempts()
    os.killpg(process.pid, how)
    process.wait(60)
    while {p.pid for p in emulators()} - before and time.monotonic() < deadline:
        time.sleep(0.2)

    assert kept
    assert {p.pid for p in emulators()} <= before
    fresh.snakemake("--unlock")
    fresh.snakemake("--", TARGET)
    after = fresh.attempts()
    assert len(after) == 4
    assert all(after[cell][: len(numbers)] == numbers for cell, numbers in kept.items())
    assert all(len(after[cell]) == 1 for cell in kept)

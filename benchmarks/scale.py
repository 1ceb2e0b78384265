"""What a plan of 2,000 cells costs Snakemake: a dry run of a fresh plan, and a run of a done one.

    python benchmarks/scale.py [--cells 2000]

Nothing is measured: outputs are made empty, in the order of the line, and Snakemake itself records
each as it would after running it (code, params, inputs), so that the second run compares all of it.
Limits from the issue: 15 s each.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
LIMIT_S = 15.0
ENGINES, REPEATS, ARMS = 5, 2, 2
RECORD = """
import sys
from snakemake.executors import touch
from snakemake.cli import main

run_job = touch.Executor.run_job

def recorded(self, job):
    run_job(self, job)
    self.workflow.async_run(self.workflow.persistence.finished(job))

touch.Executor.SLEEPING_TIME = 0
touch.Executor.run_job = recorded
main(sys.argv[1:])
"""
"""Snakemake with a `--touch` that also writes the records."""
_OUTPUT = re.compile(r"^    output: (.+)$", re.MULTILINE)


def overlay(cells: int) -> dict[str, Any]:
    """A configuration of about `cells` cells: many engines, many concurrencies."""
    names = [f"trtllm-9.{number}" for number in range(ENGINES)]
    lanes = max(1, cells // (ENGINES * REPEATS * ARMS))
    engine = {
        "adapter": "trtllm",
        "image": {"uri": "docker://example/x:1", "digest": "to-be-pinned"},
    }
    workload = {"concurrency": list(range(1, lanes + 1)), "repeats": REPEATS}
    return {
        "study": "scale",
        "published": [],
        "backend": "emulated",
        "engines": {name: {**engine, "version": name[7:]} for name in names},
        "arms": {"gne": {"engines": names}},
        "workloads": {
            "W-B": {**workload, "engines": names},
            "W-C": {"repeats": 1, "concurrency": [1], "arms": ["gne"]},
            "W-D": {"repeats": 1, "concurrency": [1], "arms": ["gne"]},
        },
    }


def snakemake(folder: Path, *arguments: str, code: str | None = None) -> tuple[float, str]:
    """(wall seconds, output) of one call in the folder; `code` stands in for Snakemake itself."""
    started = time.monotonic()
    done = subprocess.run(
        [
            *(sys.executable, *(["-c", code] if code else ["-m", "snakemake"])),
            *("-s", str(ROOT / "Snakefile"), "-d", str(folder)),
            *("--configfile", str(ROOT / "config.yaml"), str(folder / "scale.yaml")),
            *("--cores", "2", *arguments),
        ],
        capture_output=True,
        text=True,
        check=False,
        env={**os.environ, "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"},
    )
    if done.returncode != 0:
        sys.exit(done.stdout[-2000:] + done.stderr[-4000:])
    return time.monotonic() - started, done.stdout + done.stderr


def fabricate(folder: Path, plan: str) -> int:
    """Make every output of a dry run, empty; how many."""
    outputs = [path for line in _OUTPUT.findall(plan) for path in line.split(", ")]
    for name in outputs:
        path = folder / name
        if name.endswith("figures"):
            path.mkdir(parents=True, exist_ok=True)
        else:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
    return len(outputs)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", type=int, default=2000)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "scale.yaml").write_text(yaml.safe_dump(overlay(args.cells)), encoding="utf-8")
        fresh_s, plan = snakemake(folder, "-n")
        cells = len(re.findall(r"^rule check_cell|^localrule check_cell", plan, re.MULTILINE))
        files = fabricate(folder, plan)
        record_s, _ = snakemake(folder, "--touch", "--forceall", code=RECORD)
        records = sum(len(names) for _, _, names in os.walk(folder / ".snakemake" / "metadata"))
        done_s, said = snakemake(folder)
    peak_mib = resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss / 1024
    figures = {
        "cells": cells,
        "output_files": files,
        "metadata_records": records,
        "dry_run_of_a_fresh_plan_s": round(fresh_s, 1),
        "recording_s": round(record_s, 1),
        "run_of_a_finished_plan_s": round(done_s, 1),
        "nothing_to_do": "Nothing to be done" in said,
        "peak_mib": round(peak_mib),
        "limit_s": LIMIT_S,
    }
    print(json.dumps(figures, indent=2))
    if max(fresh_s, done_s) > LIMIT_S or not figures["nothing_to_do"]:
        sys.exit(1)


if __name__ == "__main__":
    main()

"""How fast the simulator core is: the study, W-C against real time, 10,000 requests, vidur.

    .venv/bin/python benchmarks/simulator.py

Every line is the best of three runs on one core. "Step by step" is the path that the emulator
drives; the other one takes runs of decode steps in closed form and gives the same bytes.

vidur 0.0.26 (PyPI) installs in a side environment:

    python3.11 -m venv side/vidur && side/vidur/bin/pip install vidur

Its profiling data is not in the package (its predictors download it), so its own event loop and
Sarathi scheduler run here with a predictor that answers a constant 20 ms; ours has the same
constant, the same pool (23,040 blocks of 16), chunk (8,192), batch limit (64) and load (all
requests at time 0). What is compared is scheduling and bookkeeping, not prediction. vidur takes
one event per step too; its metrics are off. Where the side environment is missing, the line says
so.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from kvstudy.sim.replay import run
from kvstudy.sim.spec import parse

W_B = {"count": 512, "input_tokens": 2048, "output_tokens": 256}
W_C = {"count": 128, "input_tokens": 16384, "output_tokens": 512}
STUDY = {"pool_tokens": 368640, "concurrency": 32}
SIDE_PYTHON = Path(__file__).parents[1] / "side" / "vidur" / "bin" / "python"
VIDUR_REQUESTS = 2048
ROUNDS = 3

VIDUR_DRIVER = """
import json, sys, tempfile, time
import vidur.config.config as c
from vidur.entities import ExecutionTime
from vidur.execution_time_predictor import ExecutionTimePredictorRegistry
from vidur.execution_time_predictor.base_execution_time_predictor import BaseExecutionTimePredictor
from vidur.simulator import Simulator
from vidur.types import ExecutionTimePredictorType

steps = [0, 0]

class Constant(BaseExecutionTimePredictor):
    def get_execution_time(self, batch, stage):
        steps[0] += 1
        steps[1] += len(batch.requests)
        return ExecutionTime(1, *[0.0] * 7, 20.0, *[0.0] * 6)

Constant.__abstractmethods__ = frozenset()
ExecutionTimePredictorRegistry._registry[ExecutionTimePredictorType.LINEAR_REGRESSION] = Constant
lengths = c.FixedRequestLengthGeneratorConfig(
    prefill_tokens=2048, decode_tokens=256, max_tokens=4096)
config = c.SimulationConfig(
    cluster_config=c.ClusterConfig(
        num_replicas=1,
        replica_config=c.ReplicaConfig(num_pipeline_stages=1, tensor_parallel_size=1),
        cache_config=c.CacheConfig(block_size=16, num_blocks=23040),
        replica_scheduler_config=c.SarathiSchedulerConfig(chunk_size=8192, batch_size_cap=64)),
    request_generator_config=c.SyntheticRequestGeneratorConfig(
        num_requests=int(sys.argv[1]), length_generator_config=lengths,
        interval_generator_config=c.StaticRequestIntervalGeneratorConfig()),
    execution_time_predictor_config=c.LinearRegressionExecutionTimePredictorConfig(),
    metrics_config=c.MetricsConfig(
        write_metrics=False, write_json_trace=False, enable_chrome_trace=False,
        store_plots=False, output_dir=tempfile.mkdtemp()))
simulator = Simulator(config)
simulator._write_output = lambda: None
begin = time.perf_counter()
simulator.run()
seconds = time.perf_counter() - begin
print(json.dumps({"steps": steps[0], "request_steps": steps[1], "seconds": seconds}))
"""

Timed = tuple[float, list[dict[str, Any]]]


def best_of(rounds: int, work: Callable[[], list[dict[str, Any]]]) -> Timed:
    """Shortest wall time in seconds, and what the work returned."""
    best_s, out = float("inf"), []
    for _ in range(rounds):
        begin = time.perf_counter()
        out = work()
        best_s = min(best_s, time.perf_counter() - begin)
    return best_s, out


def simulated(specs: list[dict[str, Any]], *, fast: bool) -> list[dict[str, Any]]:
    """Summaries of the runs of some specs."""
    return [run(parse(spec), fast=fast).summary() for spec in specs]


def study_specs() -> list[dict[str, Any]]:
    """The 16 cells: two engines (pause modes), two workloads, two policies, two repeats."""
    return [
        {**STUDY, "policy": policy, "pause": pause, "requests": workload}
        for pause in ({"truncate_to_tokens": 1024}, "recompute")
        for workload in (W_B, W_C)
        for policy in ("guaranteed_no_evict", "max_utilization")
        for _ in range(2)
    ]


def large_spec(policy: str) -> dict[str, Any]:
    """10,000 requests of uneven lengths on 128 lanes."""
    rng = random.Random(16827)
    requests = [
        {
            "input_tokens": rng.randint(100, 4000),
            "output_tokens": rng.randint(1, 500),
            "output_cap_tokens": 512,
        }
        for _ in range(10_000)
    ]
    load = {"concurrency": 128, "max_batch_size": 128, "requests": requests}
    return {**STUDY, **load, "policy": policy}


def vidur_spec() -> dict[str, Any]:
    """The load that vidur gets."""
    return {
        "policy": "vllm_recompute",
        "vllm": {"null_block": False},
        "pool_tokens": 368640,
        "block_tokens": 16,
        "arrivals": {"trace_s": [0.0] * VIDUR_REQUESTS},
        "requests": {"count": VIDUR_REQUESTS, "input_tokens": 2048, "output_tokens": 256},
        "step_time": {"fixed_s": 0.02},
    }


def vidur() -> dict[str, Any] | str:
    """Steps, request-steps and seconds of vidur's run; a reason where there is none."""
    if not SIDE_PYTHON.exists():
        return "not installed (see the head of this file)"
    with tempfile.TemporaryDirectory() as folder:
        ended = subprocess.run(
            [str(SIDE_PYTHON), "-c", VIDUR_DRIVER, str(VIDUR_REQUESTS)],
            cwd=folder,
            capture_output=True,
            text=True,
            timeout=300,
            check=False,
        )
    lines = ended.stdout.strip().splitlines()
    if ended.returncode or not lines:
        return f"did not run: {(ended.stderr.strip().splitlines() or ['no output'])[-1]}"
    figures: dict[str, Any] = json.loads(lines[-1])
    return figures


def line(name: str, timed: Timed, target: str) -> None:
    """One row of the table."""
    seconds, outs = timed
    steps = sum(out["iterations"] for out in outs)
    real_s = sum(out["wall_s"] for out in outs)
    print(
        f"{name:<44} {seconds:>8.3f} {steps:>9,} {steps / seconds:>12,.0f} "
        f"{real_s / seconds:>10,.0f}x  {target}"
    )


def main() -> int:
    """Print the table."""
    print(f"{'':<44} {'wall s':>8} {'steps':>9} {'steps/s':>12} {'real time':>11}  target")
    for fast, path in ((True, "closed form"), (False, "step by step")):
        study = best_of(ROUNDS, partial(simulated, study_specs(), fast=fast))
        line(f"the study, 16 cells, {path}", study, "< 3 s")
        for policy in ("guaranteed_no_evict", "max_utilization"):
            spec = {**STUDY, "policy": policy, "requests": W_C}
            cell = best_of(ROUNDS, partial(simulated, [spec], fast=fast))
            line(f"W-C {policy}, {path}", cell, ">= 1,000x")
    for policy in ("guaranteed_no_evict", "max_utilization", "vllm_recompute", "sglang_retract"):
        spec = large_spec(policy)
        large = best_of(1, partial(simulated, [spec], fast=True))
        line(f"10,000 requests x 128 lanes, {policy}", large, "< 60 s")
    theirs = vidur()
    for fast, path in ((True, "closed form"), (False, "step by step")):
        ours = best_of(ROUNDS, partial(simulated, [vidur_spec()], fast=fast))
        line(f"{VIDUR_REQUESTS} requests at once, kvstudy, {path}", ours, "")
        if isinstance(theirs, dict):
            ratio = ours[1][0]["iterations"] / ours[0] / (theirs["steps"] / theirs["seconds"])
            print(f"{'':<44} {ratio:.1f}x the steps/s of vidur")
    name = "the same, vidur"
    if isinstance(theirs, dict):
        rate = theirs["steps"] / theirs["seconds"]
        print(f"{name:<44} {theirs['seconds']:>8.3f} {theirs['steps']:>9,} {rate:>12,.0f}")
    else:
        print(f"{name:<44} {theirs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

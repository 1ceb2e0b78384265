"""Manners of the command: help, exit codes, one clear line per error."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from kvstudy import cli
from kvstudy.commands.terminal import inert


def run(*arguments: str, text: str | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvstudy", *arguments],
        capture_output=True,
        text=True,
        input=text,
        timeout=120,
        check=False,
    )


def test_help_fits_one_screen_and_names_every_subcommand() -> None:
    done = run("--help")

    assert done.returncode == 0
    assert len(done.stdout.splitlines()) <= 40
    assert all(name in done.stdout for name in cli.COMMANDS)


@pytest.mark.parametrize("name", [n for n in cli.COMMANDS if n != "emulate"])
def test_each_subcommand_has_help_with_examples(name: str) -> None:
    done = run(name, "--help")

    assert done.returncode == 0
    assert "example" in done.stdout


@pytest.mark.parametrize("arguments", [["no-such"], ["simulate"], ["load", "--rate", "0"], []])
def test_usage_errors_exit_with_64(arguments: list[str]) -> None:
    done = run(*arguments)

    assert done.returncode == 64
    assert "Traceback" not in done.stderr


SPEC = {
    "policy": "guaranteed_no_evict",
    "pool_tokens": 320,
    "block_tokens": 32,
    "max_batch_size": 4,
    "max_num_tokens": 128,
    "chunked_prefill": True,
    "concurrency": 1,
    "admission_lag_steps": 2,
    "requests": [{"count": 2, "input_tokens": 32, "output_tokens": 3}],
    "step_time": {"fixed_s": 1.0},
}


def test_simulate_prints_one_object_that_a_hand_can_check() -> None:
    """One lane, each request: a context step and two more, each of one second."""
    done = run("simulate", "--spec", "-", "--per-request", text=json.dumps(SPEC))
    result = json.loads(done.stdout)

    assert done.returncode == 0
    assert result["iterations"] == 6
    assert result["wall_s"] == 6.0
    assert result["ttft_p50_ms"] == 1000.0
    assert result["tpot_p50_ms"] == 1000.0
    assert result["output_tok_per_s"] == 1.0
    assert len(result["per_request"]) == 2


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"policy": "lru"}, "policy"),
        ({"pool_tokens": -1}, "pool_tokens"),
        ({"pool_tokens": 32}, "pool"),
        ({"step_time": {"fixed_s": float("nan")}}, "fixed_s"),
        ({"poool": 1}, "poool"),
    ],
)
def test_a_bad_spec_is_one_clear_line(change: dict[str, object], word: str) -> None:
    done = run("simulate", "--spec", "-", text=json.dumps({**SPEC, **change}))

    assert done.returncode == 64
    assert done.stdout == ""
    assert len(done.stderr.strip().splitlines()) == 1
    assert word in done.stderr


def test_plan_shows_what_would_run_and_why(root: Path) -> None:
    done = run("plan", "--configfile", str(root / "config.yaml"), "--results", "/nowhere", "--json")
    plan = json.loads(done.stdout)
    states = {cell["cell_id"]: cell["state"] for cell in plan["cells"]}

    assert done.returncode == 0
    assert states["W-C.c32.trtllm-1.2.1.mu.r1"] == "runs"
    assert states["W-C.c32.trtllm-1.3.0rc22.mu.r1"] == "waits"
    assert len(plan["notices"]) == 1


def test_foreign_text_cannot_drive_the_terminal() -> None:
    assert inert("a\x1b[31mb\x07") == "a\\x1b[31mb\\x07"

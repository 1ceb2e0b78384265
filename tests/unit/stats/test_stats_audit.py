"""The audit of contrasts: a declared difference is fair, any other spoils it."""

from __future__ import annotations

import copy
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstudy.stats.audit import audit, flags, spoilt
from kvstudy.stats.contrast import pairs_of

sys.path.insert(0, str(Path(__file__).parent))
from stats_rows import cell, data

ARMS = {
    "gne": {"options": {"scheduler_config": {"capacity_scheduler_policy": "G"}}},
    "mu": {
        "extends": "gne",
        "options": {"scheduler_config": {"capacity_scheduler_policy": "M"}},
    },
}
CONTRASTS = [{"baseline": "gne", "treatment": "mu", "within": "engine"}]
STUDY = data(cell("gne", 1), cell("mu", 1))
LEFT, RIGHT = "W-C.c32.e.gne.r1", "W-C.c32.e.mu.r1"


def run(policy: str) -> dict[str, Any]:
    extra = {
        "kv_cache_config": {"max_tokens": 368640},
        "scheduler_config": {"capacity_scheduler_policy": policy},
    }
    return {
        "argv": ["serve", "m", "--max_batch_size", "64", "--port", "4000" + policy],
        "files": {"extra.yaml": yaml.safe_dump(extra)},
        "resolved": {"policy": policy, "pool_tokens": 368640, "excerpts": [policy]},
        "versions": {"engine": "1", "driver": "580"},
    }


RUNS = {LEFT: run("G"), RIGHT: run("M")}


def finding(runs: dict[str, Any], study=STUDY, contrasts=CONTRASTS):
    (found,) = audit(pairs_of(contrasts, study), runs, ARMS)
    return found


def test_only_the_declared_policy_differs() -> None:
    found = finding(RUNS)
    assert found.fair
    assert found.known
    assert {(d.place, d.key) for d in found.differences} == {
        ("resolved", "policy"),
        ("configuration file", "scheduler_config.capacity_scheduler_policy"),
    }
    assert spoilt([found], pairs_of(CONTRASTS, STUDY)) == {}


def change_pool(run: dict[str, Any]) -> None:
    run["resolved"]["pool_tokens"] = 400000


def change_file(run: dict[str, Any]) -> None:
    run["files"]["extra.yaml"] += "enable_chunked_prefill: false\n"


def change_flag(run: dict[str, Any]) -> None:
    run["argv"][3] = "128"


def change_version(run: dict[str, Any]) -> None:
    run["versions"]["driver"] = "590"


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (change_pool, "pool_tokens"),
        (change_file, "enable_chunked_prefill"),
        (change_flag, "--max_batch_size"),
        (change_version, "driver"),
    ],
)
def test_any_other_difference_spoils_the_contrast_and_is_named(change: Any, key: str) -> None:
    runs = copy.deepcopy(RUNS)
    change(runs[RIGHT])

    found = finding(runs)

    assert [d.key for d in found.undeclared] == [key]
    reasons = spoilt([found], pairs_of(CONTRASTS, STUDY))
    assert set(reasons) == {LEFT, RIGHT}
    assert key in reasons[LEFT]


def test_a_setting_a_server_does_not_say_is_no_difference() -> None:
    runs = copy.deepcopy(RUNS)
    runs[RIGHT]["resolved"]["pool_tokens"] = None
    assert finding(runs).fair


def test_across_engines_only_the_resolved_settings_are_compared() -> None:
    study = data(cell("mu", 1), cell("mu", 1, engine="f"))
    runs = {RIGHT: run("M"), "W-C.c32.f.mu.r1": run("M")}
    runs["W-C.c32.f.mu.r1"]["versions"]["engine"] = "2"
    contrasts = [{"baseline": "e", "treatment": "f", "within": "arm"}]

    assert finding(runs, study, contrasts).fair
    runs["W-C.c32.f.mu.r1"]["resolved"]["pool_tokens"] = 1
    assert not finding(runs, study, contrasts).fair


def test_a_cell_without_a_record_is_not_known_but_not_unfair() -> None:
    found = finding({LEFT: RUNS[LEFT]})
    assert not found.known
    assert found.fair


def test_flags_reads_both_spellings_and_drops_what_changes_at_each_launch() -> None:
    argv = ["serve", "--a", "1", "--b=2", "--c", "--port", "80", "--config", "/x/extra.yaml"]
    assert flags(argv) == {"--a": "1", "--b": "2", "--c": "set"}

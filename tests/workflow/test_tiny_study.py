"""The whole line on a tiny study: what comes out, and what a change runs again."""

from __future__ import annotations

import json
import subprocess
import sys
from typing import Any

import pandas as pd
import pytest
from tokenizers import Tokenizer

from .conftest import ROOT, Workflow

CHEAP = {
    "freeze_study", "build_tables", "compare_arms", "explain_study", "map_regimes",
    "draw_figures", "render_report", "write_answer",
}  # fmt: skip
FORCED = "W-C.c6.trtllm-1.2.1.mu.r1"


def test_the_report_is_there_in_both_forms(tiny: Workflow) -> None:
    html = (tiny.results / "report" / "index.html").read_text(encoding="utf-8")
    markdown = (tiny.results / "report" / "report.md").read_text(encoding="utf-8")

    assert "mulated" in html
    assert "mulated" in markdown
    assert "http://" not in html.replace("http://www.w3.org", "")


def test_every_emulated_cell_has_exactly_the_predicted_steps(tiny: Workflow) -> None:
    cells = pd.read_parquet(tiny.results / "tables" / "cells.parquet")
    emulated = cells[cells.source == "emulated"].set_index("cell_id")
    predicted = cells[cells.source == "predicted"].set_index("cell_id")

    assert len(emulated) == len(predicted) == 14
    for column in ("iterations", "pauses", "recomputed_tokens", "hidden_tokens", "completed"):
        assert emulated[column].tolist() == predicted.loc[emulated.index][column].tolist(), column
    assert emulated.valid.all(), emulated.reasons.tolist()


def test_the_tiny_pool_makes_max_utilization_pause(tiny: Workflow) -> None:
    """2,240 tokens hold 4 prompts of 512 and little more; a reserving policy never pauses."""
    cells = pd.read_parquet(tiny.results / "tables" / "cells.parquet")
    pressed = cells[(cells.workload == "W-C") & (cells.source == "emulated")]

    assert (pressed[pressed.arm == "mu"].pauses > 0).all()
    assert (pressed[pressed.arm == "gne"].pauses == 0).all()


def test_the_four_output_counts_agree_and_come_from_different_places(tiny: Workflow) -> None:
    """Texts are re-tokenised here by the tokenizers library, not by the code under test."""
    requests = pd.read_parquet(tiny.results / "tables" / "requests.parquet")
    emulated = requests[requests.source == "emulated"]
    tokenizer = Tokenizer.from_file(str(tiny.results / "tokenizer" / "tokenizer.json"))
    cell = emulated[emulated.cell_id == FORCED].set_index("request_id")
    outputs = pd.read_parquet(tiny.results / "cells" / FORCED / "outputs.parquet")
    for _, row in outputs.iterrows():
        ids = tokenizer.encode(row.text, add_special_tokens=False).ids
        assert len(ids) == cell.loc[row.request_id].retokenized_tokens == 48

    assert (emulated.chunk_count == emulated.planned_output_tokens).all()
    assert (emulated.usage_tokens == emulated.planned_output_tokens).all()
    assert (emulated.server_input_tokens == emulated.planned_input_tokens).all()


def test_early_ends_under_a_cap_are_planned_not_short(tiny: Workflow) -> None:
    requests = pd.read_parquet(tiny.results / "tables" / "requests.parquet")
    uniform = requests[(requests.workload == "W-D") & (requests.source == "emulated")]

    assert (uniform.output_cap_tokens == 64).all()
    assert uniform.planned_output_tokens.between(8, 32).all()
    assert set(uniform.finish_reason) == {"stop"}


def test_only_order_differs_between_repeats(tiny: Workflow) -> None:
    requests = pd.read_parquet(tiny.results / "tables" / "requests.parquet")
    one = requests[(requests.cell_id == FORCED) & (requests.source == "emulated")]
    two_id = FORCED.replace(".r1", ".r2")
    two = requests[(requests.cell_id == two_id) & (requests.source == "emulated")]

    assert sorted(one.request_id) == sorted(two.request_id)
    assert one.sort_values("submit_order").request_id.tolist() != (
        two.sort_values("submit_order").request_id.tolist()
    )


def test_each_cell_had_a_server_of_its_own_that_was_stopped(tiny: Workflow) -> None:
    runs = json.loads((tiny.results / "tables" / "runs.json").read_text())
    ports = [run["argv"][run["argv"].index("--port") + 1] for run in runs.values()]

    assert len(runs) == len(ports) == 14
    assert {run["ending"] for run in runs.values()} == {"stopped"}
    assert all(run["leftovers"] == 0 and run["exposed"] == [] for run in runs.values())


def test_a_second_run_does_nothing(tiny: Workflow) -> None:
    assert "Nothing to be done" in tiny.snakemake().stderr


EDITS: list[tuple[str, dict[str, Any], dict[str, int]]] = [
    ("title", {"title": "another"}, {}),
    ("tolerances", {"slo": {"ttft_ms": 5.0}}, {}),
    ("contrast", {"contrasts": []}, {}),
    (
        "bump",
        {
            "engines": {
                "trtllm-1.4.0rc1": {
                    "adapter": "trtllm",
                    "version": "1.4.0rc1",
                    "image": {"uri": "docker://example/x:1", "digest": "to-be-pinned"},
                }
            },
            "arms": {"gne": {"engines": ["trtllm-1.2.1", "trtllm-1.3.0rc22", "trtllm-1.4.0rc1"]}},
        },
        {"measure_allocation": 2, "check_cell": 6, "simulate_cell": 6},
    ),
    (
        "attempts",
        {"attempts": {FORCED: 2}},
        {"measure_allocation": 1, "check_cell": 4},
    ),
    (
        "length",
        {"workloads": {"W-B": {"output_tokens": 20}}},
        {"make_workload": 1, "measure_allocation": 2, "check_cell": 4, "simulate_cell": 4},
    ),
    (
        "arm",
        {"arms": {"mu": {"options": {"scheduler_config": {"x": 1}}}}},
        {"measure_allocation": 5, "check_cell": 14, "simulate_cell": 7},
    ),
]


@pytest.mark.parametrize(("values", "expected"), [e[1:] for e in EDITS], ids=[e[0] for e in EDITS])
def test_a_change_runs_exactly_what_it_touches(
    tiny: Workflow, values: dict[str, Any], expected: dict[str, int]
) -> None:
    would_run = tiny.would_run(values)
    dear = {rule: count for rule, count in would_run.items() if rule not in CHEAP}
    dear.pop("verify_image", None)
    dear.pop("probe_engine", None)
    dear.pop("write_lock", None)

    assert would_run, "a change must run something"
    assert dear == expected


def test_a_forced_attempt_measures_one_cell_and_keeps_the_old_one(copy_of_tiny: Workflow) -> None:
    overlay = copy_of_tiny.overlay("forced", {"attempts": {FORCED: 2}})
    before = copy_of_tiny.attempts()
    copy_of_tiny.snakemake(overlays=[overlay])
    after = copy_of_tiny.attempts()

    assert {cell for cell in after if after[cell] != before[cell]} == {FORCED}
    assert after[FORCED] == [1, 2]
    check = json.loads((copy_of_tiny.results / "cells" / FORCED / "check.json").read_text())
    assert check["attempt"] == 2
    assert check["reasons"] == [*check["reasons"]]
    assert "later_attempt" in check["reasons"]


def kvstudy(tiny: Workflow, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "kvstudy", *arguments],
        cwd=tiny.folder,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def test_an_emulated_result_reproduces_nothing(tiny: Workflow) -> None:
    done = kvstudy(tiny, "report", "--backend", "emulated", "--verdict")

    assert done.returncode == 2
    assert "Nothing was measured" in done.stderr


def test_watch_and_plan_see_a_finished_study(tiny: Workflow) -> None:
    configs = ["--configfile", str(ROOT / "config.yaml"), str(ROOT / "tests" / "tiny.yaml")]
    watched = kvstudy(tiny, "watch", "--once", *configs)
    planned = kvstudy(tiny, "plan", "--json", *configs)

    assert watched.stdout.startswith("14/14 cells")
    assert {cell["state"] for cell in json.loads(planned.stdout)["cells"]} == {"done"}


def test_an_unknown_claim_is_a_usage_error(tiny: Workflow) -> None:
    done = kvstudy(tiny, "trace", "no-such-claim", "--backend", "emulated")

    assert done.returncode == 64
    assert "no claim 'no-such-claim'" in done.stderr


def test_snakemakes_own_report_carries_the_captions(tiny: Workflow) -> None:
    tiny.snakemake("--report", "snakemake-report.html")
    text = (tiny.folder / "snakemake-report.html").read_text(encoding="utf-8")

    assert "one self-contained page" in text
    assert "short enough to paste into an issue" in text

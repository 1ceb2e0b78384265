"""Expressions over cells and requests, against values worked out by hand."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kvstudy.stats.claims import Compute
from kvstudy.stats.expression import evaluate

sys.path.insert(0, str(Path(__file__).parent))
from stats_rows import cell, data

STUDY = data(
    cell("gne", 1, output_tok_per_s=160.0, tpot_p99_ms=100.0, early_ended=0, pool_blocks=100),
    cell("gne", 2, output_tok_per_s=162.0, tpot_p99_ms=104.0, early_ended=0, pool_blocks=100),
    cell("mu", 1, output_tok_per_s=80.0, tpot_p99_ms=900.0, early_ended=3, pool_blocks=100),
    cell("mu", 2, output_tok_per_s=81.0, tpot_p99_ms=1000.0, early_ended=0, pool_blocks=100),
    mu1={
        "chunk_count": [512, 329, 512],
        "retokenized_tokens": [284, 329, 512],
        "planned_input_tokens": [16, 16, 16],
        "output_cap_tokens": [4, 4, 5],
    },
    mu2={
        "chunk_count": [512, 512, 509],
        "retokenized_tokens": [512, 284, 509],
        "planned_input_tokens": [16, 16, 16],
        "output_cap_tokens": [4, 4, 4],
    },
)


def value(op: str, of: dict[str, Any], **rest: Any) -> float | None:
    over = rest.pop("over", None)
    base = {"workload": "W-C", "concurrency": 32, "engine": "e", **of}
    document = {"op": op, "of": base, **rest}
    if over is not None:
        document["over"] = {**base, **over}
    return evaluate(Compute.model_validate(document), STUDY, "measured").value


def test_value_is_the_mean_over_repeats_one_repeat_or_an_extreme() -> None:
    metric = {"arm": "mu", "metric": "tpot_p99_ms"}
    assert value("value", metric) == 950.0
    assert value("value", {**metric, "repeat": 2}) == 1000.0
    assert value("value", {**metric, "repeat": "min"}) == 900.0
    assert value("value", {**metric, "repeat": "max"}) == 1000.0
    assert value("value", metric, scale=2.0) == 1900.0


def test_ratio_and_change_are_of_means_not_means_of_ratios() -> None:
    of, over = {"arm": "mu", "metric": "output_tok_per_s"}, {"arm": "gne"}
    assert value("ratio", of, over=over) == 80.5 / 161.0
    assert value("delta_percent", of, over=over) == -50.0


def test_sum_and_spread_are_over_repeats() -> None:
    assert value("sum", {"arm": "mu", "metric": "early_ended"}) == 3
    assert value("spread", {"arm": "mu", "metric": "tpot_p99_ms"}) == 100.0


def test_largest_repeat_difference_is_relative_and_over_all_cells() -> None:
    """GNE: 2 of 161, 1.24 %; MU: 1 of 80.5, 1.24 %; the larger is reported."""
    found = value("max_repeat_diff", {"metric": "output_tok_per_s"})
    assert found == pytest.approx(max(100 * 2 / 161, 100 * 1 / 80.5))


def test_count_counts_requests_that_meet_every_condition() -> None:
    where = {"chunk_count": {"equals": 512}, "retokenized_tokens": {"equals": 284}}
    assert value("count", {"arm": "mu"}, where=where) == 2
    assert value("count", {"arm": "mu"}, where={"chunk_count": {"below": 512}}) == 2
    assert value("count", {"arm": "mu"}, where={"chunk_count": {"at_least": 512}}) == 4


def test_demand_is_lanes_times_the_longest_request_over_the_pool() -> None:
    assert value("demand", {"arm": "mu"}) == 32 * 21
    assert value("demand", {"arm": "mu"}, pool_block_tokens=2) == 32 * 21 / 200


@pytest.mark.parametrize(
    ("op", "of", "rest", "words"),
    [
        ("value", {"arm": "other", "metric": "tpot_p99_ms"}, {}, "no cell of"),
        ("value", {"arm": "mu", "metric": "goodput_req_per_s"}, {}, "not defined"),
        ("spread", {"arm": "mu", "metric": "tpot_p99_ms", "repeat": 1}, {}, "one repeat"),
        ("count", {"arm": "gne"}, {"where": {"chunk_count": {"below": 1}}}, "not recorded"),
        ("none", {}, {"because": "needs two nodes"}, "needs two nodes"),
    ],
)
def test_what_cannot_be_computed_says_why(
    op: str, of: dict[str, Any], rest: dict[str, Any], words: str
) -> None:
    compute = Compute.model_validate({"op": op, "of": of, **rest})
    found = evaluate(compute, STUDY, "measured")
    assert found.value is None
    assert words in str(found.problem)


def test_noise_is_the_range_over_single_repeats_or_pairs_of_them() -> None:
    """Ratios of single repeats: 80/160, 80/162, 81/160, 81/162."""
    single = Compute.model_validate({"op": "value", "of": {"arm": "mu", "metric": "tpot_p99_ms"}})
    pair = Compute.model_validate(
        {
            "op": "ratio",
            "of": {"arm": "mu", "metric": "output_tok_per_s"},
            "over": {"arm": "gne", "metric": "output_tok_per_s"},
        }
    )
    assert evaluate(single, STUDY, "measured").noise == 100.0
    assert evaluate(pair, STUDY, "measured").noise == pytest.approx(81 / 160 - 80 / 162)


def test_a_cell_that_was_not_run_is_as_if_absent() -> None:
    study = data(
        cell("gne", 1, output_tok_per_s=1.0),
        cell("gne", 2, valid=False, reasons=["not_run"]),
    )
    compute = Compute.model_validate(
        {"op": "value", "of": {"arm": "gne", "metric": "output_tok_per_s"}}
    )
    assert evaluate(compute, study, "measured").value == 1.0

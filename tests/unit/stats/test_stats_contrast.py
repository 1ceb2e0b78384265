"""Contrasts of hand-made cells: ratio, noise, pairing, A/A, and what is left out."""

from __future__ import annotations

import math
import sys
from pathlib import Path
from typing import Any

import pytest

from kvstudy.stats.contrast import AA, aa_pairs, contrast_rows, noise_factor, noise_ratio, pairs_of

sys.path.insert(0, str(Path(__file__).parent))
from stats_rows import cell, data

WITHIN_ENGINE = {"baseline": "gne", "treatment": "mu", "within": "engine"}
WITHIN_ARM = {"baseline": "e", "treatment": "f", "within": "arm"}


def study(**changes: Any):
    """Baseline 100 and 110, treatment 50 and 52 tok/s."""
    requests = {
        "retokenized_tokens": [100.0, 100.0],
        "planned_output_tokens": [100.0, 100.0],
        "chunk_count": [100.0, 100.0],
        "ttft_ns": [1e9, 2e9],
    }
    return data(
        cell("gne", 1, output_tok_per_s=100.0, **changes),
        cell("gne", 2, output_tok_per_s=110.0),
        cell("mu", 1, output_tok_per_s=50.0),
        cell("mu", 2, output_tok_per_s=52.0),
        gne1=requests,
        gne2=requests,
        mu1=requests,
        mu2=requests,
    )


def rows_of(data, contrast=WITHIN_ENGINE):
    rows = contrast_rows(pairs_of([contrast], data), data, seed=7)
    return {row["metric"]: row for row in rows}


def test_the_ratio_is_of_means_and_the_noise_is_the_larger_sides() -> None:
    row = rows_of(study())["output_tok_per_s"]
    assert row["contrast"] == "mu vs gne"
    assert row["within"] == "e"
    assert (row["baseline_value"], row["treatment_value"]) == (105.0, 51.0)
    assert row["ratio"] == 51 / 105
    assert row["noise_ratio"] == pytest.approx(1.1)
    assert row["noise_factor"] == pytest.approx(abs(math.log(51 / 105)) / math.log(1.1))
    assert row["paired"]
    assert row["ratio_low"] <= row["ratio_high"]
    assert row["repeats"] == 2
    assert row["remark"] is None


def test_a_metric_without_values_has_no_row() -> None:
    assert set(rows_of(study())) == {"output_tok_per_s"}


def test_an_invalid_cell_is_left_out_and_said() -> None:
    row = rows_of(study(valid=False, reasons=["server_died"]))["output_tok_per_s"]
    assert row["baseline_value"] == 110.0
    assert row["ratio_low"] is None
    assert row["noise_ratio"] is None
    assert "left out as not valid: W-C.c32.e.gne.r1" in row["remark"]
    assert "no interval" in row["remark"]


def test_another_gpu_makes_a_contrast_unpaired() -> None:
    row = rows_of(study(gpu_uuid="GPU-2"))["output_tok_per_s"]
    assert not row["paired"]
    assert "unpaired" in row["remark"]


def test_engines_are_compared_within_an_arm_and_are_unpaired() -> None:
    both = data(
        cell("mu", 1, output_tok_per_s=95.0),
        cell("mu", 1, engine="f", output_tok_per_s=159.0),
    )
    row = rows_of(both, WITHIN_ARM)["output_tok_per_s"]
    assert (row["within"], row["contrast"]) == ("mu", "f vs e")
    assert row["ratio"] == 159 / 95
    assert not row["paired"]


def test_a_prediction_has_no_interval() -> None:
    predicted = data(
        *(cell(arm, r, "predicted", output_tok_per_s=v) for arm, v in (("gne", 2.0), ("mu", 1.0))
          for r in (1, 2))
    )  # fmt: skip
    row = rows_of(predicted)["output_tok_per_s"]
    assert row["ratio_low"] is None
    assert row["noise_factor"] is None
    assert "deterministic" in row["remark"]


def test_a_sided_contrast_of_nothing_is_not_invented() -> None:
    assert pairs_of([WITHIN_ENGINE], data(cell("gne", 1, output_tok_per_s=1.0))) == []


def test_aa_is_each_repeat_over_the_one_before() -> None:
    rows = contrast_rows(aa_pairs(study()), study(), seed=7)
    found = {(r["baseline"], r["treatment"]): r for r in rows if r["metric"] == "output_tok_per_s"}
    assert set(found) == {("gne r1", "gne r2"), ("mu r1", "mu r2")}
    row = found[("gne r1", "gne r2")]
    assert (row["contrast"], row["ratio"]) == (AA, 1.1)
    assert row["noise_ratio"] is None
    assert row["ratio_low"] is None


def test_noise_needs_two_repeats_on_both_sides() -> None:
    assert noise_ratio([[1.0, 2.0], [3.0]]) is None
    assert noise_ratio([[1.0, 2.0], [3.0, 3.3]]) == 2.0
    assert noise_factor(4.0, 2.0) == 2.0
    assert noise_factor(4.0, 1.0) is None
    assert noise_factor(None, 2.0) is None

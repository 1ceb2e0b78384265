"""Verdicts of synthetic cells whose right answer is known."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

from kvstudy.stats.claims import Claim
from kvstudy.stats.verdict import exit_code, judge, sentence

sys.path.insert(0, str(Path(__file__).parent))
from stats_rows import cell, data


def claim(value: float, tolerance: dict[str, Any] | None = None, **changes: Any) -> Claim:
    document = {
        "id": "c",
        "group": "g",
        "label": "l",
        "value": value,
        "step": 0.1,
        "where": "w",
        "compute": {"op": "value", "of": {"arm": "gne", "metric": "output_tok_per_s"}},
        "tolerance": tolerance or {"absolute": 1.0, "reason": "r"},
    }
    return Claim.model_validate(document | changes)


def cells(source: str = "measured", **changes: Any) -> list[dict[str, Any]]:
    """Two repeats of throughput 100 and 102: mean 101."""
    return [
        cell("gne", 1, source, output_tok_per_s=100.0, **changes),
        cell("gne", 2, source, output_tok_per_s=102.0, **changes),
    ]


def verdict(one: Claim, rows: list[dict[str, Any]], **rest: Any) -> dict[str, Any]:
    (row,) = judge([one], data(*rows), **rest)
    return row


def test_the_edge_of_the_tolerance_agrees_and_beyond_it_does_not() -> None:
    """Tolerance 1.0 plus half of the last digit, 0.05."""
    assert verdict(claim(102.05), cells())["verdict"] == "reproduced"
    assert verdict(claim(102.06), cells())["verdict"] == "not_reproduced"


def test_a_wrong_tolerance_flips_the_verdict() -> None:
    tight = claim(102.0, {"relative": 0.005, "reason": "r"})
    wide = claim(102.0, {"relative": 0.05, "reason": "r"})
    assert verdict(tight, cells())["verdict"] == "not_reproduced"
    assert verdict(wide, cells())["verdict"] == "reproduced"


def test_noise_tolerance_takes_the_runs_repeats_but_never_less_than_its_floor() -> None:
    row = verdict(claim(103.0, {"noise": 0.001, "reason": "r"}), cells())
    assert row["tolerance"] == pytest.approx(2.05)
    assert row["verdict"] == "reproduced"
    one = verdict(claim(103.0, {"noise": 0.001, "reason": "r"}), cells()[:1])
    assert one["tolerance"] == pytest.approx(0.153)
    assert one["verdict"] == "not_reproduced"
    assert one["why"] == "from one repeat"


def test_a_model_never_reproduces() -> None:
    for source in ("emulated", "predicted"):
        assert verdict(claim(101.0), cells(source))["verdict"] == "model_agrees"
        assert verdict(claim(50.0), cells(source))["verdict"] == "model_differs"


def test_what_a_model_cannot_show_is_not_modelled_but_measured_it_counts() -> None:
    one = claim(101.0, not_modelled="no text")
    row = verdict(one, cells("emulated"))
    assert (row["verdict"], row["observed"], row["why"]) == ("not_modelled", None, "no text")
    assert verdict(one, cells())["verdict"] == "reproduced"


def test_an_invalid_cell_takes_the_verdict_and_says_its_reason() -> None:
    rows = cells()
    rows[1] |= {"valid": False, "reasons": ["client_saturated"]}
    row = verdict(claim(101.0), rows)
    assert row["verdict"] == "invalid"
    assert "client_saturated" in row["why"]
    assert row["observed"] == 101.0


def test_a_cell_that_was_not_run_is_not_measured() -> None:
    rows = [cell("gne", r, valid=False, reasons=["not_run"]) for r in (1, 2)]
    row = verdict(claim(101.0), rows)
    assert row["verdict"] == "not_measured"
    assert row["why"].startswith("no cell of")


def test_at_most_holds_for_anything_smaller() -> None:
    assert verdict(claim(200.0, holds="at_most"), cells())["verdict"] == "reproduced"
    assert verdict(claim(99.0, holds="at_most"), cells())["verdict"] == "not_reproduced"
    assert verdict(claim(99.0, holds="at_least"), cells())["verdict"] == "reproduced"


def test_the_basis_is_the_weakest_of_the_cells_used() -> None:
    rows = cells("predicted")
    rows[0]["basis"], rows[1]["basis"] = "fitted", "assumed"
    assert verdict(claim(101.0), rows)["basis"] == "assumed"
    rows[1]["basis"] = "held_out"
    assert verdict(claim(101.0), rows)["basis"] == "fitted"


def test_distance_is_relative_to_the_published_value() -> None:
    assert verdict(claim(100.0), cells())["distance"] == pytest.approx(0.01)
    assert verdict(claim(0.0), cells())["distance"] == pytest.approx(101.0)


def test_a_comparison_of_spoilt_cells_is_invalid_a_plain_value_is_not() -> None:
    rows = [*cells(), cell("mu", 1, output_tok_per_s=50.0)]
    spoilt = {row["cell_id"]: "invalid: pool differs" for row in rows}
    ratio = claim(
        0.5,
        compute={
            "op": "ratio",
            "of": {"arm": "mu", "metric": "output_tok_per_s"},
            "over": {"arm": "gne", "metric": "output_tok_per_s"},
        },
    )
    row = verdict(ratio, rows, spoilt=spoilt)
    assert (row["verdict"], row["why"]) == ("invalid", "invalid: pool differs")
    assert verdict(claim(101.0), rows, spoilt=spoilt)["verdict"] == "reproduced"


def rows_with(*verdicts: str, source: str = "measured") -> list[dict[str, Any]]:
    return [{"source": source, "verdict": v, "tolerance": 1.0} for v in verdicts]


@pytest.mark.parametrize(
    ("rows", "code"),
    [
        (rows_with("reproduced"), 0),
        (rows_with("reproduced", "not_reproduced"), 1),
        (rows_with("not_reproduced", "invalid"), 2),
        (rows_with("not_reproduced", "not_measured"), 2),
        (rows_with("model_agrees", source="emulated"), 2),
        (rows_with("model_differs", source="predicted") + rows_with("reproduced"), 0),
        ([], 2),
        (
            [
                {"source": "measured", "verdict": "not_measured", "tolerance": None},
                *rows_with("reproduced"),
            ],
            0,
        ),
    ],
)
def test_exit_code_two_wins_over_one_and_only_measured_rows_count(
    rows: list[dict[str, Any]], code: int
) -> None:
    assert exit_code(rows) == code
    assert sentence(rows)

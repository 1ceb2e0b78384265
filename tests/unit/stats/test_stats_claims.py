"""Published numbers: the shipped files, and what is said about a wrong one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstudy.base.errors import ConfigError
from kvstudy.stats.claims import parse_published, read_published

ROOT = Path(__file__).resolve().parents[3]
SHIPPED = [
    ROOT / "report/published" / name for name in ("issue-16827.yaml", "issue-16827-rc22.yaml")
]


def claim(**changes: Any) -> dict[str, Any]:
    """A valid claim with keys replaced."""
    return {
        "id": "a.b",
        "group": "table 1",
        "label": "throughput",
        "value": 100.0,
        "unit": "tok/s",
        "step": 0.1,
        "where": "page 3",
        "compute": {"op": "value", "of": {"arm": "x", "metric": "output_tok_per_s"}},
        "tolerance": {"relative": 0.01, "reason": "their spread"},
    } | changes


def document(*claims: dict[str, Any], **rest: Any) -> dict[str, Any]:
    return {"study": "other", "title": "another study", "claims": list(claims), **rest}


def problems(*claims: dict[str, Any], **rest: Any) -> list[str]:
    with pytest.raises(ConfigError) as caught:
        parse_published(document(*claims, **rest), source="other.yaml")
    assert caught.value.source == "other.yaml"
    return caught.value.problems


def test_every_number_of_the_issue_is_a_claim() -> None:
    """Tables, repeats, counting, totals, short streams, spread, cross-node, demand, re-run."""
    published = read_published(SHIPPED)
    values = [{c.value for c in file.claims} for file in published]

    tables = {161.0, 95.7, -40.6, 35774, 27145, 118.5, 122.6, 122.2, 1110.7, 9.1, 150.3, 563.1, 3.7}
    w_b = {574.7, 576.1, 0.24, 2468, 2496, 44.49, 44.38, 574.4, 575.1, 574.5, 577.6}
    tails = {122.0, 122.5, 1169.0, 1052.4}
    counts = {96.2, 96.0, -40.2, -40.4, 65536, 65005, 65308, -0.8, -0.3, 3.0}
    around = {0.7, 0.6, 1.47, 540672, 368640}
    assert tables | w_b | tails | counts | around <= values[0]
    assert {-0.9, 1.15, 1.03, 160.7, -0.2, 159.2, 66.4, 140.9, -87.3, 9.09, 3.75} <= values[1]


def test_every_shipped_claim_says_where_it_stands_and_why_its_tolerance() -> None:
    for file in read_published(SHIPPED):
        for one in file.claims:
            assert one.where
            assert one.tolerance is not None or one.compute.op == "none"


def test_defaults_of_the_file_fill_every_selector_and_over_takes_from_of() -> None:
    ratio = {
        "op": "ratio",
        "of": {"arm": "b", "metric": "tpot_p99_ms"},
        "over": {"arm": "a"},
    }
    parsed = parse_published(
        document(claim(compute=ratio), defaults={"engine": "e", "workload": "w"}), source="x"
    )

    compute = parsed.claims[0].compute
    assert (compute.of.engine, compute.of.workload, compute.of.arm) == ("e", "w", "b")
    assert compute.over is not None
    assert (compute.over.engine, compute.over.arm, compute.over.metric) == ("e", "a", "tpot_p99_ms")


def test_all_problems_of_the_shape_are_shown_at_once_with_their_paths() -> None:
    wrong = claim(valeu=3, value="100")
    del wrong["step"]

    found = problems(wrong)

    assert "claims[0].step: required, but missing" in found
    assert "claims[0].valeu: unknown key" in found
    assert any(line.startswith("claims[0].value: ") and "'100'" in line for line in found)


@pytest.mark.parametrize(
    ("changes", "line"),
    [
        (
            {"compute": {"op": "ratio", "of": {"metric": "tpot_p99_ms"}}},
            "claims[0].compute.over: required for op ratio, but missing",
        ),
        (
            {"compute": {"op": "value", "of": {"metric": "speed"}}},
            "claims[0].compute.of.metric: expected a numeric column of cells, got 'speed'",
        ),
        (
            {"compute": {"op": "count", "where": {"text": {"equals": 1}}}},
            "claims[0].compute.where.text: expected a numeric column of requests",
        ),
        (
            {"tolerance": {"absolute": 1.0, "relative": 0.1, "reason": "both"}},
            "claims[0].tolerance: expected exactly one of absolute, relative, noise",
        ),
        ({"tolerance": None}, "claims[0].tolerance: required, but missing"),
        (
            {"compute": {"op": "none"}, "tolerance": None},
            "claims[0].compute.because: required for op none, but missing",
        ),
    ],
)
def test_a_claim_that_makes_no_sense_is_named(changes: dict[str, Any], line: str) -> None:
    assert line in problems(claim(**changes))


def test_ids_are_unique_within_a_file_and_over_files(tmp_path: Path) -> None:
    assert problems(claim(), claim()) == ["claims[1].id: 'a.b' stands twice; ids are unique"]
    paths = [tmp_path / "one.yaml", tmp_path / "two.yaml"]
    text = str(document(claim())).replace("None", "null")
    for path in paths:
        path.write_text(text)

    with pytest.raises(ConfigError, match="also stands in"):
        read_published(paths)


def test_a_missing_or_unreadable_file_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no such file"):
        read_published([tmp_path / "none.yaml"])
    (tmp_path / "bad.yaml").write_text("a: [")
    with pytest.raises(ConfigError, match="not valid YAML"):
        read_published([tmp_path / "bad.yaml"])

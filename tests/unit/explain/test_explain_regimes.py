"""The regime map and the cliff: against block arithmetic and the agreed edges."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstudy.base import tables
from kvstudy.base.errors import ConfigError
from kvstudy.explain.regimes import (
    Grid,
    arithmetic_holds,
    pause_words,
    regime_of,
    regimes,
    spread_words,
)
from kvstudy.explain.tables import REGIMES
from kvstudy.sim.model import Pause
from kvstudy.study.plan import Study

Rows = list[dict[str, Any]]


def cliff(rows: Rows, pause: str = "recompute") -> dict[int, dict[str, Any]]:
    own = (r for r in rows if r["part"] == "cliff" and r["pause"] == pause)
    return {row["pool_blocks"]: row for row in own}


def test_the_cliff_has_the_agreed_edges(regime_rows: Rows) -> None:
    found = cliff(regime_rows)
    assert found[11264]["throughput_ratio"] == found[11616]["throughput_ratio"] == 1
    lost = [r for blocks, r in found.items() if 11288 <= blocks <= 11608]
    assert {row["regime"] for row in lost} == {"loses"}
    assert min(row["throughput_ratio"] for row in lost) > 0.95
    won = [r for blocks, r in found.items() if 11610 <= blocks <= 11615]
    assert len(won) == 6
    for row in won:
        assert row["throughput_ratio"] == pytest.approx(1.02, abs=0.005)
        assert row["pauses"] == 0


def test_a_truncating_pause_makes_the_same_stretch_a_cliff(regime_rows: Rows) -> None:
    found = cliff(regime_rows, "truncate_to_tokens: 1024")
    lost = [row["throughput_ratio"] for row in found.values() if row["regime"] == "loses"]
    assert max(lost) < 0.65
    assert set(found) == set(cliff(regime_rows))


def test_every_point_obeys_the_arithmetic_of_residents(regime_rows: Rows) -> None:
    assert all(row["arithmetic_holds"] for row in regime_rows)
    full = [r for r in regime_rows if r["residents_reserving"] == r["residents_greedy"]]
    assert full
    assert {row["regime"] for row in full} == {"equal"}


def test_the_greedy_policy_wins_where_outputs_end_early(regime_rows: Rows) -> None:
    early = [r for r in regime_rows if r["workload"] == "W-D" and r["pool_ratio"] < 0.7]
    assert early
    assert all(row["regime"] == "wins" for row in early)
    tight = [r for r in regime_rows if r["workload"] == "W-C" and r["part"] == "map"]
    assert max(r["throughput_ratio"] for r in tight) < 1.03


@pytest.mark.parametrize(
    ("change", "holds"),
    [
        ({}, True),
        ({"residents_baseline": 22}, False),
        ({"residents_treatment": 30}, False),
        ({"residents_treatment": 30, "pause": "truncate_to_tokens: 9"}, True),
        ({"residents_greedy": 21, "residents_treatment": 21}, False),
        ({"residents_greedy": 21, "residents_treatment": 21, "throughput_ratio": 1.0,
          "pauses": 0}, True),
    ],
)  # fmt: skip
def test_the_arithmetic_check_can_fail(change: dict[str, Any], holds: bool) -> None:
    row = {
        "residents_baseline": 21, "residents_reserving": 21, "residents_treatment": 22,
        "residents_greedy": 22, "pause": "recompute", "throughput_ratio": 0.99, "pauses": 5,
    }  # fmt: skip
    assert arithmetic_holds(row | change) is holds


def test_words() -> None:
    assert [regime_of(r) for r in (None, 1.0, 1.001, 1.01, 0.99)] == [
        "stuck", "equal", "equal", "wins", "loses",
    ]  # fmt: skip
    assert spread_words(1, 1) == "all reach the cap"
    assert spread_words(0.5, 0.5) == "all at 50 % of the cap"
    assert spread_words(0.1, 1) == "10 to 100 % of the cap"
    assert pause_words(Pause(never_release=True)) == "never_release"


def test_rows_fit_the_table_and_come_out_the_same_twice(
    study: Study, regime_rows: Rows, tmp_path: Path
) -> None:
    tables.write(tmp_path / "r.parquet", regime_rows, REGIMES)
    tiny = Grid(
        workloads=("W-B",), pool_ratios=(0.8,), output_shares=((0.5, 1),), concurrency=(8,),
        requests=16, cliff_blocks=(11600, 11620),
    )  # fmt: skip
    assert regimes(study, tiny) == regimes(study, tiny)


def test_unknown_keys_and_workloads_are_errors(study: Study) -> None:
    with pytest.raises(ConfigError, match=r"regime_map\.pools: unknown key"):
        Grid.of({"pools": [1]})
    with pytest.raises(ConfigError, match="no TensorRT-LLM cell of workload 'W-X'"):
        regimes(study, Grid.of({"workloads": ["W-X"]}))


def test_a_study_without_tensorrt_llm_has_no_rows(
    changed: Callable[[Callable[[dict[str, Any]], object]], Study],
) -> None:
    def only_vllm(document: dict[str, Any]) -> None:
        document["engines"] = {"v": {"adapter": "vllm", "version": "0.33.0"}}
        document["arms"] = {"a": {}}
        document["contrasts"] = []
        document["workloads"]["W-D"].pop("engines")
        document["emulator"]["fitted_to"] = []

    assert regimes(changed(only_vllm), Grid()) == []

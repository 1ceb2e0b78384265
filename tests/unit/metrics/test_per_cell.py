"""Per-cell numbers, each worked out by hand."""

from collections.abc import Callable
from typing import Any

import pytest

from kvstudy.metrics.per_cell import (
    count_columns,
    iteration_columns,
    latency_columns,
    mean_in_flight,
    steady_chunks_per_s,
    throughput_columns,
    window,
)

Make = Callable[..., dict[str, Any]]


def test_throughput_under_each_count(request_row: Make) -> None:
    """Two requests, window 0 s to 10 s; one re-tokenises to 2 of its 4 chunks."""
    rows = [
        request_row(0, [2, 4, 6, 8], retokenized_tokens=2),
        request_row(1, [4, 7, 10], planned_output_tokens=5),
    ]
    found = throughput_columns(rows, 2, {"ttft_ms": 2500.0})

    assert found["wall_s"] == 10
    assert found["output_tok_per_s"] == pytest.approx((2 + 3) / 10)
    assert found["output_tok_per_s_nominal"] == pytest.approx((4 + 5) / 10)
    assert found["output_tok_per_s_chunks"] == pytest.approx((4 + 3) / 10)
    assert found["output_tok_per_s_usage"] == pytest.approx((4 + 3) / 10)
    assert found["goodput_req_per_s"] == pytest.approx(1 / 10)
    assert found["mean_in_flight"] == pytest.approx((8 + 9) / 10)


def test_without_an_slo_goodput_is_not_zero_but_undefined(request_row: Make) -> None:
    assert throughput_columns([request_row(0, [1, 2])], 1, {})["goodput_req_per_s"] is None


def test_usage_not_said_by_one_is_undefined_for_all(request_row: Make) -> None:
    rows = [request_row(0, [1, 2]), request_row(0, [1, 2], usage_tokens=None)]

    assert throughput_columns(rows, 2, {})["output_tok_per_s_usage"] is None


def test_counts_keep_failures_and_short_streams_apart(request_row: Make) -> None:
    rows = [
        request_row(0, [1, 2, 3]),
        request_row(0, [1, 2], planned_output_tokens=3),
        request_row(0, [1, 2, 3], retokenized_tokens=2),
        request_row(0, [1], outcome="stream_error"),
    ]

    assert count_columns(rows, 5) == {
        "requests": 5,
        "completed": 3,
        "failed": 1,
        "early_ended": 1,
        "retokenized_short": 1,
    }


def test_latencies_leave_failed_requests_out(request_row: Make) -> None:
    rows = [request_row(0, [1, 3]), request_row(0, [9, 10], outcome="timeout")]
    found = latency_columns(rows)

    assert found["ttft_p99_ms"] == 1000
    assert found["tpot_p50_ms"] == 2000
    assert found["e2e_max_s"] == 3
    assert found["max_gap_ms"] == 2000


def test_server_evidence_inside_the_window(request_row: Make, iteration_row: Make) -> None:
    """Warm-up steps lie before the window; 230 context tokens for 2 prompts of 100: 30 again.

    Model tokens: 2 prompts + 1 pause each end a context phase, and 9 decode steps of requests:
    12 tokens, of which 7 were streamed.
    """
    rows = [request_row(10, [12, 13, 14]), request_row(10, [12, 13, 14, 15])]
    steps = [
        iteration_row(9, 1, paused_requests=5, used_blocks=10),
        iteration_row(12, 2, context_tokens=230, generation_requests=0),
        iteration_row(13, 3, generation_requests=3),
        iteration_row(14, 4, paused_requests=1, generation_requests=3, used_blocks=9),
        iteration_row(15, 5, generation_requests=3),
    ]
    found = iteration_columns(steps, rows, window(rows))

    assert found["iterations"] == 4
    assert found["pauses"] == 1
    assert found["recomputed_tokens"] == 30
    assert found["hidden_tokens"] == 12 - 7
    assert found["peak_blocks"] == 9
    assert found["telemetry_coverage"] == 1.0


def test_a_lost_record_makes_sums_undefined_not_smaller(
    request_row: Make, iteration_row: Make
) -> None:
    rows = [request_row(0, [1, 5])]
    steps = [iteration_row(1, 1), iteration_row(2, 2), iteration_row(4, 4)]
    found = iteration_columns(steps, rows, window(rows))

    assert found["telemetry_coverage"] == 0.75
    assert found["pauses"] is None
    assert found["recomputed_tokens"] is None
    assert found["iterations"] is None
    assert found["peak_blocks"] == 7


def test_no_telemetry_is_undefined(request_row: Make) -> None:
    found = iteration_columns([], [request_row(0, [1])], (0, 10))

    assert set(found.values()) == {None}


def test_steady_state_leaves_out_ramp_and_tail(request_row: Make) -> None:
    """Two lanes: first end at 2 s, last send at 4 s; chunks after 2 s and up to 4 s count."""
    rows = [
        request_row(0, [1, 2]),
        request_row(0, [1, 3]),
        request_row(2, [3, 4]),
        request_row(4, [5, 6]),
    ]

    assert steady_chunks_per_s(rows, 2) == pytest.approx(3 / 2)
    assert steady_chunks_per_s(rows[:2], 2) is None


def test_mean_in_flight_of_a_full_lane_is_one(request_row: Make) -> None:
    assert mean_in_flight([request_row(0, [5]), request_row(5, [9])]) == 1.0

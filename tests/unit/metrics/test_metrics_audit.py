"""The audit finds each kind of inconsistency, and finds none where there is none."""

from collections.abc import Callable
from typing import Any

import pytest

from kvstudy.metrics.audit import (
    audit_client,
    audit_load,
    audit_requests,
    in_order,
    littles_law_holds,
    valid,
)

Make = Callable[..., dict[str, Any]]


def test_good_rows_have_no_reason(request_row: Make) -> None:
    rows = [request_row(0, [1, 2]), request_row(2, [3, 4])]

    assert audit_requests(rows, 2, prefix_reuse=False) == []
    assert audit_load(rows, 1) == []
    assert littles_law_holds(rows)


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"outcome": "truncated_stream"}, "requests_failed"),
        ({"server_input_tokens": 101}, "input_tokens_differ"),
        ({"cached_tokens": 32}, "cached_tokens"),
        ({"ttft_ns": 0}, "time_order"),
        ({"end_ns": 1}, "time_order"),
        ({"chunk_ns": [], "chunk_count": 0}, "token_count_low"),
        ({"planned_output_tokens": 9}, "early_ended"),
    ],
)
def test_each_fault_has_its_code(request_row: Make, changes: dict[str, Any], code: str) -> None:
    assert code in audit_requests([request_row(0, [1, 2], **changes)], 1, prefix_reuse=False)


def test_missing_requests_are_seen(request_row: Make) -> None:
    assert audit_requests([request_row(0, [1, 2])], 2, prefix_reuse=False) == ["requests_missing"]


def test_cached_tokens_are_fine_where_reuse_is_on(request_row: Make) -> None:
    assert audit_requests([request_row(0, [1], cached_tokens=32)], 1, prefix_reuse=True) == []


def test_more_in_flight_than_lanes_is_seen(request_row: Make) -> None:
    assert audit_load([request_row(0, [5]), request_row(1, [6])], 1) == ["concurrency_not_held"]


def test_a_handover_of_milliseconds_is_no_idle_lane(request_row: Make) -> None:
    """At time scale 100, 9 ms of wall time between two requests are 0.9 s of study time."""
    rows = [request_row(0, [1]), request_row(1.9, [2.5])]

    assert audit_load(rows, 1, time_scale=100) == []
    assert audit_load(rows, 1, time_scale=50) == ["concurrency_not_held"]


def test_an_idle_lane_is_seen(request_row: Make) -> None:
    rows = [request_row(0, [1]), request_row(5, [6]), request_row(6, [7])]

    assert audit_load(rows, 1) == ["concurrency_not_held"]


def test_chunks_out_of_order_are_seen(request_row: Make) -> None:
    assert not in_order(request_row(0, [3, 2]))


@pytest.mark.parametrize(
    ("audit", "codes"),
    [
        ({"clock_jumps": 0, "loop_lag_p99_ms": 2.0, "cpu_share": 0.4}, []),
        ({"clock_jumps": 1, "loop_lag_p99_ms": 2.0, "cpu_share": 0.4}, ["clock_jump"]),
        ({"clock_jumps": 0, "loop_lag_p99_ms": 900.0, "cpu_share": 0.4}, ["client_saturated"]),
        ({"clock_jumps": 0, "loop_lag_p99_ms": 2.0, "cpu_share": 0.99}, ["client_saturated"]),
    ],
)
def test_a_slow_or_stopped_client_is_seen(audit: dict[str, Any], codes: list[str]) -> None:
    assert audit_client(audit) == codes


def test_only_warnings_leave_a_cell_valid() -> None:
    assert valid(["early_ended", "telemetry_partial"])
    assert not valid(["early_ended", "emulator_late"])

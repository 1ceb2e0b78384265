"""TensorRT-LLM's records become rows; broken values become null, lost records become gaps."""

from __future__ import annotations

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from telemetry_records import (
    DEBUG_LOG,
    ITER_LINE,
    RECORD_1_2_1,
    RECORD_1_3,
    ROW_1_2_1,
    record,
)

from kvstudy.base import tables
from kvstudy.telemetry import iterlog, trtllm
from kvstudy.telemetry.numbers import count, ms_as_ns, real
from kvstudy.telemetry.trtllm import WallAnchor, coverage, monotonic_ns, row

S = 1_000_000_000


def test_a_record_of_1_2_1_becomes_a_row() -> None:
    assert row(RECORD_1_2_1, 5) == ROW_1_2_1


def test_a_record_with_window_statistics_alone_has_its_blocks() -> None:
    assert row(RECORD_1_3, 5) == ROW_1_2_1


def test_a_row_has_exactly_the_tables_columns() -> None:
    assert list(row(RECORD_1_2_1, 5)) == tables.CELL_ITERATIONS.names
    assert list(row({}, 5)) == tables.CELL_ITERATIONS.names


def test_missing_keys_are_null_not_zero() -> None:
    found = row({"iter": 3}, 5)

    assert (found["t_ns"], found["iter"]) == (5, 3)
    assert {v for k, v in found.items() if k not in ("t_ns", "iter")} == {None}


@pytest.mark.parametrize(
    "value", [math.nan, math.inf, -1, 1.5, "3", True, None, [], {}, 1 << 70, 1e300]
)
def test_values_that_are_no_counts_are_null(value: Any) -> None:
    assert count(value) is None
    assert row({"iter": value}, 0)["iter"] is None


def test_whole_floats_are_counts() -> None:
    assert count(3.0) == 3
    assert count(0) == 0


def test_times_that_are_none_are_null() -> None:
    assert ms_as_ns(1012.4) == 1_012_400_000
    assert [ms_as_ns(v) for v in (-1, math.nan, "1", None, 1e300)] == [None] * 5
    assert real(10**400) is None


def test_more_used_blocks_than_there_are_is_no_count() -> None:
    lying = {"kvCacheStats": {"usedNumBlocks": 1 << 40, "freeNumBlocks": 6, "maxNumBlocks": 11520}}

    found = row(lying, 0)

    assert (found["used_blocks"], found["free_blocks"], found["max_blocks"]) == (None, 6, 11520)


@pytest.mark.parametrize(
    "text", ["<html>502</html>", "{}", "3", "[1]", "", "[" * 100_000, '[{"iter": 1}', "null"]
)
def test_answers_that_are_no_records_are_value_errors(text: str) -> None:
    with pytest.raises(ValueError):
        trtllm.records(text)


def test_gaps_are_found_and_coverage_is_stated() -> None:
    rows = [{"iter": n} for n in (3, 4, 7, 8, 8, 12)]

    found = coverage(rows)

    assert found.gaps == ((5, 6), (9, 11))
    assert (found.seen, found.expected) == (5, 10)
    assert found.share == 0.5


def test_coverage_of_a_known_span_counts_what_was_lost_at_its_ends() -> None:
    found = coverage([{"iter": n} for n in (2, 3)], first=1, last=4)

    assert found.gaps == ((1, 1), (4, 4))
    assert found.share == 0.5


def test_no_iterations_have_no_coverage() -> None:
    assert coverage([]).share is None
    assert coverage([{"iter": None}]).share is None
    assert coverage([{"iter": 1}]).share == 1.0


def test_a_restart_is_seen() -> None:
    assert coverage([{"iter": n} for n in (5, 6, 1, 2)]).restarts == 1


def test_lying_iteration_numbers_cost_no_time() -> None:
    assert coverage([{"iter": 1}, {"iter": (1 << 62)}]).expected == 1 << 62


ANCHOR = WallAnchor(unix_ns=1_790_000_000 * S, monotonic_ns=100 * S)


def test_a_records_own_time_is_used_between_two_reads() -> None:
    made = record(1, unix_ns=ANCHOR.unix_ns + 3 * S + 250_000_000)

    found = monotonic_ns(made, ANCHOR, earliest_ns=102 * S, received_ns=104 * S)

    assert found == 103 * S + 250_000_000


def test_a_time_outside_the_two_reads_is_not_believed() -> None:
    for offset_s in (-3600 * 30, 1, 5, 3600 * 30):
        made = record(1, unix_ns=ANCHOR.unix_ns + offset_s * S)
        assert monotonic_ns(made, ANCHOR, earliest_ns=102 * S, received_ns=104 * S) == 104 * S


@pytest.mark.parametrize(
    "text", [None, 3, "", "13:05:41", "99-99-2026 13:05:41", "07-24-0000 00:00:00", "x" * 1000]
)
def test_a_text_that_is_no_time_gives_the_receipt(text: Any) -> None:
    found = monotonic_ns({"timestamp": text}, ANCHOR, earliest_ns=0, received_ns=104 * S)

    assert found == 104 * S


def test_per_request_timings_show_how_long_a_request_lived() -> None:
    # Constructed after the shape of /perf_metrics.
    text = json.dumps(
        [
            {
                "request_id": 7,
                "perf_metrics": {
                    "first_iter": 10,
                    "last_iter": 15_000,
                    "kv_cache_metrics": {"num_total_allocated_blocks": 1056},
                },
            },
            {"request_id": 8, "perf_metrics": {"first_iter": 9, "last_iter": 3}},
            {},
        ]
    )

    first, second, third = trtllm.timings(text)

    assert (first.request_id, first.iterations_lived, first.allocated_blocks) == ("7", 14_991, 1056)
    assert second.iterations_lived is None
    assert third.iterations_lived is None


def test_an_iteration_log_line_is_a_second_source() -> None:
    log = f"noise\n{ITER_LINE}\niter = 5 without the rest\n"

    (line,) = iterlog.parse(log)

    assert line.timestamp == "2026-07-24 13:05:41"
    expected = {**ROW_1_2_1, "paused_requests": None, "queued_requests": None}
    expected |= dict.fromkeys(("used_blocks", "free_blocks", "max_blocks"))
    assert line.row(5) == expected


def test_the_debug_summary_counts_pauses() -> None:
    assert iterlog.debug_pauses(DEBUG_LOG) == 2
    assert iterlog.debug_pauses("nothing of the kind") is None


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=10,
)
KEYS = [*RECORD_1_2_1, "kvCacheIterationStats"]


@given(st.dictionaries(st.sampled_from(KEYS), JSON))
def test_no_record_breaks_the_parser(made: dict[str, Any]) -> None:
    found = row(made, 7)

    assert list(found) == tables.CELL_ITERATIONS.names
    assert all(value is None or 0 <= value < 1 << 63 for value in found.values())
    assert monotonic_ns(made, ANCHOR, earliest_ns=0, received_ns=9) <= 9


@given(st.one_of(st.text(max_size=300), JSON.map(json.dumps)))
def test_no_answer_breaks_the_parser(text: str) -> None:
    for parse in (trtllm.records, trtllm.timings):
        try:
            assert isinstance(parse(text), list)
        except ValueError:
            continue


@given(st.lists(st.none() | st.integers(0, 40), max_size=30))
def test_coverage_accounts_for_every_iteration(numbers: list[int | None]) -> None:
    found = coverage([{"iter": n} for n in numbers])

    missing = sum(last - first + 1 for first, last in found.gaps)
    assert found.seen + missing == found.expected


@given(
    st.text(max_size=200),
    st.text(alphabet=st.sampled_from(list(ITER_LINE)), max_size=300),
    st.integers(0, len(ITER_LINE)),
)
def test_no_log_breaks_the_iteration_log(noise: str, shuffled: str, cut: int) -> None:
    for text in (noise, shuffled, ITER_LINE[:cut] + noise, ITER_LINE[cut:]):
        assert isinstance(iterlog.parse(text), list)
        iterlog.debug_pauses(text)

"""Prometheus pages of four engines become readings and rows; garbage is counted, never fatal."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from telemetry_records import LLAMACPP_PAGE, SGLANG_PAGE, TRTLLM_PAGE, VLLM_PAGE

from kvstudy.base import tables
from kvstudy.telemetry import prometheus
from kvstudy.telemetry.prometheus import Reading, parse, reading


def test_labels_are_unescaped_and_may_hold_anything() -> None:
    page = parse('a{x="q\\"uo\\\\te\\n",y="}, {z=\\"1\\""} 2.5 1700000000000\n')

    (sample,) = page.samples
    assert dict(sample.labels) == {"x": 'q"uo\\te\n', "y": '}, {z="1"'}
    assert sample.value == 2.5


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-Inf", "1e308"])
def test_special_values_are_values(text: str) -> None:
    (sample,) = parse(f"a {text}\n").samples

    assert str(sample.value) == str(float(text))


def test_bad_lines_are_counted_and_passed_over() -> None:
    page = parse('# HELP a b\n\nok 1\nno value\na{x=1} 2\na{x="1" 2\n<html>\na 1_0\nok2 2\n')

    assert [s.name for s in page.samples] == ["ok", "ok2"]
    assert page.bad_lines == 5


def test_totals_sum_over_labels_and_ignore_what_is_not_finite() -> None:
    page = parse('a{e="0"} 1\na{e="1"} 2\na{e="2"} NaN\nb NaN\n')

    assert page.total("a") == 3
    assert page.total("b") is None
    assert page.total("missing") is None


def test_vllm_has_a_true_counter_and_loses_the_null_block() -> None:
    assert reading(parse(VLLM_PAGE)) == Reading(
        running=7,
        waiting=9,
        used_blocks=20,
        max_blocks=40,
        iterations_total=140,
        pauses_total=8,
        prompt_tokens_total=4096,
        generation_tokens_total=2048,
    )


def test_sglangs_total_is_read_and_its_gauges_are_not_added_up() -> None:
    found = reading(parse(SGLANG_PAGE), block_tokens=32)

    assert found == Reading(
        running=21,
        waiting=11,
        used_blocks=3,
        max_blocks=20,
        pauses_total=12,
        recomputed_tokens_total=1050,
    )
    assert reading(parse(SGLANG_PAGE)).used_blocks is None


def test_trtllms_gauge_of_pauses_is_no_count_of_pauses() -> None:
    found = reading(parse(TRTLLM_PAGE))

    assert found.pauses_total is None
    assert (found.used_blocks, found.max_blocks, found.iteration_s) == (11514, 11520, 0.125)
    assert prometheus.row(found, found, 1)["paused_requests"] is None
    assert prometheus.row(found, found, 1)["iter_latency_ns"] == 125_000_000


def test_llamacpp_has_no_counter_of_pauses() -> None:
    found = reading(parse(LLAMACPP_PAGE))

    assert (found.running, found.waiting, found.pauses_total) == (4, 12, None)


def test_rows_count_pauses_since_the_scrape_before() -> None:
    totals = [5, 5, 9, 2]
    readings = [(n, Reading(running=1, waiting=2, pauses_total=t)) for n, t in enumerate(totals)]

    rows = prometheus.rows(readings)

    assert [row["paused_requests"] for row in rows] == [None, 0, 4, 2]
    assert list(rows[0]) == tables.CELL_ITERATIONS.names
    assert (rows[0]["active_requests"], rows[0]["queued_requests"]) == (3, 2)


LINES = st.text(
    alphabet=st.sampled_from(list('vllm:sglang_total{}="\\,# 0123456789.e+-NaInf\n\t')),
    max_size=300,
)


@given(st.one_of(st.text(max_size=300), LINES))
def test_no_page_breaks_the_parser(text: str) -> None:
    for page in (parse(text), parse(VLLM_PAGE + text), parse(text + SGLANG_PAGE)):
        found = reading(page, block_tokens=32)
        row = prometheus.row(found, found, 3)
        assert all(v is None or 0 <= v < 1 << 63 for v in row.values())


@given(
    st.lists(
        st.tuples(
            st.sampled_from(
                [
                    "vllm:kv_cache_usage_perc",
                    "vllm:num_preemptions_total",
                    "sglang:kv_used_tokens",
                    "trtllm_iteration_latency_seconds",
                    "trtllm_kv_cache_used_blocks",
                ]
            ),
            st.floats() | st.integers().map(float),
        ),
        max_size=6,
    ),
    st.text(alphabet="0123456789x", max_size=30),
)
def test_no_value_breaks_a_reading(values: list[tuple[str, float]], blocks: str) -> None:
    lines = [f"{name} {value}" for name, value in values]
    lines.append(f'vllm:cache_config_info{{num_gpu_blocks="{blocks}"}} 1')

    found = reading(parse("\n".join(lines)))

    row = prometheus.row(found, Reading(), 3)
    assert all(v is None or not math.isnan(v) for v in row.values())

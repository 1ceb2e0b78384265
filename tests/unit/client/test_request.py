"""From recorded reads to a row: exact counts, exact times, whatever way the bytes were cut."""

from __future__ import annotations

import gzip
import json
from typing import Any

import pytest
from client_scripted import DONE, USAGE, event
from hypothesis import given
from hypothesis import strategies as st

from kvstudy.base import tables
from kvstudy.base.clock import StudyClock
from kvstudy.base.digest import sha256_text
from kvstudy.client.recording import Ending, Recording
from kvstudy.client.request import Facts, Reading, row_of

FACTS = Facts("r1", 4, 2, None, 3, 2, 8)
READING = Reading(StudyClock(1.0, 0), promises_done=True, stall_threshold_ms=1000)
TIMES = {"chunk_ns", "read_count"} | {
    c.name for c in tables.CLIENT_REQUESTS.columns if c.name.endswith("_ns")
}


def recorded(*reads: tuple[int, bytes], **more: Any) -> Recording:
    recording = Recording(
        **{"send_ns": 100, "first_byte_ns": 150, "status": 200, "ending": Ending.COMPLETE} | more
    )
    for at_ns, data in reads:
        recording.add(at_ns, data)
    recording.end_ns = 10_000_000_000
    return recording


def test_every_time_of_a_stream() -> None:
    row, text = row_of(
        FACTS,
        recorded(
            (200, event("")),
            (300, event("a")),
            (500, event("b") + event("c")),
            (2_000_000_500, event("d", finish_reason="length")),
            (2_000_000_900, USAGE + DONE),
        ),
        READING,
    )

    assert text == "abcd"
    assert row == {
        "request_id": "r1",
        "submit_order": 4,
        "lane": 2,
        "scheduled_ns": None,
        "send_ns": 100,
        "first_byte_ns": 150,
        "first_chunk_ns": 300,
        "last_chunk_ns": 2_000_000_500,
        "end_ns": 10_000_000_000,
        "chunk_ns": [300, 500, 500, 2_000_000_500],
        "chunk_count": 4,
        "empty_chunk_count": 1,
        "read_count": 3,
        "planned_input_tokens": 3,
        "server_input_tokens": 3,
        "cached_tokens": None,
        "planned_output_tokens": 2,
        "output_cap_tokens": 8,
        "usage_tokens": 2,
        "finish_reason": "length",
        "outcome": "ok",
        "http_status": 200,
        "error": None,
        "output_sha256": sha256_text("abcd"),
        "ttft_ns": 200,
        "tpot_chunks_ns": 2_000_000_200 / 3,
        "e2e_ns": 2_000_000_400,
        "max_gap_ns": 2_000_000_000,
        "stall_count": 1,
    }


def test_rows_have_the_tables_columns_and_fit_its_types(tmp_path: Any) -> None:
    rows = [
        row_of(FACTS, recorded((1, event("a") + DONE)), READING)[0],
        row_of(FACTS, Recording(ending=Ending.CANCELLED), READING)[0],
    ]

    tables.write(tmp_path / "t.parquet", rows, tables.CLIENT_REQUESTS)


def test_times_are_study_times() -> None:
    reading = Reading(StudyClock(40.0, 50), promises_done=True, stall_threshold_ms=1000)
    row, _ = row_of(FACTS, recorded((300, event("a")), (500, event("b") + DONE)), reading)

    assert (row["send_ns"], row["ttft_ns"], row["max_gap_ns"]) == (2000, 8000, 8000)


def test_one_chunk_has_no_gap() -> None:
    row, _ = row_of(FACTS, recorded((300, event("a") + DONE)), READING)

    assert [row[k] for k in ("tpot_chunks_ns", "max_gap_ns", "stall_count")] == [None] * 3


def test_an_event_over_several_reads_is_timed_by_the_last() -> None:
    whole = event("a")
    row, _ = row_of(
        FACTS, recorded((200, whole[:9]), (300, whole[9:-1]), (400, whole[-1:] + DONE)), READING
    )

    assert (row["first_chunk_ns"], row["read_count"]) == (400, 1)


def test_a_never_sent_request_has_no_times() -> None:
    row, text = row_of(FACTS, Recording(ending=Ending.CANCELLED, error="never sent"), READING)

    assert text is None
    assert (row["outcome"], row["error"], row["http_status"]) == ("cancelled", "never sent", None)
    assert all(row[name] is None for name in TIMES - {"chunk_ns"})


USAGES = {
    "cached tokens": (
        {"prompt_tokens": 9, "completion_tokens": 1, "prompt_tokens_details": {"cached_tokens": 4}},
        (9, 4, 1),
    ),
    "no details": ({"prompt_tokens": 9, "completion_tokens": 1}, (9, None, 1)),
    "details null": ({"prompt_tokens": 9, "prompt_tokens_details": None}, (9, None, None)),
    "not counts": (
        {"prompt_tokens": "9", "completion_tokens": True, "prompt_tokens_details": [1]},
        (None, None, None),
    ),
    "impossible": ({"prompt_tokens": -1, "completion_tokens": 10**30}, (None, None, None)),
    "not an object": (7, (None, None, None)),
}


@pytest.mark.parametrize(("usage", "expected"), USAGES.values(), ids=USAGES.keys())
def test_usage_is_taken_as_said(usage: Any, expected: tuple[int | None, ...]) -> None:
    body = event("a") + event(None, usage=usage) + DONE
    row, _ = row_of(FACTS, recorded((1, body)), READING)

    assert (
        tuple(row[k] for k in ("server_input_tokens", "cached_tokens", "usage_tokens")) == expected
    )


ODD = {
    "choices null": b'data: {"choices": null}\n\n',
    "choices of nothing": b'data: {"choices": [null, 3]}\n\n',
    "no text": b'data: {"choices": [{"index": 0}]}\n\n',
    "text null": b'data: {"choices": [{"text": null}]}\n\n',
    "empty data": b"data:\n\n",
    "a number": b"data: 3\n\n",
    "not JSON": b"data: {broken\n\n",
    "deep": b"data: " + b"[" * 100_000 + b"\n\n",
    "bytes": bytes(range(256)) + b"\n\n",
    "error null": b'data: {"error": null, "choices": [{"text": "x"}]}\n\n',
    "error list": b'data: {"error": [1]}\n\n',
    "error object": b'data: {"object": "error", "message": "m", "code": 4}\n\n',
}


@pytest.mark.parametrize("odd", ODD.values(), ids=ODD.keys())
def test_no_bytes_can_stop_the_reader(odd: bytes) -> None:
    row, _ = row_of(FACTS, recorded((1, event("a") + odd + DONE)), READING)

    assert row["outcome"] in ("ok", "stream_error")
    assert row["chunk_count"] >= 1


def test_lone_and_split_surrogates_become_valid_text() -> None:
    body = b"".join(
        b'data: {"choices": [{"text": "%s"}]}\n\n' % t
        for t in (rb"\ud83d", rb"\ude00", rb"\ud800x")
    )
    row, text = row_of(FACTS, recorded((1, body + DONE)), READING)

    assert text == "\U0001f600�x"
    assert (row["chunk_count"], row["output_sha256"]) == (3, sha256_text(text))


def test_chat_deltas_count_over_every_channel() -> None:
    deltas: list[dict[str, Any]] = [
        {"role": "assistant"},
        {"reasoning_content": "hm "},
        {"content": "yes"},
    ]
    body = b"".join(
        b"data: " + json.dumps({"choices": [{"delta": d}]}).encode() + b"\n\n" for d in deltas
    )
    row, text = row_of(FACTS, recorded((1, body + DONE)), READING)

    assert (text, row["chunk_count"], row["empty_chunk_count"]) == ("hm yes", 2, 1)


@pytest.mark.parametrize("reason", ["abort", "error", {"type": "abort"}])
def test_a_server_that_gives_up_is_no_success(reason: Any) -> None:
    row, _ = row_of(FACTS, recorded((1, event("a", finish_reason=reason) + DONE)), READING)

    assert row["outcome"] == "stream_error"


def test_a_server_that_promises_no_done_needs_none() -> None:
    loose = Reading(READING.clock, promises_done=False, stall_threshold_ms=1000)

    assert row_of(FACTS, recorded((1, event("a"))), loose)[0]["outcome"] == "ok"
    assert row_of(FACTS, recorded(), loose)[0]["outcome"] == "truncated_stream"
    broken = recorded((1, event("a")), ending=Ending.BROKEN, error="closed")
    assert row_of(FACTS, broken, loose)[0]["outcome"] == "truncated_stream"


ENDINGS = {
    Ending.COMPLETE: "truncated_stream",
    Ending.BROKEN: "truncated_stream",
    Ending.FAILED: "stream_error",
    Ending.TIMEOUT: "timeout",
    Ending.CANCELLED: "cancelled",
    Ending.CLIENT_CLOSE: "ok",
}


@pytest.mark.parametrize(("ending", "outcome"), ENDINGS.items())
def test_what_was_seen_is_kept_whatever_the_ending(ending: Ending, outcome: str) -> None:
    row, text = row_of(FACTS, recorded((1, event("a")), ending=ending, error="why"), READING)

    assert (row["outcome"], row["chunk_count"], text) == (outcome, 1, "a")
    assert (row["error"] is None) == (outcome == "ok")
    assert (row["finish_reason"] == "client_close") == (ending is Ending.CLIENT_CLOSE)


PART = st.one_of(
    st.text(max_size=8).map(event),
    st.sampled_from(
        [
            USAGE,
            DONE,
            b": keep-alive\r\n\r\n",
            event("é☃\U0001f600"),
            event("z", finish_reason="length", usage={"completion_tokens": 7}),
            event("a").replace(b"\n", b"\r\n"),
            b'data: {"choices": [{"text": "\x00\xff"}]}\n\n',
            b'event: error\ndata: {"message": "m"}\n\n',
            b'data: {"error": "e"}\n\n',
            b"data: [DONE]",
            b"data: {",
            b'{"error": {"message": "no"}}',
            b"\xef\xbb\xbf",
        ]
    ),
    st.binary(max_size=6),
)


@given(
    parts=st.lists(PART, max_size=8),
    coding=st.sampled_from(["", "gzip", "broken gzip"]),
    ending=st.sampled_from(list(Ending)),
    promises_done=st.booleans(),
    status=st.sampled_from([200, 503]),
    data=st.data(),
)
def test_how_the_bytes_are_cut_changes_only_times(
    parts: list[bytes],
    coding: str,
    ending: Ending,
    promises_done: bool,
    status: int,
    data: st.DataObject,
) -> None:
    body = b"".join(parts)
    if coding:
        body = gzip.compress(body)
        if coding.startswith("broken"):
            at = data.draw(st.integers(0, len(body) - 1))
            body = body[:at] + bytes([body[at] ^ 0x55]) + body[at + 1 :]
    more = {"ending": ending, "status": status, "content_encoding": "gzip" if coding else ""}
    reading = Reading(READING.clock, promises_done, 1000)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=12)))
    reads = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    whole = row_of(FACTS, recorded((1, body), **more), reading)
    cut = row_of(FACTS, recorded(*enumerate(reads, 1), **more), reading)

    assert _but_times(cut) == _but_times(whole)


def _but_times(result: tuple[dict[str, Any], str | None]) -> tuple[dict[str, Any], str | None]:
    row, text = result
    return {key: value for key, value in row.items() if key not in TIMES}, text

"""Any legal event stream is read right, however it is cut."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstudy.client.sse import Event, EventParser

CASES = {
    "one event": (b"data: a\n\n", [Event(b"a")]),
    "no space after the colon": (b"data:a\n\n", [Event(b"a")]),
    "one space is dropped, not two": (b"data:  a\n\n", [Event(b" a")]),
    "CRLF": (b"data: a\r\n\r\ndata: b\r\n\r\n", [Event(b"a"), Event(b"b")]),
    "CR": (b"data: a\r\rdata: b\r\r", [Event(b"a"), Event(b"b")]),
    "mixed line ends": (b"data: a\r\n\ndata: b\n\r\n", [Event(b"a"), Event(b"b")]),
    "lines are joined": (b"data: a\ndata: b\n\n", [Event(b"a\nb")]),
    "data without a colon is empty": (b"data\n\n", [Event(b"")]),
    "an event without data is none": (b"event: ping\n\nid: 3\n\n", []),
    "named": (b"event: error\ndata: a\n\n", [Event(b"a", b"error")]),
    "comments": (b": hi\n\n:\n\ndata: a\n: between\n\n", [Event(b"a")]),
    "unknown fields": (b"retry: 10\nfoo: x\ndata: a\n\n", [Event(b"a")]),
    "blank lines in front": (b"\n\n\n\ndata: a\n\n\n\n\ndata: b\n\n", [Event(b"a"), Event(b"b")]),
    "byte-order mark": (b"\xef\xbb\xbfdata: a\n\n", [Event(b"a")]),
    "byte-order mark later is none": (b"data: a\n\n\xef\xbb\xbfdata: b\n\n", [Event(b"a")]),
    "UTF-8, NUL and invalid bytes": (b"data: \xc3\xa9\x00\xff\n\n", [Event(b"\xc3\xa9\x00\xff")]),
    "unfinished": (b"data: a\n\ndata: b\n", [Event(b"a")]),
    "nothing": (b"", []),
}


@pytest.mark.parametrize(("body", "expected"), CASES.values(), ids=CASES.keys())
def test_a_body_gives_its_events(body: bytes, expected: list[Event]) -> None:
    assert EventParser().feed(body) == expected


@pytest.mark.parametrize(("body", "expected"), CASES.values(), ids=CASES.keys())
def test_byte_by_byte_gives_the_same_events(body: bytes, expected: list[Event]) -> None:
    parser = EventParser()

    assert [
        event for at in range(len(body)) for event in parser.feed(body[at : at + 1])
    ] == expected


def test_an_event_belongs_to_the_piece_that_completes_it() -> None:
    parser = EventParser()

    assert parser.feed(b"data: a\n\nda") == [Event(b"a")]
    assert parser.feed(b"ta: b\n") == []
    assert parser.feed(b"\ndata: c\n\n") == [Event(b"b"), Event(b"c")]


def test_the_end_gives_the_event_without_its_blank_line() -> None:
    parser = EventParser()

    assert parser.feed(b"data: a\n\ndata: [DONE]") == [Event(b"a")]
    assert parser.finish() == [Event(b"[DONE]")]
    assert parser.finish() == []


def test_a_mebibyte_event_in_small_pieces() -> None:
    body = b"data: " + b"x" * (1 << 20) + b"\n\n"
    parser = EventParser()
    events = [
        event for at in range(0, len(body), 700) for event in parser.feed(body[at : at + 700])
    ]

    assert [len(event.data) for event in events] == [1 << 20]


PIECES = st.lists(
    st.sampled_from([b"data: a", b"data:b", b": c", b"event: x", b"\n", b"\r\n", b"\r", b"\n\n"])
    | st.binary(max_size=4),
    max_size=30,
)


@given(PIECES, st.data())
def test_how_bytes_are_cut_does_not_matter(pieces: list[bytes], data: st.DataObject) -> None:
    body = b"".join(pieces)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(body)), max_size=10)))
    whole, cut = EventParser(), EventParser()
    parts = [body[a:b] for a, b in zip([0, *cuts], [*cuts, len(body)], strict=True)]

    assert [e for part in parts for e in cut.feed(part)] == whole.feed(body)
    assert cut.finish() == whole.finish()

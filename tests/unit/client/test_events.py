"""The quick way of reading a stream's events gives what reading each alone gives."""

from __future__ import annotations

import json
from typing import Any

from client_scripted import event
from hypothesis import given
from hypothesis import strategies as st

from kvstudy.client import events
from kvstudy.client.events import EventReader, Frame, read_event
from kvstudy.client.sse import Event, EventParser

TEXT = st.sampled_from(["", "a", "b", "é", '"', "\\", "\0", 'x","finish_reason":"stop'])
WRONG: list[Any] = [
    {"choices": [{"index": 0}], "text": "TEXT"},
    {"choices": [{"delta": {"content": "a"}}], "foo": {"text": "TEXT"}},
    {"choices": [{"text": "a", "inner": {"text": "TEXT"}}]},
    {"choices": [{"text": "TEXT"}], "error": None},
    {"choices": [{"text": "TEXT"}], "error": "e"},
    {"choices": [{"text": "TEXT"}, {"text": "TEXT"}]},
    {"choices": [{"text": "TEXT", "finish_reason": "stop"}]},
    {"choices": [{"text": "TEXT"}], "usage": {"completion_tokens": 3}},
    {"choices": [], "object": "text", "text": "TEXT"},
    {"choices": [{"text": "TEXT"}]},
]
RAW = [
    b'{"choices":[{"\\u0074ext":"a","y":{"text":"TEXT"}}]}',
    b'{"choices":[{"text" : "TEXT"}]}',
    b'{"choices":[{"text":"TEXT"}]',
    b'{"choices":[{"text":"\xffTEXT\xe2\x82"}]}',
]


def documents(text: str) -> st.SearchStrategy[bytes]:
    inner = json.dumps(text, ensure_ascii=False)[1:-1].encode()
    shapes = [json.dumps(one).encode() for one in WRONG] + RAW
    return st.sampled_from([one.replace(b"TEXT", inner) for one in shapes])


NAMES = st.sampled_from([b"message"] * 5 + [b"error"])
EVENTS = st.lists(st.builds(Event, TEXT.flatmap(documents), NAMES), max_size=20)


@given(EVENTS)
def test_reading_a_stream_is_reading_its_events(stream: list[Event]) -> None:
    reader = EventReader()

    assert [reader.read(one) for one in stream] == [read_event(one) for one in stream]


def test_the_quick_way_is_taken(monkeypatch: Any) -> None:
    stream = EventParser().feed(b"".join(event(f"word {n}") for n in range(100)))
    parsed = []
    monkeypatch.setattr(events, "read_event", lambda e: parsed.append(e) or read_event(e))
    reader = EventReader()

    assert [reader.read(one) for one in stream] == [Frame(f"word {n}") for n in range(100)]
    assert len(parsed) == 1

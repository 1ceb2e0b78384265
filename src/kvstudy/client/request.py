"""The recorded reads of one response → one row of CLIENT_REQUESTS and its text. Pure.

Every event of a read has the read's time; an event cut over several reads has the time of the one
that completes it. How the bytes were cut changes times and `read_count`, nothing else.
"""

from __future__ import annotations

import zlib
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from kvstudy.base.clock import StudyClock
from kvstudy.base.digest import sha256_text
from kvstudy.base.units import ms_to_ns
from kvstudy.client.events import (
    DONE,
    EventReader,
    Frame,
    Usage,
    error_of,
    read_json,
    shorten,
    well_formed,
)
from kvstudy.client.recording import Ending, Recording
from kvstudy.client.sse import Event, EventParser

Row = dict[str, Any]
_SERVER_GAVE_UP = ("abort", "error")


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known of a request without its response; `scheduled_ns` is a monotonic reading."""

    request_id: str
    submit_order: int
    lane: int | None
    scheduled_ns: int | None
    planned_input_tokens: int
    planned_output_tokens: int
    output_cap_tokens: int


@dataclass(frozen=True, slots=True)
class Reading:
    """How recordings are read: the clock, and what is known about the server."""

    clock: StudyClock
    promises_done: bool
    stall_threshold_ms: float


@dataclass(slots=True)
class _Stream:
    """What the events of one response add up to."""

    chunk_ns: list[int] = field(default_factory=list)
    texts: list[str] = field(default_factory=list)
    empty: int = 0
    reads: int = 0
    usage: Usage | None = None
    finish_reason: str | None = None
    error: str | None = None
    done: bool = False
    _reader: EventReader = field(default_factory=EventReader)

    def read(self, at_ns: int, events: list[Event]) -> None:
        """Add the events of one read."""
        before = len(self.chunk_ns)
        for event in events:
            if self.done:
                break  # nothing counts after [DONE]
            if text := self._reader.plain_text(event):
                self.chunk_ns.append(at_ns)
                self.texts.append(text)
            else:
                self._take(at_ns, self._reader.read(event))
        self.reads += len(self.chunk_ns) > before

    def _take(self, at_ns: int, frame: Frame) -> None:
        self.done = frame.done
        self.error = self.error or frame.error
        self.usage = frame.usage or self.usage
        self.finish_reason = frame.finish_reason or self.finish_reason
        if frame.text is None:
            return
        if not frame.text:
            self.empty += 1
            return
        self.chunk_ns.append(at_ns)
        self.texts.append(frame.text)


def row_of(facts: Facts, recording: Recording, reading: Reading) -> tuple[Row, str | None]:
    """The request's row, and its text (None without content)."""
    stream = _read(recording)
    outcome, error = _outcome(recording, stream, promises_done=reading.promises_done)
    finish_reason = stream.finish_reason
    if outcome == "ok" and recording.ending is Ending.CLIENT_CLOSE and not finish_reason:
        finish_reason = Ending.CLIENT_CLOSE.value
    text = well_formed("".join(stream.texts)) if stream.texts else None
    usage = stream.usage or Usage()
    row: Row = {
        "request_id": facts.request_id,
        "submit_order": facts.submit_order,
        "lane": facts.lane,
        "planned_input_tokens": facts.planned_input_tokens,
        "planned_output_tokens": facts.planned_output_tokens,
        "output_cap_tokens": facts.output_cap_tokens,
        "chunk_count": len(stream.chunk_ns),
        "empty_chunk_count": stream.empty,
        "read_count": None if recording.status is None else stream.reads,
        "server_input_tokens": usage.prompt_tokens,
        "cached_tokens": usage.cached_tokens,
        "usage_tokens": usage.completion_tokens,
        "finish_reason": finish_reason,
        "outcome": outcome,
        "http_status": recording.status,
        "error": error,
        "output_sha256": None if text is None else sha256_text(text),
    }
    row.update(_times(facts, recording, stream.chunk_ns, reading))
    return row, text


def _times(facts: Facts, recording: Recording, chunk_ns: list[int], reading: Reading) -> Row:
    study = reading.clock.from_wall_ns

    def when(wall_ns: int | None) -> int | None:
        return None if wall_ns is None else study(wall_ns)

    chunks = [study(at) for at in chunk_ns]
    send = when(recording.send_ns)
    first, last = (chunks[0], chunks[-1]) if chunks else (None, None)
    gaps = [after - before for before, after in pairwise(chunks)]
    threshold = ms_to_ns(reading.stall_threshold_ms)
    longest = max(gaps, default=None)
    stalls = None if longest is None else 0
    if longest is not None and longest > threshold:
        stalls = sum(gap > threshold for gap in gaps)
    return {
        "scheduled_ns": when(facts.scheduled_ns),
        "send_ns": send,
        "first_byte_ns": when(recording.first_byte_ns),
        "first_chunk_ns": first,
        "last_chunk_ns": last,
        "end_ns": when(recording.end_ns),
        "chunk_ns": chunks,
        "ttft_ns": None if first is None or send is None else first - send,
        "tpot_chunks_ns": (chunks[-1] - chunks[0]) / len(gaps) if gaps else None,
        "e2e_ns": None if last is None or send is None else last - send,
        "max_gap_ns": longest,
        "stall_count": stalls,
    }


def _read(recording: Recording) -> _Stream:
    stream = _Stream()
    if recording.status != 200:
        return stream
    parser = EventParser()
    last_ns = 0
    try:
        for at_ns, piece in _decoded(recording):
            last_ns = at_ns
            stream.read(at_ns, parser.feed(piece))
    except _UndecodableError as error:
        stream.error = stream.error or str(error)
        return stream
    # The last event may lack its blank line; cut off in the middle it is no event.
    rest = parser.finish()
    if all(event.data.strip() == DONE or read_json(event.data) is not None for event in rest):
        stream.read(last_ns, rest)
    return stream


def _outcome(
    recording: Recording, stream: _Stream, *, promises_done: bool
) -> tuple[str, str | None]:
    ending, error = recording.ending, recording.error
    if ending is Ending.TIMEOUT:
        return "timeout", error
    if ending is Ending.CANCELLED or ending is None:
        return "cancelled", error or "stopped before the end"
    if recording.status is None:
        return "http_error", error or "no response"
    if recording.status != 200:
        return "http_error", _body_error(recording) or error or f"status {recording.status}"
    return _stream_outcome(recording, stream, promises_done=promises_done)


def _stream_outcome(
    recording: Recording, stream: _Stream, *, promises_done: bool
) -> tuple[str, str | None]:
    if stream.error is not None:
        return "stream_error", stream.error
    if stream.finish_reason in _SERVER_GAVE_UP:
        return "stream_error", f"the server gave up: finish_reason {stream.finish_reason}"
    if recording.ending is Ending.CLIENT_CLOSE or stream.done:
        return "ok", None
    nothing = not stream.chunk_ns and not stream.empty
    if nothing and recording.body and recording.ending is Ending.COMPLETE:
        return "stream_error", _body_error(recording) or "the answer is not an event stream"
    if recording.ending is Ending.FAILED:
        return "stream_error", recording.error
    if recording.ending is Ending.BROKEN:
        return "truncated_stream", recording.error
    if promises_done or nothing:
        return "truncated_stream", "the stream ended without [DONE]"
    return "ok", None


def _body_error(recording: Recording) -> str | None:
    """The server's words in a body that is no event stream."""
    try:
        body = b"".join(piece for _, piece in _decoded(recording))
    except _UndecodableError as error:
        return str(error)
    document = read_json(body)
    if isinstance(document, dict):
        return error_of(document, named=recording.status != 200)
    return shorten(body) if recording.status != 200 and body else None


class _UndecodableError(Exception):
    """The body's content coding cannot be undone."""


def _decoded(recording: Recording) -> Iterator[tuple[int, bytes]]:
    """The reads with gzip or deflate undone. Raises _UndecodableError."""
    coding = recording.content_encoding
    if coding in ("", "identity"):
        yield from recording.reads()
        return
    if coding not in ("gzip", "x-gzip", "deflate"):
        raise _UndecodableError(f"content encoding {shorten(coding.encode())} was not asked for")
    inflate = zlib.decompressobj(wbits=47)
    for at_ns, piece in recording.reads():
        plain, packed, broken = b"", piece, None
        while packed:
            if inflate.eof:
                inflate = zlib.decompressobj(wbits=47)
            before = inflate.copy()
            try:
                plain += inflate.decompress(packed)
            except zlib.error as error:
                plain, broken = plain + _before_error(before, packed), error
                break
            packed = inflate.unused_data
        yield at_ns, plain
        if broken is not None:
            raise _UndecodableError(f"content encoding {coding}: {broken}")


def _before_error(inflate: zlib._Decompress, piece: bytes) -> bytes:
    """What a damaged piece gives before its damage, so that it does not matter how it was cut."""
    plain = b""
    with suppress(zlib.error):
        for at in range(len(piece)):
            plain += inflate.decompress(piece[at : at + 1])
    return plain

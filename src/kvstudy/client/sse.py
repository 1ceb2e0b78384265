"""Bytes of a text/event-stream body → events; pure, incremental, indifferent to how they are cut.

Follows the WHATWG rules: LF, CRLF or CR end a line, a blank line ends an event, several `data:`
lines of one event are joined by LF, lines that begin with a colon are comments, a byte-order mark
in front is skipped. Payloads stay bytes: decoding and JSON belong to whoever reads the run later.
"""

from __future__ import annotations

from typing import NamedTuple

_BOM = b"\xef\xbb\xbf"


class Event(NamedTuple):
    """One complete event: its joined data lines and its name ("message" when not given)."""

    data: bytes
    name: bytes = b"message"


class EventParser:
    """Feed the body piece by piece; each call returns the events that piece completed."""

    __slots__ = ("_after_cr", "_buffer", "_first", "_scanned")

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._scanned = 0
        self._after_cr = False
        self._first = True

    def feed(self, piece: bytes) -> list[Event]:
        """Events completed by `piece`, in order."""
        if self._after_cr and piece:
            # A CR has ended its line already; the LF of a CRLF cut in two adds nothing.
            self._after_cr = False
            if piece[:1] == b"\n":
                piece = piece[1:]
        if b"\r" in piece:
            self._after_cr = piece.endswith(b"\r")
            piece = piece.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        buffer = self._buffer
        if not buffer and _is_one_event(piece):
            self._first = False
            return [Event(piece[6:-2])]
        buffer += piece
        end = buffer.find(b"\n\n", self._scanned)
        if end < 0:
            self._scanned = max(0, len(buffer) - 1)
            return []
        *blocks, rest = bytes(buffer).split(b"\n\n")
        events: list[Event] = []
        for block in blocks:
            if block.startswith(b"data: ") and b"\n" not in block:
                self._first = False
                events.append(Event(block[6:]))
            else:
                self._read(block, events)
        buffer[:] = rest
        self._scanned = max(0, len(buffer) - 1)
        return events

    def finish(self) -> list[Event]:
        """The event whose blank line never came before the body ended, if there is one.

        The standard drops it; servers that close right after `data: [DONE]` mean it, so the
        reader decides.
        """
        events: list[Event] = []
        self._read(bytes(self._buffer), events)
        self._buffer.clear()
        self._scanned = 0
        return events

    def _read(self, block: bytes, events: list[Event]) -> None:
        if self._first:
            self._first = False
            block = block.removeprefix(_BOM)
        if block.startswith(b"data: ") and b"\n" not in block:
            events.append(Event(block[6:]))
            return
        event = _event(block)
        if event is not None:
            events.append(event)


def _is_one_event(piece: bytes) -> bool:
    """Whether a piece is exactly one event of one data line: nearly all of them are."""
    return (
        piece.startswith(b"data: ") and piece.find(b"\n\n") == piece.find(b"\n") == len(piece) - 2
    )


def _event(block: bytes) -> Event | None:
    """The event of one block of lines; None when no line carries data."""
    data: list[bytes] = []
    name = b""
    for line in block.split(b"\n"):
        field, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if field == b"data":
            data.append(value)
        elif field == b"event":
            name = value
    return Event(b"\n".join(data), name or b"message") if data else None

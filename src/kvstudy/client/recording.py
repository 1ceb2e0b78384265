"""What is kept of one request while it runs: receipt times and bytes, nothing else.

The hot path only appends to flat arrays: no object per chunk stays behind, so memory is what the
bytes take and the garbage collector has nothing to walk.
"""

from __future__ import annotations

import time
from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import Enum


class Ending(Enum):
    """How the exchange of bytes ended, before anybody read them."""

    COMPLETE = "complete"  # the response's framing says it is whole
    BROKEN = "broken"  # the connection ended inside the response
    FAILED = "failed"  # no usable HTTP response: refused, reset before the head, malformed
    TIMEOUT = "timeout"  # the client gave up waiting
    CANCELLED = "cancelled"  # the phase was stopped
    CLIENT_CLOSE = "client_close"  # closed on purpose after the planned chunks


@dataclass(slots=True, eq=False)
class Recording:
    """One response as received. Times are `time.monotonic_ns()` readings.

    `body` has no HTTP framing; read i brought the bytes up to `ends[i]` at `stamps[i]`.
    """

    send_ns: int | None = None
    first_byte_ns: int | None = None
    end_ns: int | None = None
    status: int | None = None
    content_type: str = ""
    content_encoding: str = ""
    ending: Ending | None = None
    error: str | None = None
    body: bytearray = field(default_factory=bytearray)
    stamps: array[int] = field(default_factory=lambda: array("q"))
    ends: array[int] = field(default_factory=lambda: array("q"))

    def add(self, at_ns: int, piece: bytes) -> None:
        """Keep one read."""
        self.body += piece
        self.stamps.append(at_ns)
        self.ends.append(len(self.body))

    def end(self, ending: Ending, error: str | None = None, at_ns: int | None = None) -> None:
        """Say how it ended; the first word stands."""
        if self.ending is None:
            self.ending, self.error = ending, error
            if self.send_ns is not None:
                self.end_ns = time.monotonic_ns() if at_ns is None else at_ns

    def reads(self) -> Iterator[tuple[int, bytes]]:
        """Receipt time and body bytes of every read, in order."""
        start = 0
        for stamp, stop in zip(self.stamps, self.ends, strict=True):
            yield stamp, bytes(self.body[start:stop])
            start = stop

    @property
    def last_sign_ns(self) -> int | None:
        """The last time anything happened on the wire; None before the request was sent."""
        if self.stamps:
            return self.stamps[-1]
        return self.send_ns if self.first_byte_ns is None else self.first_byte_ns

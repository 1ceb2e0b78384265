"""HTTP/1.1 responses from bytes: the head, and where the body ends. Pure and incremental.

The bodies take the bytes of one socket read and give the payload in it, without framing. Nothing
here waits, so that the code that stamps reads has nothing between it and the socket.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

_MOST_HEAD_BYTES = 256 << 10
_MOST_LINE_BYTES = 16 << 10
_CRLF = b"\r\n"
_HEX = b"0123456789abcdefABCDEF"

Headers = list[tuple[bytes, bytes]]


class FramingError(Exception):
    """The bytes are not an HTTP/1.1 response."""


@dataclass(frozen=True, slots=True)
class Head:
    """Status line and headers of a final response."""

    status: int
    headers: Headers
    version: bytes

    def all(self, name: bytes) -> list[bytes]:
        """Lower-case comma-separated values of a header, over all its lines."""
        found = [value for key, value in self.headers if key.lower() == name]
        return [part.strip().lower() for value in found for part in value.split(b",")]

    @property
    def keeps_alive(self) -> bool:
        """Whether the server lets the connection carry another request."""
        return self.version == b"HTTP/1.1" and b"close" not in self.all(b"connection")


class Body(Protocol):
    """What follows a head. `done` turns true with the body's last byte."""

    done: bool

    def feed(self, data: bytes) -> bytes:
        """The payload bytes in one read."""
        ...


class HeadReader:
    """Collects bytes until a final (not 1xx) head is complete."""

    __slots__ = ("_buffer",)

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> tuple[Head, bytes] | None:
        """The head and the bytes behind it, once complete. Raises FramingError."""
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n")) >= 0:
            head = parse_head(bytes(self._buffer[:end]))
            del self._buffer[: end + 4]
            if head.status >= 200:
                return head, bytes(self._buffer)
        if len(self._buffer) > _MOST_HEAD_BYTES:
            raise FramingError(f"response head longer than {_MOST_HEAD_BYTES} bytes")
        return None


def parse_head(block: bytes) -> Head:
    """Status line and header lines, without the blank line. Raises FramingError."""
    first, *lines = block.split(_CRLF)
    version, _, rest = first.partition(b" ")
    status = rest[:3]
    if not version.startswith(b"HTTP/1.") or not (len(status) == 3 and status.isdigit()):
        raise FramingError(f"not an HTTP/1 status line: {first[:80]!r}")
    headers: Headers = []
    for line in lines:
        key, colon, value = line.partition(b":")
        if not colon or not key or key != key.strip():
            raise FramingError(f"not a header line: {line[:80]!r}")
        headers.append((key, value.strip()))
    return Head(int(status), headers, version)


def body_of(head: Head) -> Body:
    """The body that RFC 9112 section 6.3 says follows this head. Raises FramingError."""
    if head.status in (204, 304):
        return SizedBody(0)
    codings = head.all(b"transfer-encoding")
    if codings == [b"chunked"]:
        return ChunkedBody()
    if codings:
        raise FramingError(f"transfer encoding {b', '.join(codings)!r} is not supported")
    lengths = set(head.all(b"content-length"))
    if not lengths:
        return OpenBody()
    length = lengths.pop()
    if lengths or not length.isdigit():
        raise FramingError(f"content-length is not one number: {length[:80]!r}")
    return SizedBody(int(length))


class SizedBody:
    """A body of a length known in advance."""

    __slots__ = ("_left", "done")

    def __init__(self, length: int) -> None:
        self._left = length
        self.done = length == 0

    def feed(self, data: bytes) -> bytes:
        """The payload in one read; bytes behind the end are dropped."""
        piece = data[: self._left]
        self._left -= len(piece)
        self.done = self._left == 0
        return piece


class OpenBody:
    """A body that ends when the server closes the connection."""

    __slots__ = ("done",)

    def __init__(self) -> None:
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """All of one read."""
        return data


class ChunkedBody:
    """A body in HTTP chunks, cut anywhere: inside a size line, a chunk, or a trailer."""

    __slots__ = ("_held", "_left", "_trailer", "done")

    def __init__(self) -> None:
        self._held = b""  # an unfinished size, end-of-chunk or trailer line
        self._left = 0  # payload bytes of the present chunk still to come, then its CRLF
        self._trailer = False
        self.done = False

    def feed(self, data: bytes) -> bytes:
        """The payload in one read. Raises FramingError for bytes that are no chunks."""
        if self._held:
            data, self._held = self._held + data, b""
        pieces: list[bytes] = []
        at, size = 0, len(data)
        while at < size and not self.done:
            if not self._left and not self._trailer:
                at = self._whole_chunks(data, at, pieces)
            elif self._left > 2:
                piece = data[at : at + self._left - 2]
                pieces.append(piece)
                at += len(piece)
                self._left -= len(piece)
            elif self._left:
                if size - at < 2:
                    self._held = data[at:]
                    break
                if data[at : at + 2] != _CRLF:
                    raise FramingError(f"chunk is longer than it said: {data[at : at + 20]!r}")
                at, self._left = at + 2, 0
            else:
                at = self._line(data, at)
        return pieces[0] if len(pieces) == 1 else b"".join(pieces)

    def _whole_chunks(self, data: bytes, at: int, pieces: list[bytes]) -> int:
        """Take the chunks that lie whole in the read, nearly all there are; then one size line."""
        while (end := data.find(_CRLF, at)) >= 0:
            left = _chunk_size(data[at:end])
            stop = end + 2 + left
            if not left or not data.startswith(_CRLF, stop - 2):
                break
            pieces.append(data[end + 2 : stop - 2])
            at = stop
        return self._line(data, at) if at < len(data) else at

    def _line(self, data: bytes, at: int) -> int:
        end = data.find(_CRLF, at)
        if end < 0:
            self._held = data[at:]
            if len(self._held) > _MOST_LINE_BYTES:
                raise FramingError("chunk size or trailer line is too long")
            return len(data)
        if self._trailer:
            self.done = end == at
        else:
            self._left = _chunk_size(data[at:end])
            self._trailer = self._left == 0
        return end + 2


@lru_cache(maxsize=1024)
def _chunk_size(line: bytes) -> int:
    """Bytes to come for a size line: payload and CRLF, or 0 for the last chunk."""
    digits = line.partition(b";")[0].strip()
    if not digits or digits.strip(_HEX):
        raise FramingError(f"not a chunk size: {line[:40]!r}")
    size = int(digits, 16)
    return size + 2 if size else 0

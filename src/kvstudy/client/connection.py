"""One HTTP/1.1 connection that stamps what it receives at the socket.

The time of a read is taken in the first line of `data_received`, before any parsing, queueing or
task switch: no later layer of the client can add to it.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

from kvstudy.client.http1 import Body, FramingError, Head, HeadReader, OpenBody, body_of
from kvstudy.client.recording import Ending, Recording


class Exchange:
    """One request on its way: its recording, and the futures its sender waits on.

    `head` gives the response's head, or None when the exchange ended before there was one;
    `done` ends with the exchange. Neither ever raises: how it ended is in the recording.
    `enough` is asked after each read with the new bytes; true closes the connection.
    """

    __slots__ = ("connection", "done", "enough", "head", "recording")

    def __init__(self, recording: Recording, enough: Callable[[bytes], bool] | None = None) -> None:
        loop = asyncio.get_running_loop()
        self.recording = recording
        self.enough = enough
        self.connection: Connection | None = None
        self.head: asyncio.Future[Head | None] = loop.create_future()
        self.done: asyncio.Future[None] = loop.create_future()

    def end(self, ending: Ending, error: str | None = None, at_ns: int | None = None) -> None:
        """Say how it ended and wake the sender. Anything but COMPLETE drops the connection."""
        self.recording.end(ending, error, at_ns)
        if self.connection is not None and ending is not Ending.COMPLETE:
            self.connection.abort()
        if not self.head.done():
            self.head.set_result(None)
        if not self.done.done():
            self.done.set_result(None)


class Connection(asyncio.Protocol):
    """A connection that carries one exchange after another."""

    def __init__(self) -> None:
        self.lost: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.idle_since_ns = time.monotonic_ns()
        self._transport: asyncio.Transport | None = None
        self._exchange: Exchange | None = None
        self._head = HeadReader()
        self._body: Body | None = None
        self._keeps_alive = True

    @property
    def usable(self) -> bool:
        """Whether the next exchange may start here."""
        transport = self._transport
        return (
            self._keeps_alive
            and self._exchange is None
            and transport is not None
            and not transport.is_closing()
        )

    def start(self, exchange: Exchange, payload: bytes) -> None:
        """Send a request; the recording's send time is taken just before its first byte."""
        assert self._transport is not None  # noqa: S101 - connected before it is handed out
        self._exchange, self._body, self._head = exchange, None, HeadReader()
        exchange.connection = self
        exchange.recording.send_ns = time.monotonic_ns()
        self._transport.write(payload)

    def abort(self) -> None:
        """Drop the connection now, without waiting for the peer."""
        self._exchange = None
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        assert isinstance(transport, asyncio.Transport)  # noqa: S101 - a stream connection
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Stamp and keep one read."""
        now_ns = time.monotonic_ns()
        exchange = self._exchange
        if exchange is None:
            self.abort()  # bytes nobody asked for: what follows could not be told apart
            return
        try:
            body = self._body
            if body is None:
                data = self._read_head(exchange, now_ns, data)
                body = self._body
                if body is None:
                    return
            piece = body.feed(data)
        except FramingError as error:
            exchange.end(Ending.FAILED, f"not HTTP: {error}", now_ns)
            return
        if piece:
            exchange.recording.add(now_ns, piece)
            if exchange.enough is not None and exchange.enough(piece) and not body.done:
                exchange.end(Ending.CLIENT_CLOSE, None, now_ns)
                return
        if body.done:
            self._complete(exchange, now_ns)

    def connection_lost(self, exc: Exception | None) -> None:
        """End the exchange that was running, if one was."""
        if not self.lost.done():
            self.lost.set_result(None)
        exchange = self._exchange
        if exchange is None:
            return
        self._keeps_alive = False
        if exc is None and isinstance(self._body, OpenBody):
            self._complete(exchange, time.monotonic_ns())
            return
        how = "closed" if exc is None else f"lost ({exc})"
        if self._body is None:
            exchange.end(Ending.FAILED, f"connection {how} before the response")
        else:
            exchange.end(Ending.BROKEN, f"connection {how} inside the response")

    def _read_head(self, exchange: Exchange, now_ns: int, data: bytes) -> bytes:
        recording = exchange.recording
        if recording.first_byte_ns is None:
            recording.first_byte_ns = now_ns
        read = self._head.feed(data)
        if read is None:
            return b""
        head, rest = read
        self._body = body_of(head)
        self._keeps_alive = head.keeps_alive
        recording.status = head.status
        recording.content_type = b", ".join(head.all(b"content-type")).decode("latin-1")
        recording.content_encoding = b", ".join(head.all(b"content-encoding")).decode("latin-1")
        if not exchange.head.done():
            exchange.head.set_result(head)
        return rest

    def _complete(self, exchange: Exchange, now_ns: int) -> None:
        self._exchange = None
        self.idle_since_ns = now_ns
        exchange.end(Ending.COMPLETE, None, now_ns)

    async def closed(self) -> None:
        """Drop the connection and wait until the loop has let go of its socket."""
        self.abort()
        await asyncio.wait({self.lost}, timeout=1)

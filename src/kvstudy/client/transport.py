"""The transport under the httpx API: it records reads at the socket instead of handing them on.

Chosen by measurement (`benchmarks/client.py`; two shared Zen 3 cores, 32 streams). CPU per 1,000
one-token chunks and stamp minus the server's write, at 575 chunks/s: bare socket reader 23 ms, p99
0.08 ms; this transport 23 ms, 0.08 ms; httpx-aiohttp 53 ms, 0.11 ms; plain httpx over h11 157 ms,
0.17 ms. Flat out the CPU is 2.0, 2.6, 4.4 and 19.5 ms; all but h11, which stops at 57,000 chunks/s,
take what the server can write (100,000 to 250,000 chunks/s, by what else the machine does).

The gain is in what is left out: no task wakes per chunk, nothing passes through async iterators,
and a stream costs a few appends per read until it ends. The price is the HTTP/1.1 framing in
`http1.py`, which the tests hold against h11.
"""

from __future__ import annotations

import asyncio
import ssl
import time
from collections.abc import AsyncIterator

import httpx

from kvstudy.base.units import NS_PER_S
from kvstudy.client.connection import Connection, Exchange
from kvstudy.client.recording import Ending, Recording

# Servers close idle connections after 5 s (uvicorn) or later. A closed loop reuses one at once;
# an older one is not worth the race against the server's close.
_IDLE_REUSE_S = 2.0
_CONNECTING_AT_ONCE = 64


class RecordingTransport(httpx.AsyncBaseTransport):
    """HTTP/1.1 without a cap on connections, redirects, retries, proxies or decoding.

    A request may bring its own `Exchange` in `request.extensions["exchange"]`; its recording then
    holds all that was received. The response's stream gives the body once it is complete.
    """

    def __init__(self, *, connect_s: float, verify: ssl.SSLContext | None = None) -> None:
        self._connect_s = connect_s
        self._verify = verify
        self._idle: list[Connection] = []
        self._open: set[Connection] = set()

    async def warm(self, url: httpx.URL, count: int) -> None:
        """Open `count` connections ahead, so that the first sends do not wait for them.

        A server that refuses is left to the requests themselves to report.
        """
        gate = asyncio.Semaphore(_CONNECTING_AT_ONCE)

        async def one() -> None:
            async with gate:
                try:
                    connection = await self._connect(url)
                except httpx.TransportError:
                    return
                self._idle.append(connection)

        await asyncio.gather(*(one() for _ in range(count)))

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        """Send one request; returns with the response's head.

        Raises httpx.TransportError when there is no response; the recording says why.
        """
        exchange = request.extensions.get("exchange") or Exchange(Recording())
        payload = _payload(request, await request.aread())
        connection = self._take() or await self._connect(request.url)
        try:
            connection.start(exchange, payload)
            head = await exchange.head
        except asyncio.CancelledError:
            connection.abort()
            raise
        if head is None:
            raise _error(exchange.recording)
        return httpx.Response(
            head.status,
            headers=head.headers,
            stream=_RecordedStream(self, connection, exchange),
            request=request,
            extensions={"http_version": head.version},
        )

    async def aclose(self) -> None:
        """Drop every connection."""
        await asyncio.gather(*(connection.closed() for connection in tuple(self._open)))
        self._idle.clear()

    def release(self, connection: Connection) -> None:
        """Take a connection back; one that cannot be used again is dropped."""
        if connection.usable:
            self._idle.append(connection)
        else:
            connection.abort()

    def _take(self) -> Connection | None:
        oldest_ns = time.monotonic_ns() - round(_IDLE_REUSE_S * NS_PER_S)
        while self._idle:
            connection = self._idle.pop()
            if connection.usable and connection.idle_since_ns >= oldest_ns:
                return connection
            connection.abort()
        return None

    async def _connect(self, url: httpx.URL) -> Connection:
        tls = None
        if url.scheme == "https":
            tls = self._verify or httpx.create_ssl_context(trust_env=False)
        port = url.port or (443 if tls else 80)
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(self._connect_s):
                _, connection = await loop.create_connection(
                    Connection, url.host, port, ssl=tls, server_hostname=url.host if tls else None
                )
        except TimeoutError:
            raise httpx.ConnectTimeout(f"no connection within {self._connect_s:g} s") from None
        except OSError as error:
            raise httpx.ConnectError(f"no connection: {error}") from error
        self._open.add(connection)
        connection.lost.add_done_callback(lambda _: self._open.discard(connection))
        return connection


class _RecordedStream(httpx.AsyncByteStream):
    """The body of one response. Closing it gives the connection back."""

    def __init__(
        self, transport: RecordingTransport, connection: Connection, exchange: Exchange
    ) -> None:
        self._transport = transport
        self._connection = connection
        self._exchange = exchange

    async def __aiter__(self) -> AsyncIterator[bytes]:
        await self._exchange.done
        if self._exchange.recording.ending is not Ending.COMPLETE:
            raise _error(self._exchange.recording)
        yield bytes(self._exchange.recording.body)

    async def aclose(self) -> None:
        self._transport.release(self._connection)


def _payload(request: httpx.Request, body: bytes) -> bytes:
    lines = [b"%s %s HTTP/1.1" % (request.method.encode(), request.url.raw_path)]
    lines += [b"%s: %s" % pair for pair in request.headers.raw]
    return b"\r\n".join([*lines, b"", body])


def _error(recording: Recording) -> httpx.TransportError:
    message = recording.error or "no response"
    if recording.ending is Ending.TIMEOUT:
        return httpx.ReadTimeout(message)
    return httpx.ReadError(message)

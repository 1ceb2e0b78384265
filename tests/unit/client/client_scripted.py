"""A real HTTP server on a real socket whose every byte, pause and reset the test decides."""

from __future__ import annotations

import asyncio
import json
import socket
import struct
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
LAST = b"0\r\n\r\n"
DONE = b"data: [DONE]\n\n"


def chunk(data: bytes) -> bytes:
    """One HTTP chunk."""
    return b"%x\r\n%s\r\n" % (len(data), data)


def event(text: str | None = None, **more: Any) -> bytes:
    """One completion event; no text: no choices."""
    choices = [] if text is None else [{"index": 0, "text": text, "finish_reason": None}]
    if "finish_reason" in more:
        choices[0]["finish_reason"] = more.pop("finish_reason")
    return b"data: " + json.dumps({"choices": choices, **more}).encode() + b"\n\n"


USAGE = event(None, usage={"prompt_tokens": 3, "completion_tokens": 2, "total_tokens": 5})


@dataclass
class Exchange:
    """One request as the server saw it, and the means to answer it."""

    head: bytes
    body: dict[str, Any]
    order: int
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    async def send(self, data: bytes, *, settle: bool = True) -> None:
        """Write bytes; settle: give the client time to read them on their own."""
        self.writer.write(data)
        await self.writer.drain()
        if settle:
            await asyncio.sleep(0.002)

    def reset(self) -> None:
        """Send a TCP reset instead of a close."""
        sock = self.writer.get_extra_info("socket")
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
        self.writer.transport.abort()

    async def hang_up(self) -> None:
        """Wait until the client closes."""
        await self.reader.read()


Answer = Callable[[Exchange], Awaitable[None]]


@dataclass
class Server:
    """Counts what it sees: the other side's truth."""

    url: str = ""
    requests: list[dict[str, Any]] = field(default_factory=list)
    heads: list[bytes] = field(default_factory=list)
    connections: int = 0
    in_flight: int = 0
    in_flight_seen: list[int] = field(default_factory=list)


@asynccontextmanager
async def serving(answer: Answer) -> AsyncIterator[Server]:
    """Serve on 127.0.0.1; `answer` is called for each request. Returning keeps the connection."""
    server = Server()
    tasks: set[asyncio.Task[None]] = set()

    async def connection(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        server.connections += 1
        try:
            while (exchange := await _read(server, reader, writer)) is not None:
                server.in_flight += 1
                server.in_flight_seen.append(server.in_flight)
                try:
                    await answer(exchange)
                finally:
                    server.in_flight -= 1
                if writer.is_closing():
                    return
        except (ConnectionError, asyncio.CancelledError):
            pass
        finally:
            writer.close()

    def accept(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.ensure_future(connection(reader, writer))
        tasks.add(task)
        task.add_done_callback(tasks.discard)

    listener = await asyncio.start_server(accept, "127.0.0.1", 0, backlog=2048)
    server.url = f"http://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    try:
        yield server
    finally:
        listener.close()
        await listener.wait_closed()
        for task in tuple(tasks):
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.sleep(0.01)


async def _read(
    server: Server, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
) -> Exchange | None:
    try:
        head = await reader.readuntil(b"\r\n\r\n")
    except asyncio.IncompleteReadError:
        return None
    length = int(head.lower().split(b"content-length:")[1].split(b"\r\n")[0])
    body = json.loads(await reader.readexactly(length))
    server.requests.append(body)
    server.heads.append(head)
    return Exchange(head, body, len(server.requests) - 1, reader, writer)


def scripted(parts: Sequence[bytes], *, close: bool = False, reset: bool = False) -> Answer:
    """Answers every request with these writes, each on its own."""

    async def answer(exchange: Exchange) -> None:
        for part in parts:
            await exchange.send(part)
        if reset:
            exchange.reset()
        elif close:
            exchange.writer.close()

    return answer

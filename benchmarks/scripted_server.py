"""A completion server whose every send time is known: the truth that clients are measured against.

Raw asyncio, made to be faster than any client. Run in its own process:

    python benchmarks/scripted_server.py --times times.json [--interval-ms 55] [--shape normal]

It prints its URL and serves until it gets SIGTERM or SIGINT; then it writes `times.json`:
`{"requests": [{"key", "arrived_ns", "sent_ns": [...]}, ...], "in_flight_max": n}`, where `key` is
the first token id of the prompt (or its arrival number) and every time is a reading of the
system-wide monotonic clock, taken just before the write. With `--tagged` the first text of the
n-th answer is ` #n`, so that a client that keeps the text can be held against the right times.
Chat completions get the same events in the chat form.

Without an interval streams go flat out, one write per chunk. With one, every stream gets a chunk
in each interval, the streams spread evenly over it; usage and [DONE] follow the last text at once.
"""

from __future__ import annotations

import argparse
import asyncio
import gzip
import json
import re
import select
import selectors
import signal
import socket
import struct
import time
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\n%stransfer-encoding: chunked\r\n\r\n"
)
_JSON = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%s"
_MISSING = b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n"
_MODELS = b'{"object":"list","data":[{"id":"scripted","object":"model"}]}'
_DONE = b"data: [DONE]\n\n"
_ID = b'"id":"cmpl-9c761f2e40c54d3a","object":"text_completion","created":1796086357,'
_PROMPT = re.compile(rb'"prompt":\s*\[\s*(\d+)')
_LENGTH = re.compile(rb'"max_(?:completion_)?tokens":\s*(\d+)')
_TEXT = re.compile(rb'"text":("[^"]*")')
_PROMPT_TOKENS = 8


def frame(text: str, reason: str | None = None, more: bytes = b"") -> bytes:
    """One event as vLLM writes it."""
    choice = b'{"index":0,"text":%s,"logprobs":null,"finish_reason":%s,"stop_reason":null}' % (
        json.dumps(text).encode(),
        json.dumps(reason).encode(),
    )
    return b'data: {%s"model":"scripted","choices":[%s]%s}\n\n' % (_ID, choice, more)


def usage(tokens: int) -> bytes:
    """The usage member of an event."""
    total = _PROMPT_TOKENS + tokens
    return b',"usage":{"prompt_tokens":%d,"total_tokens":%d,"completion_tokens":%d}' % (
        _PROMPT_TOKENS,
        total,
        tokens,
    )


def usage_frame(tokens: int) -> bytes:
    """A choices-empty event with usage."""
    return b'data: {%s"model":"scripted","choices":[]%s}\n\n' % (_ID, usage(tokens))


def normal(tokens: int) -> list[bytes]:
    """One token a chunk, finish_reason on the last, a usage event, [DONE]."""
    words = [frame(" word") for _ in range(tokens - 1)]
    return [*words, frame(" end", "length"), usage_frame(tokens), _DONE]


def _empty_first(tokens: int) -> list[bytes]:
    return [frame(""), *normal(tokens)]


def _every_fourth_empty(tokens: int) -> list[bytes]:
    events = normal(tokens)
    return [frame("") if i < tokens - 1 and i % 4 == 3 else e for i, e in enumerate(events)]


def _two_tokens(tokens: int) -> list[bytes]:
    pairs = [frame(" word word") for _ in range(tokens // 2 - 1)]
    return [*pairs, frame(" word end", "length"), usage_frame(tokens), _DONE]


def _usage_with_last(tokens: int) -> list[bytes]:
    return [*normal(tokens)[: tokens - 1], frame(" end", "length", usage(tokens)), _DONE]


def _reason_alone(tokens: int) -> list[bytes]:
    words = [frame(" word") for _ in range(tokens)]
    return [*words, frame("", "length", usage(tokens)), _DONE]


def _error_event(tokens: int) -> list[bytes]:
    error = b'data: {"error":{"code":500,"message":"Context size has been exceeded."}}\n\n'
    return [*normal(tokens)[: tokens // 2], error]


def _crlf(tokens: int) -> list[bytes]:
    return [event.replace(b"\n", b"\r\n") for event in normal(tokens)]


def _comments(tokens: int) -> list[bytes]:
    return [b": keep-alive\n\n" + event for event in normal(tokens)]


def _cut_in_half(tokens: int) -> list[bytes]:
    halves = []
    for event in normal(tokens):
        halves += [event[: len(event) // 2], event[len(event) // 2 :]]
    return halves


SHAPES: dict[str, Callable[[int], list[bytes]]] = {
    "normal": normal,
    "empty_first": _empty_first,
    "every_fourth_empty": _every_fourth_empty,
    "two_tokens": _two_tokens,
    "usage_with_last": _usage_with_last,
    "reason_alone": _reason_alone,
    "error_event": _error_event,
    "crlf": _crlf,
    "comments": _comments,
    "cut_in_half": _cut_in_half,
    "bundled": lambda tokens: [b"".join(normal(tokens))],
    "no_usage": lambda tokens: [*normal(tokens)[:tokens], _DONE],
    "no_done": lambda tokens: normal(tokens)[: tokens + 1],
    "short": lambda tokens: [*normal(tokens // 2)],
    "reset": lambda tokens: normal(tokens)[: tokens // 2],
    "gzip": normal,
    "json_error": lambda _: [b'{"error":{"message":"no such model","code":404}}'],
}


Arrival = tuple[asyncio.Transport, bytes, int, bool]  # ..., body, arrived_ns, is chat


class Stream:
    """One answer being sent."""

    def __init__(
        self, transport: asyncio.Transport, key: int, events: list[bytes], arrived_ns: int
    ) -> None:
        self.transport = transport
        self.key = key
        self.events = events
        self.tail = next((at for at, event in enumerate(events) if _is_tail(event)), len(events))
        self.arrived_ns = arrived_ns
        self.sent_ns: list[int] = []

    def send_next(self) -> bool:
        """Send one event; whether there are more."""
        data = self.events[len(self.sent_ns)]
        if self.transport.is_closing():
            return False
        self.sent_ns.append(time.monotonic_ns())
        self.transport.write(data)
        return len(self.sent_ns) < len(self.events)


class Emitter:
    """All answers of the server."""

    def __init__(self, shape: str, interval_s: float, *, tagged: bool = False) -> None:
        self.shape = shape
        self.interval_s = interval_s
        self.tagged = tagged
        self.streams: list[Stream] = []
        self.active: dict[Stream, None] = {}
        self.most_active = 0
        self.poll = 0  # a descriptor that is readable when the loop has something to read
        self._wake = asyncio.Event()
        self._queued: deque[Arrival] = deque()
        self._built: dict[tuple[int, bool], list[bytes]] = {}

    def queue(self, arrival: Arrival) -> None:
        """Answer soon: what else has arrived is stamped first."""
        self._queued.append(arrival)
        if len(self._queued) == 1:
            asyncio.get_running_loop().call_soon(self._begin_one)

    def _begin_one(self) -> None:
        self._begin(*self._queued.popleft())
        if self._queued:
            asyncio.get_running_loop().call_soon(self._begin_one)

    def _begin(
        self, transport: asyncio.Transport, body: bytes, arrived_ns: int, chat: bool
    ) -> None:
        prompt, length = _PROMPT.search(body), _LENGTH.search(body)
        key = int(prompt[1]) if prompt else len(self.streams)
        events = self._events(int(length[1]) if length else 16, chat)
        if self.tagged:
            events = [_chunk(_form(frame(f" #{len(self.streams)}"), chat)), *events[1:]]
        stream = Stream(transport, key, events, arrived_ns)
        self.streams.append(stream)
        if self.shape == "json_error":
            transport.write(_JSON % (len(stream.events[0]), stream.events[0]))
            return
        transport.write(_HEAD % (b"content-encoding: gzip\r\n" if self.shape == "gzip" else b""))
        self.active[stream] = None
        self.most_active = max(self.most_active, len(self.active))
        self._wake.set()

    def build(self, tokens: int) -> None:
        """Make the events ahead, so that the first requests do not wait for them."""
        for chat in (False, True):
            self._events(tokens, chat)

    async def run(self) -> None:
        """Send for ever."""
        while True:
            if not self.active:
                self._wake.clear()
                await self._wake.wait()
            if self.interval_s:
                await self._paced_round()
            else:
                for stream in tuple(self.active):
                    self._step(stream)
                await asyncio.sleep(0)

    async def _paced_round(self) -> None:
        streams = tuple(self.active)
        due = time.monotonic()
        for stream in streams:
            due += self.interval_s / len(streams)
            self._step(stream)
            while stream in self.active and len(stream.sent_ns) >= stream.tail:
                self._step(stream)
            # The loop's own timer is no finer than 1 ms; what arrives is read at once all the same.
            while (left := due - time.monotonic()) > 0:
                select.select([self.poll], [], [], left)
                await asyncio.sleep(0)
        await asyncio.sleep(0)

    def _step(self, stream: Stream) -> None:
        if stream.send_next():
            return
        self.active.pop(stream, None)
        if self.shape == "reset" and not stream.transport.is_closing():
            sock = stream.transport.get_extra_info("socket")
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            stream.transport.abort()

    def _events(self, tokens: int, chat: bool) -> list[bytes]:
        """The HTTP chunks of an answer; built once for each length."""
        if (tokens, chat) not in self._built:
            events = [_form(event, chat) for event in SHAPES[self.shape](tokens)]
            if self.shape == "gzip":
                events = [gzip.compress(event) for event in events]
            if self.shape != "json_error":
                events = [_chunk(event) for event in events]
                if self.shape != "reset":
                    events[-1] += b"0\r\n\r\n"
            self._built[tokens, chat] = events
        return self._built[tokens, chat]


def _form(event: bytes, chat: bool) -> bytes:
    return _TEXT.sub(rb'"delta":{"content":\1}', event) if chat else event


def _is_tail(event: bytes) -> bool:
    return b'"choices":[]' in event or b"[DONE]" in event


def _chunk(event: bytes) -> bytes:
    return b"%x\r\n%s\r\n" % (len(event), event)


class Connection(asyncio.Protocol):
    """Just enough HTTP/1.1 for clients that behave."""

    def __init__(self, emitter: Emitter) -> None:
        self._emitter = emitter
        self._buffer = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Remember the transport."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        """Answer when a request is complete; all that has come is stamped before any answer."""
        now_ns = time.monotonic_ns()
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        head = bytes(self._buffer[:end])
        found = re.search(rb"content-length:\s*(\d+)", head, re.IGNORECASE)
        stop = end + 4 + (int(found[1]) if found else 0)
        if len(self._buffer) < stop:
            return
        body = bytes(self._buffer[end + 4 : stop])
        del self._buffer[:stop]
        method, path, _ = head.split(b" ", 2)
        if method != b"POST":
            self._transport.write(_JSON % (len(_MODELS), _MODELS))
        elif path == b"/" or path.endswith(b"/completions"):
            chat = path.endswith(b"/chat/completions")
            self._emitter.queue((self._transport, body, now_ns, chat))
        else:
            self._transport.write(_MISSING)


async def serve(emitter: Emitter, times: Path, selector: selectors.EpollSelector) -> None:
    """Serve until told to stop, then write the times."""
    loop = asyncio.get_running_loop()
    emitter.poll = selector.fileno()
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    server = await loop.create_server(
        lambda: Connection(emitter), "127.0.0.1", 0, backlog=4096, reuse_address=True
    )
    print(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}", flush=True)
    sending = asyncio.create_task(emitter.run())
    await stopped.wait()
    sending.cancel()
    with suppress(asyncio.CancelledError):
        await sending
    server.close()
    requests = [
        {"key": one.key, "arrived_ns": one.arrived_ns, "sent_ns": one.sent_ns}
        for one in emitter.streams
    ]
    document = {"requests": requests, "in_flight_max": emitter.most_active}
    times.write_text(json.dumps(document), encoding="utf-8")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--times", type=Path, required=True)
    parser.add_argument("--shape", choices=sorted(SHAPES), default="normal")
    parser.add_argument("--interval-ms", type=float, default=0.0)
    parser.add_argument("--tagged", action="store_true")
    parser.add_argument("--expect", type=int, help="build answers of so many tokens ahead")
    args = parser.parse_args()
    emitter = Emitter(args.shape, args.interval_ms / 1000, tagged=args.tagged)
    if args.expect:
        emitter.build(args.expect)
    selector = selectors.EpollSelector()
    with asyncio.Runner(loop_factory=lambda: asyncio.SelectorEventLoop(selector)) as runner:
        runner.run(serve(emitter, args.times, selector))


if __name__ == "__main__":
    main()

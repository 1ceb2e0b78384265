"""Every odd stream a server was ever seen to send, over a real socket: one row of a table each."""

from __future__ import annotations

import asyncio
import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
from client_scripted import DONE, HEAD, LAST, USAGE, chunk, event, scripted, serving

from kvstudy.base.clock import StudyClock
from kvstudy.client.model import Limits, Load, Planned, Target
from kvstudy.client.phase import run_phase

A, B, LENGTH = event("a"), event("b"), event("", finish_reason="length")
TAIL = [chunk(USAGE), chunk(DONE) + LAST]
EURO = event("€")  # json.dumps escapes it; RAW_EURO does not
RAW_EURO = 'data: {"choices": [{"text": "€"}]}\n\n'.encode()
SAID = {"prompt_tokens": 3, "completion_tokens": 2}
BIG = "x" * (1 << 20)


def plain(head: bytes, body: bytes) -> bytes:
    """A response whose length is known in advance."""
    return b"HTTP/1.1 " + head + b"\r\ncontent-length: %d\r\n\r\n" % len(body) + body


def coded(name: bytes) -> bytes:
    """A chunked head with a content encoding nobody asked for."""
    return HEAD.replace(b"\r\n\r\n", b"\r\ncontent-encoding: " + name + b"\r\n\r\n")


def flushed(*events: bytes) -> list[bytes]:
    """A gzip stream flushed after each event, as a streaming server's would be."""
    deflate = zlib.compressobj(wbits=31)
    parts = [deflate.compress(e) + deflate.flush(zlib.Z_SYNC_FLUSH) for e in events]
    return [*parts, deflate.flush()]


@dataclass(frozen=True)
class Case:
    """Writes of the server, how it ends, and columns of the row that must come out."""

    parts: Sequence[bytes]
    expect: dict[str, Any]
    text: str | None = None
    close: bool = False
    reset: bool = False


def good(parts: Sequence[bytes], text: str = "ab", **expect: Any) -> Case:
    """A stream that is ok, with two chunks and usage unless said otherwise."""
    usual = {"outcome": "ok", "http_status": 200, "error": None, "chunk_count": 2}
    usual |= {"empty_chunk_count": 0, "usage_tokens": 2, "server_input_tokens": 3}
    return Case([HEAD, *parts], usual | expect, text)


def bad(outcome: str, parts: Sequence[bytes], **more: Any) -> Case:
    """A stream that is not ok; what came before is kept."""
    keep = {key: more.pop(key) for key in ("text", "close", "reset") if key in more}
    return Case(parts, {"outcome": outcome, **more}, **keep)


def bytewise(data: bytes) -> list[bytes]:
    """One HTTP chunk per byte, in one write."""
    return [b"".join(chunk(data[at : at + 1]) for at in range(len(data)))]


CASES = {
    "one event a read": good([chunk(A), chunk(B), *TAIL], read_count=2),
    "several events in one read": good([chunk(A) + chunk(B), *TAIL], read_count=1),
    "several events in one HTTP chunk": good([chunk(A + B), *TAIL], read_count=1),
    "all in one write": good([b"".join([chunk(A), chunk(B), *TAIL])], read_count=1),
    "an event cut in the middle": good([chunk(A[:7]), chunk(A[7:]), chunk(B), *TAIL], read_count=2),
    "cut inside a UTF-8 sequence": good(
        [chunk(RAW_EURO[:29]), chunk(RAW_EURO[29:]), chunk(B), *TAIL], "€b"
    ),
    "cut between the two line ends": good([chunk(A[:-1]), chunk(A[-1:] + B), *TAIL]),
    "CRLF": good([chunk(e.replace(b"\n", b"\r\n")) for e in (A, B, USAGE, DONE)] + [LAST]),
    "CRLF cut inside": good([chunk(A[:-2] + b"\r\n\r"), chunk(b"\n" + B), *TAIL]),
    "comments and keep-alives": good(
        [chunk(b": ping\n\n"), chunk(A + b":\n\n"), chunk(b": x\n" + B), *TAIL], read_count=2
    ),
    "several tokens in one chunk": good([chunk(event("a b c")), *TAIL], "a b c", chunk_count=1),
    "empty first chunk": good([chunk(event("")), chunk(A), chunk(B), *TAIL], empty_chunk_count=1),
    "held-back UTF-8": good([chunk(A), chunk(event("")), chunk(B), *TAIL], empty_chunk_count=1),
    "escaped UTF-8": good([chunk(EURO), chunk(B), *TAIL], "€b"),
    "usage with the last content": good(
        [chunk(A), chunk(event("b", usage=SAID)), chunk(DONE) + LAST]
    ),
    "usage on the finish frame": good(
        [
            chunk(A),
            chunk(B),
            chunk(event("", usage=SAID, finish_reason="stop")),
            chunk(DONE) + LAST,
        ],
        empty_chunk_count=1,
        finish_reason="stop",
    ),
    "usage in front and growing": good(
        [chunk(event(None, usage=SAID | {"completion_tokens": 0})), chunk(A), chunk(B), *TAIL]
    ),
    "no usage": Case(
        [HEAD, chunk(A), chunk(B), chunk(DONE) + LAST],
        {"outcome": "ok", "usage_tokens": None, "server_input_tokens": None},
        "ab",
    ),
    "finish_reason on the last content": good(
        [chunk(A), chunk(event("b", finish_reason="length")), *TAIL], finish_reason="length"
    ),
    "finish_reason on its own frame": good(
        [chunk(A), chunk(B), chunk(LENGTH), *TAIL], finish_reason="length", empty_chunk_count=1
    ),
    "early stop": good([chunk(event("a", finish_reason="stop")), *TAIL], "a", chunk_count=1),
    "NUL": good([chunk(event("\0")), chunk(B), *TAIL], "\0b"),
    "raw NUL": good([chunk(b'data: {"choices":[{"text":"\0"}]}\n\n'), chunk(B), *TAIL], "\0b"),
    "invalid UTF-8": good(
        [chunk(b'data: {"choices":[{"text":"\xff"}]}\n\n'), chunk(B), *TAIL],
        "\N{REPLACEMENT CHARACTER}b",
    ),
    "an event of a mebibyte": good([chunk(event(BIG)), chunk(B), *TAIL], BIG + "b"),
    "one HTTP chunk a byte": good([*bytewise(A + B), *TAIL]),
    "HTTP chunk sizes cut": good(
        [b"0", b"00", chunk(A)[:1], chunk(A)[1:3], chunk(A)[3:-1], b"\n", chunk(B), *TAIL]
    ),
    "HTTP chunk extensions and trailers": good(
        [
            chunk(A).replace(b"\r\n", b";x=y\r\n", 1),
            chunk(B),
            chunk(USAGE + DONE),
            b"0\r\nx-check: 1\r\n",
            b"\r\n",
        ]
    ),
    "the head byte by byte": Case(
        [*(HEAD[at : at + 16] for at in range(0, len(HEAD), 16)), chunk(A), *TAIL],
        {"outcome": "ok"},
        "a",
    ),
    "head and first event in one write": Case(
        [HEAD + chunk(A), chunk(B), *TAIL], {"outcome": "ok", "read_count": 2}, "ab"
    ),
    "content-length": Case([plain(b"200 OK", A + B + DONE)], {"outcome": "ok"}, "ab"),
    "until the connection closes": Case(
        [b"HTTP/1.0 200 OK\r\n\r\n", A, B, DONE], {"outcome": "ok", "error": None}, "ab", close=True
    ),
    "100 Continue in front": Case(
        [b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD, chunk(A), *TAIL], {"outcome": "ok"}, "a"
    ),
    "[DONE] without its blank line": Case(
        [HEAD, chunk(A), chunk(b"data: [DONE]") + LAST], {"outcome": "ok"}, "a"
    ),
    "closed after [DONE] without the last chunk": Case(
        [HEAD, chunk(A), chunk(DONE)], {"outcome": "ok", "error": None}, "a", close=True
    ),
    "gzip, flushed": Case(
        [coded(b"gzip"), *map(chunk, flushed(A, B, DONE)), LAST],
        {"outcome": "ok", "read_count": 2},
        "ab",
    ),
    "gzip, several members": Case(
        [
            coded(b"gzip"),
            chunk(gzip.compress(A) + gzip.compress(B)),
            chunk(gzip.compress(DONE)) + LAST,
        ],
        {"outcome": "ok", "chunk_count": 2},
        "ab",
    ),
    "gzip, damaged": bad(
        "stream_error", [coded(b"gzip"), chunk(b"no gzip at all") + LAST], chunk_count=0
    ),
    "an encoding nobody asked for": bad(
        "stream_error", [coded(b"br"), chunk(b"???") + LAST], chunk_count=0
    ),
    "error event in mid-stream": bad(
        "stream_error",
        [
            HEAD,
            chunk(A),
            chunk(b'data: {"error":{"code":500,"message":"Context size"}}\n\n') + LAST,
        ],
        error="Context size",
        text="a",
    ),
    "named error event, then [DONE]": bad(
        "stream_error",
        [HEAD, chunk(A), chunk(b'event: error\ndata: {"message": "gone"}\n\n' + DONE) + LAST],
        error="gone",
        text="a",
    ),
    "JSON error with status 200": bad(
        "stream_error",
        [plain(b"200 OK", b'{"error": {"message": "no such model"}}')],
        error="no such model",
        chunk_count=0,
    ),
    "TensorRT-LLM error body with status 200": bad(
        "stream_error",
        [plain(b"200 OK", b'{"object": "error", "message": "too long", "code": 400}')],
        error="too long",
    ),
    "an answer that is no stream": bad(
        "stream_error", [plain(b"200 OK", b'{"choices": [{"text": "all at once"}]}')], chunk_count=0
    ),
    "an event that is no JSON": bad(
        "stream_error", [HEAD, chunk(A), chunk(b"data: {oops\n\n" + DONE) + LAST], text="a"
    ),
    "status 400 with a message": bad(
        "http_error",
        [plain(b"400 Bad", b'{"message": "max_tokens"}')],
        http_status=400,
        error="max_tokens",
    ),
    "status 503 without JSON": bad(
        "http_error", [plain(b"503 Busy", b"busy")], http_status=503, error="busy"
    ),
    "status 502 without a body": bad(
        "http_error", [plain(b"502 Bad", b"")], http_status=502, error="status 502"
    ),
    "redirects are not followed": bad(
        "http_error",
        [b"HTTP/1.1 307 Moved\r\nlocation: /x\r\ncontent-length: 0\r\n\r\n"],
        http_status=307,
    ),
    "missing [DONE]": bad(
        "truncated_stream", [HEAD, chunk(A), chunk(LENGTH) + LAST], text="a", finish_reason="length"
    ),
    "an empty stream": bad("truncated_stream", [HEAD, LAST], chunk_count=0, ttft_ns=None),
    "closed in mid-stream": bad("truncated_stream", [HEAD, chunk(A)], close=True, text="a"),
    "closed inside an event": bad(
        "truncated_stream", [HEAD, chunk(A), chunk(B[:20])], close=True, text="a", chunk_count=1
    ),
    "closed inside an HTTP chunk": bad(
        "truncated_stream", [HEAD, chunk(A), chunk(B)[:-10]], close=True, text="a"
    ),
    "closed before the content-length": bad(
        "truncated_stream", [plain(b"200 OK", A + B)[:-10]], close=True, text="a"
    ),
    "reset in mid-stream": bad(
        "truncated_stream", [HEAD, chunk(A), chunk(B)], reset=True, text="ab"
    ),
    "no HTTP chunks where promised": bad("stream_error", [HEAD, b"data: x\r\n\r\n"], chunk_count=0),
    "closed without a word": bad(
        "http_error", [], close=True, http_status=None, first_byte_ns=None
    ),
    "reset without a word": bad("http_error", [], reset=True, http_status=None),
    "closed inside the head": bad("http_error", [HEAD[:20]], close=True, http_status=None),
    "not HTTP": bad("http_error", [b"SSH-2.0-OpenSSH_9.2\r\n\r\n"], http_status=None),
}


async def answer_of(case: Case) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    async with serving(scripted(case.parts, close=case.close, reset=case.reset)) as server:
        planned = [Planned(f"r{n}", [1, 2, 3], 3, 2, 2) for n in range(2)]
        result = await run_phase(
            Target(server.url, "m"), planned, Load(1), Limits(no_progress_s=10), StudyClock()
        )
    return result.rows, result.texts


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_the_row_of_a_stream(case: Case) -> None:
    """Twice over one lane: a stream must not spoil the one behind it."""
    rows, texts = asyncio.run(answer_of(case))

    for row in rows:
        assert {key: row[key] for key in case.expect} == case.expect
    assert [one["text"] for one in texts] == ([] if case.text is None else [case.text] * 2)
    for row in rows:
        order = ("send_ns", "first_byte_ns", "first_chunk_ns", "last_chunk_ns", "end_ns")
        times = [row[name] for name in order if row[name] is not None]
        assert times == sorted(times)
        assert row["chunk_ns"] == sorted(row["chunk_ns"])
        assert row["ttft_ns"] is None or row["ttft_ns"] > 0

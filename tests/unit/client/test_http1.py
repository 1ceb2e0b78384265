"""HTTP/1.1 framing, compared with h11 and by hand."""

from __future__ import annotations

import h11
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstudy.client.http1 import (
    ChunkedBody,
    FramingError,
    Head,
    HeadReader,
    OpenBody,
    SizedBody,
    body_of,
    parse_head,
)


def head(*headers: tuple[bytes, bytes], status: int = 200) -> Head:
    return Head(status, list(headers), b"HTTP/1.1")


def test_a_head_is_read_and_what_follows_is_handed_on() -> None:
    reader = HeadReader()

    assert reader.feed(b"HTTP/1.1 200 OK\r\nContent-Type: a/b\r\n") is None
    read = reader.feed(b"\r\nrest")
    assert read is not None
    assert (read[0].status, read[0].all(b"content-type"), read[1]) == (200, [b"a/b"], b"rest")


def test_informational_heads_are_passed_over() -> None:
    read = HeadReader().feed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 404 No\r\n\r\n")

    assert read is not None
    assert read[0].status == 404


@pytest.mark.parametrize(
    "block",
    [
        b"",
        b"HTTP/2 200",
        b"HTTP/1.1 2x0 OK",
        b"hello",
        b"HTTP/1.1 200 OK\r\nno colon",
        b"HTTP/1.1 200 OK\r\nspace : x",
    ],
)
def test_what_is_no_head_is_refused(block: bytes) -> None:
    with pytest.raises(FramingError):
        parse_head(block)


def test_an_endless_head_is_refused() -> None:
    with pytest.raises(FramingError, match="longer"):
        HeadReader().feed(b"HTTP/1.1 200 OK\r\nx: " + b"y" * (1 << 19))


@pytest.mark.parametrize(
    ("given_head", "kind"),
    [
        (head((b"Transfer-Encoding", b"Chunked")), ChunkedBody),
        (head((b"transfer-encoding", b"chunked"), (b"content-length", b"3")), ChunkedBody),
        (head((b"content-length", b"3")), SizedBody),
        (head(status=204), SizedBody),
        (head(), OpenBody),
    ],
)
def test_the_head_says_what_body_follows(given_head: Head, kind: type) -> None:
    assert type(body_of(given_head)) is kind


@pytest.mark.parametrize(
    "headers",
    [
        [(b"content-length", b"x")],
        [(b"content-length", b"3, 4")],
        [(b"transfer-encoding", b"gzip, chunked")],
    ],
)
def test_an_unclear_body_is_refused(headers: list[tuple[bytes, bytes]]) -> None:
    with pytest.raises(FramingError):
        body_of(head(*headers))


def test_a_sized_body_ends_with_its_last_byte() -> None:
    body = SizedBody(3)

    assert (body.feed(b"ab"), body.done) == (b"ab", False)
    assert (body.feed(b"cd"), body.done) == (b"c", True)


def test_a_connection_is_kept_only_when_the_server_lets_it() -> None:
    assert head().keeps_alive
    assert not head((b"Connection", b"Close")).keeps_alive
    assert not Head(200, [], b"HTTP/1.0").keeps_alive


@pytest.mark.parametrize(
    "wire",
    [
        b"zz\r\n",
        b"-1\r\n",
        b"0x5\r\nhello\r\n",
        b"1_0\r\n",
        b"3\r\nabcd\r\n",
        b"\r\n",
        b"9" * 20000,
    ],
)
def test_what_is_no_chunk_is_refused(wire: bytes) -> None:
    with pytest.raises(FramingError):
        ChunkedBody().feed(wire)


CHUNKS = st.lists(st.binary(min_size=1, max_size=40), max_size=6)
EXTENSION = st.sampled_from([b"", b";x=1", b" ", b';q="a b"'])
TRAILERS = st.sampled_from([b"", b"x-check: 1\r\n", b"a: b\r\nc: d\r\n"])


@given(CHUNKS, EXTENSION, TRAILERS, st.booleans(), st.data())
def test_chunks_cut_anywhere_give_what_h11_gives(
    chunks: list[bytes], extension: bytes, trailers: bytes, upper: bool, data: st.DataObject
) -> None:
    wire = b"".join(
        b"%s%s\r\n%s\r\n" % (b"%X" % len(c) if upper else b"00%x" % len(c), extension, c)
        for c in chunks
    )
    wire += b"0\r\n" + trailers + b"\r\n"
    cuts = sorted(data.draw(st.lists(st.integers(0, len(wire)), max_size=8)))
    body = ChunkedBody()
    got = b""
    for start, stop in zip([0, *cuts], [*cuts, len(wire)], strict=True):
        assert not body.done or start == len(wire)
        got += body.feed(wire[start:stop])

    assert body.done
    assert got == _by_h11(wire) == b"".join(chunks)


@given(CHUNKS.filter(bool), st.data())
def test_a_body_is_not_done_before_its_last_byte(chunks: list[bytes], data: st.DataObject) -> None:
    wire = b"".join(b"%x\r\n%s\r\n" % (len(c), c) for c in chunks) + b"0\r\n\r\n"
    cut = data.draw(st.integers(0, len(wire) - 1))
    body = ChunkedBody()
    body.feed(wire[:cut])

    assert not body.done


def _by_h11(wire: bytes) -> bytes:
    connection = h11.Connection(h11.CLIENT)
    connection.send(h11.Request(method="GET", target="/", headers=[("host", "x")]))
    connection.send(h11.EndOfMessage())
    connection.receive_data(b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n" + wire)
    got = b""
    while type(event := connection.next_event()) is not h11.EndOfMessage:
        if isinstance(event, h11.Data):
            got += bytes(event.data)
    return got

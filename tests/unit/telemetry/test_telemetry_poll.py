"""The poller reads alone, writes before it parses, drains, and says what it could not see."""

from __future__ import annotations

import asyncio
import contextlib
import json
import stat
import time
from collections.abc import Awaitable, Callable
from pathlib import Path

import httpx
import pytest
from telemetry_records import LLAMACPP_PAGE, SGLANG_PAGE, TRTLLM_PAGE, VLLM_PAGE, body, record

from kvstudy.base.clock import StudyClock
from kvstudy.telemetry import raw
from kvstudy.telemetry.collect import Collected, Status, Why, collect
from kvstudy.telemetry.poll import Poller, Target, interval_ms

Get = Callable[[str], Awaitable[tuple[int, bytes]]]


def target(
    kind: str = "iterations", path: str | None = "/metrics", adapter: str = "trtllm"
) -> Target:
    return Target(
        url="http://127.0.0.1:9",
        path=path,
        kind=kind,
        adapter=adapter,
        version="1.2.1",
        headers={},
        block_tokens=32,
    )


def script(*answers: tuple[int, bytes] | Exception, last: bytes = b"[]") -> tuple[Get, list[str]]:
    """Answers in order, then `last` for ever; and the paths that were asked for."""
    left, asked = list(answers), []

    async def get(path: str) -> tuple[int, bytes]:
        asked.append(path)
        await asyncio.sleep(0)
        answer = left.pop(0) if left else (200, last)
        if isinstance(answer, Exception):
            raise answer
        return answer

    return get, asked


def polled(
    folder: Path,
    get: Get,
    *,
    of: Target | None = None,
    in_flight: int = 0,
    until: Callable[[Poller], bool] = lambda _: True,
    scale: float = 1.0,
) -> Collected:
    async def run() -> Collected:
        async with Poller(
            of or target(),
            StudyClock(scale),
            folder / "raw.jsonl",
            interval_ms=20,
            in_flight=lambda: in_flight,
            get=get,
        ) as poller:
            for _ in range(1000):
                if until(poller):
                    break
                await asyncio.sleep(0.01)
            return await poller.stop()

    return asyncio.run(run())


def lines(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (folder / "raw.jsonl").read_text().splitlines()]


def test_records_are_read_until_two_answers_are_empty(tmp_path: Path) -> None:
    get, asked = script((200, body(1, 2)), (200, b"[]"), (200, body(3)), (200, b"[]"))

    found = polled(tmp_path, get, until=lambda _: len(asked) >= 1)

    assert [row["iter"] for row in found.rows] == [1, 2, 3]
    assert found.status is Status.MEASURED
    assert found.coverage is not None
    assert found.coverage.share == 1.0
    assert found.counts.empty >= 2
    assert found.hint == ""


def test_every_answer_is_kept_verbatim_for_its_owner(tmp_path: Path) -> None:
    odd = b'[{"iter": 1, "x": "\xc3\xa9 \\u00e9"}]  '
    get, asked = script((200, odd), (200, b"\xff\xfe"), (404, b"gone"))

    polled(tmp_path, get, until=lambda _: len(asked) >= 3)

    header, *reads = lines(tmp_path)
    assert header["format"] == raw.FORMAT
    assert reads[0]["body"] == odd.decode()
    assert reads[1]["body_base64"] == "//4="
    assert (reads[2]["status"], reads[2]["body"]) == (404, "gone")
    assert stat.S_IMODE((tmp_path / "raw.jsonl").stat().st_mode) == 0o600


def test_the_raw_file_alone_gives_the_rows_again(tmp_path: Path) -> None:
    get, asked = script((200, body(1, 2, 3)))
    found = polled(tmp_path, get, until=lambda _: len(asked) >= 1)

    path = tmp_path / "raw.jsonl"
    with path.open("ab") as file:
        file.write(b'{"path": "/metrics", "sent_ns": 1, "recei')

    assert collect(path).rows == found.rows


def test_a_file_of_something_else_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "raw.jsonl"
    path.write_text('{"format": "other"}\n')

    with pytest.raises(ValueError, match="no telemetry file"):
        collect(path)


def test_lost_records_are_gaps_and_telemetry_is_partial(tmp_path: Path) -> None:
    get, asked = script((200, body(1, 2, 6)))

    found = polled(tmp_path, get, until=lambda _: len(asked) >= 1)

    assert (found.status, found.why) == (Status.PARTIAL, Why.GAPS)
    assert "3 of 6 iterations are missing" in found.reason
    assert "enable_iter_perf_stats" in found.hint
    assert found.as_json()["gaps"] == [[3, 5]]


def test_statistics_that_are_off_end_the_reading(tmp_path: Path) -> None:
    """Empty answers while requests are in flight: every further read would only disturb."""
    get, asked = script()

    found = polled(tmp_path, get, in_flight=4, until=lambda p: not p.is_reading, scale=1000.0)

    assert (found.status, found.why) == (Status.NOT_MEASURED, Why.NOT_ENABLED)
    assert "enable_iter_perf_stats: true" in found.hint
    assert 3 <= len(asked) <= 40


def test_empty_answers_without_load_mean_nothing(tmp_path: Path) -> None:
    get, asked = script(*[(200, b"[]")] * 8, (200, body(1)))

    found = polled(tmp_path, get, in_flight=0, until=lambda _: len(asked) >= 9, scale=1000.0)

    assert found.status is Status.MEASURED


def test_a_pause_in_the_records_does_not_look_like_statistics_off(tmp_path: Path) -> None:
    get, asked = script((200, body(1)), *[(200, b"[]")] * 8, (200, body(2)))

    found = polled(tmp_path, get, in_flight=4, until=lambda _: len(asked) >= 10, scale=1000.0)

    assert len(found.rows) == 2


@pytest.mark.parametrize(
    ("status", "why"), [(404, Why.MISSING), (405, Why.MISSING), (401, Why.REFUSED)]
)
def test_a_route_that_cannot_answer_is_asked_once(tmp_path: Path, status: int, why: Why) -> None:
    get, asked = script((status, b""))

    found = polled(tmp_path, get, in_flight=4, until=lambda p: not p.is_reading)

    assert (found.status, found.why, len(asked)) == (Status.NOT_MEASURED, why, 1)


def test_garbage_is_unreadable_not_fatal(tmp_path: Path) -> None:
    get, asked = script((200, b"<html>502 Bad Gateway</html>"), last=b"<html>")

    found = polled(tmp_path, get, until=lambda _: len(asked) >= 2)

    assert (found.status, found.why) == (Status.NOT_MEASURED, Why.UNREADABLE)


def test_some_garbage_among_records_is_said(tmp_path: Path) -> None:
    get, asked = script((200, body(1)), (200, b"oops"), (200, body(2)))

    found = polled(tmp_path, get, until=lambda _: len(asked) >= 3)

    assert (found.status, found.why) == (Status.PARTIAL, Why.UNREADABLE)
    assert len(found.rows) == 2


def test_a_server_that_is_gone_is_unreachable(tmp_path: Path) -> None:
    async def refuse(_: str) -> tuple[int, bytes]:
        raise httpx.ConnectError("refused")

    found = polled(tmp_path, refuse)

    assert (found.status, found.why) == (Status.NOT_MEASURED, Why.UNREACHABLE)
    assert "refused" in found.reason


def test_telemetry_that_is_off_says_so(tmp_path: Path) -> None:
    get, asked = script()

    found = polled(tmp_path, get, of=target(kind="none", path=None))

    assert (found.status, found.why, asked) == (Status.NOT_MEASURED, Why.OFF, [])
    assert not (tmp_path / "raw.jsonl").exists()


def test_a_file_that_cannot_be_written_is_a_reason(tmp_path: Path) -> None:
    get, _ = script()
    (tmp_path / "raw.jsonl").mkdir()

    found = polled(tmp_path, get)

    assert (found.status, found.why) == (Status.NOT_MEASURED, Why.NOT_WRITTEN)
    assert "raw.jsonl" in found.reason


def test_scrapes_become_rows_of_growth(tmp_path: Path) -> None:
    pages = [VLLM_PAGE.replace(" 8.0", f" {n}.0").encode() for n in (8, 11)]
    get, asked = script((200, pages[0]), (200, pages[1]), last=pages[1])

    found = polled(
        tmp_path, get, of=target("prometheus", adapter="vllm"), until=lambda _: len(asked) >= 2
    )

    assert found.status is Status.MEASURED
    assert found.coverage is None
    assert [row["paused_requests"] for row in found.rows[:2]] == [None, 3]
    assert found.readings[-1][1].pauses_total == 11


def test_blocks_of_a_token_pool_follow_the_page_size(tmp_path: Path) -> None:
    get, _ = script(last=SGLANG_PAGE.encode())

    found = polled(tmp_path, get, of=target("prometheus", adapter="sglang"))

    assert (found.rows[0]["used_blocks"], found.rows[0]["max_blocks"]) == (3, 20)


def test_a_gauge_of_pauses_measures_no_pauses(tmp_path: Path) -> None:
    get, _ = script(last=TRTLLM_PAGE.encode())

    found = polled(tmp_path, get, of=target("prometheus"))

    assert (found.status, found.why) == (Status.PARTIAL, Why.NO_COUNTER)


def test_times_are_the_records_own_in_study_time(tmp_path: Path) -> None:
    clock_scale = 10.0
    made: list[int] = []

    async def get(_: str) -> tuple[int, bytes]:
        if made:
            return 200, b"[]"
        await asyncio.sleep(0.2)
        made.append(time.monotonic_ns())
        return 200, json.dumps([record(1, unix_ns=time.time_ns())]).encode()

    found = polled(tmp_path, get, until=lambda _: bool(made), scale=clock_scale)

    header, _ = raw.read_raw(tmp_path / "raw.jsonl")
    expected_ns = header.clock.from_wall_ns(made[0])
    assert abs(found.rows[0]["t_ns"] - expected_ns) < 50_000_000 * clock_scale


def test_per_request_timings_are_read_at_the_end(tmp_path: Path) -> None:
    timing = [{"request_id": 1, "perf_metrics": {"first_iter": 1, "last_iter": 9}}]

    async def get(path: str) -> tuple[int, bytes]:
        return 200, json.dumps(timing).encode() if path == "/perf_metrics" else b"[]"

    with_timings = Target(
        "http://127.0.0.1:9", "/metrics", "iterations", "trtllm", "1.2.1", {}, 32, "/perf_metrics"
    )
    found = polled(tmp_path, get, of=with_timings)

    assert found.timings[-1].iterations_lived == 9


def test_a_poller_that_is_left_without_a_stop_ends(tmp_path: Path) -> None:
    get, _ = script()

    async def run() -> Poller:
        with pytest.raises(ZeroDivisionError):
            async with Poller(
                target(), StudyClock(), tmp_path / "raw.jsonl", interval_ms=20, get=get
            ) as poller:
                raise ZeroDivisionError
        return poller

    assert not asyncio.run(run()).is_reading


def test_the_interval_is_short_under_a_time_scale() -> None:
    assert interval_ms(1000, 1.0) == 1000
    assert interval_ms(1000, 40.0) == 200
    assert interval_ms(100, 40.0) == 100


def test_a_huge_answer_is_dropped_and_counted(tmp_path: Path) -> None:
    """Over real HTTP: the answer is cut off at the limit, and reading goes on."""
    answers = [b"x" * (20 << 20), body(1)]

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        content = answers.pop(0) if answers else b"[]"
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(content)}\r\nConnection: close\r\n\r\n"
        writer.write(head.encode() + content)
        with contextlib.suppress(ConnectionError):
            await writer.drain()
        writer.close()

    async def run() -> Collected:
        server = await asyncio.start_server(serve, "127.0.0.1", 0)
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        of = Target(url, "/metrics", "iterations", "trtllm", "1.2.1", {})
        async with (
            server,
            Poller(of, StudyClock(), tmp_path / "raw.jsonl", interval_ms=20) as poller,
        ):
            while answers:
                await asyncio.sleep(0.02)
            return await poller.stop()

    found = asyncio.run(run())

    assert found.counts.failed == 1
    assert "more than 16 MiB" in found.counts.last_error
    assert [row["iter"] for row in found.rows] == [1]


def test_records_that_state_no_pauses_measure_none(tmp_path: Path) -> None:
    get, asked = script((200, json.dumps([record(n, paused=-1) for n in (1, 2)]).encode()))

    found = polled(tmp_path, get, until=lambda _: len(asked) >= 1)

    assert (found.status, found.why) == (Status.PARTIAL, Why.NO_COUNTER)


def test_an_engine_that_never_pauses_needs_no_counter(tmp_path: Path) -> None:
    get, _ = script(last=LLAMACPP_PAGE.encode())

    found = polled(tmp_path, get, of=target("prometheus", adapter="llamacpp"))

    assert (found.status, found.why) == (Status.MEASURED, None)


def test_scrapes_that_failed_often_are_partial(tmp_path: Path) -> None:
    lost = [httpx.ReadError("reset")] * 3
    get, asked = script((200, VLLM_PAGE.encode()), *lost, last=VLLM_PAGE.encode())

    found = polled(
        tmp_path, get, of=target("prometheus", adapter="vllm"), until=lambda _: len(asked) >= 4
    )

    assert (found.status, found.why) == (Status.PARTIAL, Why.UNREACHABLE)

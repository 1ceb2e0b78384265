"""Load models and limits, against a server that counts for itself."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Coroutine
from itertools import pairwise
from typing import Any

import pytest
from client_scripted import DONE, HEAD, LAST, USAGE, Answer, Exchange, chunk, event, serving

from kvstudy.base.clock import StudyClock
from kvstudy.base.errors import UsageError
from kvstudy.base.units import ms_to_ns, s_to_ns
from kvstudy.client import chores
from kvstudy.client.model import Limits, Load, Planned, Progress, Target
from kvstudy.client.open_loop import constant_arrivals, poisson_arrivals
from kvstudy.client.phase import PhaseCancelled, PhaseResult, run_phase
from kvstudy.client.sending import EnoughChoices, body_of

END = chunk(event("", finish_reason="length")) + chunk(USAGE) + chunk(DONE) + LAST


def plan(count: int, tokens: int = 3, arrivals: list[float] | None = None) -> list[Planned]:
    return [
        Planned(f"r{n}", [n, 7], 2, tokens, tokens + 1, arrivals[n] if arrivals else None)
        for n in range(count)
    ]


def telling(tokens: int = 3, pause_s: float = 0.0) -> Answer:
    """Streams `tokens` chunks, waiting before each."""

    async def answer(exchange: Exchange) -> None:
        await exchange.send(HEAD, settle=False)
        for number in range(tokens):
            await asyncio.sleep(pause_s)
            await exchange.send(chunk(event(f"t{number}")), settle=False)
        await exchange.send(END, settle=False)

    return answer


def silent_after(chunks: int, *, hang: set[int]) -> Answer:
    """Requests whose order is in `hang` stop after `chunks` chunks and never go on."""

    async def answer(exchange: Exchange) -> None:
        if exchange.order not in hang:
            return await telling()(exchange)
        if chunks:
            await exchange.send(HEAD + b"".join(chunk(event("x")) for _ in range(chunks)))
        await exchange.hang_up()
        exchange.writer.close()

    return answer


def run(work: Coroutine[Any, Any, Any]) -> Any:
    return asyncio.run(work)


async def phase(answer: Answer, planned: list[Planned], load: Load, **more: Any) -> PhaseResult:
    limits = more.pop("limits", Limits())
    async with serving(answer) as server:
        return await run_phase(Target(server.url, "m"), planned, load, limits, StudyClock(), **more)


def outcomes(result: PhaseResult) -> list[str]:
    return [row["outcome"] for row in result.rows]


def test_the_body_says_what_the_study_asks() -> None:
    target = Target("http://x", "m", extra_body={"cache_prompt": False, "temperature": 1})

    assert body_of(target, Planned("r", [1, 2], 2, 3, 4)) == (
        b'{"model":"m","prompt":[1,2],"max_tokens":4,"temperature":1,"ignore_eos":true,'
        b'"stream":true,"stream_options":{"include_usage":true},"cache_prompt":false}'
    )
    assert b"stream_options" not in body_of(
        Target("http://x", "m", include_usage=False), plan(1)[0]
    )


def test_the_key_is_sent_and_not_shown() -> None:
    async def work() -> None:
        async with serving(telling()) as server:
            target = Target(server.url + "/", "m", api_key="s3cret")
            result = await run_phase(target, plan(1), Load(1), Limits(), StudyClock())
        assert b"\r\nauthorization: Bearer s3cret\r\n" in server.heads[0]
        assert server.heads[0].startswith(b"POST /v1/completions HTTP/1.1\r\n")
        assert "s3cret" not in repr(target) + repr(result)

    run(work())


@pytest.mark.parametrize("lanes", [1, 7, 40])
def test_a_closed_loop_holds_exactly_its_lanes(lanes: int) -> None:
    """The server answers nobody until all lanes have a request with it: fewer would hang."""
    count = 120
    held: list[asyncio.Event] = []
    ended: list[int] = []

    async def answer(exchange: Exchange) -> None:
        mine = asyncio.Event()
        held.append(mine)
        if len(held) == min(lanes, count - len(ended)):
            held.pop(0).set()  # the one that came first
        await mine.wait()
        ended.append(exchange.order)
        await telling()(exchange)
        if len(held) == count - len(ended) and held:  # the queue is empty: the lanes run out
            held.pop(0).set()

    async def work() -> None:
        async with serving(answer) as server:
            result = await run_phase(
                Target(server.url, "m"), plan(count), Load(lanes), Limits(), StudyClock()
            )
        assert outcomes(result) == ["ok"] * count
        assert max(server.in_flight_seen) == result.audit.max_in_flight == lanes
        assert server.connections == lanes
        assert {row["lane"] for row in result.rows} == set(range(lanes))

    run(work())


def test_requests_go_out_in_submission_order() -> None:
    async def work() -> None:
        async with serving(telling(1, 0.001)) as server:
            result = await run_phase(
                Target(server.url, "m"), plan(50), Load(8), Limits(), StudyClock()
            )
        assert [row["request_id"] for row in result.rows] == [f"r{n}" for n in range(50)]
        assert [row["submit_order"] for row in result.rows] == list(range(50))
        sends = [row["send_ns"] for row in result.rows]
        assert sends == sorted(sends)
        assert [body["prompt"][0] for body in server.requests[:8]] == list(range(8))

    run(work())


def test_a_lane_sends_when_its_last_request_ended() -> None:
    rows = run(phase(telling(), plan(40), Load(1))).rows
    waits = sorted(b["send_ns"] - a["end_ns"] for a, b in pairwise(rows))

    assert waits[0] > 0
    assert waits[len(waits) // 2] < ms_to_ns(20)


def test_more_lanes_than_requests() -> None:
    assert outcomes(run(phase(telling(), plan(3), Load(50)))) == ["ok"] * 3


def test_a_thousand_streams_without_a_drop() -> None:
    held = asyncio.Event

    async def work() -> None:
        all_there = held()

        async def answer(exchange: Exchange) -> None:
            if exchange.order == 1023:
                all_there.set()
            await all_there.wait()
            await telling(2)(exchange)

        async with serving(answer) as server:
            result = await run_phase(
                Target(server.url, "m"), plan(1024), Load(1024), Limits(), StudyClock()
            )
        assert outcomes(result) == ["ok"] * 1024
        assert max(server.in_flight_seen) == result.audit.max_in_flight == 1024
        assert {row["chunk_count"] for row in result.rows} == {2}

    run(work())


def test_times_agree_with_the_servers_own() -> None:
    sent: dict[int, list[int]] = {}

    async def answer(exchange: Exchange) -> None:
        times = sent.setdefault(exchange.body["prompt"][0], [])
        await exchange.send(HEAD + chunk(event("")))
        for _ in range(5):
            await asyncio.sleep(0.01)
            times.append(time.monotonic_ns())
            await exchange.send(chunk(event("x")), settle=False)
        await exchange.send(END)

    async def work() -> None:
        async with serving(answer) as server:
            result = await run_phase(
                Target(server.url, "m"), plan(12), Load(4), Limits(), StudyClock(1.0, 0)
            )
        errors = []
        for number, row in enumerate(result.rows):
            assert row["empty_chunk_count"] == 2
            assert row["first_chunk_ns"] >= sent[number][0]  # not the empty first chunk
            errors += [b - a for a, b in zip(sent[number], row["chunk_ns"], strict=True)]
        assert min(errors) > 0
        assert sorted(errors)[len(errors) // 2] < ms_to_ns(20)

    run(work())


def test_the_study_clock_scales_times() -> None:
    async def work() -> None:
        async with serving(telling(3, 0.01)) as server:
            result = await run_phase(
                Target(server.url, "m"), plan(1), Load(1), Limits(), StudyClock(scale=40)
            )
        assert result.rows[0]["e2e_ns"] > s_to_ns(0.03 * 40)

    run(work())


def test_an_open_loop_keeps_its_schedule_whatever_the_answers_do() -> None:
    """Answers take far longer than the gaps between arrivals."""
    arrivals = constant_arrivals(20, rate_per_s=100)
    result = run(phase(telling(2, 0.15), plan(20, arrivals=arrivals), Load(None)))
    rows = result.rows
    lags = sorted(row["send_ns"] - row["scheduled_ns"] for row in rows)

    assert outcomes(result) == ["ok"] * 20
    assert [row["lane"] for row in rows] == [None] * 20
    scheduled = [row["scheduled_ns"] - rows[0]["scheduled_ns"] for row in rows]
    assert scheduled == pytest.approx([s_to_ns(at) for at in arrivals], abs=2)
    assert lags[0] >= 0
    assert lags[10] < ms_to_ns(50)
    assert result.audit.max_in_flight > 10


def test_a_trace_is_sent_in_order_of_time() -> None:
    rows = run(phase(telling(1), plan(3, arrivals=[0.10, 0.0, 0.05]), Load(None))).rows

    assert rows[1]["send_ns"] < rows[2]["send_ns"] < rows[0]["send_ns"]


def test_open_loop_times_are_study_times() -> None:
    async def work() -> None:
        async with serving(telling(1)) as server:
            clock = StudyClock(scale=50)
            started = clock.now_ns()
            result = await run_phase(
                Target(server.url, "m"), plan(2, arrivals=[0, 10]), Load(None), Limits(), clock
            )
        rows = result.rows
        assert rows[1]["scheduled_ns"] - rows[0]["scheduled_ns"] == pytest.approx(
            s_to_ns(10), abs=99
        )
        assert rows[1]["send_ns"] >= rows[1]["scheduled_ns"] > started

    run(work())


def test_poisson_arrivals_are_seeded_and_keep_their_rate() -> None:
    arrivals = poisson_arrivals(20_000, 8.0, seed=3)

    assert (
        arrivals == poisson_arrivals(20_000, 8.0, seed=3) != poisson_arrivals(20_000, 8.0, seed=4)
    )
    assert arrivals == sorted(arrivals)
    assert arrivals[-1] == pytest.approx(2500, rel=0.05)


@pytest.mark.parametrize(
    ("planned", "load", "words"),
    [
        (plan(1), Load(0), "at least 1 lane"),
        (plan(1), Load(None), "request r0: an open loop needs an arrival_s"),
        (plan(1, arrivals=[-1.0]), Load(None), "got -1.0"),
    ],
)
def test_a_load_that_cannot_run_is_refused(planned: list[Planned], load: Load, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        run(run_phase(Target("http://127.0.0.1:9", "m"), planned, load, Limits(), StudyClock()))


def test_no_requests_give_no_rows() -> None:
    result = run(phase(telling(), [], Load(4)))

    assert (result.rows, result.audit.max_in_flight, result.audit.wall_s) == ([], 0, 0)


def test_a_server_that_is_not_there() -> None:
    result = run(
        run_phase(Target("http://127.0.0.1:9", "m"), plan(5), Load(2), Limits(), StudyClock())
    )

    assert outcomes(result) == ["http_error"] * 5
    assert all("no connection" in row["error"] and row["send_ns"] is None for row in result.rows)


def test_a_connection_that_is_never_made_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    async def never(*_args: Any, **_more: Any) -> None:
        await asyncio.sleep(60)

    async def work() -> PhaseResult:
        monkeypatch.setattr(asyncio.get_running_loop(), "create_connection", never)
        limits = Limits(connect_s=0.05)
        return await run_phase(
            Target("http://127.0.0.1:9", "m"), plan(2), Load(1), limits, StudyClock()
        )

    result = run(work())

    assert outcomes(result) == ["timeout"] * 2
    assert result.rows[0]["error"] == "no connection within 0.05 s"


@pytest.mark.parametrize("chunks", [0, 2])
def test_the_watchdog_ends_a_silent_stream_and_the_lane_goes_on(chunks: int) -> None:
    result = run(
        phase(silent_after(chunks, hang={1}), plan(4), Load(1), limits=Limits(no_progress_s=0.4))
    )

    assert outcomes(result) == ["ok", "timeout", "ok", "ok"]
    row = result.rows[1]
    assert (row["chunk_count"], row["error"]) == (chunks, "no byte came for 0.4 s")
    assert len(result.texts) == 3 + bool(chunks)


def test_ten_silent_minutes_are_survived(monkeypatch: pytest.MonkeyPatch) -> None:
    """The watchdog's clock says that 600 s have passed without a byte."""

    class Later:
        monotonic_ns = staticmethod(lambda: time.monotonic_ns() + s_to_ns(600))

    monkeypatch.setattr(chores, "time", Later)
    result = run(phase(telling(3, 0.4), plan(1), Load(1)))

    assert outcomes(result) == ["ok"]
    result = run(phase(telling(3, 0.4), plan(1), Load(1), limits=Limits(no_progress_s=590)))
    assert outcomes(result) == ["timeout"]


def test_the_longest_duration_ends_the_phase_with_a_row_for_each() -> None:
    answer = silent_after(2, hang={1, 2})
    result = run(phase(answer, plan(5), Load(2), limits=Limits(max_duration_s=0.5)))

    assert sorted(outcomes(result)) == ["cancelled", "cancelled", "ok", "timeout", "timeout"]
    assert [row["chunk_count"] for row in result.rows] == [3, 2, 2, 0, 0]
    assert result.rows[1]["error"] == "the phase took longer than 0.5 s"
    assert result.rows[4]["error"].startswith("never sent")


def test_a_graceful_stop_waits_for_what_is_in_flight() -> None:
    async def work() -> None:
        stop = asyncio.Event()
        asyncio.get_running_loop().call_later(0.2, stop.set)
        result = await phase(telling(4, 0.3), plan(9), Load(2), stop=stop)
        assert set(outcomes(result)) == {"ok", "cancelled"}
        assert all(
            (row["chunk_count"], row["send_ns"] is None)
            == ((4, False) if row["outcome"] == "ok" else (0, True))
            for row in result.rows
        )

    run(work())


def test_a_cancelled_phase_still_says_what_was_seen() -> None:
    async def work() -> PhaseResult:
        async with serving(silent_after(2, hang={1})) as server:
            task = asyncio.create_task(
                run_phase(Target(server.url, "m"), plan(4), Load(1), Limits(), StudyClock())
            )
            while len(server.requests) < 2:
                await asyncio.sleep(0.01)
            await asyncio.sleep(0.1)
            task.cancel()
            with pytest.raises(PhaseCancelled) as caught:
                await task
            return caught.value.result

    result = run(work())

    assert outcomes(result) == ["ok", "cancelled", "cancelled", "cancelled"]
    assert [row["chunk_count"] for row in result.rows] == [3, 2, 0, 0]
    assert [one["text"] for one in result.texts] == ["t0t1t2", "xx"]


def test_progress_adds_up() -> None:
    seen: list[Progress] = []
    run(phase(telling(4, 0.3), plan(6), Load(3), on_progress=seen.append))

    assert seen[-1] == Progress(sent=6, finished=6, failed=0, chunks=6 * 7, in_flight=0)
    assert len(seen) >= 3
    assert all(one.sent == one.finished + one.in_flight for one in seen)
    assert [one.chunks for one in seen] == sorted(one.chunks for one in seen)


def test_an_error_in_the_callers_progress_is_not_swallowed() -> None:
    def fail(_: Progress) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        run(phase(telling(9, 0.3), plan(2), Load(1), on_progress=fail))


def test_a_stream_is_closed_after_the_planned_chunks() -> None:
    """The server would go on to the cap; an event without text is a token as well."""
    closed: list[int] = []

    async def answer(exchange: Exchange) -> None:
        await exchange.send(HEAD)
        for number in range(20):
            if exchange.reader.at_eof() or exchange.writer.is_closing():
                closed.append(number)
                exchange.writer.close()
                return
            await exchange.send(chunk(event("" if number == 1 else "x")))
        await exchange.send(END)

    async def work() -> PhaseResult:
        limits = Limits(close_after_planned=True)
        async with serving(answer) as server:
            result = await run_phase(
                Target(server.url, "m"), plan(3, tokens=5), Load(1), limits, StudyClock()
            )
            while len(closed) < 3:
                await asyncio.sleep(0.01)
        return result

    result = run(work())

    assert outcomes(result) == ["ok"] * 3
    for row in result.rows:
        assert (row["finish_reason"], row["error"]) == ("client_close", None)
        assert (row["chunk_count"], row["empty_chunk_count"]) == (4, 1)


def test_a_stream_that_ends_in_time_is_not_closed() -> None:
    limits = Limits(close_after_planned=True)
    rows = run(phase(telling(3), plan(3, tokens=9), Load(1), limits=limits)).rows

    assert [row["finish_reason"] for row in rows] == ["length"] * 3


def test_enough_counts_choices_and_not_words() -> None:
    enough = EnoughChoices(2)

    assert not enough(event('he said "text": "text"')[:20])
    assert not enough(event('he said "text": "text"')[20:] + USAGE)
    assert enough(event(""))


def test_a_connection_the_server_closed_is_not_used_again() -> None:
    async def answer(exchange: Exchange) -> None:
        await telling()(exchange)
        if exchange.order % 2:
            exchange.writer.close()

    async def work() -> None:
        async with serving(answer) as server:
            arrivals = constant_arrivals(6, rate_per_s=10)
            result = await run_phase(
                Target(server.url, "m"),
                plan(6, arrivals=arrivals),
                Load(None),
                Limits(),
                StudyClock(),
            )
        assert outcomes(result) == ["ok"] * 6
        assert server.connections == 3

    run(work())


def test_connection_close_is_obeyed() -> None:
    head = HEAD.replace(b"\r\n\r\n", b"\r\nconnection: close\r\n\r\n")

    async def answer(exchange: Exchange) -> None:
        await exchange.send(head + chunk(event("a")) + chunk(DONE) + LAST)

    async def work() -> None:
        async with serving(answer) as server:
            result = await run_phase(
                Target(server.url, "m"), plan(4), Load(1), Limits(), StudyClock()
            )
        assert outcomes(result) == ["ok"] * 4
        assert server.connections == 4

    run(work())


def test_a_large_prompt_is_sent_whole() -> None:
    async def work() -> None:
        prompt = list(range(200_000))
        async with serving(telling()) as server:
            result = await run_phase(
                Target(server.url, "m"),
                [Planned("r", prompt, len(prompt), 3, 3)],
                Load(1),
                Limits(),
                StudyClock(),
            )
        assert outcomes(result) == ["ok"]
        assert server.requests[0]["prompt"] == prompt

    run(work())

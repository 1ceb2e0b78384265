"""The client's word about itself."""

from __future__ import annotations

import asyncio
import gc
import time

import pytest

from kvstudy.client import audit
from kvstudy.client.audit import Watcher, in_flight
from kvstudy.client.recording import Recording


def test_in_flight_by_hand() -> None:
    """[0, 10) and [5, 20) over a window of 20: 25 request-units, two at once."""
    recordings = [Recording(send_ns=5, end_ns=20), Recording(send_ns=0, end_ns=10)]

    assert in_flight(recordings) == (25 / 20, 2, 20)


def test_one_that_ends_as_another_starts_is_not_counted_with_it() -> None:
    recordings = [Recording(send_ns=0, end_ns=10), Recording(send_ns=10, end_ns=20)]

    assert in_flight(recordings) == (1.0, 1, 20)


def test_what_was_never_sent_was_never_in_flight() -> None:
    assert in_flight([Recording()]) == (0.0, 0, 0)


def test_a_blocked_loop_shows_as_lag_and_a_stop_as_a_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "_JUMP_NS", 300_000_000)

    async def work() -> audit.Audit:
        async with Watcher() as watcher:
            await asyncio.sleep(0.2)
            time.sleep(0.5)
            await asyncio.sleep(0.2)
        return watcher.audit([], chunks=0, reads=0)

    seen = asyncio.run(work())

    assert seen.loop_lag_max_ms > 400
    assert seen.clock_jumps >= 1
    assert seen.loop_lag_p50_ms < 200
    assert seen.chunk_rate_per_s == 0


def test_a_machine_that_slept_is_a_jump(monkeypatch: pytest.MonkeyPatch) -> None:
    asleep = iter([0, 0, 5_000_000_000])
    monkeypatch.setattr(audit, "_asleep_ns", lambda: next(asleep, 5_000_000_000))

    async def work() -> audit.Audit:
        async with Watcher() as watcher:
            await asyncio.sleep(0.4)
        return watcher.audit([], chunks=0, reads=0)

    assert asyncio.run(work()).clock_jumps == 1


def test_cpu_and_collections_are_seen_and_the_collector_is_left_as_it_was() -> None:
    before = (len(gc.callbacks), gc.isenabled(), gc.get_freeze_count())

    async def work() -> audit.Audit:
        async with Watcher() as watcher:
            gc.collect()
            end = time.process_time() + 0.2
            while time.process_time() < end:
                pass
        return watcher.audit([], chunks=0, reads=0)

    seen = asyncio.run(work())

    assert seen.gc_pauses >= 1
    assert seen.gc_pause_max_ms > 0
    assert 0 < seen.cpu_share < 1.5
    assert (len(gc.callbacks), gc.isenabled(), gc.get_freeze_count()) == before

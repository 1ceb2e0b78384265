"""What a killed client leaves behind can be read."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from client_scripted import DONE, HEAD, LAST, Exchange, chunk, event, serving

from kvstudy.base.clock import StudyClock
from kvstudy.base.errors import DataError
from kvstudy.client.journal import read_journal
from kvstudy.client.model import Limits, Load, Planned, Target
from kvstudy.client.phase import PhaseCancelled, PhaseResult, run_phase

PLAN = [Planned(f"r{n}", [n], 1, 2, 2) for n in range(6)]
CHILD = """
import asyncio, sys
from pathlib import Path
from kvstudy.base.clock import StudyClock
from kvstudy.client.model import Limits, Load, Planned, Target
from kvstudy.client.phase import run_phase
planned = [Planned(f"r{n}", [n], 1, 2, 2) for n in range(6)]
asyncio.run(run_phase(Target(sys.argv[1], "m"), planned, Load(1), Limits(), StudyClock(),
                      journal=Path(sys.argv[2])))
"""


async def answer(exchange: Exchange) -> None:
    """Request 3 never ends."""
    await exchange.send(HEAD + chunk(event("é")))
    if exchange.body["prompt"] == [3]:
        await exchange.hang_up()
        exchange.writer.close()
        return
    await exchange.send(chunk(event("b", finish_reason="length")) + chunk(DONE) + LAST)


async def phase(journal: Path, planned: list[Planned]) -> PhaseResult:
    async with serving(answer) as server:
        return await run_phase(
            Target(server.url, "m"), planned, Load(1), Limits(), StudyClock(40.0), journal=journal
        )


def test_the_journal_gives_the_rows_of_the_phase(tmp_path: Path) -> None:
    journal = tmp_path / "deep" / "journal.jsonl"
    result = asyncio.run(phase(journal, PLAN[:3]))

    assert read_journal(journal) == (result.rows, result.texts)


def test_two_phases_may_share_a_journal(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    first = asyncio.run(phase(journal, PLAN[:2]))
    second = asyncio.run(phase(journal, PLAN[2:3]))

    assert read_journal(journal)[0] == first.rows + second.rows


def test_a_torn_line_is_passed_over(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"
    result = asyncio.run(phase(journal, PLAN[:2]))
    journal.write_bytes(journal.read_bytes()[:-40])

    assert read_journal(journal)[0] == result.rows[:1]
    later = asyncio.run(phase(journal, PLAN[2:3]))
    assert read_journal(journal)[0] == [result.rows[0], *later.rows]


def test_a_killed_client_loses_at_most_the_last_second(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"

    async def work() -> int:
        async with serving(answer) as server:
            argv = [sys.executable, "-c", CHILD, server.url, str(journal)]
            with subprocess.Popen(argv) as child:
                while len(server.requests) < 4:
                    await asyncio.sleep(0.02)
                deadline = time.monotonic() + 20
                while _rows(journal) < 3 and time.monotonic() < deadline:
                    await asyncio.sleep(0.1)
                child.send_signal(signal.SIGKILL)
                return child.wait()

    assert asyncio.run(work()) == -signal.SIGKILL
    rows, texts = read_journal(journal)
    assert [row["request_id"] for row in rows] == ["r0", "r1", "r2"]
    assert {row["outcome"] for row in rows} == {"ok"}
    assert [one["text"] for one in texts] == ["éb"] * 3


def test_a_cancelled_phase_completes_its_journal(tmp_path: Path) -> None:
    journal = tmp_path / "journal.jsonl"

    async def work() -> PhaseResult:
        task = asyncio.create_task(phase(journal, PLAN))
        await asyncio.sleep(0.8)
        task.cancel()
        with pytest.raises(PhaseCancelled) as caught:
            await task
        return caught.value.result

    result = asyncio.run(work())
    rows, _ = read_journal(journal)

    assert [row["outcome"] for row in rows] == ["ok", "ok", "ok", "cancelled"]
    assert rows == result.rows[:4]
    assert rows[3]["chunk_count"] == 1


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "cannot be read"),
        (b'{"facts": {}}\n', "no line says how to read it"),
        (b'{"clock_scale": 1}\n', "damaged journal line"),
    ],
)
def test_what_is_no_journal_is_refused(tmp_path: Path, content: bytes | None, words: str) -> None:
    journal = tmp_path / "journal.jsonl"
    if content is not None:
        journal.write_bytes(content)

    with pytest.raises(DataError, match=words):
        read_journal(journal)


def _rows(journal: Path) -> int:
    return len(read_journal(journal)[0]) if journal.exists() else 0

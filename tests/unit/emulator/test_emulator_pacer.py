"""The clockwork: precise sleeping, an engine that is stuck, damaged workload files."""

from __future__ import annotations

import asyncio
import json
import os
import time
from pathlib import Path

import pytest
import yaml
from emulator_harness import Load, serving, write_expected

from kvstudy.base import tables
from kvstudy.base.errors import DataError
from kvstudy.emulator.expected import read_workload
from kvstudy.emulator.timer import Timer


def test_a_sleep_never_ends_early_and_one_in_the_past_ends_at_once() -> None:
    """Ten sleeps of 2 ms; how late they end is the machine's business."""

    async def sleeps() -> list[int]:
        timer = Timer()
        late_ns = []
        for _ in range(10):
            due_ns = time.monotonic_ns() + 2_000_000
            await timer.sleep_until(due_ns)
            late_ns.append(time.monotonic_ns() - due_ns)
        await timer.sleep_until(1)
        await timer.sleep_until(-5)
        timer.close()
        return late_ns

    assert all(late >= 0 for late in asyncio.run(sleeps()))


def test_a_pool_that_holds_no_request_is_reported_and_the_server_lives(
    tiny_model: Path, tmp_path: Path
) -> None:
    """The request waits, the log says why, and the server still answers and ends."""
    extra = tmp_path / "extra.yaml"
    extra.write_text(yaml.safe_dump({"kv_cache_config": {"max_tokens": 64, "dtype": "fp8"}}))
    with serving(tiny_model, tmp_path, "--config", str(extra), "--time-scale", "100") as server:
        with pytest.raises(TimeoutError):
            server.post({"model": "tiny", "prompt": [30] * 100, "max_tokens": 5}, timeout_s=0.5)
        assert server.get_json("/emulator/summary")["is_stuck"]
        assert "nothing can be scheduled" in server.log
        until = time.monotonic() + 5
        while server.get_json("/emulator/summary")["active_requests"]:
            assert time.monotonic() < until
            time.sleep(0.02)
        assert server.post({"model": "tiny", "prompt": [30] * 20, "max_tokens": 5})[0] == 200
        assert server.stop() == 0


def test_a_workload_file_is_read_by_phase_in_order(tmp_path: Path) -> None:
    """Positions decide the order within a phase, the file the order of the phases."""
    loads = [Load.equal("warmup", 3, 8, 4, 2), Load.equal("measured", 2, 8, 4, 5)]
    workload = read_workload(write_expected(tmp_path / "e.parquet", loads))
    assert [(phase.name, phase.first_count) for phase in workload.phases] == [
        ("warmup", 2), ("measured", 2),
    ]  # fmt: skip
    assert [request.position for request in workload.phases[0].requests] == [0, 1, 2]


@pytest.mark.parametrize("damage", ["absent", "bytes", "gap", "lanes", "empty", "table"])
def test_a_damaged_workload_file_is_refused_by_name(tmp_path: Path, damage: str) -> None:
    """Missing, not Parquet, wrong rows, another table."""
    path = tmp_path / "e.parquet"
    row = {"phase": "measured", "prompt_sha256": "x", "output_tokens": 4}
    if damage == "bytes":
        path.write_bytes(os.urandom(200))
    elif damage == "table":
        tables.write(path, [{"request_id": "a", "text": "b"}], tables.OUTPUTS)
    elif damage != "absent":
        second = {
            "gap": {"position": 2, "concurrency": 1},
            "lanes": {"position": 1, "concurrency": 2},
            "empty": {"position": 1, "concurrency": 1, "output_tokens": 0},
        }[damage]
        rows = [row | {"position": 0, "concurrency": 1}, row | second]
        tables.write(path, rows, tables.EXPECTED)
    with pytest.raises(DataError, match=r"e\.parquet"):
        read_workload(path)


def test_a_damaged_workload_file_ends_the_server_with_2(tiny_model: Path, tmp_path: Path) -> None:
    """Before anything is served."""
    arguments = ("--workload", str(tmp_path / "none.parquet"), "--emulate", json.dumps({}))
    with serving(tiny_model, tmp_path, *arguments, wait=False) as server:
        assert server.process.wait(timeout=20) == 2
        assert "none.parquet" in server.log

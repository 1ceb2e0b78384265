"""The emulator against the replay in virtual time: the same iterations, pauses and times.

The client here is a bare closed loop that shares no code with the project's own.
"""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest
import yaml
from emulator_harness import Connection, Load, drive, serving, write_expected
from tokenizers import Tokenizer

from kvstudy.sim.replay import simulate, simulate_steps

BLOCK_TOKENS = 32
POLICIES = {"guaranteed_no_evict": "GUARANTEED_NO_EVICT", "max_utilization": "MAX_UTILIZATION"}
SIZES = ("--max_batch_size", "16", "--max_num_tokens", "512", "--max_seq_len", "2048")


def replay_spec(
    load: Load, policy: str, pause: Any, *, pool_tokens: int, lag: int
) -> dict[str, Any]:
    rows = zip(load.prompts, load.lengths, load.caps, strict=True)
    return {
        "policy": policy,
        "pause": pause,
        "pool_tokens": pool_tokens,
        "block_tokens": BLOCK_TOKENS,
        "max_batch_size": 16,
        "max_num_tokens": 512,
        "chunked_prefill": True,
        "concurrency": load.concurrency,
        "admission_lag_steps": lag,
        "requests": [
            {"input_tokens": len(prompt), "output_tokens": length, "output_cap_tokens": cap}
            for prompt, length, cap in rows
        ],
    }


def arguments(
    folder: Path, loads: list[Load], policy: str, pause: Any, *, pool: int, lag: int, scale: float
) -> list[str]:
    document = {
        "kv_cache_config": {"enable_block_reuse": False, "dtype": "fp8", "max_tokens": pool},
        "enable_chunked_prefill": True,
        "enable_iter_perf_stats": True,
        "scheduler_config": {"capacity_scheduler_policy": POLICIES[policy]},
    }
    folder.mkdir(parents=True, exist_ok=True)
    extra = folder / "extra.yaml"
    extra.write_text(yaml.safe_dump(document))
    expected = write_expected(folder / "expected.parquet", loads)
    emulate = json.dumps({"pause": pause, "admission_lag_steps": lag, "grace_s": 10})
    return [
        *SIZES, "--config", str(extra), "--workload", str(expected), "--time-scale", str(scale),
        "--emulate", emulate,
    ]  # fmt: skip


def loads() -> list[Load]:
    """A warm-up and a measured phase whose answers end at different times, below their cap."""
    warmup = Load.equal("warmup", 8, 100, 12, 4)
    measured = Load.equal("measured", 36, 200, 60, 12)
    lengths = [60 - (i * 7) % 40 for i in range(36)]
    return [warmup, Load("measured", measured.prompts, measured.caps, lengths, 12)]


@pytest.mark.parametrize(
    ("policy", "pause", "lag", "scale"),
    [
        ("guaranteed_no_evict", "recompute", 2, 40),
        ("max_utilization", "recompute", 2, 40),
        ("max_utilization", {"truncate_to_tokens": 64}, 2, 60),
        ("max_utilization", "recompute", 0, 100),
    ],
)
def test_iterations_pauses_and_times_equal_the_replay(
    tiny_model: Path, tmp_path: Path, policy: str, pause: Any, lag: int, scale: float
) -> None:
    """Per phase, exactly, whatever the wall clock does; telemetry tells the same."""
    pool_tokens = 1600
    phases = loads()
    argv = arguments(tmp_path, phases, policy, pause, pool=pool_tokens, lag=lag, scale=scale)
    with serving(tiny_model, tmp_path, *argv) as server:
        replies = [asyncio.run(drive(server.port, load, model="tiny")) for load in phases]
        summary = server.get_json("/emulator/summary")
        records = server.get_json("/metrics")
    assert (summary["late_arrivals"], summary["unexpected_arrivals"]) == (0, 0)
    for load, got, phase in zip(phases, replies, summary["phases"], strict=True):
        spec = replay_spec(load, policy, pause, pool_tokens=pool_tokens, lag=lag)
        predicted = simulate(spec)
        for name in ("iterations", "pauses", "recomputed_tokens", "hidden_tokens", "peak_blocks"):
            assert phase[name] == predicted[name], name
        assert (phase["end_ns"] - phase["start_ns"]) / 1e9 == pytest.approx(
            predicted["wall_s"], abs=1e-8
        )
        assert [reply.chunks for reply in got] == load.lengths
        _check_records(records, phase, simulate_steps(spec))
    if policy == "max_utilization":
        assert summary["pauses"] > 0
    assert (summary["hidden_tokens"] > 0) == isinstance(pause, dict)


def _check_records(
    records: list[dict[str, Any]], phase: dict[str, Any], steps: list[dict[str, Any]]
) -> None:
    """The records of a phase are its steps, number by number."""
    mine = [r for r in records if phase["first_iteration"] <= r["iter"] <= phase["last_iteration"]]
    assert len(mine) == len(steps)
    for record, step in zip(mine, steps, strict=True):
        batch, cache = record["inflightBatchingStats"], record["kvCacheStats"]
        assert batch["numScheduledRequests"] == step["scheduled_requests"]
        assert batch["numPausedRequests"] == step["paused_requests"]
        assert batch["numCtxTokens"] == step["context_tokens"]
        assert cache["usedNumBlocks"] == step["used_blocks"]
        assert record["iterLatencyMS"] == pytest.approx(step["iter_latency_ns"] / 1e6)


def test_finish_reasons_usage_and_texts_of_a_workload(tiny_model: Path, tmp_path: Path) -> None:
    """A true length below the cap ends with "stop"; the text is exactly that long."""
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    phases = loads()
    argv = arguments(
        tmp_path, phases, "guaranteed_no_evict", "recompute", pool=6400, lag=2, scale=400
    )
    with serving(tiny_model, tmp_path, *argv) as server:
        asyncio.run(drive(server.port, phases[0], model="tiny"))
        replies = asyncio.run(drive(server.port, phases[1], model="tiny"))
    for reply, length, cap in zip(replies, phases[1].lengths, phases[1].caps, strict=True):
        last = reply.frames[length - 1]["choices"][0]
        assert last["finish_reason"] == ("length" if length == cap else "stop")
        assert reply.frames[-1]["usage"]["completion_tokens"] == length
        assert len(tokenizer.encode(reply.text, add_special_tokens=False).ids) == length
    assert len({reply.text for reply in replies}) == len(replies)


def test_steps_end_on_the_wall_when_the_schedule_says(tiny_model: Path, tmp_path: Path) -> None:
    """A second run of the wall clock: 40 steps of 20 ms at scale 1 take 0.8 s."""
    load = Load.equal("measured", 1, 32, 40, 1)
    argv = arguments(
        tmp_path, [load], "guaranteed_no_evict", "recompute", pool=1600, lag=2, scale=1
    )
    with serving(tiny_model, tmp_path, *argv) as server:
        began = time.monotonic_ns()
        asyncio.run(drive(server.port, load, model="tiny"))
        took_ns = time.monotonic_ns() - began
        (phase,) = server.get_json("/emulator/summary")["phases"]
    planned_ns = phase["end_monotonic_ns"] - phase["start_monotonic_ns"]
    assert planned_ns == phase["end_ns"] - phase["start_ns"] > 700_000_000
    assert planned_ns <= took_ns < planned_ns + 1_000_000_000
    assert began < phase["start_monotonic_ns"] < phase["end_monotonic_ns"] < began + took_ns


def test_a_lane_that_stalls_is_late_and_the_rest_goes_on(tiny_model: Path, tmp_path: Path) -> None:
    """The stalled lane's request is counted; every request is still answered in full."""
    load = Load.equal("measured", 6, 64, 20, 2)
    argv = arguments(
        tmp_path, [load], "guaranteed_no_evict", "recompute", pool=1600, lag=2, scale=40
    )
    argv[-1] = json.dumps({"grace_s": 0.1})

    async def lane(port: int, positions: list[int], pause_s: float) -> list[int]:
        connection = Connection(port)
        chunks = []
        for index, position in enumerate(positions):
            if index == 1:
                await asyncio.sleep(pause_s)
            body = {
                "model": "tiny", "prompt": load.prompts[position], "max_tokens": 20, "stream": True
            }  # fmt: skip
            chunks.append((await connection.stream(body)).chunks)
        connection.close()
        return chunks

    async def both(port: int) -> list[list[int]]:
        return await asyncio.gather(lane(port, [0, 2, 4], 0.0), lane(port, [1, 3, 5], 0.4))

    with serving(tiny_model, tmp_path, *argv) as server:
        chunks = asyncio.run(both(server.port))
        summary = server.get_json("/emulator/summary")
        log = server.log
    assert chunks == [[20] * 3] * 2
    assert summary["late_arrivals"] >= 1 and summary["never_arrived"] == 0
    assert summary["longest_wait_ms"] >= 90
    assert summary["requests_ended"] == 6
    assert "late: step" in log


def test_a_phase_that_never_fills_starts_after_its_patience(
    tiny_model: Path, tmp_path: Path
) -> None:
    """One lane of two: it is served, and the absent one is known."""
    load = Load.equal("measured", 2, 64, 5, 2)
    argv = arguments(
        tmp_path, [load], "guaranteed_no_evict", "recompute", pool=1600, lag=2, scale=40
    )
    argv[-1] = json.dumps({"opening_s": 0.2})
    with serving(tiny_model, tmp_path, *argv) as server:
        began = time.monotonic()
        status, _ = server.post({"model": "tiny", "prompt": load.prompts[1], "max_tokens": 5})
        assert status == 200 and time.monotonic() - began >= 0.2
        assert server.get_json("/emulator/summary")["never_arrived"] == 1


def test_a_probe_before_the_phases_disturbs_nothing(tiny_model: Path, tmp_path: Path) -> None:
    """A one-token completion with a prompt of its own is foreign."""
    phases = loads()
    argv = arguments(tmp_path, phases, "max_utilization", "recompute", pool=1600, lag=2, scale=100)
    with serving(tiny_model, tmp_path, *argv) as server:
        assert server.post({"model": "tiny", "prompt": [25], "max_tokens": 1})[0] == 200
        for load in phases:
            asyncio.run(drive(server.port, load, model="tiny", parse=False))
        summary = server.get_json("/emulator/summary")
    assert summary["foreign_requests"] == 1
    measured = summary["phases"][1]
    spec = replay_spec(phases[1], "max_utilization", "recompute", pool_tokens=1600, lag=2)
    predicted = simulate(spec)
    assert measured["iterations"] == predicted["iterations"]
    assert measured["pauses"] == predicted["pauses"]


def test_an_open_loop_is_placed_by_the_wall_clock(tiny_model: Path, tmp_path: Path) -> None:
    """Concurrency 0: no lobby, nobody is reserved, nobody is late."""
    base = Load.equal("measured", 5, 64, 10, 1)
    load = Load("measured", base.prompts, base.caps, base.lengths, 0)
    argv = arguments(
        tmp_path, [load], "guaranteed_no_evict", "recompute", pool=1600, lag=2, scale=40
    )

    async def arrive(port: int) -> list[int]:
        async def one(position: int) -> int:
            await asyncio.sleep(0.02 * position)
            connection = Connection(port)
            body = {
                "model": "tiny", "prompt": load.prompts[position], "max_tokens": 10, "stream": True
            }  # fmt: skip
            reply = await connection.stream(body)
            connection.close()
            return reply.chunks

        return await asyncio.gather(*(one(position) for position in range(5)))

    with serving(tiny_model, tmp_path, *argv) as server:
        assert asyncio.run(arrive(server.port)) == [10] * 5
        summary = server.get_json("/emulator/summary")
    assert (summary["late_arrivals"], summary["unexpected_arrivals"]) == (0, 0)
    assert summary["phases"][0]["ended"] == 5


def test_the_published_pressure_workload_pauses_five_times(
    tiny_model: Path, tmp_path: Path
) -> None:
    """W-C under MAX_UTILIZATION with full recompute: the figures of facts/engines.md 9."""
    load = Load.equal("measured", 128, 16384, 512, 32)
    argv = arguments(
        tmp_path, [load], "max_utilization", "recompute", pool=368640, lag=2, scale=200
    )
    argv[: len(SIZES)] = [
        "--max_batch_size", "64", "--max_num_tokens", "8192", "--max_seq_len", "20480"
    ]  # fmt: skip
    with serving(tiny_model, tmp_path, *argv) as server:
        replies = asyncio.run(drive(server.port, load, model="tiny", parse=False))
        (phase,) = server.get_json("/emulator/summary")["phases"]
    assert all(reply.is_done for reply in replies)
    assert (phase["iterations"], phase["pauses"]) == (3128, 5)
    assert phase["recomputed_tokens"] == 83_199

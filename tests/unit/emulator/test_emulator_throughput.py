"""Figures, not verdicts: start-up, chunks per second and CPU per chunk. Shown with `pytest -s`."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from pathlib import Path

import pytest
import yaml
from emulator_harness import Load, Server, drive, serving, write_expected

CLOCK_TICKS = os.sysconf("SC_CLK_TCK")


def cpu_s(server: Server) -> float:
    """CPU time of the server so far."""
    stat = Path(f"/proc/{server.process.pid}/stat").read_text().rsplit(")", 1)[1].split()
    return (int(stat[11]) + int(stat[12])) / CLOCK_TICKS


@pytest.mark.parametrize("scale", [11.0, 1e6], ids=["6,000 chunks per s", "flat out"])
def test_benchmark_of_the_control_workload(tiny_model: Path, tmp_path: Path, scale: float) -> None:
    """64 requests of W-B (2,048 in, 256 out, 32 lanes); nothing but completeness is asserted."""
    load = Load.equal("measured", 64, 2048, 256, 32)
    extra = tmp_path / "extra.yaml"
    pool = {"max_tokens": 368640, "dtype": "fp8", "enable_block_reuse": False}
    extra.write_text(yaml.safe_dump({"kv_cache_config": pool, "enable_chunked_prefill": True}))
    expected = write_expected(tmp_path / "expected.parquet", [load])
    arguments = (
        "--max_batch_size", "64", "--max_seq_len", "20480", "--config", str(extra),
        "--workload", str(expected), "--time-scale", str(scale),
    )  # fmt: skip
    began = time.monotonic()
    with serving(tiny_model, tmp_path, *arguments) as server:
        ready_s, cpu_before_s, began = time.monotonic() - began, cpu_s(server), time.monotonic()
        replies = asyncio.run(drive(server.port, load, model="tiny", parse=False))
        wall_s, cpu_used_s = time.monotonic() - began, cpu_s(server) - cpu_before_s
        summary = server.get_json("/emulator/summary")
    chunks = sum(load.lengths)
    assert all(reply.is_done for reply in replies)
    sys.stdout.write(
        f"\nready {ready_s:.2f} s; {chunks / wall_s:,.0f} chunks/s, "
        f"{cpu_used_s / wall_s:.0%} of a core, {cpu_used_s / chunks * 1e6:.0f} us per chunk, "
        f"mean lateness {summary['mean_lateness_ms']:.2f} ms, most "
        f"{summary['max_lateness_ms']:.1f} ms\n"
    )

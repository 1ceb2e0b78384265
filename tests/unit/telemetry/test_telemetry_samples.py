"""GPU and host samples: absent means not measured, with the reason."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstudy.base.clock import StudyClock
from kvstudy.telemetry import gpu, host

# Constructed: `nvidia-smi --query-gpu=… --format=csv,noheader,nounits` on an H200.
LINE = (
    "0, GPU-1b9f8e8c-0000-0000-0000-000000000000, 1980, 3201, 412.35, 54, 131072, 143771, 97, "
    "0x0000000000000004"
)


def test_a_line_becomes_a_sample() -> None:
    found = gpu.sample(LINE, 7)

    assert found == gpu.GpuSample(
        t_ns=7,
        uuid="GPU-1b9f8e8c-0000-0000-0000-000000000000",
        sm_mhz=1980.0,
        memory_mhz=3201.0,
        power_w=412.35,
        temperature_c=54.0,
        used_mib=131072.0,
        total_mib=143771.0,
        utilization_pct=97.0,
        throttle_bits=4,
    )
    assert found.throttled_by == ("sw_power_cap",)


def test_what_the_driver_does_not_say_is_null() -> None:
    found = gpu.sample(LINE.replace("412.35", "[N/A]").replace("0x0000000000000004", "[N/A]"), 7)

    assert found is not None
    assert (found.power_w, found.throttle_bits, found.throttled_by) == (None, None, ())


@given(st.text(max_size=200))
def test_no_line_breaks_the_parser(text: str) -> None:
    for line in (text, LINE + text, text + LINE):
        gpu.samples(line, 0)


def test_the_command_asks_for_one_gpu() -> None:
    words = gpu.command(500, "GPU-1")

    assert words[0] == "nvidia-smi"
    assert "--id=GPU-1" in words
    assert words[-2:] == ["-lms", "500"]


def smi(folder: Path, script: str, monkeypatch: pytest.MonkeyPatch) -> None:
    path = folder / "nvidia-smi"
    path.write_text(f"#!/bin/sh\n{script}\n")
    path.chmod(0o755)
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")


def run_gpu(until: int) -> gpu.GpuSampler:
    async def run() -> gpu.GpuSampler:
        async with gpu.GpuSampler(StudyClock(), interval_ms=10) as sampler:
            for _ in range(1000):
                if len(sampler.samples) >= until:
                    break
                await asyncio.sleep(0.02)
        return sampler

    return asyncio.run(run())


def test_samples_are_taken_while_the_cell_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path, f"while true; do echo '{LINE}'; sleep 0.02; done", monkeypatch)

    sampler = run_gpu(until=3)

    assert len(sampler.samples) >= 3
    assert sampler.reason == ""


def test_without_nvidia_smi_the_gpu_is_not_measured(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))

    sampler = run_gpu(until=0)

    assert sampler.samples == []
    assert "nvidia-smi cannot be run" in sampler.reason


def test_an_nvidia_smi_that_fails_is_a_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    smi(tmp_path, "echo 'NVIDIA-SMI has failed'; exit 9", monkeypatch)

    sampler = run_gpu(until=0)

    assert "gave no sample" in sampler.reason


def test_the_drivers_version_is_read_where_there_is_one(tmp_path: Path) -> None:
    path = tmp_path / "version"
    path.write_text("NVRM version: NVIDIA UNIX x86_64 Kernel Module  580.65.06  Sun Jul 27 2025\n")

    assert gpu.driver_version(path) == "580.65.06"
    assert gpu.driver_version(tmp_path / "missing") is None


def test_host_samples_see_the_servers_tree() -> None:
    busy = [sys.executable, "-I", "-S", "-c", "while True: pass"]

    async def run(pid: int) -> list[host.HostSample]:
        async with host.HostSampler(StudyClock(), server_pid=pid, interval_ms=50) as sampler:
            for _ in range(600):
                shares = [s.server_cpu_share or 0 for s in sampler.samples]
                if any(share > 0 for share in shares):
                    break
                await asyncio.sleep(0.05)
        return sampler.samples

    with subprocess.Popen(busy) as process:
        try:
            samples = asyncio.run(run(process.pid))
        finally:
            process.kill()

    assert samples[0].server_cpu_share is None
    assert any((s.server_cpu_share or 0) > 0 for s in samples)
    assert samples[-1].client_rss_bytes > 0
    assert samples[0].server_processes == 1


def test_a_share_that_cannot_be_known_is_null() -> None:
    assert host.share(1.0, 2.0, 2_000_000_000) == 0.5
    assert host.share(2.0, 1.0, 1_000_000_000) is None
    assert host.share(1.0, 2.0, 0) is None
    assert host.tree(2**22 + 1) == []

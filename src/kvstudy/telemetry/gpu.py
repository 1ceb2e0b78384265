"""GPU samples from nvidia-smi: clocks, power, temperature, memory, throttle reasons.

One long-running `nvidia-smi -lms` is cheaper than one call per sample. Where there is no
nvidia-smi, GPU telemetry is not measured, with the reason.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Self

from kvstudy.base.clock import StudyClock

FIELDS = (
    "index",
    "uuid",
    "clocks.sm",
    "clocks.mem",
    "power.draw",
    "temperature.gpu",
    "memory.used",
    "memory.total",
    "utilization.gpu",
    "clocks_event_reasons.active",
)
_NUMBER = re.compile(r"-?\d{1,15}(?:\.\d{1,9})?$", re.ASCII)
_HEX = re.compile(r"0x[0-9a-fA-F]{1,16}$", re.ASCII)
_STOP_S = 2.0

THROTTLE_BITS = {
    0x4: "sw_power_cap",
    0x8: "hw_slowdown",
    0x20: "sw_thermal_slowdown",
    0x40: "hw_thermal_slowdown",
    0x80: "hw_power_brake",
}
"""Bits that mean the GPU ran slower than asked; idle and application clocks are none of them."""


@dataclass(frozen=True, slots=True)
class GpuSample:
    """One GPU at one moment; None where nvidia-smi says N/A."""

    t_ns: int
    uuid: str
    sm_mhz: float | None
    memory_mhz: float | None
    power_w: float | None
    temperature_c: float | None
    used_mib: float | None
    total_mib: float | None
    utilization_pct: float | None
    throttle_bits: int | None

    @property
    def throttled_by(self) -> tuple[str, ...]:
        """Names of the throttle reasons that were active."""
        bits = self.throttle_bits or 0
        return tuple(name for bit, name in THROTTLE_BITS.items() if bits & bit)


def command(interval_ms: int, uuid: str | None = None) -> list[str]:
    """The nvidia-smi command that prints one line per GPU and interval."""
    words = ["nvidia-smi", f"--query-gpu={','.join(FIELDS)}", "--format=csv,noheader,nounits"]
    if uuid is not None:
        words.append(f"--id={uuid}")
    return [*words, "-lms", str(interval_ms)]


def sample(line: str, t_ns: int) -> GpuSample | None:
    """One CSV line; None for a line that is none."""
    values = [value.strip() for value in line.split(",")]
    if len(values) != len(FIELDS) or not values[1].startswith("GPU-"):
        return None
    sm, memory, power, temperature, used, total, busy = map(_number, values[2:9])
    bits = int(values[9], 16) if _HEX.match(values[9]) else None
    return GpuSample(t_ns, values[1], sm, memory, power, temperature, used, total, busy, bits)


def samples(text: str, t_ns: int) -> list[GpuSample]:
    """All samples of a text."""
    return [s for s in (sample(line, t_ns) for line in text.splitlines()) if s is not None]


def _number(text: str) -> float | None:
    return float(text) if _NUMBER.match(text) else None


class GpuSampler:
    """Samples while a cell runs: `async with GpuSampler(clock) as gpu: …; gpu.samples`.

    `reason` says why nothing was measured; empty when something was.
    """

    def __init__(
        self, clock: StudyClock, *, interval_ms: int = 1000, uuid: str | None = None
    ) -> None:
        self.samples: list[GpuSample] = []
        self.reason = ""
        self._clock = clock
        self._command = command(interval_ms, uuid)
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        try:
            self._process = await asyncio.create_subprocess_exec(
                *self._command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=asyncio.subprocess.PIPE,
                stderr=asyncio.subprocess.DEVNULL,
            )
        except OSError as error:
            self.reason = f"GPU not measured: nvidia-smi cannot be run ({error.strerror})"
            return self
        self._task = asyncio.create_task(self._read(), name="gpu-telemetry")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._process is None or self._task is None:
            return
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError):
                self._process.terminate()
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(asyncio.shield(self._process.wait()), _STOP_S)
        if self._process.returncode is None:
            self._process.kill()
        await self._process.wait()
        await self._task
        if not self.samples:
            self.reason = (
                f"GPU not measured: nvidia-smi gave no sample (exit {self._process.returncode})"
            )

    async def _read(self) -> None:
        stdout = self._process.stdout if self._process else None
        while stdout is not None and (data := await stdout.readline()):
            t_ns = self._clock.from_wall_ns(time.monotonic_ns())
            self.samples += samples(data.decode("utf-8", errors="replace"), t_ns)


def driver_version(proc: Path = Path("/proc/driver/nvidia/version")) -> str | None:
    """The kernel driver's version, read without starting anything; None without a driver."""
    try:
        text = proc.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return None
    found = re.search(r"\s(\d{3}\.\d{1,3}(?:\.\d{1,3})?)\s", text)
    return found[1] if found else None

"""One client process on its core: CPU time and memory of its whole tree, from /proc."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from bisect import bisect_left
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

_TICK_S = 1 / os.sysconf("SC_CLK_TCK")
_PAGE_MB = os.sysconf("SC_PAGE_SIZE") / 2**20
_SAMPLE_S = 0.05
_SCAN_EVERY = 5


@dataclass
class Cost:
    """CPU seconds of a tree over time, its largest memory, how it ended."""

    at_ns: list[int] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)
    peak_mb: float = 0.0
    exit_code: int | None = None
    log: str = ""

    def cpu_until(self, at_ns: int) -> float:
        """CPU seconds used up to a monotonic time, between samples in proportion."""
        here = bisect_left(self.at_ns, at_ns)
        if here == 0:
            return self.cpu_s[0]
        if here == len(self.at_ns):
            return self.cpu_s[-1]
        before, after = self.at_ns[here - 1], self.at_ns[here]
        part = (at_ns - before) / (after - before)
        return self.cpu_s[here - 1] + part * (self.cpu_s[here] - self.cpu_s[here - 1])


def _session(leader: int) -> list[int]:
    """Processes of the session that `leader` leads."""
    found = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            with suppress(OSError):
                if int(_stat(int(entry.name))[3]) == leader:
                    found.append(int(entry.name))
    return found


def _stat(pid: int) -> list[str]:
    """The fields of /proc/PID/stat behind the name: state, ppid, pgrp, session, ..."""
    return Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rpartition(")")[2].split()


def watch(
    argv: list[str],
    *,
    env: dict[str, str],
    cwd: Path,
    log: Path,
    place: Callable[[], None],
    timeout_s: float,
) -> Cost:
    """Run a program in a session of its own and sample it until it ends; nothing of it stays."""
    cost, used = Cost(), dict[int, float]()
    with log.open("wb") as out:
        process = subprocess.Popen(
            argv,
            env=env,
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
            preexec_fn=place,  # noqa: PLW1509 - this process has one thread
        )
    deadline = time.monotonic() + timeout_s
    pids: list[int] = [process.pid]
    rounds = 0
    try:
        while process.poll() is None and time.monotonic() < deadline:
            if rounds % _SCAN_EVERY == 0:
                pids = _session(process.pid)
            rounds += 1
            _sample(cost, used, pids)
            time.sleep(_SAMPLE_S)
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    cost.exit_code = process.returncode
    cost.log = log.read_text(encoding="utf-8", errors="replace")
    return cost


def _sample(cost: Cost, used: dict[int, float], pids: list[int]) -> None:
    memory = 0.0
    for pid in pids:
        with suppress(OSError, IndexError):
            fields = _stat(pid)
            used[pid] = (int(fields[11]) + int(fields[12])) * _TICK_S
            statm = Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()
            memory += int(statm[1]) * _PAGE_MB
    cost.at_ns.append(time.monotonic_ns())
    cost.cpu_s.append(sum(used.values()))
    cost.peak_mb = max(cost.peak_mb, memory)

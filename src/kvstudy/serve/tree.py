"""A server's process tree below its guard: started, asked how it is, ended and reaped."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from kvstudy.serve import guard
from kvstudy.serve.processes import server_env, sweep

_POLL_S = 0.02
_KILL_TIMEOUT_S = 70.0
_QUICK_KILL_S = 10.0
_READ_BYTES = 1 << 16


@dataclass(frozen=True, slots=True)
class Exit:
    """How the server process ended; both None if nobody saw it."""

    exit_code: int | None
    signal: int | None
    at_ns: int

    def __str__(self) -> str:
        if self.signal is not None:
            return f"was ended by signal {self.signal}"
        return f"ended with exit code {self.exit_code}"


class Tree:
    """The guard, the server below it and whatever the server starts."""

    def __init__(
        self,
        argv: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        log_path: Path,
        grace_s: float,
    ) -> None:
        self._grace_s = grace_s
        self._mark = secrets.token_hex(16)
        self._swept = 0
        self._reports: dict[str, dict[str, int | None]] = {}
        self._unread = b""
        self._pipe, write_end = os.pipe()
        os.set_blocking(self._pipe, False)
        log = os.open(log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        try:
            os.fchmod(log, 0o600)
            self._guard = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", guard.__file__),
                    *(str(os.getpid()), str(write_end), str(grace_s), "--", *argv),
                ],
                cwd=cwd,
                env=server_env(os.environ, env, mark=self._mark),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write_end,),
                start_new_session=True,
            )
        except BaseException:
            os.close(self._pipe)
            raise
        finally:
            os.close(log)
            os.close(write_end)

    @property
    def pid(self) -> int:
        """Process id of the guard; also the session and the process group of the tree."""
        return self._guard.pid

    @property
    def exit(self) -> Exit | None:
        """How the server ended; None while it runs."""
        self._read()
        report = self._reports.get("exited")
        if report is not None:
            return Exit(report["exit_code"], report["signal"], report["at_ns"] or time.time_ns())
        code = self._guard.poll()
        if code is None:
            return None
        # The guard was killed: the kernel killed the server with it.
        return Exit(None, -code if code < 0 else None, time.time_ns())

    @property
    def leftovers(self) -> int:
        """Processes that outlived the server and had to be killed."""
        self._read()
        return (self._reports.get("done", {}).get("leftovers") or 0) + self._swept

    async def end(self) -> None:
        """Ask the server to end, wait, kill what is left, reap. If cancelled, kill at once."""
        try:
            if self._guard.poll() is None:
                self._guard.terminate()
            deadline = time.monotonic() + self._grace_s + _KILL_TIMEOUT_S
            while self._guard.poll() is None and time.monotonic() < deadline:
                await asyncio.sleep(_POLL_S)
        finally:
            self._end_now()

    def _end_now(self) -> None:
        if self._guard.poll() is None:
            self._guard.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                self._guard.wait(_QUICK_KILL_S)
        self._read()
        done = self._reports.get("done")
        if done is None or done["alive"]:
            self._guard.kill()
            self._swept += sweep(self._mark)
        self._guard.wait()

    def close(self) -> None:
        """Give the pipe back."""
        self._read()
        if self._pipe >= 0:
            os.close(self._pipe)
            self._pipe = -1

    def _read(self) -> None:
        while self._pipe >= 0:
            try:
                data = os.read(self._pipe, _READ_BYTES)
            except BlockingIOError:
                return
            if not data:
                return
            *lines, self._unread = (self._unread + data).split(b"\n")
            for line in lines:
                report = json.loads(line)
                self._reports[report.pop("event")] = report

"""A small supervisor between kvstudy and a server: nothing of the server outlives either of them.

    python -I -S guard.py PARENT_PID STATUS_FD GRACE_S -- COMMAND…

The guard leads its own session and process group and is a child subreaper, so that every
descendant of the server, however it was detached, becomes a child of the guard once its own parent
ends. When the server ends, when the guard is asked to end (SIGTERM, SIGINT), or when its parent is
gone however it went, the guard ends the server (SIGTERM, then after the grace period SIGKILL),
kills what is left of the tree until nothing is, and ends itself. Should the guard itself be
killed, the kernel kills the server with it, and the parent sweeps what carries the run's mark.

It writes JSON lines to STATUS_FD: `started` with the server's pid, `exited` with how the server
ended, `done` with how many leftovers were killed and how many could not be. Standard library only:
it runs isolated from the server's Python environment.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_PARENT_DIED = signal.SIGUSR1
_STOPPERS = frozenset({signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
_WATCHED = frozenset({*_STOPPERS, _PARENT_DIED, signal.SIGCHLD})
_PARENT_CHECK_S = 0.5
_KILL_PAUSE_S = 0.02
_LEAVE_S = 0.5
_UNKILLABLE_S = 60.0
_EXEC_FAILED = 127


class Guard:
    """One server and everything that descends from it."""

    def __init__(self, *, parent: int, status_fd: int, grace_s: float, command: list[str]) -> None:
        self._parent = parent
        self._status_fd = status_fd
        self._grace_s = grace_s
        self._command = command
        self._server = 0
        self._server_status: int | None = None

    def run(self) -> int:
        """Supervise until nothing is left; the server's exit code, or 128 + its signal."""
        _prctl(_PR_SET_CHILD_SUBREAPER, 1)
        _prctl(_PR_SET_PDEATHSIG, _PARENT_DIED)
        os.set_inheritable(self._status_fd, False)
        signal.pthread_sigmask(signal.SIG_BLOCK, _WATCHED)
        if os.getppid() != self._parent:
            return _EXEC_FAILED
        self._server = self._start()
        self._say(event="started", pid=self._server)
        self._wait_for_reason()
        if self._server_status is None:
            self._end_server()
        leftovers = self._kill_rest()
        self._say(event="done", leftovers=leftovers, alive=len(descendants(os.getpid())))
        status = self._server_status
        if status is None:
            return _EXEC_FAILED
        return 128 + os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)

    def _start(self) -> int:
        guard = os.getpid()
        pid = os.fork()
        if pid:
            return pid
        try:
            _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, _WATCHED)
            for ignored_by_python in (signal.SIGPIPE, signal.SIGXFSZ):
                signal.signal(ignored_by_python, signal.SIG_DFL)
            if os.getppid() == guard:
                os.execvp(self._command[0], self._command)  # noqa: S606
        except OSError as error:
            reason = f"cannot start {self._command[0]}: {error.strerror}"
            os.write(2, f"{reason}\n".encode(errors="backslashreplace"))
        os._exit(_EXEC_FAILED)

    def _wait_for_reason(self) -> None:
        """Return once the server has ended, an end is asked for, or the parent is gone."""
        while self._server_status is None:
            got = signal.sigtimedwait(_WATCHED, _PARENT_CHECK_S)
            self._reap()
            if got is not None and got.si_signo in _STOPPERS:
                return
            if os.getppid() != self._parent:
                return

    def _end_server(self) -> None:
        """SIGTERM to the server, then wait for its end for the grace period.

        Asked a second time, the guard stops waiting.
        """
        with contextlib.suppress(ProcessLookupError):
            os.kill(self._server, signal.SIGTERM)
        deadline = time.monotonic() + self._grace_s
        while self._server_status is None and (left := deadline - time.monotonic()) > 0:
            got = signal.sigtimedwait(_WATCHED, min(left, _PARENT_CHECK_S))
            self._reap()
            if got is not None and got.si_signo in _STOPPERS:
                return

    def _kill_rest(self) -> int:
        """Kill descendants until there is none; how many outlived the server.

        After an end in time, workers get a moment to notice that their server is gone. A process
        that the kernel holds (a hung driver) cannot be killed: it is given up after a minute.
        """
        deadline = time.monotonic() + (_LEAVE_S if self._server_status is not None else 0)
        while self._reap() and time.monotonic() < deadline:
            time.sleep(_KILL_PAUSE_S)
        killed: set[int] = set()
        deadline = time.monotonic() + _UNKILLABLE_S
        while self._reap() and time.monotonic() < deadline:
            for pid in descendants(os.getpid()):
                with contextlib.suppress(ProcessLookupError, PermissionError):
                    os.kill(pid, signal.SIGKILL)
                    killed.add(pid)
            time.sleep(_KILL_PAUSE_S)
        return len(killed - {self._server})

    def _reap(self) -> bool:
        """Collect ended children; whether there is still one."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return True
            if pid == self._server and self._server_status is None:
                self._server_status = status
                signalled = os.WIFSIGNALED(status)
                self._say(
                    event="exited",
                    exit_code=None if signalled else os.WEXITSTATUS(status),
                    signal=os.WTERMSIG(status) if signalled else None,
                    at_ns=time.time_ns(),
                )

    def _say(self, **event: Any) -> None:
        with contextlib.suppress(OSError):
            os.write(self._status_fd, (json.dumps(event) + "\n").encode())


def descendants(root: int) -> list[int]:
    """All processes below `root`, from /proc; parents come before their children."""
    children: dict[int, list[int]] = {}
    for pid, parent in _parents():
        children.setdefault(parent, []).append(pid)
    found = list(children.get(root, []))
    for pid in found:
        found += children.get(pid, [])
    return found


def _parents() -> Iterator[tuple[int, int]]:
    for entry in os.listdir("/proc"):  # noqa: PTH208  a path object per process is slow
        if entry.isdecimal():
            with contextlib.suppress(OSError, ValueError, IndexError):
                stat = Path(f"/proc/{entry}/stat").read_bytes()
                yield int(entry), int(stat.rpartition(b")")[2].split()[1])


def _prctl(option: int, value: int) -> None:
    if ctypes.CDLL(None, use_errno=True).prctl(option, value, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), f"prctl({option})")


def main(argv: list[str]) -> int:
    """Entry point; see the module's docstring."""
    at = argv.index("--")
    parent, status_fd, grace_s = argv[:at]
    guard = Guard(
        parent=int(parent),
        status_fd=int(status_fd),
        grace_s=float(grace_s),
        command=argv[at + 1 :],
    )
    return guard.run()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""A server's life: started, ready, measured, stopped; how it ended is always recorded.

    server = serve(launch, run_dir, ready_timeout_s=600, stop_grace_s=30)
    async with server:
        ...                     # server.url, server.headers, server.is_alive(), server.died()
    server.ended                # Ended: STOPPED | KILLED | DIED | NEVER_READY, codes, timestamps

It is asynchronous because the step that measures is: waiting for a server and for its end leaves
the event loop free. Entering raises UnfitServerError with a reason code when the server does not
get ready or is not what was declared; `server.ended` is set then too. The server runs below
`kvstudy.serve.guard`, so that nothing of it survives, whatever ends this process.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import httpx

from kvstudy.base.units import NS_PER_S
from kvstudy.serve import guard, logs, ready
from kvstudy.serve.model import DIR, Ended, Ending, Launch, UnfitServerError
from kvstudy.serve.processes import (
    free_port,
    is_loopback,
    is_port_free,
    is_secret,
    listening,
    server_env,
    sweep,
)

LOG_NAME = "server.log"
PORT_ATTEMPTS = 5
_POLL_S = 0.05
_HEALTH_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 120.0
_KILL_TIMEOUT_S = 70.0
_SIGKILL = 9

Relaunch = Callable[[int], Launch]


def serve(
    launch: Launch,
    run_dir: Path,
    *,
    ready_timeout_s: float,
    stop_grace_s: float = 30.0,
    log_path: Path | None = None,
    relaunch: Relaunch | None = None,
) -> Server:
    """A server to be entered with `async with`.

    `relaunch` makes the same launch for another port: with it, a port that was stolen between
    choosing and binding costs a new start, not the cell.
    """
    return Server(
        launch,
        run_dir,
        ready_timeout_s=ready_timeout_s,
        stop_grace_s=stop_grace_s,
        log_path=log_path or run_dir / LOG_NAME,
        relaunch=relaunch,
    )


class Server:
    """One server process tree and its timestamps."""

    def __init__(
        self,
        launch: Launch,
        run_dir: Path,
        *,
        ready_timeout_s: float,
        stop_grace_s: float,
        log_path: Path,
        relaunch: Relaunch | None,
    ) -> None:
        self.launch = launch
        self.run_dir = run_dir
        self.log_path = log_path
        self.version: str | None = None
        self.listening: dict[int, set[str]] | None = None
        self.ended: Ended | None = None
        self._ready_timeout_s = ready_timeout_s
        self._stop_grace_s = stop_grace_s
        self._relaunch = relaunch
        self._process: subprocess.Popen[bytes] | None = None
        self._mark = ""
        self._reports = _Reports(-1)
        self._launch_ns = self._ready_ns = self._stop_ns = 0

    # ---- what the measuring step uses --------------------------------------------------------

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return self.launch.url

    @property
    def headers(self) -> dict[str, str]:
        """Request headers the server wants, the key among them."""
        return self.launch.headers

    @property
    def pid(self) -> int:
        """Process id of the guard, the root of the server's tree."""
        return 0 if self._process is None else self._process.pid

    def is_alive(self) -> bool:
        """Whether the server process runs; cheap enough to ask before every request."""
        if self._process is None or self._process.poll() is not None:
            return False
        return self._reports.get("exited") is None

    async def died(self, every_s: float = 0.2) -> None:
        """Return once the server is not alive any more."""
        while self.is_alive():
            await asyncio.sleep(every_s)

    def log_text(self) -> str:
        """The log so far, secrets masked."""
        if not self.log_path.is_file():
            return ""
        text = self.log_path.read_text(encoding="utf-8", errors="replace")
        return logs.masked(text, self._secrets())

    # ---- life --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        for attempt in range(1, PORT_ATTEMPTS + 1):
            try:
                self._start()
                await self._until_ready()
                return self
            except UnfitServerError as fault:
                await self._end(fault)
                can_move = fault.is_port_taken and self._relaunch is not None
                if not can_move or attempt == PORT_ATTEMPTS:
                    raise
                self._move()
            except BaseException:
                await self._end(None)
                raise
        raise AssertionError("unreachable")

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end(None)

    def _move(self) -> None:
        if self._relaunch is not None:
            self.launch = self._relaunch(free_port(self.launch.host))
        self.ended = None

    def _start(self) -> None:
        launch = self.launch
        self._launch_ns, self._ready_ns, self._stop_ns = time.time_ns(), 0, 0
        if not is_port_free(launch.port, launch.host):
            raise UnfitServerError(
                "server_not_ready",
                f"port {launch.port} is taken by another process",
                is_port_taken=True,
            )
        self._mark = secrets.token_hex(16)
        argv = [self._filled(word) for word in launch.argv]
        own = {name: self._filled(value) for name, value in launch.env.items()}
        self._write_files()
        read_end, write_end = os.pipe()
        self._reports = _Reports(read_end)
        log = os.open(self.log_path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.fchmod(log, 0o600)
        try:
            self._process = subprocess.Popen(
                [
                    *(sys.executable, "-I", "-S", guard.__file__),
                    *(str(os.getpid()), str(write_end), str(self._stop_grace_s), "--", *argv),
                ],
                cwd=self.run_dir,
                env=server_env(os.environ, own, mark=self._mark),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=(write_end,),
                start_new_session=True,
            )
        finally:
            os.close(log)
            os.close(write_end)

    def _write_files(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        for name, text in self.launch.files.items():
            path = self.run_dir / name
            if name != path.name:
                raise UnfitServerError("server_not_ready", f"launch file {name!r}: not a plain name")
            path.unlink(missing_ok=True)
            handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
            with open(handle, "w", encoding="utf-8") as file:
                file.write(self._filled(text))

    def _filled(self, text: str) -> str:
        return text.replace(DIR, str(self.run_dir.resolve()))

    # ---- readiness ---------------------------------------------------------------------------

    async def _until_ready(self) -> None:
        deadline = time.monotonic() + self._ready_timeout_s
        limits = httpx.Limits(max_connections=4, max_keepalive_connections=0)
        async with httpx.AsyncClient(
            base_url=self.url,
            headers=self.headers,
            timeout=_HEALTH_TIMEOUT_S,
            limits=limits,
            trust_env=False,
        ) as client:
            await self._poll(client, deadline)
            self._check_owner()
            self.version = await ready.check_version(client, self.launch)
            await ready.check_model(client, self.launch)
            client.timeout = httpx.Timeout(min(_ANSWER_TIMEOUT_S, self._ready_timeout_s))
            await self._first_answer(client, deadline)
        self._ready_ns = time.time_ns()
        self._remove_private_files()

    async def _poll(self, client: httpx.AsyncClient, deadline: float) -> None:
        pause_s = _POLL_S
        while True:
            healthy = await ready.is_healthy(client, self.launch)
            self._fail_if_dead()
            if healthy:
                return
            self._fail_if_late(deadline, f"{self.launch.routes.ready_path} never answered 200")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.2, 1.0)

    async def _first_answer(self, client: httpx.AsyncClient, deadline: float) -> None:
        while True:
            problem = await ready.has_answered(client, self.launch)
            self._fail_if_dead()
            if problem is None:
                return
            self._fail_if_late(deadline, f"/v1/completions gave no token: {problem}")
            await asyncio.sleep(_POLL_S * 4)

    def _fail_if_dead(self) -> None:
        if not self.is_alive():
            how = self._reports.get("exited") or {}
            if how.get("signal") is not None:
                what = f"was ended by signal {how['signal']}"
            else:
                what = f"ended with exit code {how.get('exit_code')}"
            raise self._fault("server_died", f"the server {what} before it was ready")

    def _fail_if_late(self, deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise self._fault(
                "server_not_ready",
                f"{self.url}: not ready within {self._ready_timeout_s:g} s ({what})",
            )

    def _check_owner(self) -> None:
        """A foreign server that answers on our port must not be measured."""
        self.listening = listening(self.pid)
        if self.listening and self.launch.port not in self.listening:
            raise UnfitServerError(
                "server_not_ready",
                f"port {self.launch.port} is answered by a process that is not this server's",
                is_port_taken=True,
            )

    @property
    def exposed(self) -> list[str]:
        """Addresses that the server listens on beside loopback; empty is right."""
        found = self.listening or {}
        return sorted(
            f"{address}:{port}"
            for port, addresses in found.items()
            for address in addresses
            if not is_loopback(address)
        )

    def _fault(self, reason: str, message: str) -> UnfitServerError:
        lines = logs.tail(self.log_path)
        known = logs.diagnose(lines)
        parts = [message]
        if known is not None:
            parts.append(f"probable cause: {known.meaning}")
        parts.append(f"last lines of {self.log_path}:" if lines else f"{self.log_path} is empty")
        parts += [f"  {line}" for line in lines]
        is_port_taken = known is not None and known.is_port_taken
        text = logs.masked("\n".join(parts), self._secrets())
        return UnfitServerError(reason, text, is_port_taken=is_port_taken)

    def _secrets(self) -> list[str]:
        launch = self.launch
        own = [value for name, value in launch.env.items() if name in launch.secrets]
        named = [
            value for name, value in {**os.environ, **launch.env}.items() if is_secret(name)
        ]
        return [text for text in {launch.api_key or "", *own, *named} if text]

    # ---- the end -----------------------------------------------------------------------------

    async def _end(self, fault: UnfitServerError | None) -> None:
        """Stop what runs, reap it, record how it ended; a cancellation makes it quick."""
        if self.ended is not None:
            return
        was_alive = self.is_alive()
        self._stop_ns = time.time_ns()
        try:
            await self._stop()
        finally:
            self._reap_now()
            self._record(was_alive=was_alive, given_up=fault is not None or not self._ready_ns)
            self._remove_private_files()
            logs.scrub(self.log_path, self._secrets())
            self._reports.close()

    async def _stop(self) -> None:
        process = self._process
        if process is None:
            return
        if process.poll() is None:
            process.terminate()
        deadline = time.monotonic() + self._stop_grace_s + _KILL_TIMEOUT_S
        while process.poll() is None and time.monotonic() < deadline:
            await asyncio.sleep(_POLL_S / 2)

    def _reap_now(self) -> None:
        """Nothing with the run's mark survives, even if the guard was killed or is stuck."""
        process = self._process
        if process is None:
            return
        self._swept = sweep(self._mark) if self._needs_sweep() else 0
        if process.poll() is None:
            process.kill()
            process.wait()
            self._swept += sweep(self._mark)

    def _needs_sweep(self) -> bool:
        done = self._reports.get("done")
        return done is None or bool(done.get("alive"))

    def _record(self, *, was_alive: bool, given_up: bool) -> None:
        exited = self._reports.get("exited") or {}
        done = self._reports.get("done") or {}
        if self._process is None:
            ending = Ending.NEVER_READY
        elif not was_alive:
            ending = Ending.DIED
        elif given_up:
            ending = Ending.NEVER_READY
        else:
            was_killed = exited.get("signal", _SIGKILL) == _SIGKILL
            ending = Ending.KILLED if was_killed else Ending.STOPPED
        self.ended = Ended(
            ending=ending,
            exit_code=exited.get("exit_code"),
            signal=exited.get("signal"),
            leftovers=int(done.get("leftovers", 0)) + getattr(self, "_swept", 0),
            launch_ns=self._launch_ns,
            ready_ns=self._ready_ns or None,
            stop_ns=self._stop_ns if was_alive else None,
            ended_ns=int(exited.get("at_ns", time.time_ns())),
        )

    def _remove_private_files(self) -> None:
        for name in self.launch.private_files:
            (self.run_dir / name).unlink(missing_ok=True)

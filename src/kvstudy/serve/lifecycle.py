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
import os
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Self

import httpx

from kvstudy.serve import logs, ready
from kvstudy.serve.model import DIR, Ended, Ending, Launch, UnfitServerError
from kvstudy.serve.processes import free_port, is_loopback, is_port_free, is_secret, listening
from kvstudy.serve.tree import Tree

LOG_NAME = "server.log"
PORT_ATTEMPTS = 5
_POLL_S = 0.05
_SLOWEST_POLL_S = 1.0
_HEALTH_TIMEOUT_S = 5.0
_ANSWER_TIMEOUT_S = 120.0
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
    server = Server(launch, run_dir, log_path or run_dir / LOG_NAME)
    server.ready_timeout_s = ready_timeout_s
    server.stop_grace_s = stop_grace_s
    server.relaunch = relaunch
    return server


class Server:
    """One server and its timestamps; see the module's docstring."""

    ready_timeout_s: float = 600.0
    stop_grace_s: float = 30.0
    relaunch: Relaunch | None = None

    def __init__(self, launch: Launch, run_dir: Path, log_path: Path) -> None:
        self.launch = launch
        self.run_dir = run_dir
        self.log_path = log_path
        self.version: str | None = None
        self.listening: dict[int, set[str]] | None = None
        self.ended: Ended | None = None
        self._tree: Tree | None = None
        self._log_start = 0
        self._launch_ns = 0
        self._ready_ns: int | None = None

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
        """Root of the server's process tree; 0 before the start."""
        return 0 if self._tree is None else self._tree.pid

    @property
    def ready_ns(self) -> int | None:
        """When the server was ready, ns of the wall clock; None if it never was."""
        return self._ready_ns

    @property
    def exposed(self) -> list[str]:
        """Addresses that the ready server listened on beside loopback; empty is right."""
        found = self.listening or {}
        return sorted(
            f"{address}:{port}"
            for port, addresses in found.items()
            for address in addresses
            if not is_loopback(address)
        )

    def is_alive(self) -> bool:
        """Whether the server process runs; cheap enough to ask before every request."""
        return self._tree is not None and self._tree.exit is None

    async def died(self, every_s: float = 0.2) -> None:
        """Return once the server is not alive any more."""
        while self.is_alive():
            await asyncio.sleep(every_s)

    def death(self) -> UnfitServerError:
        """What to raise when the server is not alive any more in the middle of a measurement."""
        how = "is not running" if self._tree is None else str(self._tree.exit or "is running")
        return self._fault("server_died", f"the server {how} while it was being measured")

    def log_text(self) -> str:
        """The log of this start so far, secrets masked."""
        if not self.log_path.is_file():
            return ""
        data = self.log_path.read_bytes()[self._log_start :]
        return logs.masked(data.decode("utf-8", errors="replace"), self._secrets())

    # ---- life --------------------------------------------------------------------------------

    async def __aenter__(self) -> Self:
        attempt = 1
        while True:
            try:
                self._start()
                await self._until_ready()
                return self
            except UnfitServerError as fault:
                await self._end(is_given_up=True)
                if not fault.is_port_taken or self.relaunch is None or attempt == PORT_ATTEMPTS:
                    raise
                attempt += 1
                self.launch = self.relaunch(free_port(self.launch.host))
                self.ended = None
            except BaseException:
                await self._end(is_given_up=True)
                raise

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        await self._end()

    def _start(self) -> None:
        launch = self.launch
        self._tree, self._ready_ns, self._launch_ns = None, None, time.time_ns()
        if not is_port_free(launch.port, launch.host):
            raise UnfitServerError(
                "server_not_ready",
                f"port {launch.port} is taken by another process; choose a free one",
                is_port_taken=True,
            )
        self._write_files()
        self.log_path.parent.mkdir(parents=True, exist_ok=True)
        self._log_start = logs.size(self.log_path)
        self._tree = Tree(
            [self._filled(word) for word in launch.argv],
            cwd=self.run_dir,
            env={name: self._filled(value) for name, value in launch.env.items()},
            log_path=self.log_path,
            grace_s=self.stop_grace_s,
        )

    def _write_files(self) -> None:
        self.run_dir.mkdir(parents=True, exist_ok=True)
        for name, text in self.launch.files.items():
            path = self.run_dir / name
            path.unlink(missing_ok=True)
            path.touch(mode=0o600, exist_ok=False)
            path.write_text(self._filled(text), encoding="utf-8")

    def _filled(self, text: str) -> str:
        return text.replace(DIR, str(self.run_dir.resolve()))

    # ---- readiness ---------------------------------------------------------------------------

    async def _until_ready(self) -> None:
        deadline = time.monotonic() + self.ready_timeout_s
        async with httpx.AsyncClient(
            base_url=self.url,
            headers=self.headers,
            timeout=_HEALTH_TIMEOUT_S,
            limits=httpx.Limits(max_keepalive_connections=0),
            trust_env=False,
        ) as client:
            await self._until_healthy(client, deadline)
            self._check_owner()
            self.version = await ready.check_version(client, self.launch)
            await ready.check_model(client, self.launch)
            client.timeout = httpx.Timeout(min(_ANSWER_TIMEOUT_S, self.ready_timeout_s))
            await self._until_answered(client, deadline)
        self._ready_ns = time.time_ns()
        self._remove_private_files()

    async def _until_healthy(self, client: httpx.AsyncClient, deadline: float) -> None:
        pause_s = _POLL_S
        while True:
            is_healthy = await ready.is_healthy(client, self.launch)
            self._fail_if_dead()
            if is_healthy:
                return
            self._fail_if_late(deadline, f"{self.launch.routes.ready_path} never answered 200")
            await asyncio.sleep(pause_s)
            pause_s = min(pause_s * 1.2, _SLOWEST_POLL_S)

    async def _until_answered(self, client: httpx.AsyncClient, deadline: float) -> None:
        while True:
            problem = await ready.has_answered(client, self.launch)
            self._fail_if_dead()
            if problem is None:
                return
            self._fail_if_late(deadline, f"/v1/completions gave no token: {problem}")
            await asyncio.sleep(_POLL_S * 4)

    def _check_owner(self) -> None:
        """A foreign server that answers on our port must not be measured."""
        self.listening = listening(self.pid)
        if self.listening is not None and self.launch.port not in self.listening:
            raise UnfitServerError(
                "server_not_ready",
                f"port {self.launch.port} is answered by a process that is not this server's",
                is_port_taken=True,
            )

    def _fail_if_dead(self) -> None:
        if not self.is_alive():
            how = "" if self._tree is None else str(self._tree.exit)
            raise self._fault("server_died", f"the server {how} before it was ready")

    def _fail_if_late(self, deadline: float, what: str) -> None:
        if time.monotonic() > deadline:
            raise self._fault(
                "server_not_ready",
                f"{self.url}: not ready within {self.ready_timeout_s:g} s ({what})",
            )

    def _fault(self, reason: str, message: str) -> UnfitServerError:
        lines = logs.tail(self.log_path, after=self._log_start)
        known = logs.diagnose(lines)
        parts = [message]
        if known is not None:
            parts.append(f"probable cause: {known.meaning}")
        parts.append(f"last lines of {self.log_path}:" if lines else f"{self.log_path} is empty")
        parts += [f"  {line}" for line in lines]
        return UnfitServerError(
            reason,
            logs.masked("\n".join(parts), self._secrets()),
            is_port_taken=known is not None and known.is_port_taken,
        )

    def _secrets(self) -> list[str]:
        launch = self.launch
        variables = {**os.environ, **launch.env}
        found = {v for name, v in variables.items() if is_secret(name) or name in launch.secrets}
        return sorted(found | {launch.api_key or ""}, key=len, reverse=True)

    # ---- the end -----------------------------------------------------------------------------

    async def _end(self, *, is_given_up: bool = False) -> None:
        """Stop what runs, reap it, record how it ended; a cancellation makes it quick."""
        if self.ended is not None:
            return
        was_alive, stop_ns = self.is_alive(), time.time_ns()
        try:
            if self._tree is not None:
                await self._tree.end()
        finally:
            if self._tree is not None:
                self._tree.close()
            self.ended = self._record(was_alive, stop_ns, is_given_up=is_given_up)
            self._remove_private_files()
            logs.scrub(self.log_path, self._secrets())

    def _record(self, was_alive: bool, stop_ns: int, *, is_given_up: bool) -> Ended:
        how = None if self._tree is None else self._tree.exit
        if how is not None and not was_alive:
            ending = Ending.DIED
        elif is_given_up:
            ending = Ending.NEVER_READY
        elif how is None or how.signal == _SIGKILL:
            ending = Ending.KILLED
        else:
            ending = Ending.STOPPED
        return Ended(
            ending=ending,
            exit_code=None if how is None else how.exit_code,
            signal=None if how is None else how.signal,
            leftovers=0 if self._tree is None else self._tree.leftovers,
            launch_ns=self._launch_ns,
            ready_ns=self._ready_ns,
            stop_ns=stop_ns if was_alive else None,
            ended_ns=stop_ns if how is None else how.at_ns,
        )

    def _remove_private_files(self) -> None:
        for name in self.launch.private_files:
            (self.run_dir / name).unlink(missing_ok=True)

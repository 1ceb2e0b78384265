"""One server process: assembled, logged, served until it is told to end."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import NoReturn

import uvicorn

from kvstudy.base.clock import StudyClock
from kvstudy.base.errors import EXIT_INVALID, ServerError
from kvstudy.emulator import launch_log
from kvstudy.emulator.app import Completions
from kvstudy.emulator.expected import Workload, read_workload
from kvstudy.emulator.faults import Faults
from kvstudy.emulator.observer import Observer
from kvstudy.emulator.pacer import Pacer
from kvstudy.emulator.routes import Front, Parts
from kvstudy.emulator.settings import Launch
from kvstudy.emulator.words import Vocabulary

_BACKLOG = 2048
_KEEP_ALIVE_S = 600
_ORPHAN_S = "600"


class _Server(uvicorn.Server):
    """uvicorn, but told to end it ends at once and with exit code 0."""

    def __init__(self, config: uvicorn.Config, *, ignore_sigterm: bool) -> None:
        super().__init__(config)
        self._ignores = {signal.SIGTERM} if ignore_sigterm else set()

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Both signals end the loop; nothing is raised again afterwards."""
        loop = asyncio.get_running_loop()
        for name in (signal.SIGINT, signal.SIGTERM):
            loop.add_signal_handler(name, self._end, name)
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept nobody any more; open streams are not waited for."""
        for server in self.servers:
            server.close()
        for listener in sockets or []:
            listener.close()

    def _end(self, name: signal.Signals) -> None:
        if name not in self._ignores:
            self.should_exit = True


def run(launch: Launch, faults: Faults) -> int:
    """Serve until SIGTERM or SIGINT, then end the process; returns a code only if not started."""
    if faults.exit_at_start is not None:
        _say("injected fault: exit at start")
        return faults.exit_at_start
    vocabulary = Vocabulary(launch.server.tokenizer_dir)
    if not vocabulary.joins_exactly():
        _say("[W] texts of this tokenizer do not re-encode to the tokens that were sent")
    path = launch.emulation.workload
    workload = Workload() if path is None else read_workload(path)
    listener = _listen(launch)
    launch = replace(launch, server=replace(launch.server, port=listener.getsockname()[1]))
    for line in launch_log.lines(launch):
        _say(line)
    if faults.orphan:
        orphan = subprocess.Popen(["sleep", _ORPHAN_S], start_new_session=True)
        _say(f"injected fault: orphan {orphan.pid}")
    asyncio.run(_serve(launch, faults, vocabulary, workload, listener))


def _listen(launch: Launch) -> socket.socket:
    server = launch.server
    family = socket.AF_INET6 if ":" in server.host else socket.AF_INET
    # With the protocol named, asyncio turns Nagle's algorithm off on what is accepted.
    listener = socket.socket(family, socket.SOCK_STREAM, socket.IPPROTO_TCP)
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind((server.host, server.port))
        listener.listen(_BACKLOG)
    except OSError as error:
        listener.close()
        raise ServerError(f"{server.host}:{server.port}: cannot listen ({error})") from error
    listener.setblocking(False)
    return listener


async def _serve(
    launch: Launch,
    faults: Faults,
    vocabulary: Vocabulary,
    workload: Workload,
    listener: socket.socket,
) -> NoReturn:
    clock = StudyClock(launch.emulation.time_scale)
    pacer = Pacer(launch, workload, clock)
    observer = Observer(launch, pacer.engine, clock)
    pacer.on_step.append(observer.see)
    completions = Completions(launch, pacer, vocabulary, workload, faults)
    front = Front(Parts(launch, pacer, observer, completions, faults))
    config = uvicorn.Config(
        front,
        http="httptools",
        ws="none",
        loop="asyncio",
        lifespan="off",
        log_level="error",
        access_log=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
        backlog=_BACKLOG,
    )
    server = _Server(config, ignore_sigterm=faults.ignore_sigterm)
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)
    engine = asyncio.create_task(pacer.run())
    engine.add_done_callback(lambda task: _died(task, server))
    _say(launch_log.ready_line(launch.server, launch.server.port))
    await server.serve(sockets=[listener])
    code = EXIT_INVALID if engine.done() else 0
    engine.cancel()
    # Streams that are still open end with the process: the real one does not wait for them either.
    sys.stderr.flush()
    os._exit(code)


def _died(task: asyncio.Task[None], server: uvicorn.Server) -> None:
    """A broken engine takes its server with it, as the real one does."""
    if not task.cancelled() and task.exception() is not None:
        _say(f"[E] the engine died: {task.exception()!r}")
        server.should_exit = True


def _say(line: str) -> None:
    print(line, file=sys.stderr, flush=True)  # noqa: T201  the server's log

"""Servers are started, checked, stopped and reaped, and how they ended is recorded.

Real processes: each test starts a small HTTP server below the guard. Waits are bounded by what
they wait for, so that a busy machine makes them slow, not wrong.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import httpx
import psutil
import pytest
import serve_fake

from kvstudy.serve.lifecycle import Server, serve
from kvstudy.serve.model import Ending, Expectations, Launch, Routes, UnfitServerError
from kvstudy.serve.processes import free_port

PYTHON = sys.executable
READY_S = 60.0


def fake(port: int | None = None, **options: str) -> Launch:
    port = port or free_port()
    return Launch(
        adapter="fake",
        executable=(PYTHON, "-I", "-S", serve_fake.__file__),
        model_words=(str(port),),
        flags=tuple(f"{name}={value}" for name, value in options.items()),
        env={},
        files={},
        expectations=Expectations("1.0.0", None, None, "tiny"),
        routes=Routes(),
        model="tiny",
        port=port,
    )


def server_of(launch: Launch, folder: Path, **limits: float) -> Server:
    return serve(
        launch,
        folder,
        ready_timeout_s=limits.get("ready", READY_S),
        stop_grace_s=limits.get("grace", 20.0),
    )


def life(server: Server, during: Callable[[Server], object] = lambda _: None) -> Server:
    async def run() -> None:
        async with server:
            during(server)

    asyncio.run(run())
    return server


def is_gone(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def all_gone(pids: list[int], within_s: float = 30.0) -> bool:
    deadline = time.monotonic() + within_s
    while not all(map(is_gone, pids)):
        if time.monotonic() > deadline:
            return False
        time.sleep(0.02)
    return True


def tree_of(server: Server, folder: Path) -> list[int]:
    """The guard, the server and everything it started."""
    root = psutil.Process(server.pid)
    known = [server.pid, *(child.pid for child in root.children(recursive=True))]
    extra = json.loads((folder / "pids").read_text()) if (folder / "pids").exists() else []
    return [*known, *extra]


def test_a_server_is_ready_after_a_real_answer_and_stops_when_asked(tmp_path: Path) -> None:
    seen: dict[str, object] = {}

    def during(server: Server) -> None:
        seen["alive"] = server.is_alive()
        seen["models"] = httpx.get(f"{server.url}/v1/models", trust_env=False).json()
        seen["listening"] = server.listening

    started = time.time_ns()
    server = life(server_of(fake(not_yet="2"), tmp_path), during)
    ended = server.ended

    assert seen["alive"] is True
    assert seen["models"] == {"data": [{"id": "tiny"}]}
    assert seen["listening"] == {server.launch.port: {"127.0.0.1"}}
    assert server.exposed == []
    assert server.version == "1.0.0"
    assert ended is not None
    assert (ended.ending, ended.exit_code, ended.signal) == (Ending.STOPPED, None, signal.SIGTERM)
    assert ended.ready_ns is not None
    assert ended.stop_ns is not None
    times = [started, ended.launch_ns, ended.ready_ns, ended.stop_ns, ended.ended_ns]
    assert times == sorted(times)
    assert not server.is_alive()
    assert all_gone([server.pid])


def test_the_log_is_kept_and_for_its_owner_only(tmp_path: Path) -> None:
    server = life(server_of(fake(say="first|second"), tmp_path))

    assert server.log_path.read_text().splitlines()[:2] == ["first", "second"]
    assert stat.S_IMODE(server.log_path.stat().st_mode) == 0o600


def test_files_are_written_for_their_owner_with_the_folder_filled_in(tmp_path: Path) -> None:
    folder = tmp_path / "run dir"
    launch = replace(fake(say="at {dir}"), files={"extra.yaml": "here: {dir}\n"})

    server = life(server_of(launch, folder))

    assert (folder / "extra.yaml").read_text() == f"here: {folder}\n"
    assert stat.S_IMODE((folder / "extra.yaml").stat().st_mode) == 0o600
    assert server.log_path.read_text().splitlines()[0] == f"at {folder}"


def test_never_ready_is_given_up_in_time(tmp_path: Path) -> None:
    server = server_of(fake(never_ready="1", say="loading weights"), tmp_path, ready=1.0)

    with pytest.raises(UnfitServerError, match="not ready within 1 s") as caught:
        life(server)

    assert caught.value.reason == "server_not_ready"
    assert "loading weights" in str(caught.value)
    assert server.ended is not None
    assert server.ended.ending is Ending.NEVER_READY
    assert server.ended.ready_ns is None


def test_health_without_a_token_is_not_ready(tmp_path: Path) -> None:
    server = server_of(fake(not_yet="100000"), tmp_path, ready=1.0)

    with pytest.raises(UnfitServerError, match="gave no token: HTTP 503"):
        life(server)


def test_death_at_start_shows_the_logs_end_and_a_cause(tmp_path: Path) -> None:
    lines = "starting|ValueError: Extra inputs are not permitted|bye"
    server = server_of(fake(exit="3", say=lines), tmp_path)

    with pytest.raises(UnfitServerError, match="ended with exit code 3") as caught:
        life(server)

    assert caught.value.reason == "server_died"
    assert "does not know an option" in str(caught.value)
    assert str(caught.value).endswith("  bye")
    assert server.ended is not None
    assert (server.ended.ending, server.ended.exit_code) == (Ending.DIED, 3)


def test_an_executable_that_is_not_there_is_named(tmp_path: Path) -> None:
    launch = replace(fake(), executable=("/no/such/engine",))

    with pytest.raises(UnfitServerError, match="cannot start /no/such/engine") as caught:
        life(server_of(launch, tmp_path))

    assert "cannot be started" in str(caught.value)


def test_death_during_the_load_is_seen_and_recorded(tmp_path: Path) -> None:
    async def run(server: Server) -> UnfitServerError:
        async with server:
            async with httpx.AsyncClient(base_url=server.url, trust_env=False) as client:
                with pytest.raises(httpx.HTTPError):
                    await client.post("/v1/completions", json={})
            await asyncio.wait_for(server.died(every_s=0.02), 30)
            return server.death()

    server = server_of(fake(die_at="2", say="serving"), tmp_path)
    death = asyncio.run(run(server))

    assert death.reason == "server_died"
    assert "ended by signal 9" in str(death)
    assert server.ended is not None
    assert (server.ended.ending, server.ended.signal) == (Ending.DIED, signal.SIGKILL)
    assert server.ended.ready_ns is not None
    assert server.ended.stop_ns is None


def test_a_server_that_ignores_sigterm_is_killed(tmp_path: Path) -> None:
    server = life(server_of(fake(ignore_term="1"), tmp_path, grace=0.3))

    assert server.ended is not None
    assert (server.ended.ending, server.ended.signal) == (Ending.KILLED, signal.SIGKILL)


def test_detached_grandchildren_do_not_survive(tmp_path: Path) -> None:
    """A child, a child in its own session, and a double-forked one, all deaf to SIGTERM."""
    pids: list[int] = []

    server = server_of(fake(children="1"), tmp_path)
    life(server, lambda s: pids.extend(tree_of(s, tmp_path)))

    assert len(set(pids)) >= 5
    assert all_gone(pids, within_s=0.5)
    assert server.ended is not None
    assert server.ended.ending is Ending.STOPPED
    assert server.ended.leftovers == 3


def test_grandchildren_of_a_server_that_died_do_not_survive(tmp_path: Path) -> None:
    server = server_of(fake(children="1", die_at="1"), tmp_path)

    with pytest.raises(UnfitServerError):
        life(server)

    assert all_gone(json.loads((tmp_path / "pids").read_text()), within_s=0.5)


def test_nothing_survives_a_killed_guard(tmp_path: Path) -> None:
    pids: list[int] = []

    def during(server: Server) -> None:
        pids.extend(tree_of(server, tmp_path))
        os.kill(server.pid, signal.SIGKILL)

    server = life(server_of(fake(children="1", ignore_term="1"), tmp_path), during)

    assert all_gone(pids)
    assert server.ended is not None
    assert server.ended.ending is not Ending.STOPPED


PARENT = """
import asyncio, json, sys
from pathlib import Path
sys.path.insert(0, {tests!r})
from test_serve_lifecycle import fake, server_of, tree_of

async def main():
    folder = Path({folder!r})
    server = server_of(fake(children="1", ignore_term="1"), folder, grace=0.3)
    async with server:
        print(json.dumps(tree_of(server, folder)), flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_nothing_survives_its_parent(tmp_path: Path, how: signal.Signals) -> None:
    """Whatever ends kvstudy, the server, its children and the guard are gone soon after."""
    script = PARENT.format(tests=str(Path(__file__).parent), folder=str(tmp_path))
    with subprocess.Popen(
        [PYTHON, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout is not None
        pids = json.loads(parent.stdout.readline())
        parent.send_signal(how)
        parent.wait(60)

    assert len(pids) >= 5
    assert all_gone(pids)


def test_a_cancelled_stop_kills_at_once(tmp_path: Path) -> None:
    """Ctrl-C asks; a second one does not wait for the grace period."""
    server = server_of(fake(ignore_term="1"), tmp_path, grace=300.0)

    async def run() -> None:
        ready = asyncio.Event()

        async def body() -> None:
            async with server:
                ready.set()
                await asyncio.sleep(600)

        task = asyncio.create_task(body())
        await ready.wait()
        task.cancel()
        await asyncio.sleep(0.3)
        assert not task.done()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task

    asyncio.run(asyncio.wait_for(run(), 60))

    assert server.ended is not None
    assert server.ended.ending is Ending.KILLED
    assert all_gone([server.pid], within_s=0.5)


def test_a_wrong_version_is_refused(tmp_path: Path) -> None:
    server = server_of(fake(version="1.0.1"), tmp_path)

    with pytest.raises(UnfitServerError, match=r"version 1\.0\.1.*pins 1\.0\.0") as caught:
        life(server)

    assert caught.value.reason == "server_version"
    assert server.ended is not None
    assert server.ended.ending is Ending.NEVER_READY


def test_a_wrong_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(UnfitServerError, match="serves other, expected tiny") as caught:
        life(server_of(fake(model="other"), tmp_path))

    assert caught.value.reason == "server_model"


@pytest.fixture
def taken() -> object:
    """A port that another process listens on."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        listener.listen(8)
        yield listener.getsockname()[1]


def test_a_taken_port_is_an_error_without_another_one(tmp_path: Path, taken: int) -> None:
    server = server_of(fake(taken), tmp_path)

    with pytest.raises(UnfitServerError, match=f"port {taken} is taken") as caught:
        life(server)

    assert caught.value.is_port_taken
    assert server.ended is not None
    assert server.ended.ending is Ending.NEVER_READY


def test_a_taken_port_is_exchanged_for_a_free_one(tmp_path: Path, taken: int) -> None:
    server = serve(fake(taken), tmp_path, ready_timeout_s=READY_S, relaunch=fake)

    life(server, lambda s: s.is_alive() or pytest.fail("not alive"))

    assert server.launch.port != taken
    assert server.ended is not None
    assert server.ended.ending is Ending.STOPPED


def test_a_port_stolen_while_the_server_starts_is_exchanged_too(tmp_path: Path) -> None:
    """The server itself finds the port taken: its log says so, and the start is repeated."""
    ports: list[int] = []

    def relaunch(port: int) -> Launch:
        ports.append(port)
        return fake(port)

    late = fake(exit="1", say="OSError: [Errno 98] Address already in use")
    server = life(serve(late, tmp_path, ready_timeout_s=READY_S, relaunch=relaunch))

    assert ports == [server.launch.port]
    assert server.ended is not None
    assert server.ended.ending is Ending.STOPPED


def test_a_foreign_server_on_the_port_is_not_ours(tmp_path: Path) -> None:
    """Ours never listens, a thief answers in its place: it is not measured."""
    port = free_port()
    stranger = [PYTHON, "-I", "-S", serve_fake.__file__, str(port)]
    ours = replace(
        fake(port), executable=(PYTHON, "-I", "-S", "-c", "import time; time.sleep(600)")
    )
    thief: list[subprocess.Popen[bytes]] = []

    async def run() -> None:
        async def steal() -> None:
            await asyncio.sleep(0.3)
            thief.append(subprocess.Popen(stranger))

        stealing = asyncio.create_task(steal())
        try:
            async with server_of(ours, tmp_path):
                pass
        finally:
            await stealing

    try:
        with pytest.raises(UnfitServerError, match="not this server's") as caught:
            asyncio.run(run())
        assert caught.value.is_port_taken
    finally:
        for process in thief:
            process.kill()
            process.wait()


def test_the_key_opens_the_server_and_stands_in_no_file(tmp_path: Path) -> None:
    secret = "k-0123456789abcdef"
    launch = replace(
        fake(key="ENGINE_API_KEY", say="the key"),
        env={"ENGINE_API_KEY": secret},
        secrets=("ENGINE_API_KEY",),
        api_key=secret,
        files={"private.yaml": f"api-key: {secret}\n", "public.yaml": "x: 1\n"},
        private_files=("private.yaml",),
    )
    seen: list[bool] = []

    server = life(
        server_of(launch, tmp_path), lambda _: seen.append((tmp_path / "private.yaml").exists())
    )

    assert seen == [False]
    assert secret not in repr(server.launch.api_key is None)
    kept = [path.read_text() for path in tmp_path.iterdir()]
    assert kept
    assert not any(secret in text for text in kept)


def test_secrets_that_a_server_prints_are_masked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_planted0123456789")
    noisy = fake(say="token hf_planted0123456789 seen", exit="2")
    server = server_of(noisy, tmp_path)

    with pytest.raises(UnfitServerError) as caught:
        life(server)

    assert "hf_planted" not in str(caught.value)
    assert "token *** seen" in server.log_path.read_text()
    assert stat.S_IMODE(server.log_path.stat().st_mode) == 0o600


def test_an_error_in_the_body_stops_the_server_and_passes_on(tmp_path: Path) -> None:
    server = server_of(fake(), tmp_path)

    def fail(_: Server) -> None:
        raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        life(server, fail)

    assert server.ended is not None
    assert server.ended.ending is Ending.STOPPED

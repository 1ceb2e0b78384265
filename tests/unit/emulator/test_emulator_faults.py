"""Faults on demand, each seen from outside."""

from __future__ import annotations

import asyncio
import contextlib
import http.client
import json
import os
import re
import signal
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml
from emulator_harness import Connection, Server, request_bytes, serving


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": [30, 40, 50], "max_tokens": 6} | more


@contextmanager
def faulty(
    model_folder: Path, folder: Path, *, wait: bool = True, **faults: Any
) -> Iterator[Server]:
    extra = folder / "extra.yaml"
    extra.write_text(yaml.safe_dump({"enable_iter_perf_stats": True}))
    arguments = ("--config", str(extra), "--time-scale", "200", "--faults", json.dumps(faults))
    with serving(model_folder, folder, *arguments, wait=wait) as server:
        yield server


def raw_stream(server: Server) -> bytes:
    """Everything a stream brings before its connection ends or falls silent for 1.5 s."""
    with socket.create_connection(("127.0.0.1", server.port), timeout=1.5) as connection:
        connection.sendall(request_bytes(server.port, ask(stream=True)))
        got = b""
        with contextlib.suppress(TimeoutError, ConnectionError):
            while part := connection.recv(65536):
                got += part
                if b"0\r\n\r\n" in part:
                    break
        return got


def test_it_can_end_at_its_start_or_never_be_ready(tiny_model: Path, tmp_path: Path) -> None:
    """Exit code as asked; health 503 and completions refused for ever."""
    with faulty(tiny_model, tmp_path, wait=False, exit_at_start=3) as server:
        assert server.process.wait(timeout=20) == 3
    with faulty(tiny_model, tmp_path, wait=False, never_ready=True) as server:
        _wait_for_port(server)
        assert server.get("/health")[0] == server.post(ask())[0] == 503


def _wait_for_port(server: Server) -> None:
    until = time.monotonic() + 20
    while time.monotonic() < until:
        with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", server.port)):
            return
        time.sleep(0.02)


@pytest.mark.parametrize("fault", ["die_at_request", "die_after_requests"])
def test_it_can_die(tiny_model: Path, tmp_path: Path, fault: str) -> None:
    """The first is served; the second request kills it, or the end of the first."""
    with faulty(tiny_model, tmp_path, **{fault: 2}) as server:
        assert server.post(ask())[0] == 200
        with contextlib.suppress(OSError, http.client.HTTPException):
            server.post(ask())
        assert server.process.wait(timeout=10) == -signal.SIGKILL


@pytest.mark.parametrize("status", [500, 429, 503])
def test_one_request_can_be_refused(tiny_model: Path, tmp_path: Path, status: int) -> None:
    """Only the second."""
    with faulty(tiny_model, tmp_path, http_error_at_request=2, http_status=status) as server:
        assert [server.post(ask())[0] for _ in range(3)] == [200, status, 200]


def test_streams_can_hang_break_off_or_carry_garbage(tiny_model: Path, tmp_path: Path) -> None:
    """None of them looks like a success to a client that reads [DONE] and JSON."""
    with faulty(tiny_model, tmp_path, hang_at_request=1, hang_after_chunks=2) as server:
        got = raw_stream(server)
        assert got.count(b"data: ") == 2 and b"[DONE]" not in got
        assert b"[DONE]" in raw_stream(server)
    with faulty(tiny_model, tmp_path, no_done_at_request=1) as server:
        got = raw_stream(server)
        assert got.count(b"data: {") == 6 and b"[DONE]" not in got and b"0\r\n\r\n" not in got
    with faulty(tiny_model, tmp_path, garbage_at_request=1) as server:
        assert b"not JSON" in raw_stream(server)


def test_an_answer_can_end_early(tiny_model: Path, tmp_path: Path) -> None:
    """Two tokens fewer, as "stop"."""

    async def one(port: int) -> Any:
        connection = Connection(port)
        reply = await connection.stream(ask(stream=True))
        connection.close()
        return reply

    with faulty(tiny_model, tmp_path, short_at_request=1, short_by=2) as server:
        reply = asyncio.run(one(server.port))
        assert reply.chunks == 4
        assert reply.frames[-1]["choices"][0]["finish_reason"] == "stop"


def test_it_can_report_what_was_not_asked_for(tiny_model: Path, tmp_path: Path) -> None:
    """Model, version, policy and pool."""
    faults = {"model": "x", "version": "9.9", "policy": "MAX_UTILIZATION", "pool_tokens": 640}
    with faulty(tiny_model, tmp_path, **faults) as server:
        assert server.get_json("/v1/models")["data"][0]["id"] == "x"
        assert server.get_json("/version") == {"version": "9.9"}
        assert json.loads(server.post(ask())[1])["model"] == "x"
        assert "MAX_UTILIZATION: 'MAX_UTILIZATION'" in server.log
        assert server.log.rindex("KV cache (640).") > 0


def test_it_can_ignore_sigterm_and_leave_a_child(tiny_model: Path, tmp_path: Path) -> None:
    """Only SIGKILL ends it, and its child lives on."""
    with faulty(tiny_model, tmp_path, ignore_sigterm=True, orphan=True) as server:
        server.process.send_signal(signal.SIGTERM)
        time.sleep(0.3)
        assert server.process.poll() is None and server.get("/health")[0] == 200
        found = re.search(r"orphan (\d+)", server.log)
        assert found is not None
        orphan = int(found.group(1))
    try:
        os.kill(orphan, 0)
    finally:
        os.kill(orphan, signal.SIGKILL)


@pytest.mark.parametrize(
    ("fault", "starts"),
    [("missing", None), ("empty", b"[]"), ("non_json", b"<html>"), ("huge", b'[{"iter"')],
)
def test_metrics_can_be_useless(
    tiny_model: Path, tmp_path: Path, fault: str, starts: bytes | None
) -> None:
    """Absent, empty, not JSON, hundreds of megabytes."""
    with faulty(tiny_model, tmp_path, metrics=fault) as server:
        server.post(ask())
        status, body = server.get("/metrics")
        assert (status == 404) if starts is None else body.startswith(starts)
        assert fault != "huge" or len(body) > 100_000_000


def test_metrics_can_lie_or_be_slow(tiny_model: Path, tmp_path: Path) -> None:
    """Impossible numbers; or no answer within a second."""
    with faulty(tiny_model, tmp_path, metrics="lying") as server:
        server.post(ask())
        record = server.get_json("/metrics")[0]
        assert record["inflightBatchingStats"]["numPausedRequests"] < 0
    with faulty(tiny_model, tmp_path, metrics="slow") as server:
        connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=0.5)
        connection.request("GET", "/metrics")
        with pytest.raises(TimeoutError):
            connection.getresponse()
        connection.close()

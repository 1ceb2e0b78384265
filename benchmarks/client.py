"""Our client against a server of known send times: rate, CPU, timestamp error, memory.

    python benchmarks/client.py

Server and client run pinned to a core each; under paced loads, where little CPU is used, both at
real-time priority if they may, so that other work on the machine is not what is measured.
`raw reader` reads sockets and counts: what the server can emit to a reader that keeps up, the
ceiling of the column. A reader that falls behind gets many chunks a read and spares the server the
waking of it, so that its rate may be higher; its stamps then say how late it was. The
transports under the httpx API that were not chosen run beside ours; they only count events, ours
makes rows. Under a minute; prints one table.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import resource
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import httpx_aiohttp
import numpy as np

from kvstudy.base.clock import StudyClock
from kvstudy.client.model import Limits, Load, Planned, Target
from kvstudy.client.phase import run_phase

_SERVER = Path(__file__).with_name("scripted_server.py")


@dataclass(frozen=True)
class Case:
    """One load: streams at once, requests in all, chunks of each, pace."""

    name: str
    streams: int
    requests: int
    chunks: int
    interval_ms: float = 0.0
    prompt_tokens: int = 8
    runs: int = 1  # the fastest counts: other work on the machine only ever takes away


CASES = (
    Case("flat out", 32, 256, 256, runs=3),
    Case("575/s", 32, 32, 60, interval_ms=55.6),
    Case("5,750/s", 32, 32, 600, interval_ms=5.56),
    Case("1,024 streams", 1024, 1024, 40, interval_ms=100),
    Case("W-B", 32, 512, 256, prompt_tokens=2048),
)
ALL = ("raw reader", "kvstudy", "httpx + h11", "httpx + aiohttp")
RUNS = {
    "flat out": ALL,
    "575/s": ALL,
    "5,750/s": ("raw reader", "kvstudy"),
    "1,024 streams": ("raw reader", "kvstudy"),
    "W-B": ("kvstudy",),
}


def raw_reader(url: str, case: Case) -> dict[int, list[int]]:
    """Read with bare sockets: no HTTP, no events; a stamp for each read that ends a chunk."""
    host, port = url.removeprefix("http://").split(":")
    select = selectors.DefaultSelector()
    stamps: dict[int, list[int]] = {}
    waiting = list(range(case.requests))

    def send(sock: socket.socket) -> None:
        key = waiting.pop(0)
        body = b'{"prompt":[%d],"max_tokens":%d}' % (key, case.chunks)
        stamps[key] = []
        sock.sendall(b"POST / HTTP/1.1\r\ncontent-length: %d\r\n\r\n%s" % (len(body), body))
        select.modify(sock, selectors.EVENT_READ, stamps[key])

    for _ in range(case.streams):
        sock = socket.create_connection((host, int(port)))
        sock.setblocking(False)
        select.register(sock, selectors.EVENT_READ)
        send(sock)
    busy = case.streams
    while busy:
        for key, _ in select.select():
            data = key.fileobj.recv(1 << 16)
            now = time.monotonic_ns()
            key.data.extend([now] * data.count(b'"text"'))
            if data.endswith(b"0\r\n\r\n"):
                if waiting:
                    send(key.fileobj)
                else:
                    busy -= 1
    for key in tuple(select.get_map().values()):
        key.fileobj.close()
    return stamps


async def kvstudy(url: str, case: Case) -> dict[int, list[int]]:
    """Our client, whole: rows and texts included in the CPU time."""
    planned = [
        Planned(str(key), [key] * case.prompt_tokens, case.prompt_tokens, case.chunks, case.chunks)
        for key in range(case.requests)
    ]
    target = Target(url, "scripted")
    result = await run_phase(target, planned, Load(case.streams), Limits(), StudyClock(1.0, 0))
    assert all(row["outcome"] == "ok" for row in result.rows)
    _EXTRA["receiving_cpu_s"] = result.audit.cpu_share * result.audit.wall_s
    return {int(row["request_id"]): row["chunk_ns"] for row in result.rows}


async def _httpx(url: str, case: Case, transport: httpx.AsyncBaseTransport) -> dict[int, list[int]]:
    """The same lanes over a transport that hands reads on; events are counted, not read."""
    stamps: dict[int, list[int]] = {}
    queue = iter(range(case.requests))
    async with httpx.AsyncClient(transport=transport, timeout=None, trust_env=False) as client:  # noqa: S113

        async def lane() -> None:
            for key in queue:
                body = b'{"prompt":[%d],"max_tokens":%d}' % (key, case.chunks)
                reads = []
                async with client.stream("POST", url, content=body) as response:
                    async for data in response.aiter_raw():
                        reads.append((time.monotonic_ns(), data))
                stamps[key] = [at for at, data in reads for _ in range(data.count(b'"text"'))]

        await asyncio.gather(*(lane() for _ in range(case.streams)))
    return stamps


async def over_h11(url: str, case: Case) -> dict[int, list[int]]:
    """Plain httpx."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=None)
    return await _httpx(url, case, httpx.AsyncHTTPTransport(limits=limits))


async def over_aiohttp(url: str, case: Case) -> dict[int, list[int]]:
    """Httpx over httpx-aiohttp."""
    limits = httpx.Limits(max_connections=case.streams)
    return await _httpx(url, case, httpx_aiohttp.AiohttpTransport(limits=limits))


_EXTRA: dict[str, float] = {}
_ASYNC: dict[str, Callable[[str, Case], Awaitable[dict[int, list[int]]]]] = {
    "kvstudy": kvstudy,
    "httpx + h11": over_h11,
    "httpx + aiohttp": over_aiohttp,
}


def child(client: str, case: Case, url: str) -> None:
    """Run one client in this process and print what it cost."""
    cpu, wall = time.process_time(), time.monotonic()
    if client == "raw reader":
        stamps = raw_reader(url, case)
    else:
        stamps = asyncio.run(_ASYNC[client](url, case))
    facts = {
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.monotonic() - wall,
        "rss_mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        **_EXTRA,
    }
    print(json.dumps({"facts": facts, "stamps": stamps}))


@contextmanager
def server(case: Case, times: Path) -> Iterator[str]:
    """The scripted server on its core."""
    cores = sorted(os.sched_getaffinity(0))
    argv = [sys.executable, str(_SERVER), "--times", str(times)]
    argv += ["--interval-ms", str(case.interval_ms)]
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True) as process:
        _place(process.pid, cores[0], case)
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)


def _place(pid: int, core: int, case: Case) -> None:
    os.sched_setaffinity(pid, {core})
    if case.interval_ms:
        with suppress(PermissionError):
            os.sched_setscheduler(pid, os.SCHED_RR, os.sched_param(10))


def measure(client: str, case: Case) -> dict[str, Any]:
    """One client, one load, fresh processes: a line of the table."""
    cores = sorted(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as folder:
        times = Path(folder) / "times.json"
        with server(case, times) as url:
            argv = [sys.executable, __file__, "--child", client, "--case", case.name, "--url", url]
            done = subprocess.run(
                argv,
                stdout=subprocess.PIPE,
                check=True,
                timeout=120,
                preexec_fn=lambda: _place(0, cores[-1], case),
            )
        truth = json.loads(times.read_text(encoding="utf-8"))
    answer = json.loads(done.stdout)
    seen = {int(key): value for key, value in answer["stamps"].items()}
    errors, lost = [], 0
    for one in truth["requests"]:
        sent, received = one["sent_ns"][: case.chunks], seen[one["key"]]
        lost += len(sent) - len(received)
        errors += [b - a for a, b in zip(sent, received, strict=False)]
    chunks = sum(len(value) for value in seen.values())
    first = min(one["sent_ns"][0] for one in truth["requests"])
    last = max(value[-1] for value in seen.values())
    return {
        "chunks_per_s": chunks / (last - first) * 1e9,
        "cpu_ms_per_1000": answer["facts"]["cpu_s"] / chunks * 1e6,
        "receiving_ms": answer["facts"].get("receiving_cpu_s", 0) / chunks * 1e6,
        "p50_ms": float(np.percentile(errors, 50)) / 1e6,
        "p99_ms": float(np.percentile(errors, 99)) / 1e6,
        "lost": lost,
        "in_flight": truth["in_flight_max"],
        "rss_mb": answer["facts"]["rss_mb"],
    }


def main() -> None:
    """Run all, or one child."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--child", choices=ALL)
    parser.add_argument("--case")
    parser.add_argument("--url")
    args = parser.parse_args()
    if args.child:
        child(args.child, next(one for one in CASES if one.name == args.case), args.url)
        return
    print(
        "| load | client | chunks/s | CPU ms per 1,000 chunks | of it receiving |"
        " stamp - send p50 ms | p99 ms | lost | in flight | peak RSS MB |"
    )
    print("|---" * 10 + "|")
    for case in CASES:
        for client in RUNS[case.name]:
            runs = [measure(client, case) for _ in range(case.runs)]
            one = max(runs, key=lambda run: run["chunks_per_s"])
            cpu = one["cpu_ms_per_1000"]
            print(
                f"| {case.name} | {client} | {one['chunks_per_s']:,.0f} |"
                f" {cpu:.1f} | {one['receiving_ms'] or cpu:.1f} |"
                f" {one['p50_ms']:.3f} | {one['p99_ms']:.3f} |"
                f" {one['lost']} | {one['in_flight']} | {one['rss_mb']:.0f} |",
                flush=True,
            )


if __name__ == "__main__":
    main()

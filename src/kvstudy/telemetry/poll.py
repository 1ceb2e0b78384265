"""The one reader of a server's telemetry: an asynchronous loop that writes down what it gets.

    async with Poller(target, clock, raw_path, interval_ms=1000, in_flight=in_flight) as poller:
        ...                    # the load
        collected = await poller.stop()

While a load runs, answers are only written to the raw file: parsing waits until `stop`. The loop
ends by itself where reading cannot help (no such route, key refused, statistics not enabled):
on TensorRT-LLM an empty read may hold the engine for up to two seconds.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import httpx

from kvstudy.base.clock import StudyClock
from kvstudy.base.units import NS_PER_S
from kvstudy.telemetry.collect import (
    PERF_METRICS,
    Collected,
    Why,
    collect,
    is_empty,
    not_measured,
)
from kvstudy.telemetry.raw import Header, RawFile, Read
from kvstudy.telemetry.trtllm import BUFFER_RECORDS, WallAnchor

SCALED_INTERVAL_MS = 200
READ_TIMEOUT_S = 10.0
MOST_BYTES = 16 << 20
DRAIN_S = 15.0
EMPTY_TO_END = 2
EMPTY_TO_GIVE_UP = 3
_GIVE_UP_AFTER_STUDY_NS = 5 * NS_PER_S
_SHORTEST_PAUSE_S = 0.02
_PERF_EVERY_READS = 20
_HOPELESS = frozenset({401, 403, 404, 405})
_OK = 200
_RECORD = b'"iter"'

GetBody = Callable[[str], Awaitable[tuple[int, bytes]]]


@dataclass(frozen=True, slots=True)
class Target:
    """Which endpoint of which engine; `kind` is iterations, prometheus or none."""

    url: str
    path: str | None
    kind: str
    adapter: str
    version: str
    headers: dict[str, str]
    block_tokens: int | None = None
    perf_metrics_path: str | None = None

    @property
    def is_off(self) -> bool:
        """Whether there is nothing to read."""
        return self.path is None or self.kind == "none"


def interval_ms(configured_ms: int, time_scale: float) -> int:
    """The wall interval: as configured, but short when study time runs faster than wall time."""
    return configured_ms if time_scale <= 1 else min(configured_ms, SCALED_INTERVAL_MS)


class Poller:
    """One loop over one endpoint; see the module's docstring."""

    def __init__(
        self,
        target: Target,
        clock: StudyClock,
        raw_path: Path,
        *,
        interval_ms: int,
        in_flight: Callable[[], int] | None = None,
        get: GetBody | None = None,
    ) -> None:
        self._target = target
        self._clock = clock
        self._raw_path = raw_path
        self._interval_ms = interval_ms
        self._in_flight = in_flight or (lambda: 0)
        self._given_get = get
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._raw: RawFile | None = None
        self._write_error: str | None = None
        self._has_records = False
        self._reads = self._empty_in_flight = 0
        self._first_empty_ns: int | None = None

    @property
    def is_reading(self) -> bool:
        """Whether the loop still reads."""
        return self._task is not None and not self._task.done()

    async def __aenter__(self) -> Self:
        if not self._target.is_off:
            self._task = asyncio.create_task(self._run(), name="telemetry")
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._task is not None and not self._task.done():
            self._task.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._task

    async def stop(self) -> Collected:
        """Read what is left, end the loop, and parse."""
        self._stopping.set()
        target = self._target
        if self._task is None:
            return not_measured(
                Why.OFF, "telemetry is off", adapter=target.adapter, version=target.version
            )
        await self._task
        if self._write_error is not None:
            return not_measured(
                Why.NOT_WRITTEN,
                self._write_error,
                adapter=target.adapter,
                version=target.version,
            )
        return await asyncio.to_thread(collect, self._raw_path)

    async def _run(self) -> None:
        try:
            self._raw = RawFile(self._raw_path, self._header())
        except OSError as error:
            self._write_error = f"{self._raw_path}: cannot be written ({error.strerror})"
            return
        try:
            async with self._client() as client:
                get = self._given_get or _getter(client)
                await self._until_stopped(get)
                await self._drain(get)
        except OSError as error:
            self._write_error = f"{self._raw_path}: cannot be written ({error.strerror})"
        finally:
            self._raw.close()

    def _header(self) -> Header:
        anchor = WallAnchor.now()
        return Header(
            kind=self._target.kind,
            adapter=self._target.adapter,
            version=self._target.version,
            interval_ms=self._interval_ms,
            scale=self._clock.scale,
            origin_ns=self._clock.origin_wall_ns,
            anchor_unix_ns=anchor.unix_ns,
            anchor_monotonic_ns=anchor.monotonic_ns,
            block_tokens=self._target.block_tokens,
        )

    def _client(self) -> httpx.AsyncClient:
        return httpx.AsyncClient(
            base_url=self._target.url,
            headers=self._target.headers,
            timeout=READ_TIMEOUT_S,
            follow_redirects=True,
            trust_env=False,
            limits=httpx.Limits(max_connections=1, max_keepalive_connections=0),
        )

    async def _until_stopped(self, get: GetBody) -> None:
        while not self._stopping.is_set():
            began = time.monotonic()
            read = await self._read(get, self._target.path or "")
            if read.status in _HOPELESS or self._is_not_enabled(read):
                return
            if self._target.perf_metrics_path and self._reads % _PERF_EVERY_READS == 0:
                await self._read(get, self._target.perf_metrics_path)
            pause_s = self._pause_s(read) - (time.monotonic() - began)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._stopping.wait(), max(pause_s, _SHORTEST_PAUSE_S))

    def _pause_s(self, read: Read) -> float:
        """The interval; a quarter of it once half the engine's buffer was full."""
        is_filling = read.body.count(_RECORD) > BUFFER_RECORDS // 2
        return self._interval_ms / (4000 if is_filling else 1000)

    def _is_not_enabled(self, read: Read) -> bool:
        """Whether the engine, with requests in flight, has never shown a record in a long time."""
        if self._target.kind != "iterations" or read.status != _OK:
            return False
        self._has_records = self._has_records or not is_empty(read.body)
        if self._has_records or self._in_flight() == 0:
            self._empty_in_flight, self._first_empty_ns = 0, None
            return False
        self._empty_in_flight += 1
        if self._first_empty_ns is None:
            self._first_empty_ns = read.received_ns
        waited_ns = (read.received_ns - self._first_empty_ns) * max(self._clock.scale, 1.0)
        return self._empty_in_flight >= EMPTY_TO_GIVE_UP and waited_ns >= _GIVE_UP_AFTER_STUDY_NS

    async def _drain(self, get: GetBody) -> None:
        """Read until two answers in a row bring nothing more; a page needs one last look."""
        deadline = time.monotonic() + DRAIN_S
        nothing = 0
        while self._stopping.is_set() and nothing < EMPTY_TO_END and time.monotonic() < deadline:
            read = await self._read(get, self._target.path or "")
            if self._target.kind != "iterations" or read.status != _OK:
                break
            nothing = 0 if _RECORD in read.body else nothing + 1
            await asyncio.sleep(_SHORTEST_PAUSE_S)
        if self._target.perf_metrics_path and self._stopping.is_set():
            await self._read(get, self._target.perf_metrics_path)

    async def _read(self, get: GetBody, path: str) -> Read:
        sent_ns = time.monotonic_ns()
        status, body, error = None, b"", None
        try:
            status, body = await get(path)
        except (httpx.HTTPError, httpx.InvalidURL, TimeoutError, _TooLargeError) as failure:
            error = f"{type(failure).__name__}: {failure}"
        label = PERF_METRICS if path == self._target.perf_metrics_path else path
        read = Read(label, sent_ns, time.monotonic_ns(), status, body, error)
        self._reads += 1
        if self._raw is not None:
            self._raw.append(read)
        return read


class _TooLargeError(Exception):
    """An answer above the limit; what came of it is dropped."""


def _getter(client: httpx.AsyncClient) -> GetBody:
    async def get(path: str) -> tuple[int, bytes]:
        async with asyncio.timeout(READ_TIMEOUT_S), client.stream("GET", path) as response:
            parts, size = [], 0
            async for part in response.aiter_bytes():
                size += len(part)
                if size > MOST_BYTES:
                    raise _TooLargeError(f"more than {MOST_BYTES >> 20} MiB")
                parts.append(part)
            return response.status_code, b"".join(parts)

    return get

"""The routes beside completions, per dialect, and who may use them."""

from __future__ import annotations

import asyncio
import hmac
import json
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response
from starlette.routing import Route

from kvstudy.emulator.app import Asgi, Completions, Receive, Scope, Send
from kvstudy.emulator.completion import RefusedError
from kvstudy.emulator.faults import HUGE_RECORDS, SLOW_S, Faults
from kvstudy.emulator.observer import Observer
from kvstudy.emulator.pacer import Pacer
from kvstudy.emulator.settings import Dialect, Launch

_TEXT_METRICS = "text/plain; version=0.0.4; charset=utf-8"


@dataclass(frozen=True, slots=True)
class Parts:
    """What the routes look at."""

    launch: Launch
    pacer: Pacer
    observer: Observer
    completions: Completions
    faults: Faults


class Front:
    """The whole application: key check, the hot route, then Starlette."""

    def __init__(self, parts: Parts) -> None:
        self._completions: Asgi = parts.completions
        self._rest = Starlette(routes=_routes(parts))
        self._dialect = parts.launch.server.dialect
        self._key = parts.launch.server.api_key

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request."""
        if scope["type"] != "http":
            return
        path: str = scope["path"]
        if self._key is not None and _needs_key(path, self._dialect) and not self._is_known(scope):
            refused = RefusedError("Unauthorized", status=401, kind="AuthenticationError")
            response = Response(refused.body(self._dialect), 401, media_type="application/json")
            await response(scope, receive, send)
        elif path == "/v1/completions" and scope["method"] == "POST":
            await self._completions(scope, receive, send)
        else:
            await self._rest(scope, receive, send)

    def _is_known(self, scope: Scope) -> bool:
        expected = f"Bearer {self._key}".encode()
        return any(
            name == b"authorization" and hmac.compare_digest(value, expected)
            for name, value in scope["headers"]
        )


def _needs_key(path: str, dialect: Dialect) -> bool:
    if dialect is Dialect.SGLANG:
        return not path.startswith(("/health", "/metrics", "/emulator/"))
    return path.startswith("/v1/")


def _get(path: str, make: Callable[[], Response], *, method: str = "GET") -> Route:
    """A route whose answer is made in the event loop, not in a thread."""

    async def endpoint(_: Request) -> Response:
        return make()

    return Route(path, endpoint, methods=[method])


def _json(path: str, make: Callable[[], Any], *, method: str = "GET") -> Route:
    return _get(path, lambda: JSONResponse(make()), method=method)


def _routes(parts: Parts) -> list[Route]:
    dialect = parts.launch.server.dialect
    routes = [
        _get("/health", lambda: _health(parts)),
        _get("/health_generate", lambda: _health(parts)),
        _json("/v1/models", lambda: _models(parts)),
        _json("/emulator/summary", lambda: summary(parts)),
    ]
    if dialect is Dialect.SGLANG:
        routes += [
            _json("/get_server_info", lambda: _sglang_info(parts)),
            _json("/server_info", lambda: _sglang_info(parts)),
            _json("/get_model_info", lambda: _sglang_model(parts)),
        ]
    else:
        routes.append(_json("/version", lambda: {"version": version(parts)}))
    if dialect is Dialect.VLLM:
        routes.append(_get("/ping", lambda: _health(parts)))
    if dialect is Dialect.TRTLLM:
        routes += _trtllm_routes(parts)
    elif parts.launch.server.telemetry.prometheus and parts.faults.metrics != "missing":
        routes.append(Route("/metrics", _metrics(parts, lambda: _page(parts))))
    return routes


def _trtllm_routes(parts: Parts) -> list[Route]:
    observer = parts.observer
    routes = [
        _json("/perf_metrics", observer.drain_timings),
        _json("/steady_clock_offset", lambda: {"receive_ts": time.monotonic()}),
        _json("/server_info", lambda: {"disaggregated_params": None}),
        _json("/kv_cache_events", list, method="POST"),
    ]
    if parts.faults.metrics != "missing":
        routes.append(Route("/metrics", _metrics(parts, lambda: _records(parts))))
    if parts.launch.server.telemetry.prometheus:
        routes.append(_get("/prometheus/metrics", lambda: _page(parts)))
        routes.append(_get("/prometheus/metrics/", lambda: _page(parts)))
    return routes


def _health(parts: Parts) -> Response:
    if parts.faults.never_ready:
        return PlainTextResponse("the executor is not ready", 503)
    return Response(b"")


def version(parts: Parts) -> str:
    """The version the server reports."""
    return parts.faults.version or parts.launch.emulation.version


def _models(parts: Parts) -> dict[str, Any]:
    server = parts.launch.server
    owner = {Dialect.TRTLLM: "tensorrt_llm", Dialect.VLLM: "vllm", Dialect.SGLANG: "sglang"}
    model: dict[str, Any] = {
        "id": parts.completions.limits.model_names[0],
        "object": "model",
        "created": int(time.time()),
        "owned_by": owner[server.dialect],
    }
    if server.dialect is not Dialect.TRTLLM:
        model |= {"root": server.model, "parent": None, "max_model_len": server.max_seq_len}
    return {"object": "list", "data": [model]}


def summary(parts: Parts) -> dict[str, Any]:
    """What GET /emulator/summary answers."""
    pacer, observer = parts.pacer, parts.observer
    shaped = pacer.tally.as_json(pacer.engine, pacer.lanes.arrivals, pacer.clock)
    return shaped | {"records_dropped": observer.records.dropped}


def _page(parts: Parts) -> Response:
    return PlainTextResponse(parts.observer.page(), media_type=_TEXT_METRICS)


def _metrics(parts: Parts, honest: Callable[[], Response]) -> Callable[[Request], Any]:
    """The metrics route, honest or with its fault."""
    fault = parts.faults.metrics

    async def answer(_: Request) -> Response:
        if fault == "slow":
            await asyncio.sleep(SLOW_S)
        if fault == "non_json":
            return PlainTextResponse("<html>502 Bad Gateway</html>")
        if fault == "huge":
            body = json.dumps([{"iter": 1, "pad": "x" * 1000}] * HUGE_RECORDS)
            return Response(body, media_type="application/json")
        if fault == "empty":
            return JSONResponse([]) if parts.launch.server.dialect is Dialect.TRTLLM else Response()
        return honest()

    return answer


def _records(parts: Parts) -> Response:
    drained = parts.observer.records.drain()
    if parts.faults.metrics == "lying":
        drained = drained.replace(b'"numPausedRequests":', b'"numPausedRequests":-1')
        drained = drained.replace(b'"usedNumBlocks":', b'"usedNumBlocks":1234567')
    return Response(drained, media_type="application/json")


def _sglang_info(parts: Parts) -> dict[str, Any]:
    server = parts.launch.server
    return {
        **server.resolved,
        "version": version(parts),
        "max_total_num_tokens": server.pool_tokens,
        "internal_states": [{"max_running_requests_per_dp": server.max_batch_size}],
    }


def _sglang_model(parts: Parts) -> dict[str, Any]:
    server = parts.launch.server
    return {"model_path": server.model, "tokenizer_path": str(server.tokenizer_dir)}

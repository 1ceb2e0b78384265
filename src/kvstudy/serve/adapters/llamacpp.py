"""llama.cpp's llama-server: the worked example of an adapter.

An adapter is one pure function from settings to a `Launch`. It answers five questions: what is
the executable, where does the model stand, which flags say what the settings say, what must the
running server report of itself, and on which routes it answers what. The rest of adding an engine
is its line in `serve.command.ADAPTERS`, a parser in `serve.resolved` for what it reports, its
metric names in `telemetry.prometheus`, its entry in `telemetry.knowledge`, and golden tests.

llama.cpp has one KV cache of `--ctx-size` cells, shared by all slots when unified. It has no
preemption: when a unified cache is full, requests fail in mid-stream.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvstudy.base.errors import ServerError
from kvstudy.serve.flags import merged, underscored, words
from kvstudy.serve.model import (
    EngineSettings,
    Expectations,
    Launch,
    MetricsKind,
    Routes,
    ServerSettings,
)

API_KEY_ENV = "LLAMA_API_KEY"
_KV_DTYPES = {"auto": "f16", "float16": "f16", "bfloat16": "bf16"}


def build(
    engine: EngineSettings,
    server: ServerSettings,
    options: Mapping[str, Any],
    *,
    model: str,
    served_name: str,
    port: int,
    api_key: str | None,
) -> Launch:
    """The launch of one arm; `model` is a GGUF file, `options` are flags by name.

    llama-server reports no version on any route, so none is expected.
    """
    flags = merged(_flags(engine, server), underscored(options))
    fixed = ("--alias", served_name, "--host", "127.0.0.1", "--port", str(port))
    env = dict(engine.env)
    if api_key is not None:
        env[API_KEY_ENV] = api_key
    has_metrics = flags.get("metrics") is True
    return Launch(
        adapter="llamacpp",
        executable=engine.command or ("llama-server",),
        model_words=("--model", model),
        flags=(*fixed, *words(flags, negated=True)),
        env=env,
        files={},
        expectations=Expectations(None, None, int(flags["ctx_size"]), served_name),
        routes=Routes(
            version_path=None,
            info_path="/props",
            metrics_path="/metrics" if has_metrics else None,
            metrics_kind=MetricsKind.PROMETHEUS if has_metrics else MetricsKind.NONE,
        ),
        model=model,
        port=port,
        api_key=api_key,
        secrets=() if api_key is None else (API_KEY_ENV,),
    )


def _flags(engine: EngineSettings, server: ServerSettings) -> dict[str, Any]:
    if server.kv_dtype not in _KV_DTYPES:
        raise ServerError(
            f"kv_pool.dtype {server.kv_dtype}: llama.cpp has no such KV type; "
            f"use one of {', '.join(_KV_DTYPES)}"
        )
    flags: dict[str, Any] = {
        "ctx_size": server.pool_tokens,
        "parallel": server.max_batch_size,
        "batch_size": server.max_num_tokens,
        "kv_unified": True,
        "cache_type_k": _KV_DTYPES[server.kv_dtype],
        "cache_type_v": _KV_DTYPES[server.kv_dtype],
        "cache_ram": 0,
        "context_shift": False,
    }
    if engine.telemetry:
        flags["metrics"] = True
    return flags

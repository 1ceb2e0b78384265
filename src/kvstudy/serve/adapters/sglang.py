"""SGLang's `python3 -m sglang.launch_server`.

The key goes through a configuration file that is removed once the server is up: SGLang reads it
from no environment variable, and a command line is visible to every user of the node.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from kvstudy.base.errors import ServerError
from kvstudy.serve.flags import fraction, merged, underscored, words
from kvstudy.serve.model import (
    DIR,
    EngineSettings,
    Expectations,
    Launch,
    MetricsKind,
    Routes,
    ServerSettings,
)

KEY_FILE = "sglang-key.yaml"
_KV_DTYPES = {"auto": "auto", "fp8": "fp8_e4m3", "bfloat16": "bf16"}
_CHUNKING_OFF = -1


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
    """The launch of one arm; `options` are flags by name, None or False takes one away."""
    flags = merged(_flags(engine, server), underscored(options))
    fixed = ["--served-model-name", served_name, "--host", "127.0.0.1", "--port", str(port)]
    files = {}
    if api_key is not None:
        files[KEY_FILE] = yaml.safe_dump({"api-key": api_key})
        fixed += ["--config", f"{DIR}/{KEY_FILE}"]
    has_metrics = flags.get("enable_metrics") is True
    return Launch(
        adapter="sglang",
        executable=engine.command or ("python3", "-m", "sglang.launch_server"),
        model_words=("--model-path", model),
        flags=(*fixed, *words(flags, negated=False)),
        env=dict(engine.env),
        files=files,
        expectations=Expectations(engine.version, None, _usable_tokens(flags), served_name),
        routes=Routes(
            version_path="/get_server_info",
            info_path="/get_server_info",
            metrics_path="/metrics" if has_metrics else None,
            metrics_kind=MetricsKind.PROMETHEUS if has_metrics else MetricsKind.NONE,
        ),
        model=model,
        port=port,
        api_key=api_key,
        private_files=tuple(files),
    )


def _flags(engine: EngineSettings, server: ServerSettings) -> dict[str, Any]:
    if server.kv_dtype not in _KV_DTYPES:
        raise ServerError(
            f"kv_pool.dtype {server.kv_dtype}: SGLang has no such KV type; "
            f"use one of {', '.join(_KV_DTYPES)}"
        )
    return {
        "tp_size": server.tp,
        "max_running_requests": server.max_batch_size,
        "chunked_prefill_size": server.max_num_tokens if server.chunked_prefill else _CHUNKING_OFF,
        "max_prefill_tokens": server.max_num_tokens,
        "context_length": server.max_seq_len,
        "max_total_tokens": server.pool_tokens,
        "page_size": server.block_tokens,
        "mem_fraction_static": fraction(server.free_gpu_memory_fraction),
        "kv_cache_dtype": _KV_DTYPES[server.kv_dtype],
        "disable_radix_cache": not server.prefix_reuse,
        "schedule_policy": "fcfs",
        "enable_metrics": engine.telemetry,
    }


def _usable_tokens(flags: Mapping[str, Any]) -> int | None:
    tokens = flags.get("max_total_tokens")
    if tokens is None:
        return None
    page = int(flags.get("page_size", 1))
    return int(tokens) // page * page

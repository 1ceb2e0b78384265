"""vLLM's `vllm serve`.

The pool is pinned in blocks. Block 0 is the null block, which no request ever gets: one more is
asked for, so that the declared tokens are all usable. On the CPU the block size must be a multiple
of 32.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvstudy.base.units import ceil_div
from kvstudy.serve.flags import fraction, merged, underscored, words
from kvstudy.serve.model import (
    EngineSettings,
    Expectations,
    Launch,
    MetricsKind,
    Routes,
    ServerSettings,
)

NULL_BLOCKS = 1
API_KEY_ENV = "VLLM_API_KEY"


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
    """The launch of one arm; `options` are flags by name, None takes a default away."""
    flags = merged(_flags(engine, server), underscored(options))
    env = {"VLLM_NO_USAGE_STATS": "1", "DO_NOT_TRACK": "1", **engine.env}
    if api_key is not None:
        env[API_KEY_ENV] = api_key
    fixed = ("--served-model-name", served_name, "--host", "127.0.0.1", "--port", str(port))
    has_metrics = not flags.get("disable_log_stats", False)
    return Launch(
        adapter="vllm",
        executable=(*(engine.command or ("vllm",)), "serve"),
        model_words=(model,),
        flags=(*fixed, *words(flags, negated=True)),
        env=env,
        files={},
        expectations=Expectations(engine.version, None, _usable_tokens(flags), served_name),
        routes=Routes(
            metrics_path="/metrics" if has_metrics else None,
            metrics_kind=MetricsKind.PROMETHEUS if has_metrics else MetricsKind.NONE,
        ),
        model=model,
        port=port,
        api_key=api_key,
        secrets=() if api_key is None else (API_KEY_ENV,),
    )


def _flags(engine: EngineSettings, server: ServerSettings) -> dict[str, Any]:
    flags: dict[str, Any] = {
        "tensor_parallel_size": server.tp,
        "max_num_seqs": server.max_batch_size,
        "max_num_batched_tokens": server.max_num_tokens,
        "max_model_len": server.max_seq_len,
        "block_size": server.block_tokens,
        "num_gpu_blocks_override": ceil_div(server.pool_tokens, server.block_tokens) + NULL_BLOCKS,
        "kv_cache_dtype": server.kv_dtype,
        "gpu_memory_utilization": fraction(server.free_gpu_memory_fraction),
        "enable_chunked_prefill": server.chunked_prefill,
        "enable_prefix_caching": server.prefix_reuse,
        "generation_config": "vllm",
    }
    if not engine.telemetry:
        flags["disable_log_stats"] = True
    return flags


def _usable_tokens(flags: Mapping[str, Any]) -> int | None:
    blocks = flags.get("num_gpu_blocks_override")
    if blocks is None or "block_size" not in flags:
        return None
    return (int(blocks) - NULL_BLOCKS) * int(flags["block_size"])

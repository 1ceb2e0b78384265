"""What an engine prints on its way up, in the lines that a harness reads (`facts/engines.md` 5)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from kvstudy.base.units import BYTES_PER_GIB
from kvstudy.emulator.settings import Dialect, Launch, Server, whole_blocks

_ESTIMATION_EXTRA_TOKENS = 64


def lines(launch: Launch) -> Iterator[str]:
    """The launch log of the dialect, line by line."""
    dialect = launch.server.dialect
    if dialect is Dialect.VLLM:
        yield from _vllm(launch.server, launch.emulation.version)
    elif dialect is Dialect.SGLANG:
        yield from _sglang(launch.server)
    else:
        yield from _trtllm(launch.server, launch.emulation.version)


def ready_line(server: Server, port: int) -> str:
    """The last line before requests are served."""
    if server.dialect is Dialect.SGLANG:
        return "The server is fired up and ready to roll!"
    return f"INFO:     Uvicorn running on http://{server.host}:{port} (Press CTRL+C to quit)"


def _trtllm(server: Server, version: str) -> Iterator[str]:
    def say(text: str) -> str:
        return f"[{datetime.now(UTC):%m/%d/%Y-%H:%M:%S}] [TRT-LLM] {text}"

    yield f"[TensorRT-LLM] TensorRT LLM version: {version}"
    yield say("[I] Using LLM with PyTorch backend")
    yield say(f"[I] {_llm_args(server)}")
    kv_cache = server.resolved["kv_cache_config"]
    if kv_cache["max_tokens"] is not None:
        yield say(
            "[W] Both free_gpu_memory_fraction and max_tokens are set (to "
            f"{kv_cache['free_gpu_memory_fraction']} and {kv_cache['max_tokens']}). "
            "The smaller value will be used."
        )
        yield say(f"[I] max_tokens is set by kv_cache_config.max_tokens: {kv_cache['max_tokens']}")
    estimate = whole_blocks(server.max_num_tokens + _ESTIMATION_EXTRA_TOKENS, server.block_tokens)
    for tokens in (min(estimate, server.pool_tokens), server.pool_tokens):
        blocks = -(-server.max_seq_len // server.block_tokens)
        gib = tokens * server.kv_bytes_per_token / BYTES_PER_GIB
        yield say(f"[I] Max KV cache blocks per sequence: {blocks} [window size={tokens}]")
        yield say(f"[I] Number of tokens per block: {server.block_tokens}.")
        yield say(
            f"[I] [MemUsageChange] Allocated {gib:.2f} GiB for max tokens in paged KV cache "
            f"({tokens})."
        )
    yield say(
        f"[I] max_seq_len={server.max_seq_len}, max_num_requests={server.max_batch_size}, "
        f"max_num_tokens={server.max_num_tokens}, max_batch_size={server.max_batch_size}"
    )


def _llm_args(server: Server) -> str:
    shown: dict[str, Any] = dict(server.resolved)
    kv_cache = ", ".join(f"{n}={v!r}" for n, v in shown.pop("kv_cache_config").items())
    scheduler = dict(shown.pop("scheduler_config"))
    for name, kind in (
        ("capacity_scheduler_policy", "CapacitySchedulerPolicy"),
        ("context_chunking_policy", "ContextChunkingPolicy"),
    ):
        value = scheduler[name]
        scheduler[name] = "None" if value is None else f"<{kind}.{value}: '{value}'>"
    scheduling = ", ".join(
        f"{n}={v if n.endswith('_policy') else repr(v)}" for n, v in scheduler.items()
    )
    rest = ", ".join(f"{name}={value!r}" for name, value in shown.items())
    return (
        f"TorchLlmArgs(model={server.model!r}, backend='pytorch', "
        f"kv_cache_config=KvCacheConfig({kv_cache}), "
        f"scheduler_config=SchedulerConfig({scheduling}), {rest})"
    )


def _vllm(server: Server, version: str) -> Iterator[str]:
    def say(where: str, text: str) -> str:
        return f"INFO {datetime.now(UTC):%m-%d %H:%M:%S} [{where}] {text}"

    usable = (server.pool_blocks - 1) * server.block_tokens
    yield say("api_server.py:1284", f"vLLM API server version {version}")
    shown = {n: v for n, v in server.resolved.items() if n != "cache"}
    yield say("utils.py:233", f"non-default args: {shown}")
    yield say("kv_cache_utils.py:1087", f"GPU KV cache size: {usable:,} tokens")
    yield say(
        "kv_cache_utils.py:1091",
        f"Maximum concurrency for {server.max_seq_len:,} tokens per request: "
        f"{usable / server.max_seq_len:.2f}x",
    )


def _sglang(server: Server) -> Iterator[str]:
    def say(text: str) -> str:
        return f"[{datetime.now(UTC):%Y-%m-%d %H:%M:%S}] {text}"

    shown = ", ".join(f"{name}={value!r}" for name, value in server.resolved.items())
    half = server.pool_gib / 2
    yield say(f"server_args=ServerArgs({shown})")
    yield say(
        f"KV Cache is allocated. #tokens: {server.pool_tokens}, "
        f"K size: {half:.2f} GB, V size: {half:.2f} GB"
    )
    yield say(
        f"max_total_num_tokens={server.pool_tokens}, "
        f"chunked_prefill_size={server.resolved['chunked_prefill_size']}, "
        f"max_prefill_tokens={server.resolved['max_prefill_tokens']}, "
        f"max_running_requests={server.max_batch_size}, context_len={server.max_seq_len}"
    )

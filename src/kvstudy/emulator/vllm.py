"""`vllm serve`'s command line, as far as this study and its arms use it (vLLM 0.33)."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from kvstudy.base.errors import UsageError
from kvstudy.emulator import arguments
from kvstudy.emulator.settings import (
    Dialect,
    Server,
    Telemetry,
    kv_bytes_per_token,
    pool_from_memory,
)
from kvstudy.sim.model import Policy, VllmOptions

_SWITCHES = (
    "enable-prefix-caching",
    "enable-chunked-prefill",
    "async-scheduling",
    "scheduler-reserve-full-isl",
)
_FLAGS = ("enforce-eager", "trust-remote-code", "disable-log-stats", "disable-log-requests")
_IGNORED = arguments.names("""
    dtype quantization generation-config seed revision tokenizer-mode load-format
    distributed-executor-backend pipeline-parallel-size data-parallel-size max-logprobs
    disable-uvicorn-access-log uvicorn-log-level stream-interval max-num-queued-reqs
    scheduling-policy compilation-config hf-overrides
""")


def add_options(parser: arguments.Parser) -> None:
    """The options of `vllm serve`; those without an effect here are taken and ignored."""
    positive = arguments.positive_int
    parser.add_argument("model")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--served-model-name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=arguments.port, default=8000)
    parser.add_argument("--api-key")
    parser.add_argument("--tensor-parallel-size", "-tp", type=positive, default=1)
    parser.add_argument("--max-model-len", type=positive)
    parser.add_argument("--max-num-seqs", type=positive, default=256)
    parser.add_argument("--max-num-batched-tokens", type=positive, default=8192)
    parser.add_argument("--block-size", type=positive, default=16)
    parser.add_argument("--num-gpu-blocks-override", type=positive)
    parser.add_argument("--kv-cache-memory-bytes", type=positive)
    parser.add_argument("--gpu-memory-utilization", type=arguments.fraction, default=0.92)
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--watermark", type=float, default=0.0)
    for name in _SWITCHES:
        parser.add_argument(f"--{name}", action=argparse.BooleanOptionalAction)
    for name in _FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    for name in _IGNORED:
        parser.add_argument(f"--{name}")


def resolve(known: argparse.Namespace, *, model_config: dict[str, Any], key: str | None) -> Server:
    """The server of a parsed command line."""
    if not 0 <= known.watermark < 1:
        raise UsageError(f"--watermark: expected a number in [0, 1), got {known.watermark}")
    bytes_per_token = kv_bytes_per_token(model_config, known.kv_cache_dtype)
    blocks = known.num_gpu_blocks_override
    if blocks is None:
        blocks = _blocks_from_memory(known, bytes_per_token)
    return Server(
        dialect=Dialect.VLLM,
        model=known.model,
        model_name=known.served_model_name or known.model,
        tokenizer_dir=known.tokenizer or Path(known.model),
        host=known.host,
        port=known.port,
        policy=Policy.VLLM_RECOMPUTE,
        pool_tokens=blocks * known.block_size,
        block_tokens=known.block_size,
        kv_bytes_per_token=bytes_per_token,
        max_batch_size=known.max_num_seqs,
        max_num_tokens=known.max_num_batched_tokens,
        max_seq_len=known.max_model_len or model_config.get("max_position_embeddings", 131072),
        chunked_prefill=known.enable_chunked_prefill is not False,
        telemetry=Telemetry(prometheus=not known.disable_log_stats),
        api_key=known.api_key or key,
        vllm=VllmOptions(
            watermark=known.watermark,
            reserve_full_isl=known.scheduler_reserve_full_isl is not False,
        ),
        resolved=_resolved(known, blocks),
    )


def _resolved(known: argparse.Namespace, blocks: int) -> dict[str, Any]:
    prefix_caching = known.enable_prefix_caching is not False
    return {
        "model": known.model,
        "max_model_len": known.max_model_len,
        "max_num_seqs": known.max_num_seqs,
        "max_num_batched_tokens": known.max_num_batched_tokens,
        "kv_cache_dtype": known.kv_cache_dtype,
        "enable_prefix_caching": prefix_caching,
        "cache": {
            "block_size": known.block_size,
            "cache_dtype": known.kv_cache_dtype,
            "enable_prefix_caching": prefix_caching,
            "gpu_memory_utilization": known.gpu_memory_utilization,
            "num_gpu_blocks": blocks,
            "num_gpu_blocks_override": known.num_gpu_blocks_override,
        },
    }


def _blocks_from_memory(known: argparse.Namespace, bytes_per_token: int) -> int:
    if known.kv_cache_memory_bytes is not None:
        return int(known.kv_cache_memory_bytes // (bytes_per_token * known.block_size))
    tokens = pool_from_memory(known.gpu_memory_utilization, bytes_per_token, known.block_size)
    return int(tokens // known.block_size)

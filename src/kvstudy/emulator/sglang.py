"""`python -m sglang.launch_server`'s command line, as far as this study uses it (SGLang 0.5.23)."""

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
from kvstudy.sim.model import Policy, SglangOptions

_FLAGS = (
    "disable-radix-cache", "enable-metrics", "enable-mixed-chunk", "trust-remote-code",
    "skip-server-warmup", "disable-cuda-graph",
)  # fmt: skip
_IGNORED = arguments.names("""
    dtype quantization schedule-policy retraction-policy stream-interval log-level revision
    attention-backend sampling-backend random-seed max-queued-requests load-format
    data-parallel-size cuda-graph-max-bs
""")
_RESOLVED = arguments.names("""
    context_length max_total_tokens page_size chunked_prefill_size max_prefill_tokens
    max_running_requests kv_cache_dtype disable_radix_cache schedule_conservativeness
    enable_metrics
""")
_OFF = -1


def add_options(parser: arguments.Parser) -> None:
    """The options of the launcher; those without an effect here are taken and ignored."""
    positive = arguments.positive_int
    parser.add_argument("model", nargs="?")
    parser.add_argument("--model-path", "--model", dest="model_path")
    parser.add_argument("--tokenizer-path", "--tokenizer", type=Path)
    parser.add_argument("--served-model-name")
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=arguments.port, default=30000)
    parser.add_argument("--api-key")
    parser.add_argument("--tensor-parallel-size", "--tp-size", "--tp", type=positive, default=1)
    parser.add_argument("--context-length", type=positive)
    parser.add_argument("--max-total-tokens", type=positive)
    parser.add_argument("--page-size", type=positive, default=1)
    parser.add_argument("--mem-fraction-static", type=arguments.fraction, default=0.9)
    parser.add_argument("--chunked-prefill-size", type=int, default=8192)
    parser.add_argument("--max-prefill-tokens", type=positive, default=16384)
    parser.add_argument("--max-running-requests", type=positive, default=2048)
    parser.add_argument("--kv-cache-dtype", default="auto")
    parser.add_argument("--schedule-conservativeness", type=arguments.positive_float, default=1.0)
    for name in _FLAGS:
        parser.add_argument(f"--{name}", action="store_true")
    for name in _IGNORED:
        parser.add_argument(f"--{name}")


def resolve(known: argparse.Namespace, *, model_config: dict[str, Any], key: str | None) -> Server:
    """The server of a parsed command line."""
    model = known.model_path or known.model
    if model is None:
        raise UsageError("--model-path: required")
    bytes_per_token = kv_bytes_per_token(model_config, known.kv_cache_dtype)
    pool_tokens = pool_from_memory(known.mem_fraction_static, bytes_per_token, known.page_size)
    if known.max_total_tokens is not None:
        pool_tokens = min(pool_tokens, known.max_total_tokens // known.page_size * known.page_size)
    chunk = known.chunked_prefill_size
    return Server(
        dialect=Dialect.SGLANG,
        model=model,
        model_name=known.served_model_name or model,
        tokenizer_dir=known.tokenizer_path or Path(model),
        host=known.host,
        port=known.port,
        policy=Policy.SGLANG_RETRACT,
        pool_tokens=pool_tokens,
        block_tokens=known.page_size,
        kv_bytes_per_token=bytes_per_token,
        max_batch_size=known.max_running_requests,
        max_num_tokens=known.max_prefill_tokens if chunk == _OFF else chunk,
        max_seq_len=known.context_length or model_config.get("max_position_embeddings", 131072),
        chunked_prefill=chunk != _OFF,
        telemetry=Telemetry(prometheus=known.enable_metrics),
        api_key=known.api_key or key,
        sglang=SglangOptions(
            conservativeness=known.schedule_conservativeness,
            mixed_chunk=known.enable_mixed_chunk,
            max_prefill_tokens=known.max_prefill_tokens,
        ),
        resolved={"model_path": model} | {name: getattr(known, name) for name in _RESOLVED},
    )

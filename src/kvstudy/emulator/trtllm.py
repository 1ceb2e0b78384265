"""trtllm-serve's command line and YAML, resolved as the real one resolves them."""

from __future__ import annotations

import argparse
from collections.abc import Collection
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import yaml

from kvstudy.base.errors import UsageError
from kvstudy.emulator import arguments
from kvstudy.emulator.settings import (
    Dialect,
    Server,
    Telemetry,
    kv_bytes_per_token,
    pool_from_memory,
)
from kvstudy.sim.model import ChunkPolicy, Policy

_POLICIES = {
    "GUARANTEED_NO_EVICT": Policy.GUARANTEED_NO_EVICT,
    "MAX_UTILIZATION": Policy.MAX_UTILIZATION,
    "STATIC_BATCH": Policy.STATIC_BATCH,
}
_CHUNK_POLICIES = {
    "FIRST_COME_FIRST_SERVED": ChunkPolicy.FCFS,
    "EQUAL_PROGRESS": ChunkPolicy.EQUAL_PROGRESS,
}

_SIZES = ("max_batch_size", "max_num_tokens", "max_seq_len", "max_beam_width")
_FLAGS = (
    "enable_chunked_prefill",
    "enable_iter_perf_stats",
    "enable_iter_req_stats",
    "print_iter_log",
    "return_perf_metrics",
    "disable_overlap_scheduler",
    "enable_attention_dp",
    "trust_remote_code",
    "skip_tokenizer_init",
    "enable_autotuner",
    "enable_min_latency",
    "enable_layerwise_nvtx_marker",
    "fail_fast_on_attention_window_too_large",
)
_IGNORED = arguments.names("""
    allreduce_strategy attention_dp_config attn_backend backend batch_wait_max_tokens_ratio
    batch_wait_timeout_iters batch_wait_timeout_ms build_config cache_transceiver_config
    calib_config checkpoint_format checkpoint_loader context_parallel_size cp_config
    cuda_graph_config decoding_config disable_flashinfer_sampling dtype enable_lm_head_tp_in_adp
    enable_lora force_dynamic_quantization garbage_collection_gen0_threshold
    gather_generation_logits gpus_per_node guided_decoding_backend iter_stats_max_iterations
    kv_connector_config load_format lora_config max_input_len max_stats_len mm_encoder_only
    moe_cluster_parallel_size moe_config moe_expert_parallel_size moe_tensor_parallel_size
    num_postprocess_workers nvfp4_gemm_config orchestrator_type otlp_traces_endpoint
    peft_cache_config pipeline_parallel_size postprocess_tokenizer_dir pp_partition quant_config
    reasoning_parser request_stats_max_iterations revision sampler_type sparse_attention_config
    speculative_config stream_interval tensor_parallel_size tokenizer tokenizer_mode
    tokenizer_revision torch_compile_config
""")
_TOP_LEVEL = {
    *_SIZES, *_FLAGS, *_IGNORED,
    "kv_cache_config", "scheduler_config", "perf_metrics_max_requests",
}  # fmt: skip
_KV_CACHE = arguments.names("""
    attention_dp_events_gather_period_ms copy_on_partial_reuse cross_kv_cache_fraction dtype
    enable_block_reuse enable_partial_reuse event_buffer_max_size free_gpu_memory_fraction
    host_cache_size mamba_ssm_cache_dtype max_attention_window max_gpu_total_bytes max_tokens
    max_util_for_resume onboard_blocks secondary_offload_min_priority sink_token_length
    tokens_per_block use_kv_cache_manager_v2 use_uvm
""")
_SCHEDULER = {
    "capacity_scheduler_policy", "context_chunking_policy", "dynamic_batch_config",
    "waiting_queue_policy", "use_python_scheduler",
}  # fmt: skip


@dataclass(slots=True)
class _Arguments:
    """The engine's arguments as they stand after the command line and the YAML."""

    sizes: dict[str, int]
    flags: dict[str, bool]
    kv_cache: dict[str, Any] = field(default_factory=dict)
    scheduler: dict[str, Any] = field(default_factory=dict)
    perf_metrics_max_requests: int = 0


def add_options(parser: arguments.Parser) -> None:
    """The options of `trtllm-serve serve`; those without an effect here are taken and ignored."""
    positive = arguments.positive_int
    parser.add_argument("model")
    parser.add_argument("--tokenizer", type=Path)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=arguments.port, default=8000)
    parser.add_argument("--backend", choices=["pytorch", "tensorrt", "_autodeploy"])
    parser.add_argument("--log_level", default="info")
    parser.add_argument("--max_beam_width", type=positive, default=1)
    parser.add_argument("--max_batch_size", type=positive, default=2048)
    parser.add_argument("--max_num_tokens", type=positive, default=8192)
    parser.add_argument("--max_seq_len", type=positive)
    for name in ("tp", "pp", "cp", "ep", "cluster"):
        parser.add_argument(f"--{name}_size", type=positive, default=1)
    parser.add_argument("--gpus_per_node", type=positive)
    parser.add_argument(
        "--free_gpu_memory_fraction",
        "--kv_cache_free_gpu_memory_fraction",
        type=arguments.fraction,
        default=0.9,
    )
    parser.add_argument("--kv_cache_dtype", choices=["auto", "fp8", "nvfp4"])
    parser.add_argument("--served-model-name", "--served_model_name")
    parser.add_argument("--config", "--extra_llm_api_options", type=Path)
    parser.add_argument("--enable_chunked_prefill", action="store_true")
    for name in ("trust_remote_code", "fail_fast_on_attention_window_too_large"):
        parser.add_argument(f"--{name}", action="store_true")
    ignored = """num_postprocess_workers revision reasoning_parser tool_parser server_role
        metadata_server_config_file otlp_traces_endpoint disagg_cluster_uri media_io_kwargs
        chat_template custom_tokenizer"""
    for name in ignored.split():
        parser.add_argument(f"--{name}")


def resolve(known: argparse.Namespace, *, model_config: dict[str, Any], key: str | None) -> Server:
    """The server of a parsed command line. UsageError for what trtllm-serve would refuse."""
    args = _from_command_line(known)
    if known.config is not None:
        _overlay(args, _read_yaml(known.config), known.config)
    kv_cache, sizes = args.kv_cache, args.sizes
    bytes_per_token = kv_bytes_per_token(model_config, str(kv_cache["dtype"]))
    policy = args.scheduler["capacity_scheduler_policy"]
    chunking = args.scheduler["context_chunking_policy"] or "FIRST_COME_FIRST_SERVED"
    folder = Path(known.model)
    name = known.served_model_name or (folder.name if folder.is_dir() else known.model)
    return Server(
        dialect=Dialect.TRTLLM,
        model=known.model,
        model_name=name,
        tokenizer_dir=known.tokenizer or folder,
        host=known.host,
        port=known.port,
        policy=_POLICIES[policy],
        pool_tokens=_pool_tokens(kv_cache, bytes_per_token),
        block_tokens=kv_cache["tokens_per_block"],
        kv_bytes_per_token=bytes_per_token,
        max_batch_size=sizes["max_batch_size"],
        max_num_tokens=sizes["max_num_tokens"],
        max_seq_len=sizes.get("max_seq_len") or model_config.get("max_position_embeddings", 131072),
        chunked_prefill=args.flags["enable_chunked_prefill"],
        chunk_policy=_CHUNK_POLICIES[chunking],
        telemetry=_telemetry(args),
        api_key=key,
        resolved={
            "kv_cache_config": kv_cache,
            "scheduler_config": args.scheduler,
            **sizes,
            **args.flags,
            "perf_metrics_max_requests": args.perf_metrics_max_requests,
            "tensor_parallel_size": known.tp_size,
            "iter_stats_max_iterations": None,
            "request_stats_max_iterations": None,
        },
    )


def _pool_tokens(kv_cache: dict[str, Any], bytes_per_token: int) -> int:
    """The smaller of what the memory fraction holds and `max_tokens`, in whole blocks."""
    block_tokens: int = kv_cache["tokens_per_block"]
    fraction = kv_cache["free_gpu_memory_fraction"]
    tokens = pool_from_memory(fraction, bytes_per_token, block_tokens)
    if kv_cache["max_tokens"] is None:
        return tokens
    return min(tokens, int(kv_cache["max_tokens"]) // block_tokens * block_tokens)


def _telemetry(args: _Arguments) -> Telemetry:
    return Telemetry(
        iteration_stats=args.flags["enable_iter_perf_stats"],
        iteration_log=args.flags["print_iter_log"],
        perf_metrics=args.flags["return_perf_metrics"],
        perf_metrics_max_requests=args.perf_metrics_max_requests,
        prometheus=args.flags["return_perf_metrics"],
    )


def with_policy(server: Server, name: str) -> Server:
    """The same server under another policy, which it also reports."""
    if name not in _POLICIES or server.dialect is not Dialect.TRTLLM:
        raise UsageError(f"policy {name!r}: expected one of {sorted(_POLICIES)}, trtllm only")
    scheduler = server.resolved["scheduler_config"] | {"capacity_scheduler_policy": name}
    resolved = server.resolved | {"scheduler_config": scheduler}
    return replace(server, policy=_POLICIES[name], resolved=resolved)


def _from_command_line(known: argparse.Namespace) -> _Arguments:
    sizes = {name: getattr(known, name) for name in _SIZES}
    flags = dict.fromkeys(_FLAGS, False)
    flags["enable_chunked_prefill"] = known.enable_chunked_prefill
    flags["trust_remote_code"] = known.trust_remote_code
    kv_cache = {
        "enable_block_reuse": True,
        "max_tokens": None,
        "free_gpu_memory_fraction": known.free_gpu_memory_fraction,
        "dtype": known.kv_cache_dtype or "auto",
        "tokens_per_block": 32,
        "event_buffer_max_size": 0,
    }
    scheduler = {
        "capacity_scheduler_policy": "GUARANTEED_NO_EVICT",
        "context_chunking_policy": None,
        "dynamic_batch_config": None,
    }
    return _Arguments(sizes, flags, kv_cache, scheduler)


def _read_yaml(path: Path) -> dict[str, Any]:
    try:
        value = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise UsageError(f"{path}: not a readable YAML file ({error})") from None
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{path}: expected a mapping at the top")
    return value


def _overlay(args: _Arguments, given: dict[str, Any], path: Path) -> None:
    """Lay the YAML over the command line: per key of the two nested objects, whole otherwise."""
    for name, value in given.items():
        if name not in _TOP_LEVEL:
            raise _refused(path, "TorchLlmArgs", str(name), value)
        if name in _SIZES:
            args.sizes[name] = _positive(path, name, value)
        elif name in _FLAGS:
            args.flags[name] = _boolean(path, name, value)
        elif name == "perf_metrics_max_requests":
            args.perf_metrics_max_requests = _positive(path, name, value, least=0)
        elif name == "kv_cache_config":
            args.kv_cache |= _nested(path, "KvCacheConfig", value, _KV_CACHE)
        elif name == "scheduler_config":
            args.scheduler |= _nested(path, "SchedulerConfig", value, _SCHEDULER)
    _check_kv_cache(path, args.kv_cache)
    _check_choice(path, "capacity_scheduler_policy", args.scheduler, _POLICIES)
    if args.scheduler["context_chunking_policy"] is not None:
        _check_choice(path, "context_chunking_policy", args.scheduler, _CHUNK_POLICIES)


def _nested(path: Path, kind: str, value: Any, known: Collection[str]) -> dict[str, Any]:
    if value is None:
        return {}
    if not isinstance(value, dict):
        raise UsageError(f"{path}: {kind}: expected a mapping, got {value!r}")
    for name in value:
        if name not in known:
            raise _refused(path, kind, str(name), value[name])
    return value


def _check_kv_cache(path: Path, kv_cache: dict[str, Any]) -> None:
    _boolean(path, "kv_cache_config.enable_block_reuse", kv_cache["enable_block_reuse"])
    _positive(path, "kv_cache_config.tokens_per_block", kv_cache["tokens_per_block"])
    if kv_cache["max_tokens"] is not None:
        _positive(path, "kv_cache_config.max_tokens", kv_cache["max_tokens"])
    fraction = kv_cache["free_gpu_memory_fraction"]
    if fraction is None:
        kv_cache["free_gpu_memory_fraction"] = 0.9
    elif not isinstance(fraction, int | float) or not 0 < fraction <= 1:
        raise UsageError(f"{path}: kv_cache_config.free_gpu_memory_fraction: got {fraction!r}")


def _check_choice(
    path: Path, name: str, scheduler: dict[str, Any], choices: dict[str, Any]
) -> None:
    if scheduler[name] not in choices:
        expected = ", ".join(repr(choice) for choice in choices)
        raise UsageError(
            f"{path}: 1 validation error for SchedulerConfig\n{name}\n"
            f"  Input should be {expected} [type=enum, input_value={scheduler[name]!r}]"
        )


def _refused(path: Path, kind: str, name: str, value: Any) -> UsageError:
    return UsageError(
        f"{path}: 1 validation error for {kind}\n{name}\n"
        f"  Extra inputs are not permitted [type=extra_forbidden, input_value={value!r}]"
    )


def _positive(path: Path, name: str, value: Any, *, least: int = 1) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise UsageError(f"{path}: {name}: expected a whole number >= {least}, got {value!r}")
    return value


def _boolean(path: Path, name: str, value: Any) -> bool:
    if not isinstance(value, bool):
        raise UsageError(f"{path}: {name}: expected true or false, got {value!r}")
    return value

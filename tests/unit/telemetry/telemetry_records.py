"""Constructed telemetry, shaped by us after public sources; nothing here was recorded."""

from __future__ import annotations

import json
from datetime import UTC, datetime
from typing import Any

# Constructed: W-C under MAX_UTILIZATION on 1.2.1, values illustrative.
RECORD_1_2_1: dict[str, Any] = {
    "cpuMemUsage": 0,
    "gpuMemUsage": 139586437120,
    "pinnedMemUsage": 0,
    "iter": 1287,
    "iterLatencyMS": 1012.4,
    "timestamp": "07-24-2026 13:05:41.318204",
    "numActiveRequests": 32,
    "numNewActiveRequests": 1,
    "numQueuedRequests": 0,
    "numCompletedRequests": 0,
    "maxNumActiveRequests": 64,
    "newActiveRequestsQueueLatencyMS": 0.41,
    "inflightBatchingStats": {
        "numScheduledRequests": 22,
        "numContextRequests": 1,
        "numGenRequests": 21,
        "numPausedRequests": 1,
        "numCtxTokens": 8160,
        "microBatchId": 0,
        "avgNumDecodedTokensPerIter": 0.0,
    },
    "kvCacheStats": {
        "maxNumBlocks": 11520,
        "freeNumBlocks": 6,
        "usedNumBlocks": 11514,
        "tokensPerBlock": 32,
        "allocTotalBlocks": 74210,
        "allocNewBlocks": 74210,
        "reusedBlocks": 0,
        "missedBlocks": 0,
        "cacheHitRate": 0.0,
    },
    "staticBatchingStats": None,
    "specDecodingStats": None,
}
ROW_1_2_1 = {
    "t_ns": 5,
    "iter": 1287,
    "scheduled_requests": 22,
    "context_requests": 1,
    "generation_requests": 21,
    "paused_requests": 1,
    "context_tokens": 8160,
    "active_requests": 32,
    "queued_requests": 0,
    "used_blocks": 11514,
    "free_blocks": 6,
    "max_blocks": 11520,
    "iter_latency_ns": 1_012_400_000,
}

# Constructed: a late 1.3 candidate whose record has only the per-window statistics.
RECORD_1_3: dict[str, Any] = {
    **{name: value for name, value in RECORD_1_2_1.items() if name != "kvCacheStats"},
    "iterSuspendedRequests": 0,
    "kvCacheIterationStats": {
        "368640": {
            "primaryMaxNumBlocks": 11520,
            "primaryFreeNumBlocks": 6,
            "primaryUsedNumBlocks": 11514,
            "iterAllocNewBlocks": 255,
        }
    },
}

# Constructed: one line of `print_iter_log: true`, and one of the debug summary.
ITER_LINE = (
    "[07/24/2026-13:05:41] [TRT-LLM] [RANK 0] [I] iter = 1287, global_rank = 0, rank = 0, "
    "currank_total_requests = 32/64, host_step_time = 1012.4ms, prev_device_step_time = N/A, "
    "timestamp = 2026-07-24 13:05:41, num_scheduled_requests: 22, states = "
    "{'num_ctx_requests': 1, 'num_ctx_tokens': 8160, 'num_generation_tokens': 21}"
)
DEBUG_LOG = """\
[TensorRT-LLM][DEBUG] [Summary] Capacity scheduler allows 22 requests, pauses 0 requests
[TensorRT-LLM][DEBUG] MaxUtilizationScheduler: request ID 31 -> pause
[TensorRT-LLM][DEBUG] [Summary] Capacity scheduler allows 21 requests, pauses 2 requests
"""

# Constructed: pages of the four engines.
VLLM_PAGE = """\
# HELP vllm:num_requests_running Number of requests in model execution batches.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running{engine="0",model_name="tiny"} 7.0
vllm:num_requests_waiting{engine="0",model_name="tiny"} 9.0
vllm:kv_cache_usage_perc{engine="0",model_name="tiny"} 0.5
vllm:num_preemptions_total{engine="0",model_name="tiny"} 8.0
vllm:num_preemptions_created{engine="0",model_name="tiny"} 1.7e+09
vllm:generation_tokens_total{engine="0",model_name="tiny"} 2048.0
vllm:prompt_tokens_total{engine="0",model_name="tiny"} 4096.0
vllm:iteration_tokens_total_count{engine="0",model_name="tiny"} 140.0
vllm:cache_config_info{block_size="32",engine="0",num_gpu_blocks="41"} 1.0
"""
SGLANG_PAGE = """\
# TYPE sglang:num_running_reqs gauge
sglang:num_running_reqs{model_name="m",tp_rank="0"} 21.0
sglang:num_queue_reqs{model_name="m",tp_rank="0"} 11.0
sglang:kv_used_tokens{model_name="m",tp_rank="0"} 65.0
sglang:max_total_num_tokens{model_name="m",tp_rank="0"} 640.0
sglang:num_retracted_reqs{model_name="m",tp_rank="0"} 3.0
sglang:num_retracted_requests_total{model_name="m"} 12.0
sglang:num_retracted_input_tokens_total{model_name="m"} 1000.0
sglang:num_retracted_output_tokens_total{model_name="m"} 50.0
sglang:num_paused_reqs{model_name="m"} 99.0
"""
TRTLLM_PAGE = """\
# TYPE trtllm_num_paused_requests gauge
trtllm_num_paused_requests{model_name="m",engine_type="undefined"} 1.0
trtllm_num_requests_running{model_name="m",engine_type="undefined"} 22.0
trtllm_num_requests_waiting{model_name="m",engine_type="undefined"} 0.0
trtllm_kv_cache_used_blocks{model_name="m",engine_type="undefined"} 11514.0
trtllm_kv_cache_max_blocks{model_name="m",engine_type="undefined"} 11520.0
trtllm_iteration_latency_seconds{model_name="m",engine_type="undefined"} 0.125
"""
LLAMACPP_PAGE = """\
llamacpp:requests_processing 4
llamacpp:requests_deferred 12
llamacpp:n_decode_total 900
"""


def record(number: int, *, paused: int = 0, unix_ns: int | None = None) -> dict[str, Any]:
    """A record with an iteration number, pauses and, if given, a time of its own (UTC)."""
    made = {**RECORD_1_2_1, "iter": number}
    made["inflightBatchingStats"] = {
        **RECORD_1_2_1["inflightBatchingStats"],
        "numPausedRequests": paused,
    }
    if unix_ns is not None:
        moment = datetime.fromtimestamp(unix_ns // 10**9, UTC)
        made["timestamp"] = f"{moment:%m-%d-%Y %H:%M:%S}.{unix_ns % 10**9 // 1000:06d}"
    return made


def body(*numbers: int) -> bytes:
    """An answer of /metrics with these iterations."""
    return json.dumps([record(number) for number in numbers]).encode()

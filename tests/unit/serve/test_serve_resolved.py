"""Resolved configurations are read from logs and endpoints, and compared with the declared ones.

All texts are constructed by us after the shapes in public sources and in the issue.
"""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st
from serve_settings import MU, launch

from kvstudy.serve import resolved
from kvstudy.serve.model import Expectations
from kvstudy.serve.resolved import Resolved, mismatches, unstated

# Constructed: the policy as the issue quotes it, both allocations, as trtllm-serve prints them.
TRTLLM_LOG = """\
[07/24/2026-13:00:01] [TRT-LLM] [I] TorchLlmArgs(model='/m', backend='pytorch', \
kv_cache_config=KvCacheConfig(enable_block_reuse=False, max_tokens=368640, \
free_gpu_memory_fraction=0.9, dtype='fp8', tokens_per_block=32), \
scheduler_config=SchedulerConfig(capacity_scheduler_policy=<CapacitySchedulerPolicy.\
MAX_UTILIZATION: 'MAX_UTILIZATION'>, context_chunking_policy=None, dynamic_batch_config=None), \
enable_chunked_prefill=True, return_perf_metrics=False, request_stats_max_iterations=None)
[07/24/2026-13:01:11] [TRT-LLM] [I] Number of tokens per block: 32.
[07/24/2026-13:01:11] [TRT-LLM] [I] [MemUsageChange] Allocated 1.26 GiB for max tokens in paged \
KV cache (8288).
[07/24/2026-13:02:40] [TRT-LLM] [I] [MemUsageChange] Allocated 56.25 GiB for max tokens in paged \
KV cache (368640).
[07/24/2026-13:02:41] [TRT-LLM] [I] max_seq_len=20480, max_num_requests=64, max_num_tokens=8192
"""
# Constructed: vLLM's log and page; the log's size counts the null block.
VLLM_LOG = """\
INFO 12-01 04:00:00 [utils.py:233] non-default args: {'max_num_seqs': 16, 'max_model_len': 1024, \
'max_num_batched_tokens': 512}
INFO 12-01 04:00:09 [kv_cache_utils.py:1087] GPU KV cache size: 1,280 tokens
"""
VLLM_PAGE = (
    "# TYPE vllm:cache_config_info gauge\n"
    'vllm:cache_config_info{block_size="32",cache_dtype="fp8",enable_prefix_caching="False",'
    'engine="0",num_gpu_blocks="40",num_gpu_blocks_override="40"} 1.0\n'
)
# Constructed: SGLang's allocation line and server info.
SGLANG_LOG = "[2026-10-01 10:00:00] max_total_num_tokens=368640, chunked_prefill_size=8192\n"
SGLANG_INFO = {
    "version": "0.5.23",
    "api_key": "k-0123456789",
    "page_size": 32,
    "max_running_requests": 64,
    "context_length": 20480,
    "chunked_prefill_size": 8192,
    "disable_radix_cache": True,
    "kv_cache_dtype": "fp8_e4m3",
    "max_total_num_tokens": 368640,
}

EXPECTED = Expectations("1.2.1", "MAX_UTILIZATION", 368640, "m")


def test_trtllms_policy_and_last_allocation_are_read() -> None:
    found = resolved.from_trtllm_log(TRTLLM_LOG)

    assert replace(found, excerpts=()) == Resolved(
        policy="MAX_UTILIZATION",
        pool_tokens=368640,
        block_tokens=32,
        kv_dtype="fp8",
        max_num_tokens=8192,
        max_seq_len=20480,
        chunked_prefill=True,
        prefix_reuse=False,
    )
    assert any("(368640)" in line for line in found.excerpts)
    assert not any("(8288)" in line for line in found.excerpts)
    assert mismatches(EXPECTED, found) == []
    assert unstated(EXPECTED, found) == []


@pytest.mark.parametrize(
    "text",
    [
        "capacity_scheduler_policy=<CapacitySchedulerPolicy.GUARANTEED_NO_EVICT>",
        "capacity_scheduler_policy=<CapacitySchedulerPolicy.GUARANTEED_NO_EVICT: "
        "'GUARANTEED_NO_EVICT'>, context_chunking_policy=None",
        "capacity_scheduler_policy='GUARANTEED_NO_EVICT'",
        "capacity_scheduler_policy=GUARANTEED_NO_EVICT",
    ],
)
def test_the_policy_is_read_in_every_spelling(text: str) -> None:
    log = f"x scheduler_config=SchedulerConfig({text})"

    assert resolved.from_trtllm_log(log).policy == "GUARANTEED_NO_EVICT"


def test_a_policy_that_was_not_taken_and_another_pool_are_mismatches() -> None:
    log = TRTLLM_LOG.replace("MAX_UTILIZATION", "GUARANTEED_NO_EVICT").replace("368640).", "8288).")

    problems = mismatches(EXPECTED, resolved.from_trtllm_log(log))

    assert problems == [
        "policy: declared MAX_UTILIZATION, the server took GUARANTEED_NO_EVICT",
        "KV pool: declared 368640 tokens, the server allocated 8288",
    ]


def test_less_than_a_block_is_rounding() -> None:
    odd = replace(EXPECTED, pool_tokens=368650)

    assert mismatches(odd, resolved.from_trtllm_log(TRTLLM_LOG)) == []
    assert mismatches(replace(odd, pool_tokens=368672), resolved.from_trtllm_log(TRTLLM_LOG))


def test_what_nothing_states_is_unstated_not_mismatched() -> None:
    assert mismatches(EXPECTED, Resolved()) == []
    assert len(unstated(EXPECTED, Resolved())) == 2
    assert unstated(Expectations(None, None, None, "m"), Resolved()) == []


def test_vllms_page_counts_usable_tokens() -> None:
    """40 blocks of 32, one of them the null block: 1,248 tokens, although the log says 1,280."""
    found = resolved.from_vllm(VLLM_LOG, VLLM_PAGE)

    assert found.pool_tokens == 39 * 32
    assert (found.block_tokens, found.kv_dtype, found.prefix_reuse) == (32, "fp8", False)
    assert (found.max_batch_size, found.max_num_tokens, found.max_seq_len) == (16, 512, 1024)


def test_vllms_log_alone_gives_its_own_number() -> None:
    assert resolved.from_vllm(VLLM_LOG, "").pool_tokens == 1280


def test_sglangs_server_info_is_read_without_its_key() -> None:
    found = resolved.from_sglang("", json.dumps(SGLANG_INFO))

    assert (found.pool_tokens, found.block_tokens, found.max_batch_size) == (368640, 32, 64)
    assert (found.chunked_prefill, found.prefix_reuse) == (True, False)
    assert "k-0123456789" not in str(found)


def test_sglangs_pool_is_found_in_the_log_and_in_inner_states() -> None:
    inner = {"internal_states": [{"memory_usage": {"token_capacity": 4096}}]}

    assert resolved.from_sglang(SGLANG_LOG, "").pool_tokens == 368640
    assert resolved.from_sglang("", json.dumps(inner)).pool_tokens == 4096


def test_llamacpps_context_is_its_pool() -> None:
    log = "llama_context: n_seq_max     = 16\nllama_context: n_ctx         = 1280\n"

    found = resolved.from_llamacpp(log, '{"total_slots": 4}')

    assert (found.pool_tokens, found.max_batch_size) == (1280, 4)


def test_each_adapter_reads_its_own_endpoints() -> None:
    trtllm, vllm = launch("trtllm", "1.2.1", MU), launch("vllm", "0.33.0")

    assert resolved.endpoint_paths(trtllm) == ()
    assert resolved.endpoint_paths(vllm) == ("/metrics",)
    assert resolved.resolve(trtllm, TRTLLM_LOG, {}).policy == "MAX_UTILIZATION"
    assert resolved.resolve(vllm, "", {"/metrics": VLLM_PAGE}).pool_tokens == 1248


NOISE = st.text(
    alphabet=st.sampled_from(list("capacity_scheduler_policy=<>'(){}\",: \n0123456789GB[]\\")),
    max_size=400,
)


@given(log=st.one_of(st.text(max_size=400), NOISE), other=st.one_of(st.text(max_size=400), NOISE))
def test_no_text_breaks_a_parser(log: str, other: str) -> None:
    for found in (
        resolved.from_trtllm_log(TRTLLM_LOG[:500] + log),
        resolved.from_vllm(log, VLLM_PAGE[:90] + other),
        resolved.from_sglang(log, other),
        resolved.from_llamacpp(log, other),
    ):
        assert isinstance(mismatches(EXPECTED, found), list)


JSON = st.recursive(
    st.none() | st.booleans() | st.floats() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(info=st.dictionaries(st.sampled_from([*SGLANG_INFO, "internal_states"]), JSON))
def test_no_server_info_breaks_the_parser(info: dict[str, object]) -> None:
    assert isinstance(resolved.from_sglang("", json.dumps(info)), Resolved)

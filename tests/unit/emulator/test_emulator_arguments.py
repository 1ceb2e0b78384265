"""Command lines and YAML of the three dialects, and what they resolve to."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstudy.base.errors import ConfigError, UsageError
from kvstudy.emulator import launch_log
from kvstudy.emulator.command import parse
from kvstudy.emulator.faults import Faults
from kvstudy.emulator.settings import Launch, kv_bytes_per_token, pool_from_memory
from kvstudy.sim.model import ChunkPolicy, Policy

PUBLISHED = shlex.split(
    "--backend pytorch --tp_size 1 --max_batch_size 64 --max_num_tokens 8192 --max_seq_len 20480 "
    "--kv_cache_free_gpu_memory_fraction 0.90 --host 127.0.0.1 --port 8123"
)


def published_yaml(**more: Any) -> dict[str, Any]:
    pool = {"enable_block_reuse": False, "dtype": "fp8", "max_tokens": 368640}
    return {"kv_cache_config": pool, "enable_chunked_prefill": True} | more


def launched(folder: Path, document: Any, *arguments: str) -> Launch:
    path = folder / "extra.yaml"
    path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
    return parse(["/models/llama", *PUBLISHED, "--config", str(path), *arguments])[0]


def test_the_published_command_line_resolves_to_the_published_server(tmp_path: Path) -> None:
    """56.25 GiB, 11,520 blocks, the policy of the YAML."""
    scheduler = {"capacity_scheduler_policy": "MAX_UTILIZATION"}
    launch = launched(tmp_path, published_yaml(scheduler_config=scheduler))
    server, spec = launch.server, launch.engine_spec()
    assert (server.pool_tokens, server.pool_blocks, server.pool_gib) == (368640, 11520, 56.25)
    assert (spec.policy, spec.max_batch_size, spec.max_num_tokens, spec.chunked_prefill) == (
        Policy.MAX_UTILIZATION, 64, 8192, True,
    )  # fmt: skip
    assert server.max_seq_len == 20480
    assert not server.telemetry.iteration_stats


def test_the_launch_log_prints_what_a_harness_reads(tmp_path: Path) -> None:
    """Policy with its enum, estimation cache first, the true pool last."""
    scheduler = {"capacity_scheduler_policy": "MAX_UTILIZATION"}
    launch = launched(tmp_path, published_yaml(scheduler_config=scheduler))
    log = list(launch_log.lines(launch))
    policy = (
        "scheduler_config=SchedulerConfig(capacity_scheduler_policy="
        "<CapacitySchedulerPolicy.MAX_UTILIZATION: 'MAX_UTILIZATION'>, "
    )
    assert sum(policy in line for line in log) == 1
    allocated = [line for line in log if "[MemUsageChange] Allocated" in line]
    assert len(allocated) == 2
    last = "[MemUsageChange] Allocated 56.25 GiB for max tokens in paged KV cache (368640)."
    assert allocated[-1].endswith(last) and not allocated[0].endswith(last)
    assert any("max_tokens is set by kv_cache_config.max_tokens: 368640" in line for line in log)
    assert any("iter_stats_max_iterations=None" in line for line in log)


def test_defaults_without_yaml_are_the_real_ones() -> None:
    """GNE, no chunking, a pool from free memory: 403,680 tokens at 0.9."""
    server = parse(["m", "--backend", "pytorch"])[0].server
    assert (server.policy, server.chunked_prefill) == (Policy.GUARANTEED_NO_EVICT, False)
    assert (server.pool_tokens, server.max_batch_size) == (403_680, 2048)
    assert server.host == "127.0.0.1"


def test_the_smaller_of_fraction_and_max_tokens_holds(tmp_path: Path) -> None:
    """And the YAML's fraction wins over the command line's."""
    huge = {"kv_cache_config": {"max_tokens": 10**7, "free_gpu_memory_fraction": 0.5}}
    server = launched(tmp_path, huge).server
    assert server.pool_tokens == pool_from_memory(0.5, 163_840, 32) < 403_680


def test_yaml_sets_sizes_policies_and_telemetry(tmp_path: Path) -> None:
    """Everything the emulator acts on."""
    document = published_yaml(
        max_batch_size=8, max_num_tokens=512, enable_iter_perf_stats=True, print_iter_log=True,
        return_perf_metrics=True, perf_metrics_max_requests=99, cuda_graph_config={"x": 1},
        scheduler_config={
            "capacity_scheduler_policy": "STATIC_BATCH", "context_chunking_policy": "EQUAL_PROGRESS"
        },
    )  # fmt: skip
    server = launched(tmp_path, document).server
    assert (server.max_batch_size, server.max_num_tokens) == (8, 512)
    assert (server.policy, server.chunk_policy) == (Policy.STATIC_BATCH, ChunkPolicy.EQUAL_PROGRESS)
    telemetry = server.telemetry
    assert telemetry.iteration_stats and telemetry.iteration_log and telemetry.prometheus
    assert telemetry.perf_metrics_max_requests == 99


@pytest.mark.parametrize(
    ("document", "named"),
    [
        ({"kv_cache_dtype": "fp8"}, "kv_cache_dtype"),
        ({"kv_cache_config": {"max_token": 1}}, "max_token"),
        ({"kv_cache_config": {"max_tokens": "9"}}, "max_tokens"),
        ({"kv_cache_config": {"free_gpu_memory_fraction": 2}}, "free_gpu_memory_fraction"),
        ({"kv_cache_config": [1]}, "KvCacheConfig"),
        ({"scheduler_config": {"capacity_scheduler_policy": "BEST"}}, "capacity_scheduler_policy"),
        ({"scheduler_config": {"policy": 1}}, "policy"),
        ({"enable_chunked_prefill": "yes"}, "enable_chunked_prefill"),
        ({"max_batch_size": 0}, "max_batch_size"),
        ("- a\n- b\n", "mapping"),
        ("{", "YAML"),
        ({"kv_cache_config": {"max_tokens": 31}}, "no block"),
    ],
)
def test_bad_yaml_is_refused_by_name(tmp_path: Path, document: Any, named: str) -> None:
    """As the real server refuses it."""
    with pytest.raises(UsageError, match=named):
        launched(tmp_path, document)


@pytest.mark.parametrize(
    "arguments",
    [
        ["m", "--max_batch_size", "0"],
        ["m", "--nonsense"],
        ["m", "--max_batch", "8"],
        ["m", "--port", "70000"],
        ["m", "--backend", "other"],
        ["m", "--kv_cache_free_gpu_memory_fraction", "1.5"],
        ["m", "--time-scale", "0"],
        ["m", "--time-scale", "nan"],
        ["m", "--emulate", "{"],
        ["m", "--dialect", "other"],
        [],
        ["m", "--config", "/does/not/exist.yaml"],
    ],
)
def test_bad_command_lines_are_usage_errors(arguments: list[str]) -> None:
    """Nothing ends the process behind the caller's back."""
    with pytest.raises(UsageError):
        parse(arguments)


def test_an_emulation_is_read_strictly() -> None:
    """All problems at once; missing step-time constants are the published fit's."""
    given = {
        "version": "1.3.0rc22",
        "pause": {"truncate_to_tokens": 1024},
        "step_time": {"fixed_s": 0.5},
        "admission_lag_steps": 0,
        "grace_s": 2,
    }
    emulation = parse(["m", "--emulate", json.dumps(given), "--time-scale", "40"])[0].emulation
    assert emulation.version == "1.3.0rc22" and emulation.time_scale == 40
    assert emulation.pause.truncate_to_tokens == 1024
    assert emulation.step_time.fixed_s == 0.5
    assert emulation.step_time.per_context_token_s == 1.314e-4
    assert emulation.admission_lag_steps == 0 and emulation.grace_s == 2.0
    bad = {"pause": "stop", "versions": "1", "step_time": {"fixed": 1}, "grace_s": -1}
    with pytest.raises(ConfigError) as caught:
        parse(["m", "--emulate", json.dumps(bad)])
    assert len(caught.value.problems) == 4


def test_never_release_is_a_pause_mode() -> None:
    """The third of the three."""
    emulation = parse(["m", "--emulate", '{"pause": "never_release"}'])[0].emulation
    assert emulation.pause.never_release


def test_vllm_flags_resolve() -> None:
    """23,041 blocks of 16, one of them the null block."""
    arguments = shlex.split(
        "--dialect vllm --num-gpu-blocks-override 23041 --block-size 16 --max-num-seqs 64 "
        "--max-num-batched-tokens 8192 --no-enable-prefix-caching --kv-cache-dtype fp8 "
        "--max-model-len 20480 --generation-config vllm --watermark 0.1 --api-key k --enforce-eager"
    )
    launch = parse(["org/model", "--served-model-name", "tiny", *arguments])[0]
    server, spec = launch.server, launch.engine_spec()
    assert (spec.policy, spec.block_tokens, spec.usable_blocks) == (
        Policy.VLLM_RECOMPUTE,
        16,
        23040,
    )
    assert spec.usable_blocks * spec.block_tokens == 368_640
    assert (spec.vllm.watermark, spec.chunked_prefill) == (0.1, True)
    assert (server.model_name, server.api_key, server.max_seq_len) == ("tiny", "k", 20480)
    log = "\n".join(launch_log.lines(launch))
    assert "GPU KV cache size: 368,640 tokens" in log


def test_sglang_flags_resolve() -> None:
    """The pool in tokens; chunking off is -1."""
    arguments = shlex.split(
        "--dialect sglang --model-path org/model --max-total-tokens 368640 --disable-radix-cache "
        "--max-running-requests 64 --context-length 20480 --kv-cache-dtype fp8_e4m3 "
        "--enable-metrics --schedule-conservativeness 0.5 --chunked-prefill-size -1"
    )
    launch = parse(arguments)[0]
    spec = launch.engine_spec()
    assert (spec.policy, spec.pool_blocks, spec.block_tokens) == (Policy.SGLANG_RETRACT, 368640, 1)
    assert not spec.chunked_prefill and spec.sglang.conservativeness == 0.5
    assert launch.server.telemetry.prometheus
    assert "max_total_num_tokens=368640" in "\n".join(launch_log.lines(launch))
    with pytest.raises(UsageError, match="model-path"):
        parse(["--dialect", "sglang", "--disable-radix-cache"])


def test_kv_bytes_follow_the_models_configuration() -> None:
    """2 x layers x KV heads x head size x bytes."""
    config = {
        "num_hidden_layers": 80, "num_key_value_heads": 8, "num_attention_heads": 64,
        "hidden_size": 8192,
    }  # fmt: skip
    assert kv_bytes_per_token(config, "fp8") == 163_840
    assert kv_bytes_per_token(config, "auto") == 327_680
    assert kv_bytes_per_token({}, "fp8") == kv_bytes_per_token({}, "auto") == 163_840
    assert kv_bytes_per_token({"head_dim": 64, **config}, "fp8") == 81_920


def test_faults_are_read_strictly_and_change_what_is_reported() -> None:
    """A policy that is not taken is the one that is logged."""
    given = {"policy": "MAX_UTILIZATION", "pool_tokens": 3200, "die_at_request": 3}
    launch, faults = parse(["m", "--faults", json.dumps(given)])
    assert launch.server.policy is Policy.MAX_UTILIZATION
    assert launch.server.pool_blocks == 100
    assert any("MAX_UTILIZATION: 'MAX" in line for line in launch_log.lines(launch))
    assert faults.kills_at(3) and not faults.kills_at(2)
    for bad in ({"die": 1}, {"die_at_request": "1"}, {"metrics": "odd"}, {"never_ready": 1}):
        with pytest.raises(ConfigError):
            parse(["m", "--faults", json.dumps(bad)])


def test_faults_decide_by_request_number() -> None:
    """Nothing goes wrong by default; 0 is a request that does not count."""
    none = Faults()
    assert not (none.kills_at(1) or none.kills_after(1) or none.spoils(1))
    assert none.before_hang(1, 9, b"a\n\n") == (b"a\n\n", False)
    assert none.status(1) is None and none.output_tokens(1, 5) == 5
    some = Faults(http_error_at_request=2, http_status=429, short_at_request=2, short_by=9)
    assert (some.status(1), some.status(2)) == (None, 429)
    assert (some.output_tokens(1, 5), some.output_tokens(2, 5)) == (5, 1)
    hanging = Faults(hang_at_request=1, hang_after_chunks=3)
    assert hanging.before_hang(1, 2, b"a\n\n") == (b"a\n\n", False)
    assert hanging.before_hang(1, 2, b"a\n\nb\n\n") == (b"a\n\n", True)
    assert hanging.before_hang(1, 3, b"b\n\n") == (b"", True)
    assert Faults(die_after_requests=2).kills_after(2)
    assert Faults(never_ready=True).status(9) == 503
    assert not Faults(hang_at_request=0).spoils(0)

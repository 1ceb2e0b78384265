"""vLLM, SGLang and llama.cpp: golden command lines, equal pools, keys out of sight."""

from __future__ import annotations

from dataclasses import replace

import pytest
import yaml
from serve_settings import ISSUE, MODEL, launch

from kvstudy.base.errors import ServerError
from kvstudy.serve import xllamacpp_server
from kvstudy.serve.model import MetricsKind
from kvstudy.serve.versions import release, same_version

VLLM = (
    "vllm serve /models/Llama-3.3-70B-Instruct-FP8"
    " --served-model-name Llama-3.3-70B-Instruct-FP8 --host 127.0.0.1 --port 8123"
    " --tensor-parallel-size 1 --max-num-seqs 64 --max-num-batched-tokens 8192"
    " --max-model-len 20480 --block-size 32 --num-gpu-blocks-override 11521"
    " --kv-cache-dtype fp8 --gpu-memory-utilization 0.90"
    " --enable-chunked-prefill --no-enable-prefix-caching --generation-config vllm"
)
SGLANG = (
    "python3 -m sglang.launch_server --model-path /models/Llama-3.3-70B-Instruct-FP8"
    " --served-model-name Llama-3.3-70B-Instruct-FP8 --host 127.0.0.1 --port 8123"
    " --tp-size 1 --max-running-requests 64 --chunked-prefill-size 8192"
    " --max-prefill-tokens 8192 --context-length 20480 --max-total-tokens 368640"
    " --page-size 32 --mem-fraction-static 0.90 --kv-cache-dtype fp8_e4m3"
    " --disable-radix-cache --schedule-policy fcfs --enable-metrics"
)
LLAMACPP = (
    "llama-server --model /models/Llama-3.3-70B-Instruct-FP8"
    " --alias Llama-3.3-70B-Instruct-FP8 --host 127.0.0.1 --port 8123"
    " --ctx-size 368640 --parallel 64 --batch-size 8192 --kv-unified"
    " --cache-type-k f16 --cache-type-v f16 --cache-ram 0 --no-context-shift --metrics"
)
AUTO = replace(ISSUE, kv_dtype="auto")


def test_vllms_command_line() -> None:
    built = launch("vllm", "0.33.0")

    assert " ".join(built.argv) == VLLM
    assert built.files == {}


def test_vllms_pool_has_one_block_more_than_is_usable() -> None:
    """11,520 blocks of 32 are the declared 368,640 tokens; block 0 is the null block."""
    assert launch("vllm", "0.33.0").expectations.pool_tokens == 368640

    halves = launch("vllm", "0.33.0", server=replace(ISSUE, block_tokens=16))
    assert halves.argv[halves.argv.index("--num-gpu-blocks-override") + 1] == "23041"
    assert halves.expectations.pool_tokens == 368640


def test_the_arms_of_the_cpu_study_are_options() -> None:
    """The tried arms: a small pool (null block included), a cap on residents, a watermark."""
    small = launch("vllm", "0.32.0", {"num_gpu_blocks_override": 40})
    capped = launch("vllm", "0.32.0", {"num-gpu-blocks-override": 40, "max-num-seqs": 4})
    marked = launch("vllm", "0.32.0", {"watermark": 0.3, "enforce_eager": True})

    assert small.expectations.pool_tokens == 39 * 32
    assert small.argv.count("--num-gpu-blocks-override") == 1
    assert capped.argv[capped.argv.index("--max-num-seqs") + 1] == "4"
    assert marked.argv[-3:] == ("--watermark", "0.3", "--enforce-eager")


def test_vllm_options_can_take_a_flag_away_and_turn_it_round() -> None:
    argv = launch(
        "vllm", "0.33.0", {"gpu_memory_utilization": None, "enable_chunked_prefill": False}
    ).argv

    assert "--gpu-memory-utilization" not in argv
    assert "--no-enable-chunked-prefill" in argv


def test_vllms_key_goes_through_the_environment() -> None:
    built = launch("vllm", "0.33.0", api_key="k-123456")

    assert built.env["VLLM_API_KEY"] == "k-123456"
    assert built.public_env["VLLM_API_KEY"] == "***"
    assert built.headers == {"Authorization": "Bearer k-123456"}
    assert not any("k-123456" in word for word in built.argv)


def test_a_site_command_replaces_the_executable() -> None:
    built = launch("vllm", "0.32.0", command=("/side/v-vllm/bin/vllm",), env={"TMPDIR": "/side/t"})

    assert built.argv[:3] == ("/side/v-vllm/bin/vllm", "serve", MODEL)
    assert built.env["TMPDIR"] == "/side/t"


def test_telemetry_off_closes_the_page() -> None:
    assert "--disable-log-stats" in launch("vllm", "0.33.0", telemetry=False).argv
    assert "--enable-metrics" not in launch("sglang", "0.5.23", telemetry=False).argv
    assert "--metrics" not in launch("llamacpp", "b1", server=AUTO, telemetry=False).argv
    for adapter in ("vllm", "sglang", "llamacpp"):
        off = launch(adapter, "0.5.23", server=AUTO, telemetry=False)
        assert off.routes.metrics_kind is MetricsKind.NONE


def test_sglangs_command_line() -> None:
    built = launch("sglang", "0.5.23")

    assert " ".join(built.argv) == SGLANG
    assert built.expectations.pool_tokens == 368640


def test_sglang_without_chunking() -> None:
    argv = launch("sglang", "0.5.23", server=replace(ISSUE, chunked_prefill=False)).argv

    assert argv[argv.index("--chunked-prefill-size") + 1] == "-1"


def test_sglangs_key_goes_through_a_private_file() -> None:
    built = launch("sglang", "0.5.23", api_key="k-123456")

    assert yaml.safe_load(built.files["sglang-key.yaml"]) == {"api-key": "k-123456"}
    assert built.private_files == ("sglang-key.yaml",)
    assert not any("k-123456" in word for word in built.argv)
    at = built.argv.index("--config")
    assert built.argv[at + 1] == "{dir}/sglang-key.yaml"


def test_llamacpps_command_line() -> None:
    built = launch("llamacpp", "b7000", server=AUTO, api_key="k-123456")

    assert " ".join(built.argv) == LLAMACPP
    assert built.env == {"LLAMA_API_KEY": "k-123456"}
    assert built.expectations.pool_tokens == 368640
    assert built.expectations.version is None


def test_the_wheels_server_takes_the_same_flags() -> None:
    built = launch("llamacpp", "b7000", server=AUTO)

    known = xllamacpp_server.parse([*built.model_words, *built.flags])

    assert (known.model, known.ctx_size, known.parallel) == (MODEL, 368640, 64)
    assert (known.kv_unified, known.context_shift, known.metrics) == (True, False, True)


@pytest.mark.parametrize("adapter", ["sglang", "llamacpp"])
def test_a_kv_type_an_engine_lacks_is_refused_by_name(adapter: str) -> None:
    odd = replace(ISSUE, kv_dtype="float16" if adapter == "sglang" else "fp8")

    with pytest.raises(ServerError, match=r"kv_pool\.dtype (float16|fp8)"):
        launch(adapter, "1", server=odd)


def test_an_unknown_adapter_is_refused() -> None:
    with pytest.raises(ServerError, match="adapter 'nonesuch'"):
        launch("nonesuch", "1")


def test_the_same_declared_pool_is_the_same_usable_pool_everywhere() -> None:
    pools = {
        adapter: launch(adapter, "1.2.1", server=AUTO).expectations.pool_tokens
        for adapter in ("trtllm", "vllm", "sglang", "llamacpp")
    }

    assert set(pools.values()) == {368640}


@pytest.mark.parametrize(
    ("pinned", "found", "same"),
    [
        ("1.2.1", "1.2.1", True),
        ("0.32.0", "0.32.0+cpu", True),
        ("v0.33.0", "0.33.0", True),
        ("1.3.0rc2", "1.3.0rc22", False),
        ("1.2.1", "1.2.10", False),
        ("1.2.1", "", False),
    ],
)
def test_versions_are_compared_whole(pinned: str, found: str, same: bool) -> None:
    assert same_version(pinned, found) is same


def test_candidates_come_before_their_release() -> None:
    ordered = ["nonsense", "1.2.1", "1.3.0rc2", "1.3.0rc22", "1.3.0", "1.4.0rc1"]

    assert sorted(ordered, key=release) == ordered

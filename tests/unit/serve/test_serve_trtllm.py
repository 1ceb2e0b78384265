"""TensorRT-LLM: the published command line and YAML come out exactly, versions get their keys."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import yaml
from serve_settings import GNE, ISSUE, MU, launch

from kvstudy.serve.adapters import trtllm
from kvstudy.serve.flags import fraction
from kvstudy.serve.model import EngineSettings, MetricsKind

# Copied by hand from the issue's text.
PUBLISHED_COMMAND = (
    "trtllm-serve serve $MODEL --backend pytorch --tp_size 1"
    " --max_batch_size 64 --max_num_tokens 8192 --max_seq_len 20480"
    " --kv_cache_free_gpu_memory_fraction 0.90"
    " --config extra.yaml"
    " --host 127.0.0.1 --port $PORT"
)
PUBLISHED_BASELINE = """
kv_cache_config:
  enable_block_reuse: false   # prefix caching off (cross-engine parity in our study)
  dtype: fp8
  max_tokens: 368640          # pool pinned to 368,640 KV token slots (see note below)
enable_chunked_prefill: true
"""
PUBLISHED_MAX_UTILIZATION = """
kv_cache_config:
  enable_block_reuse: false
  dtype: fp8
  max_tokens: 368640
enable_chunked_prefill: true
scheduler_config:
  capacity_scheduler_policy: MAX_UTILIZATION
"""


def document(version: str, options: dict[str, Any], **engine: Any) -> Any:
    return yaml.safe_load(launch("trtllm", version, options, **engine).files["extra.yaml"])


@pytest.mark.parametrize("options", [GNE, MU, {}], ids=["gne", "mu", "no options"])
def test_the_published_command_line_comes_out_word_for_word(options: dict[str, Any]) -> None:
    built = launch("trtllm", "1.2.1", options, as_published=True)

    words = [word.replace("{dir}/", "") for word in built.argv]
    words[words.index("/models/Llama-3.3-70B-Instruct-FP8")] = "$MODEL"
    words[words.index("8123")] = "$PORT"

    assert words == PUBLISHED_COMMAND.split()


@pytest.mark.parametrize(
    ("options", "published"),
    [(GNE, PUBLISHED_BASELINE), ({}, PUBLISHED_BASELINE), (MU, PUBLISHED_MAX_UTILIZATION)],
)
def test_both_published_yaml_files_come_out_equal_as_parsed(
    options: dict[str, Any], published: str
) -> None:
    assert document("1.2.1", options, as_published=True) == yaml.safe_load(published)


def test_as_published_has_no_telemetry() -> None:
    routes = launch("trtllm", "1.2.1", MU, as_published=True).routes

    assert routes.metrics_kind is MetricsKind.NONE
    assert routes.metrics_path is None


def test_the_default_states_every_kv_key_and_the_switches_for_1_2_1() -> None:
    assert document("1.2.1", MU) == {
        "kv_cache_config": {
            "enable_block_reuse": False,
            "dtype": "fp8",
            "max_tokens": 368640,
            "free_gpu_memory_fraction": 0.9,
            "tokens_per_block": 32,
        },
        "enable_chunked_prefill": True,
        "scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"},
        "enable_iter_perf_stats": True,
        "return_perf_metrics": False,
    }


def test_1_3_candidates_pin_the_schedulers_code_from_rc7_on() -> None:
    policy = {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"}

    assert document("1.3.0rc6", GNE)["scheduler_config"] == policy
    assert document("1.3.0rc7", GNE)["scheduler_config"] == {
        **policy,
        "use_python_scheduler": False,
    }
    assert document("1.3.0rc22", GNE)["scheduler_config"]["use_python_scheduler"] is False
    assert "use_kv_cache_manager_v2" not in document("1.3.0rc22", GNE)["kv_cache_config"]


@pytest.mark.parametrize("version", ["1.4.0rc1", "1.4.0", "1.5.2"])
def test_from_1_4_on_the_kv_manager_is_pinned(version: str) -> None:
    assert document(version, GNE)["kv_cache_config"]["use_kv_cache_manager_v2"] is False


def test_an_arm_may_choose_the_other_kv_manager() -> None:
    options = {"kv_cache_config": {"use_kv_cache_manager_v2": True}}

    assert document("1.4.0rc1", options)["kv_cache_config"]["use_kv_cache_manager_v2"] is True


def test_the_command_line_of_every_version_is_the_published_one() -> None:
    published = launch("trtllm", "1.2.1", MU, as_published=True).argv

    for version in ("1.2.1", "1.3.0rc22", "1.4.0rc1"):
        assert launch("trtllm", version, MU).argv == published


def test_differences_to_the_published_yaml_are_listed_with_their_reasons() -> None:
    engine = EngineSettings(adapter="trtllm", version="1.2.1")

    found = trtllm.differences(engine, ISSUE, GNE)

    assert {d.key: (d.published, d.used) for d in found} == {
        "kv_cache_config.free_gpu_memory_fraction": (None, 0.9),
        "kv_cache_config.tokens_per_block": (None, 32),
        "scheduler_config.capacity_scheduler_policy": (None, "GUARANTEED_NO_EVICT"),
        "enable_iter_perf_stats": (None, True),
        "return_perf_metrics": (None, False),
    }
    assert all(d.why for d in found)
    assert trtllm.differences(replace(engine, as_published=True), ISSUE, GNE) == []


def test_an_arms_own_key_is_named_as_such() -> None:
    engine = EngineSettings(adapter="trtllm", version="1.2.1", as_published=True)

    found = trtllm.differences(engine, ISSUE, {"print_iter_log": True})

    assert [(d.key, d.used, d.why) for d in found] == [
        ("print_iter_log", True, "set by the arm's options")
    ]


def test_expectations_follow_the_final_yaml() -> None:
    smaller = {"kv_cache_config": {"max_tokens": 4096}}

    assert launch("trtllm", "1.2.1", {**MU, **smaller}).expectations.pool_tokens == 4096
    assert launch("trtllm", "1.2.1", MU).expectations.policy == "MAX_UTILIZATION"
    assert launch("trtllm", "1.2.1").expectations.policy == "GUARANTEED_NO_EVICT"
    assert launch("trtllm", "1.2.1").expectations.version == "1.2.1"


def test_a_name_is_passed_only_to_versions_that_take_one() -> None:
    old = launch("trtllm", "1.2.1", served_name="llama")
    new = launch("trtllm", "1.3.0rc22", served_name="llama")

    assert "--served_model_name" not in old.argv
    assert old.expectations.served_model == "Llama-3.3-70B-Instruct-FP8"
    assert new.argv[-2:] == ("--served_model_name", "llama")
    assert new.expectations.served_model == "llama"


@pytest.mark.parametrize(
    ("version", "options", "path", "kind"),
    [
        ("1.2.1", {}, "/metrics", "iterations"),
        ("1.2.1", {"return_perf_metrics": True}, "/metrics", "iterations"),
        ("1.3.0rc22", {"return_perf_metrics": True}, "/prometheus/metrics", "prometheus"),
        ("1.3.0rc22", {}, "/metrics", "iterations"),
        ("1.2.1", {"enable_iter_perf_stats": False}, None, "none"),
    ],
)
def test_the_metrics_route_is_the_one_that_loses_nothing(
    version: str, options: dict[str, Any], path: str | None, kind: str
) -> None:
    routes = launch("trtllm", version, options).routes

    assert (routes.metrics_path, str(routes.metrics_kind)) == (path, kind)


def test_per_request_metrics_are_read_where_they_are_kept() -> None:
    kept = {"return_perf_metrics": True, "perf_metrics_max_requests": 512}

    assert launch("trtllm", "1.2.1", kept).routes.perf_metrics_path == "/perf_metrics"
    assert launch("trtllm", "1.2.1").routes.perf_metrics_path is None


def test_telemetry_off_switches_the_statistics_off() -> None:
    built = launch("trtllm", "1.2.1", MU, telemetry=False)

    assert yaml.safe_load(built.files["extra.yaml"])["enable_iter_perf_stats"] is False
    assert built.routes.metrics_kind is MetricsKind.NONE


def test_no_key_is_expected_of_a_server_that_takes_none() -> None:
    built = launch("trtllm", "1.2.1", api_key="secret-key-1")

    assert built.api_key is None
    assert built.headers == {}
    assert "secret-key-1" not in repr(built)


def test_none_in_an_arms_options_takes_a_key_away() -> None:
    found = document("1.2.1", {"kv_cache_config": {"max_tokens": None}})

    assert "max_tokens" not in found["kv_cache_config"]


@pytest.mark.parametrize(
    ("value", "text"), [(0.9, "0.90"), (0.875, "0.875"), (0.85, "0.85"), (1, "1.00")]
)
def test_a_fraction_is_written_as_the_issue_writes_it(value: float, text: str) -> None:
    assert fraction(value) == text


def test_hostile_names_stay_single_words() -> None:
    hostile = launch("trtllm", "1.2.1", {"note": "$(touch x); `id`\n'\""})

    assert len(hostile.argv) == len(launch("trtllm", "1.2.1").argv)
    assert yaml.safe_load(hostile.files["extra.yaml"])["note"] == "$(touch x); `id`\n'\""

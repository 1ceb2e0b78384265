"""The vLLM and SGLang dialects over real HTTP, and their exactness."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest
from emulator_harness import Connection, Load, drive, serving, write_expected

from kvstudy.sim.replay import simulate

VLLM = (
    "--dialect", "vllm", "--served-model-name", "tiny", "--num-gpu-blocks-override", "51",
    "--block-size", "32", "--max-num-seqs", "16", "--max-num-batched-tokens", "512",
    "--max-model-len", "1024", "--no-enable-prefix-caching",
)  # fmt: skip
SGLANG = (
    "--dialect", "sglang", "--served-model-name", "tiny", "--max-total-tokens", "1600",
    "--page-size", "32", "--max-running-requests", "16", "--chunked-prefill-size", "512",
    "--context-length", "1024", "--disable-radix-cache", "--enable-metrics",
)  # fmt: skip


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": [30, 40, 50], "max_tokens": 4, "temperature": 0} | more


def value(page: bytes, name: str) -> float:
    """The value of a sample without regard to its labels."""
    found = re.search(rf"^{re.escape(name)}\{{[^}}]*\}} (\S+)$", page.decode(), re.MULTILINE)
    assert found is not None, name
    return float(found.group(1))


async def stream(port: int, **more: Any) -> Any:
    connection = Connection(port)
    reply = await connection.stream(ask(stream=True, **more))
    connection.close()
    return reply


def test_vllm_routes_frames_and_metrics(tiny_model: Path, tmp_path: Path) -> None:
    """Version, Prometheus text at /metrics, vLLM's frames, 404 for another model."""
    with serving(tiny_model, tmp_path, *VLLM, "--time-scale", "200") as server:
        assert server.get_json("/version") == {"version": "1.2.1"}
        assert server.get("/ping")[0] == server.get("/health")[0] == 200
        usage = {"include_usage": True}
        reply = asyncio.run(stream(server.port, stream_options=usage, return_token_ids=True))
        assert reply.is_done and reply.chunks == 4
        assert "usage" not in reply.frames[0]
        assert reply.frames[0]["choices"][0]["prompt_token_ids"] == [30, 40, 50]
        assert reply.frames[-1]["usage"] == {
            "prompt_tokens": 3, "total_tokens": 7, "completion_tokens": 4
        }  # fmt: skip
        status, body = server.post(ask(model="other"))
        assert status == 404 and json.loads(body)["error"]["type"] == "NotFoundError"
        page = server.get("/metrics")[1]
        for name in ("num_requests_running", "num_requests_waiting", "kv_cache_usage_perc"):
            assert value(page, f"vllm:{name}") == 0
        assert value(page, "vllm:generation_tokens_total") == 4
        assert b'num_gpu_blocks="51"' in page and b'block_size="32"' in page
        assert "GPU KV cache size: 1,600 tokens" in server.log


def test_sglang_routes_frames_and_metrics(tiny_model: Path, tmp_path: Path) -> None:
    """Server info, matched_stop, the pool in tokens; no /version."""
    with serving(tiny_model, tmp_path, *SGLANG, "--time-scale", "200") as server:
        assert server.get("/version")[0] == 404
        info = server.get_json("/get_server_info")
        assert (info["max_total_num_tokens"], info["version"]) == (1600, "1.2.1")
        assert server.get_json("/get_model_info")["model_path"] == str(tiny_model)
        reply = asyncio.run(stream(server.port, stream_options={"include_usage": True}))
        assert reply.is_done and reply.chunks == 4
        assert reply.frames[3]["choices"][0]["matched_stop"] is None
        assert reply.frames[3]["choices"][0]["finish_reason"] == "length"
        page = server.get("/metrics")[1]
        assert value(page, "sglang:max_total_num_tokens") == 1600
        assert value(page, "sglang:num_running_reqs") == 0


def test_their_own_key_options_are_honoured(tiny_model: Path, tmp_path: Path) -> None:
    """One asks on /v1 only, the other everywhere but for health and metrics."""
    with serving(tiny_model, tmp_path, *VLLM, "--api-key", "abc", "--time-scale", "200") as server:
        assert server.post(ask())[0] == 401 and server.get("/version")[0] == 200
        assert server.post(ask(), key="abc")[0] == 200
    with serving(tiny_model, tmp_path, *SGLANG, "--api-key", "abc") as server:
        assert server.get("/get_server_info")[0] == 401
        assert server.get("/get_server_info", key="abc")[0] == 200


@pytest.mark.parametrize(
    ("dialect", "policy"), [("vllm", "vllm_recompute"), ("sglang", "sglang_retract")]
)
def test_pauses_and_iterations_equal_the_replay(
    tiny_model: Path, tmp_path: Path, dialect: str, policy: str
) -> None:
    """And the engine's own counter says the same."""
    load = Load.equal("measured", 30, 200, 60, 12)
    expected = write_expected(tmp_path / "expected.parquet", [load])
    flags = VLLM if dialect == "vllm" else SGLANG
    emulate = json.dumps({"grace_s": 10})
    arguments = ("--workload", str(expected), "--time-scale", "40", "--emulate", emulate)
    with serving(tiny_model, tmp_path, *flags, *arguments) as server:
        replies = asyncio.run(drive(server.port, load, model="tiny"))
        summary = server.get_json("/emulator/summary")
        page = server.get("/metrics")[1]
    predicted = simulate(
        {
            "policy": policy,
            "pause": "recompute",
            "pool_tokens": 1632 if dialect == "vllm" else 1600,
            "block_tokens": 32,
            "max_batch_size": 16,
            "max_num_tokens": 512,
            "chunked_prefill": True,
            "concurrency": 12,
            "admission_lag_steps": 2,
            "requests": [{"input_tokens": 200, "output_tokens": 60, "count": 30}],
        }
    )
    assert summary["late_arrivals"] == 0
    assert [reply.chunks for reply in replies] == [60] * 30
    (phase,) = summary["phases"]
    assert phase["iterations"] == predicted["iterations"]
    assert phase["pauses"] == predicted["pauses"] > 0
    names = {"vllm": "vllm:num_preemptions_total", "sglang": "sglang:num_retracted_requests_total"}
    assert value(page, names[dialect]) == phase["pauses"]

"""The trtllm dialect over real HTTP: routes, streams, errors, cancelling, ending."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import socket
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from emulator_harness import Connection, Load, Server, drive, request_bytes, serving
from tokenizers import Tokenizer

SCALE = "200"


def config(folder: Path, **more: Any) -> str:
    pool = {"enable_block_reuse": False, "dtype": "fp8", "max_tokens": 3200}
    document = {"kv_cache_config": pool, "enable_chunked_prefill": True} | more
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "extra.yaml"
    path.write_text(yaml.safe_dump(document))
    return str(path)


@pytest.fixture(scope="module")
def server(tiny_model: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    """One server for all tests that only talk to it."""
    folder = tmp_path_factory.mktemp("http")
    extra = config(
        folder, enable_iter_perf_stats=True, print_iter_log=True, return_perf_metrics=True,
        perf_metrics_max_requests=100,
    )  # fmt: skip
    arguments = ("--max_batch_size", "8", "--max_seq_len", "2048", "--config", extra)
    with serving(tiny_model, folder, *arguments, "--time-scale", SCALE) as running:
        yield running


def ask(**more: Any) -> dict[str, Any]:
    return {"model": "tiny", "prompt": [30, 40, 50], "max_tokens": 6} | more


def streamed(server: Server, **more: Any) -> Any:
    async def one() -> Any:
        connection = Connection(server.port)
        reply = await connection.stream(ask(stream=True, **more))
        connection.close()
        return reply

    return asyncio.run(one())


def test_plain_routes_answer_as_the_real_ones(server: Server) -> None:
    """Health is empty, the version and the model are listed, the rest exists."""
    assert server.get("/health") == (200, b"")
    assert server.get("/health_generate")[0] == 200
    assert server.get_json("/version") == {"version": "1.2.1"}
    models = server.get_json("/v1/models")
    assert [model["id"] for model in models["data"]] == ["tiny"]
    assert server.get("/server_info")[0] == 200
    assert server.get("/prometheus/metrics")[0] == 200
    assert server.get("/nothing")[0] == 404


def test_a_stream_carries_one_token_per_frame_and_then_usage_and_done(server: Server) -> None:
    """Six tokens, the reason on the last, one usage frame without choices, [DONE]."""
    reply = streamed(server, stream_options={"include_usage": True})
    content, usage = reply.frames[:-1], reply.frames[-1]
    assert reply.is_done and len(content) == 6
    reasons = [frame["choices"][0]["finish_reason"] for frame in content]
    assert reasons == [None] * 5 + ["length"]
    assert usage["choices"] == []
    assert usage["usage"] == {
        "prompt_tokens": 3, "total_tokens": 9, "completion_tokens": 6,
        "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip
    assert len({frame["id"] for frame in content}) == 6


def test_the_text_re_encodes_to_the_ids_that_were_sent(server: Server, tiny_model: Path) -> None:
    """With and without detokenising the same tokens come, twice the same."""
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    text = streamed(server, max_tokens=200).text
    raw = streamed(server, max_tokens=200, detokenize=False)
    ids = [i for frame in raw.frames for i in frame["choices"][0]["token_ids"]]
    assert len(ids) == 200 and raw.text == ""
    assert tokenizer.encode(text, add_special_tokens=False).ids == ids
    assert streamed(server, max_tokens=200).text == text
    assert streamed(server, max_tokens=200, prompt=[31, 40, 50]).text != text


def test_the_last_token_usage_and_end_come_in_one_write(server: Server) -> None:
    """The chunk that holds the last token also holds everything after it."""

    async def chunks() -> list[bytes]:
        reader, writer = await asyncio.open_connection("127.0.0.1", server.port)
        body = ask(stream=True, stream_options={"include_usage": True})
        writer.write(request_bytes(server.port, body))
        await reader.readuntil(b"\r\n\r\n")
        found = []
        while size := int(await reader.readuntil(b"\r\n"), 16):
            found.append((await reader.readexactly(size + 2))[:-2])
        writer.close()
        return found

    found = asyncio.run(chunks())
    assert sum(part.count(b"data: ") for part in found) == 8
    for piece in (b'"finish_reason":"length"', b'"choices":[]', b"data: [DONE]\n\n"):
        assert piece in found[-1] and not any(piece in part for part in found[:-1])


def test_an_unstreamed_answer_and_a_text_prompt(server: Server, tiny_model: Path) -> None:
    """The prompt is tokenised, without a BOS that the tokenizer does not add."""
    tokenizer = Tokenizer.from_file(str(tiny_model / "tokenizer.json"))
    status, body = server.post(ask(prompt="bada bidu"))
    answer = json.loads(body)
    assert status == 200
    assert answer["usage"]["prompt_tokens"] == len(tokenizer.encode("bada bidu").ids)
    assert answer["usage"]["completion_tokens"] == 6
    assert answer["choices"][0]["finish_reason"] == "length"
    assert len(tokenizer.encode(answer["choices"][0]["text"], add_special_tokens=False).ids) == 6


@pytest.mark.parametrize(
    "body",
    [
        b"{",
        {"model": "tiny", "prompt": [99999], "max_tokens": 5},
        {"model": "other", "prompt": [1], "max_tokens": 5},
        {"model": "tiny", "prompt": [1], "max_tokens": 4096},
        {"model": "tiny", "max_tokens": 5},
    ],
)
def test_errors_are_400_with_the_real_shape(server: Server, body: Any) -> None:
    """Object, message, type, param, code."""
    status, answer = server.post(body)
    error = json.loads(answer)
    assert status == 400
    assert list(error) == ["object", "message", "type", "param", "code"]
    assert (error["object"], error["code"]) == ("error", 400)


def test_metrics_are_read_once(server: Server) -> None:
    """Every iteration exactly once, in order, then nothing."""
    server.get_json("/metrics")
    streamed(server, max_tokens=20)
    records = server.get_json("/metrics")
    assert server.get_json("/metrics") == []
    iterations = [record["iter"] for record in records]
    assert len(records) >= 20
    assert iterations == list(range(iterations[0], iterations[0] + len(records)))
    first = records[0]
    assert first["inflightBatchingStats"]["numCtxTokens"] == 3
    assert first["kvCacheStats"]["maxNumBlocks"] == 100
    assert first["numNewActiveRequests"] == 1


def test_perf_metrics_name_first_and_last_iteration_once(server: Server) -> None:
    """Each ended request once."""
    server.get_json("/perf_metrics")
    streamed(server, max_tokens=7)
    (entry,) = server.get_json("/perf_metrics")
    metrics = entry["perf_metrics"]
    assert metrics["last_iter"] - metrics["first_iter"] == 6
    assert set(metrics["timing_metrics"]) == {
        "server_arrival_time", "arrival_time", "first_scheduled_time", "first_token_time",
        "server_first_token_time", "last_token_time",
    }  # fmt: skip
    assert server.get_json("/perf_metrics") == []


def test_the_iteration_log_has_the_real_shape(server: Server) -> None:
    """As `print_iter_log: true` prints it."""
    streamed(server)
    lines = [line for line in server.log.splitlines() if "iter = " in line]
    assert lines
    for part in (
        "[TRT-LLM] [RANK 0] [I] iter = ", ", global_rank = 0, rank = 0, currank_total_requests = ",
        "host_step_time = ", "prev_device_step_time = ", "num_scheduled_requests: 1, states = "
        "{'num_ctx_requests': ", "'num_generation_tokens': ",
    ):  # fmt: skip
        assert part in lines[-1]


def test_foreign_requests_that_come_together_start_together(server: Server) -> None:
    """Without a workload file an idle engine gathers what comes within some 50 ms."""
    server.get_json("/metrics")
    load = Load.equal("other", 6, 16, 5, 6)
    asyncio.run(drive(server.port, load, model="tiny"))
    records = server.get_json("/metrics")
    assert records[0]["numNewActiveRequests"] == 6
    assert len(records) == 5


def test_a_client_that_goes_away_is_cancelled(server: Server) -> None:
    """Its blocks come back and the others go on."""
    before = server.get_json("/emulator/summary")["requests_cancelled"]
    with socket.create_connection(("127.0.0.1", server.port)) as connection:
        connection.sendall(request_bytes(server.port, ask(stream=True, max_tokens=2000)))
        while b"data: " not in connection.recv(65536):
            pass
    until = time.monotonic() + 5
    while time.monotonic() < until:
        summary = server.get_json("/emulator/summary")
        if summary["requests_cancelled"] == before + 1 and not summary["active_requests"]:
            break
        time.sleep(0.02)
    assert summary["requests_cancelled"] == before + 1
    assert summary["active_requests"] == 0
    assert streamed(server).is_done


def test_it_listens_on_loopback_only(server: Server) -> None:
    """The address in the kernel's table is 127.0.0.1."""
    table = Path("/proc/net/tcp").read_text().splitlines()
    port = f":{server.port:04X}"
    listening = [row.split()[1] for row in table if row.split()[1].endswith(port)]
    assert "0100007F" + port in listening and "00000000" + port not in listening


def test_sigterm_ends_it_with_0_within_a_second_even_with_an_open_stream(
    tiny_model: Path, tmp_path: Path
) -> None:
    """Nothing is waited for."""
    with serving(tiny_model, tmp_path, "--config", config(tmp_path)) as server:
        connection = socket.create_connection(("127.0.0.1", server.port))
        connection.sendall(request_bytes(server.port, ask(stream=True, max_tokens=2000)))
        while b"data: " not in connection.recv(65536):
            pass
        began = time.monotonic()
        assert server.stop() == 0
        assert time.monotonic() - began < 1.5
        connection.close()


def test_a_key_in_the_environment_is_asked_for(tiny_model: Path, tmp_path: Path) -> None:
    """401 without it on /v1, and it never shows in the log."""
    env = {"KVSTUDY_API_KEY": "s3cret"}
    arguments = ("--config", config(tmp_path), "--time-scale", SCALE)
    with serving(tiny_model, tmp_path, *arguments, env=env) as server:
        assert server.post(ask())[0] == 200
        assert server.get("/v1/models")[0] == 200
        server.key = None
        assert server.post(ask())[0] == server.get("/v1/models")[0] == 401
        assert server.post(ask(), key="wrong")[0] == 401
        assert server.get("/health")[0] == 200
        assert server.get("/metrics") == (200, b"[]")
        assert "s3cret" not in server.log


def test_a_taken_port_and_a_bad_yaml_end_it_with_a_reason(tiny_model: Path, tmp_path: Path) -> None:
    """Exit codes 2 and 64, and the name of what is wrong."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        with serving(tiny_model, tmp_path, "--port", port, wait=False) as server:
            assert server.process.wait(timeout=20) == 2
            assert port in server.log
    bad = config(tmp_path, kv_cache_dtype="fp8")
    with serving(tiny_model, tmp_path, "--config", bad, wait=False) as server:
        assert server.process.wait(timeout=20) == 64
        assert "kv_cache_dtype\n  Extra inputs are not permitted" in server.log


def test_newer_versions_drain_the_records_into_prometheus(tiny_model: Path, tmp_path: Path) -> None:
    """With both switches on, /metrics looks empty and the gauges are on the other page."""
    extra = config(tmp_path, enable_iter_perf_stats=True, return_perf_metrics=True)
    emulate = json.dumps({"version": "1.3.0rc22"})
    arguments = ("--config", extra, "--time-scale", SCALE, "--emulate", emulate)
    with serving(tiny_model, tmp_path, *arguments) as server:
        assert server.post(ask())[0] == 200
        assert server.get_json("/metrics") == []
        page = server.get("/prometheus/metrics")[1].decode()
        assert "trtllm_num_paused_requests{" in page and "trtllm_kv_cache_max_blocks{" in page
        assert server.get_json("/version") == {"version": "1.3.0rc22"}


def test_it_starts_in_well_under_a_second(tiny_model: Path, tmp_path: Path) -> None:
    """Bounded only loosely, since other tests share the cores; the benchmark prints the figure."""
    began = time.monotonic()
    with serving(tiny_model, tmp_path, "--config", config(tmp_path)) as server:
        assert time.monotonic() - began < 5
        os.kill(server.process.pid, signal.SIGINT)
        assert server.process.wait(timeout=5) == 0

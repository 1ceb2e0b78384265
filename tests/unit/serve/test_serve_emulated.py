"""The emulator is started by the lifecycle of real engines, in each dialect, and fits."""

from __future__ import annotations

import asyncio
from pathlib import Path

import httpx
import pytest
from serve_settings import ISSUE, MU

from kvstudy.serve import resolved
from kvstudy.serve.adapters.emulator import emulate
from kvstudy.serve.command import build, new_api_key
from kvstudy.serve.lifecycle import serve
from kvstudy.serve.model import Ending, EngineSettings, Launch
from kvstudy.serve.processes import free_port

ENGINES = [("trtllm", "1.2.1"), ("trtllm", "1.3.0rc22"), ("vllm", "0.33.0"), ("sglang", "0.5.23")]


@pytest.mark.parametrize(("adapter", "version"), ENGINES)
def test_each_dialect_takes_the_launch_and_resolves_to_what_was_declared(
    adapter: str, version: str, tmp_path: Path, root: Path
) -> None:
    model = str(root / "src" / "kvstudy" / "workload" / "tokenizer")
    key = new_api_key()

    def launch(port: int) -> Launch:
        real = build(
            EngineSettings(adapter=adapter, version=version),
            ISSUE,
            MU if adapter == "trtllm" else {},
            model=model,
            served_name="tokenizer",
            port=port,
            api_key=key,
        )
        return emulate(real, {"pause": "recompute"}, 50.0, None, api_key=key)

    server = serve(launch(free_port()), tmp_path, ready_timeout_s=60, relaunch=launch)

    async def run() -> tuple[resolved.Resolved, int]:
        async with server:
            found = await resolved.read(server.launch, server.log_text())
            async with httpx.AsyncClient(base_url=server.url, trust_env=False) as stranger:
                refused = await stranger.get("/v1/models")
            return found, refused.status_code

    found, refused = asyncio.run(run())

    expected = server.launch.expectations
    assert resolved.mismatches(expected, found) == []
    assert resolved.unstated(expected, found) == []
    assert (found.pool_tokens, found.max_batch_size, found.max_seq_len) == (368640, 64, 20480)
    assert found.prefix_reuse is False
    assert server.version == version
    assert refused == 401
    assert server.exposed == []
    assert server.ended is not None
    assert server.ended.ending is Ending.STOPPED
    assert not any(key in path.read_text() for path in tmp_path.iterdir())

"""The issue's server, as settings: what the golden tests start from."""

from __future__ import annotations

from typing import Any

from kvstudy.serve.command import build
from kvstudy.serve.model import EngineSettings, Launch, ServerSettings

MODEL = "/models/Llama-3.3-70B-Instruct-FP8"

ISSUE = ServerSettings(
    tp=1,
    max_batch_size=64,
    max_num_tokens=8192,
    max_seq_len=20480,
    chunked_prefill=True,
    pool_tokens=368640,
    block_tokens=32,
    kv_dtype="fp8",
    prefix_reuse=False,
    free_gpu_memory_fraction=0.9,
)

GNE: dict[str, Any] = {"scheduler_config": {"capacity_scheduler_policy": "GUARANTEED_NO_EVICT"}}
MU: dict[str, Any] = {"scheduler_config": {"capacity_scheduler_policy": "MAX_UTILIZATION"}}


def launch(
    adapter: str,
    version: str,
    options: dict[str, Any] | None = None,
    *,
    server: ServerSettings = ISSUE,
    served_name: str = "Llama-3.3-70B-Instruct-FP8",
    api_key: str | None = None,
    **engine: Any,
) -> Launch:
    """A launch of the issue's server, on port 8123."""
    return build(
        EngineSettings(adapter=adapter, version=version, **engine),
        server,
        options or {},
        model=MODEL,
        served_name=served_name,
        port=8123,
        api_key=api_key,
    )

"""What a launch resolved to: the server as its engine would report it, and how it is emulated."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from kvstudy.base.units import BYTES_PER_GIB, ceil_div
from kvstudy.sim.model import ChunkPolicy, EngineSpec, Pause, Policy, SglangOptions, VllmOptions
from kvstudy.sim.timing import PUBLISHED_FIT, StepTime

FREE_BYTES = 73_487_701_334
"""GPU memory left beside the weights: what gives 403,680 tokens at fraction 0.9 (engines.md 3.6).
"""
LLAMA_70B_KV_VALUES = 163_840
"""KV values per token of the study's model: 2 x 80 layers x 8 KV heads x 128."""


class Dialect(StrEnum):
    """Whose command line, routes and frames the emulator speaks."""

    TRTLLM = "trtllm"
    VLLM = "vllm"
    SGLANG = "sglang"


@dataclass(frozen=True, slots=True)
class Telemetry:
    """Which windows into the engine are open."""

    iteration_stats: bool = False
    iteration_log: bool = False
    perf_metrics: bool = False
    perf_metrics_max_requests: int = 0
    prometheus: bool = False


@dataclass(frozen=True, slots=True)
class Server:
    """The resolved server. `resolved` is what it reports of its own arguments, in its own words."""

    dialect: Dialect
    model: str
    model_name: str
    tokenizer_dir: Path
    host: str
    port: int
    policy: Policy
    pool_tokens: int
    block_tokens: int
    kv_bytes_per_token: int
    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    chunked_prefill: bool
    chunk_policy: ChunkPolicy = ChunkPolicy.FCFS
    telemetry: Telemetry = Telemetry()
    api_key: str | None = None
    vllm: VllmOptions = field(default_factory=VllmOptions)
    sglang: SglangOptions = field(default_factory=SglangOptions)
    resolved: dict[str, Any] = field(default_factory=dict)

    @property
    def pool_blocks(self) -> int:
        """Whole blocks of the pool."""
        return self.pool_tokens // self.block_tokens

    @property
    def pool_gib(self) -> float:
        """Memory of the pool."""
        return self.pool_tokens * self.kv_bytes_per_token / BYTES_PER_GIB


@dataclass(frozen=True, slots=True)
class Emulation:
    """How the engine is emulated: assumptions, scale, and how patient the wall clock is.

    `grace_s` bounds the wait for a lane's next request before the step it is due in, `opening_s`
    the wait for the first requests of a phase, `gather_s` how long an idle server without a
    workload file must see no arrival before it starts; all three are wall time.
    """

    version: str = "1.2.1"
    pause: Pause = field(default_factory=Pause)
    step_time: StepTime = PUBLISHED_FIT
    admission_lag_steps: int = 2
    api_key_env: str = "KVSTUDY_API_KEY"
    time_scale: float = 1.0
    workload: Path | None = None
    grace_s: float = 1.0
    opening_s: float = 10.0
    gather_s: float = 0.05
    faults: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Launch:
    """One launch: the server and its emulation."""

    server: Server
    emulation: Emulation

    def engine_spec(self) -> EngineSpec:
        """What the simulator core is told."""
        server = self.server
        return EngineSpec(
            policy=server.policy,
            pool_blocks=server.pool_blocks,
            pause=self.emulation.pause,
            block_tokens=server.block_tokens,
            max_batch_size=server.max_batch_size,
            max_num_tokens=server.max_num_tokens,
            chunked_prefill=server.chunked_prefill,
            chunk_policy=server.chunk_policy,
            step_time=self.emulation.step_time,
            vllm=server.vllm,
            sglang=server.sglang,
        )


def kv_bytes_per_token(config: dict[str, Any], kv_dtype: str) -> int:
    """Bytes of KV per token, from a model's config.json; the study's model where it says nothing.

    An automatic type is the checkpoint's own: fp8 where its quantisation says so, else 16 bits.
    """
    width = 1 if kv_dtype.startswith(("fp8", "int8")) else 2
    if kv_dtype == "auto" and (not config or "quantization_config" in config):
        width = 1
    layers = config.get("num_hidden_layers")
    heads = config.get("num_key_value_heads", config.get("num_attention_heads"))
    hidden, attention_heads = config.get("hidden_size"), config.get("num_attention_heads")
    head = config.get("head_dim") or (
        hidden // attention_heads if hidden and attention_heads else None
    )
    if not (layers and heads and head):
        return LLAMA_70B_KV_VALUES * width
    return int(2 * layers * heads * head * width)


def pool_from_memory(fraction: float, bytes_per_token: int, block_tokens: int) -> int:
    """Tokens that a share of the free memory holds, in whole blocks."""
    return int(fraction * FREE_BYTES / bytes_per_token) // block_tokens * block_tokens


def whole_blocks(tokens: int, block_tokens: int) -> int:
    """`tokens` rounded up to whole blocks."""
    return ceil_div(tokens, block_tokens) * block_tokens

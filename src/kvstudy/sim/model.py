"""What an engine is told before it runs: policy, pause mode, sizes and the policy's own knobs."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from kvstudy.sim.timing import PUBLISHED_FIT, StepTime


class Policy(StrEnum):
    """The capacity policies; each is one function of `kvstudy.sim.policy`."""

    GUARANTEED_NO_EVICT = "guaranteed_no_evict"
    MAX_UTILIZATION = "max_utilization"
    STATIC_BATCH = "static_batch"
    VLLM_RECOMPUTE = "vllm_recompute"
    SGLANG_RETRACT = "sglang_retract"


class ChunkPolicy(StrEnum):
    """How the token budget of a step is shared between prompts (TensorRT-LLM's two choices)."""

    FCFS = "fcfs"
    EQUAL_PROGRESS = "equal_progress"


@dataclass(frozen=True, slots=True)
class Pause:
    """What a pause does to a request.

    Default: every token (prompt and generated) is computed again, blocks go back at once.
    `truncate_to_tokens`: only so many tokens are computed again; the tokens that were cut are
    then decoded without being streamed. `never_release`: every token is computed again and the
    blocks stay held while the request is paused.
    """

    truncate_to_tokens: int | None = None
    never_release: bool = False

    def context_tokens(self, total_tokens: int) -> int:
        """Tokens to compute again of a request that has `total_tokens` (prompt + streamed)."""
        if self.truncate_to_tokens is None:
            return total_tokens
        return min(self.truncate_to_tokens, total_tokens)


@dataclass(frozen=True, slots=True)
class VllmOptions:
    """Knobs of `vllm_recompute`, named and defaulted as in vLLM 0.33 (`vllm/v1/core/sched`).

    `watermark`: share of the pool that an admission must leave free (`--watermark`, 0.0).
    `reserve_full_isl`: an admission needs room for the whole prompt, not for its first chunk only
    (`scheduler_reserve_full_isl`, true). `null_block`: one block of the pool is the reserved null
    block and never holds a token (true).
    """

    watermark: float = 0.0
    reserve_full_isl: bool = True
    null_block: bool = True


@dataclass(frozen=True, slots=True)
class SglangOptions:
    """Knobs of `sglang_retract`, as in SGLang 0.5.23 (`managers/schedule_policy.py`, environ).

    A running request is charged min(tokens left to its cap, `clip_tokens`) x ratio at admission.
    The ratio starts at `new_token_ratio_init` x `conservativeness` (at most 1), falls linearly to
    `new_token_ratio_min_factor` of that within `new_token_ratio_decay_steps` decode steps, and is
    raised by a retraction, for which `retract_decode_steps` tokens a request are assumed ahead.
    `mixed_chunk`: prompts and generation share a step (`--enable-mixed-chunk`, false).
    `max_prefill_tokens`: most prompt tokens of one step if prompts are not chunked.
    """

    new_token_ratio_init: float = 0.7
    new_token_ratio_min_factor: float = 0.14
    new_token_ratio_decay_steps: int = 600
    conservativeness: float = 1.0
    clip_tokens: int = 4096
    retract_decode_steps: int = 20
    mixed_chunk: bool = False
    max_prefill_tokens: int = 16384

    @property
    def initial_ratio(self) -> float:
        """The new-token ratio of a fresh server."""
        return min(1.0, self.new_token_ratio_init * self.conservativeness)

    @property
    def min_ratio(self) -> float:
        """The floor that the ratio decays to."""
        return min(1.0, self.initial_ratio * self.new_token_ratio_min_factor)

    @property
    def decay_per_step(self) -> float:
        """What one decode step takes off the ratio."""
        return (self.initial_ratio - self.min_ratio) / self.new_token_ratio_decay_steps


@dataclass(frozen=True, slots=True)
class EngineSpec:
    """All that decides an engine's behaviour; sizes are in tokens or blocks, never in bytes."""

    policy: Policy
    pool_blocks: int
    pause: Pause = Pause()
    block_tokens: int = 32
    max_batch_size: int = 64
    max_num_tokens: int = 8192
    chunked_prefill: bool = True
    chunk_policy: ChunkPolicy = ChunkPolicy.FCFS
    chunk_unit_tokens: int | None = None
    step_time: StepTime = PUBLISHED_FIT
    vllm: VllmOptions = field(default_factory=VllmOptions)
    sglang: SglangOptions = field(default_factory=SglangOptions)

    @property
    def chunk_unit(self) -> int:
        """A chunk that does not finish its prompt is a multiple of so many tokens."""
        return self.block_tokens if self.chunk_unit_tokens is None else self.chunk_unit_tokens

    @property
    def usable_blocks(self) -> int:
        """Blocks that can hold tokens."""
        reserved = self.policy is Policy.VLLM_RECOMPUTE and self.vllm.null_block
        return self.pool_blocks - 1 if reserved else self.pool_blocks

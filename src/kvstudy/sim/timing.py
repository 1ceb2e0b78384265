"""How long one step takes: a cost model that is linear in the work of the step.

    seconds = fixed + a * generating + b * sum(kv tokens of the generating requests)
              + sum over prompt chunks of n tokens at position p of (c * n + d * n * (p + n / 2))

The last term is the attention of a chunk over the tokens before it and over half of itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvstudy.base.units import NS_PER_S, s_to_ns

_MAX_RUN_NS = 2.0**62


@dataclass(frozen=True, slots=True)
class StepTime:
    """The five constants, in seconds per unit of work; none is negative."""

    fixed_s: float
    per_generation_s: float = 0.0
    per_generation_context_token_s: float = 0.0
    per_context_token_s: float = 0.0
    per_context_attention_s: float = 0.0

    def step_ns(
        self, generating: int, kv_tokens: int, *, context_tokens: int = 0, attention_twice: int = 0
    ) -> int:
        """Length of one step in whole ns.

        `kv_tokens` is summed over the generating requests before the step; `attention_twice` is
        the sum of n * (2p + n) over the chunks, so that it stays a whole number.
        """
        return s_to_ns(
            self.fixed_s
            + self.per_generation_s * generating
            + self.per_generation_context_token_s * kv_tokens
            + self.per_context_token_s * context_tokens
            + self.per_context_attention_s * (attention_twice / 2)
        )

    def decode_run_ns(self, generating: int, kv_tokens: int, steps: int) -> npt.NDArray[np.int64]:
        """Lengths of `steps` successive steps in which the same requests only generate.

        Every length equals what `step_ns` gives, to the bit: the same operations in the same
        order, and both round half to even. Empty where int64 could overflow.
        """
        last_s = self.step_ns(generating, kv_tokens + generating * steps) / NS_PER_S
        if last_s * NS_PER_S * steps >= _MAX_RUN_NS:
            return np.empty(0, dtype=np.int64)
        kv = kv_tokens + generating * np.arange(steps, dtype=np.int64)
        seconds = (
            self.fixed_s
            + self.per_generation_s * generating
            + self.per_generation_context_token_s * kv
        )
        lengths: npt.NDArray[np.int64] = np.rint(seconds * NS_PER_S).astype(np.int64)
        return lengths


PUBLISHED_FIT = StepTime(
    fixed_s=0.01878,
    per_generation_s=7.5e-6,
    per_generation_context_token_s=3.23e-8,
    per_context_token_s=1.314e-4,
    per_context_attention_s=1.58e-9,
)
"""Least squares on log ratios to the two GUARANTEED_NO_EVICT rows of TensorRT-LLM issue #16827
(Llama-3.3-70B FP8, one GPU; weights: throughput 3, TTFT 0.5, others 1). `per_generation_s` cannot
be separated from the others by these rows."""

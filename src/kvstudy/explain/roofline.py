"""Starting constants for any model and GPU: a roofline with stated efficiencies. Uncalibrated.

    fixed      weights read once a step          weight bytes / (bandwidth * share)
    a          dense layers, per generated token 2 * parameters / (compute * share)
    b          one token's KV read               KV bytes per token / (bandwidth * share)
    c          dense layers, per prompt token    2 * parameters / (compute * share)
    d          attention of a prompt token       4 * layers * heads * head dim / (compute * share)

`a` is charged with the share that batched generation leaves over: the weights' read and the
arithmetic overlap, so only a tenth of it is.
"""

from __future__ import annotations

from dataclasses import dataclass

from kvstudy.base.errors import UsageError
from kvstudy.base.units import BYTES_PER_GIB
from kvstudy.explain.model_card import ModelCard
from kvstudy.sim.timing import StepTime

TERA, GIGA = 1e12, 1e9


@dataclass(frozen=True, slots=True)
class Gpu:
    """Public datasheet numbers, dense (no sparsity)."""

    name: str
    memory_gb: float
    bandwidth_tb_s: float
    bf16_tflop_s: float
    fp8_tflop_s: float | None
    source: str


GPUS = (
    Gpu("A100-80GB", 80, 2.039, 312, None, "NVIDIA A100 80GB SXM datasheet"),
    Gpu("L4", 24, 0.300, 121, 242, "NVIDIA L4 datasheet, sparsity halved"),
    Gpu("L40S", 48, 0.864, 362, 733, "NVIDIA L40S datasheet"),
    Gpu("H100", 80, 3.35, 989, 1979, "NVIDIA H100 SXM datasheet, sparsity halved"),
    Gpu("H200", 141, 4.8, 989, 1979, "NVIDIA H200 SXM datasheet, sparsity halved"),
    Gpu("B200", 180, 7.7, 2250, 4500, "NVIDIA HGX B200 datasheet, per GPU, dense"),
)

GENERATION_SHARE = 0.1


@dataclass(frozen=True, slots=True)
class Efficiency:
    """Shares of the datasheet's bandwidth and compute that a step is assumed to reach."""

    bandwidth: float
    compute: float


TYPICAL = Efficiency(0.80, 0.55)
PESSIMISTIC = Efficiency(0.60, 0.35)
OPTIMISTIC = Efficiency(0.92, 0.75)


def gpu_named(name: str) -> Gpu:
    """A GPU of the table; UsageError with the names for another."""
    for gpu in GPUS:
        if gpu.name.lower() == name.lower():
            return gpu
    known = ", ".join(gpu.name for gpu in GPUS)
    raise UsageError(f"--gpu: {name!r} is not in the table; expected one of {known}")


def step_time(card: ModelCard, gpu: Gpu, tp: int = 1, efficiency: Efficiency = TYPICAL) -> StepTime:
    """Constants of a dense decoder over `tp` GPUs; communication is left out."""
    bandwidth = gpu.bandwidth_tb_s * TERA * tp * efficiency.bandwidth
    peak = gpu.fp8_tflop_s if card.weight_dtype == "fp8" and gpu.fp8_tflop_s else gpu.bf16_tflop_s
    compute = peak * TERA * tp * efficiency.compute
    per_token = 2 * card.parameters / compute
    return StepTime(
        fixed_s=card.weight_bytes / bandwidth,
        per_generation_s=GENERATION_SHARE * per_token,
        per_generation_context_token_s=card.kv_bytes_per_token / bandwidth,
        per_context_token_s=per_token,
        per_context_attention_s=4 * card.layers * card.heads * card.head_dim / compute,
    )


def pool_tokens(card: ModelCard, gpu: Gpu, tp: int = 1, fraction: float = 0.9) -> int:
    """Tokens that fit into the share of memory the weights leave free.

    Activations and CUDA graphs are not known here; they take some of it. UsageError where the
    weights do not fit.
    """
    free = gpu.memory_gb * GIGA * tp - card.weight_bytes
    tokens = int(free * fraction // card.kv_bytes_per_token) if free > 0 else 0
    if tokens < 1:
        raise UsageError(
            f"--gpu: {tp} x {gpu.name} holds {gpu.memory_gb * tp:.0f} GB, but the weights of "
            f"{card.name} take {card.weight_bytes / BYTES_PER_GIB:.1f} GiB; give --tp or more GPU"
        )
    return tokens

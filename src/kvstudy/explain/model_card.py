"""What a model's `config.json` says about the size of its work and of its KV cache."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvstudy.base.errors import UsageError

BYTES = {"float32": 4, "float16": 2, "bfloat16": 2, "fp16": 2, "bf16": 2, "fp8": 1, "int8": 1}
_INTEGERS = ("num_hidden_layers", "hidden_size", "num_attention_heads", "vocab_size")


@dataclass(frozen=True, slots=True)
class ModelCard:
    """Shape of a decoder: counts and bytes."""

    name: str
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    parameters: int
    weight_dtype: str
    kv_dtype: str

    @property
    def kv_bytes_per_token(self) -> int:
        """Bytes of keys and values of one token, all layers."""
        return 2 * self.layers * self.kv_heads * self.head_dim * BYTES[self.kv_dtype]

    @property
    def weight_bytes(self) -> int:
        """Bytes of all weights; embeddings are counted like the rest."""
        return self.parameters * BYTES[self.weight_dtype]


def read_card(path: Path, kv_dtype: str = "auto") -> ModelCard:
    """The card of a folder that holds config.json, or of such a file; UsageError otherwise."""
    file = path / "config.json" if path.is_dir() else path
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"--model: {file} cannot be read ({error})") from None
    except json.JSONDecodeError as error:
        raise UsageError(f"--model: {file} is not valid JSON ({error})") from None
    if not isinstance(document, Mapping):
        raise UsageError(f"--model: {file}: expected an object")
    return card_of(document, str(file), kv_dtype)


def card_of(document: Mapping[str, Any], source: str, kv_dtype: str = "auto") -> ModelCard:
    """The card of a Hugging Face configuration; nested text configurations are looked into."""
    text = document.get("text_config")
    keys = {**document, **text} if isinstance(text, Mapping) else dict(document)
    for name in _INTEGERS:
        _positive(keys, name, source)
    if keys.get("kv_lora_rank"):
        raise UsageError(
            f"--model: {source} uses latent attention (kv_lora_rank); give --kv-bytes-per-token"
        )
    layers, hidden, heads = (keys[name] for name in _INTEGERS[:3])
    kv_heads = int(keys.get("num_key_value_heads") or heads)
    head_dim = int(keys.get("head_dim") or hidden // heads)
    weights = _weight_dtype(keys)
    return ModelCard(
        name=str(document.get("_name_or_path") or document.get("model_type") or source),
        layers=layers,
        heads=heads,
        kv_heads=kv_heads,
        head_dim=head_dim,
        parameters=_parameters(keys, kv_heads, head_dim, source),
        weight_dtype=weights,
        kv_dtype=_kv_dtype(keys, weights, kv_dtype),
    )


def _positive(keys: Mapping[str, Any], name: str, source: str) -> int:
    value = keys.get(name)
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UsageError(f"--model: {source}: {name}: expected a whole number >= 1, got {value!r}")
    return value


def _weight_dtype(keys: Mapping[str, Any]) -> str:
    quant = keys.get("quantization_config")
    if isinstance(quant, Mapping):
        words = " ".join(str(quant.get(k, "")) for k in ("quant_method", "quant_algo", "fmt"))
        if "fp8" in words.lower():
            return "fp8"
    dtype = str(keys.get("dtype") or keys.get("torch_dtype") or "bfloat16").removeprefix("torch.")
    return dtype if dtype in BYTES else "bfloat16"


def _kv_dtype(keys: Mapping[str, Any], weights: str, wanted: str) -> str:
    if wanted != "auto":
        if wanted not in BYTES:
            raise UsageError(f"--kv-dtype: expected auto or one of {', '.join(BYTES)}")
        return wanted
    quant = keys.get("quantization_config")
    scheme = str(quant.get("kv_cache_quant_algo", "")) if isinstance(quant, Mapping) else ""
    if "fp8" in scheme.lower():
        return "fp8"
    return "bfloat16" if weights in ("fp8", "int8") else weights


def _parameters(keys: Mapping[str, Any], kv_heads: int, head_dim: int, source: str) -> int:
    """Attention, gated feed-forward (all experts) and embeddings; norms and biases left out."""
    layers, hidden = keys["num_hidden_layers"], keys["hidden_size"]
    heads = keys["num_attention_heads"]
    attention = hidden * head_dim * (2 * heads + 2 * kv_heads)
    experts = int(keys.get("num_local_experts") or keys.get("num_experts") or 1)
    width = keys.get("moe_intermediate_size") or keys.get("intermediate_size")
    if not isinstance(width, int):
        raise UsageError(f"--model: {source}: intermediate_size: missing")
    tied = 1 if keys.get("tie_word_embeddings") else 2
    return int(
        layers * (attention + experts * 3 * hidden * width) + tied * keys["vocab_size"] * hidden
    )

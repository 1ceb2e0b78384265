"""TensorRT-LLM's trtllm-serve, PyTorch backend: 1.2.1, the 1.3 candidates, and 1.4.

The free-memory fraction and every KV key stand in the YAML: older versions replace the command
line's KV configuration by the YAML's, newer ones merge the two key by key. Unknown YAML keys are
refused by the engine, so keys are added by version.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Any

import yaml

from kvstudy.serve.flags import fraction, merged
from kvstudy.serve.model import (
    DIR,
    EngineSettings,
    Expectations,
    Launch,
    MetricsKind,
    Routes,
    ServerSettings,
)
from kvstudy.serve.versions import release

YAML_NAME = "extra.yaml"
DEFAULT_POLICY = "GUARANTEED_NO_EVICT"

PYTHON_SCHEDULER_SINCE = (1, 3, 0, 7)
SERVED_NAME_SINCE = (1, 3, 0, 7)
STATS_DRAINED_SINCE = (1, 3, 0, 8)
KV_MANAGER_V2_SINCE = (1, 4, 0, 0)


@dataclass(frozen=True, slots=True)
class Difference:
    """One YAML key that differs from the published one. `published` is None where it is absent."""

    key: str
    published: Any
    used: Any
    why: str


_WHY = {
    "kv_cache_config.free_gpu_memory_fraction": (
        "also in the YAML: versions differ in how the command line and the YAML are merged"
    ),
    "kv_cache_config.tokens_per_block": "the default, stated: block arithmetic depends on it",
    "kv_cache_config.use_kv_cache_manager_v2": (
        "pinned: from 1.4 the default is another KV-cache manager with another scheduler"
    ),
    "scheduler_config.capacity_scheduler_policy": "the default, stated in the baseline too",
    "scheduler_config.use_python_scheduler": "the default, stated: pins the scheduler's code",
    "enable_iter_perf_stats": "without it /metrics answers [] and no pause can be seen",
    "return_perf_metrics": (
        "off: together with iteration stats newer versions drain /metrics for Prometheus"
    ),
}
_WHY_ARM = "set by the arm's options"


def build(
    engine: EngineSettings,
    server: ServerSettings,
    options: Mapping[str, Any],
    *,
    model: str,
    served_name: str,
    port: int,
    api_key: str | None,  # noqa: ARG001  trtllm-serve takes no key
) -> Launch:
    """The launch of one arm; `options` are merged into the YAML.

    `model` is an absolute folder or a hub name; trtllm-serve names a folder by its last part.
    """
    document = extra_yaml(engine, server, options)
    flags = [
        *("--backend", "pytorch", "--tp_size", str(server.tp)),
        *("--max_batch_size", str(server.max_batch_size)),
        *("--max_num_tokens", str(server.max_num_tokens)),
        *("--max_seq_len", str(server.max_seq_len)),
        *("--kv_cache_free_gpu_memory_fraction", fraction(server.free_gpu_memory_fraction)),
        *("--config", f"{DIR}/{YAML_NAME}"),
        *("--host", "127.0.0.1", "--port", str(port)),
    ]
    name, is_told = _name(engine, model, served_name)
    if is_told:
        flags += ["--served_model_name", name]
    return Launch(
        adapter="trtllm",
        executable=(*(engine.command or ("trtllm-serve",)), "serve"),
        model_words=(model,),
        flags=tuple(flags),
        env=dict(engine.env),
        files={YAML_NAME: yaml.safe_dump(document, sort_keys=False)},
        expectations=_expectations(engine, document, name),
        routes=_routes(engine, document),
        model=model,
        port=port,
    )


def _name(engine: EngineSettings, model: str, wanted: str) -> tuple[str, bool]:
    """The served name, and whether the server has to be told it (and can be)."""
    own = PurePosixPath(model).name if model.startswith("/") else model
    can_be_told = release(engine.version) >= SERVED_NAME_SINCE and not engine.as_published
    return (wanted, True) if can_be_told and wanted != own else (own, False)


def extra_yaml(
    engine: EngineSettings, server: ServerSettings, options: Mapping[str, Any]
) -> dict[str, Any]:
    """The YAML of one arm, as a mapping."""
    base = published_yaml(server)
    if not engine.as_published:
        base = merged(base, _stated(engine, server))
        return merged(base, options)
    document = merged(base, options)
    if document.get("scheduler_config") == {"capacity_scheduler_policy": DEFAULT_POLICY}:
        del document["scheduler_config"]
    return document


def published_yaml(server: ServerSettings) -> dict[str, Any]:
    """The keys of the issue's YAML files, baseline arm."""
    return {
        "kv_cache_config": {
            "enable_block_reuse": server.prefix_reuse,
            "dtype": server.kv_dtype,
            "max_tokens": server.pool_tokens,
        },
        "enable_chunked_prefill": server.chunked_prefill,
    }


def _stated(engine: EngineSettings, server: ServerSettings) -> dict[str, Any]:
    """The keys added to the published YAML; `_WHY` has a reason for each."""
    version = release(engine.version)
    kv_cache: dict[str, Any] = {
        "free_gpu_memory_fraction": server.free_gpu_memory_fraction,
        "tokens_per_block": server.block_tokens,
    }
    scheduler: dict[str, Any] = {"capacity_scheduler_policy": DEFAULT_POLICY}
    if version >= KV_MANAGER_V2_SINCE:
        kv_cache["use_kv_cache_manager_v2"] = False
    if version >= PYTHON_SCHEDULER_SINCE:
        scheduler["use_python_scheduler"] = False
    return {
        "kv_cache_config": kv_cache,
        "scheduler_config": scheduler,
        "enable_iter_perf_stats": engine.telemetry,
        "return_perf_metrics": False,
    }


def differences(
    engine: EngineSettings, server: ServerSettings, options: Mapping[str, Any]
) -> list[Difference]:
    """What the arm's YAML has that the published one has not, key by key, with the reason."""
    published = _flat(published_yaml(server))
    used = _flat(extra_yaml(engine, server, options))
    result = []
    for key in [*used, *(k for k in published if k not in used)]:
        before, after = published.get(key), used.get(key)
        if before != after:
            result.append(Difference(key, before, after, _WHY.get(key, _WHY_ARM)))
    return result


def _flat(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            result |= _flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result


def _expectations(engine: EngineSettings, document: Mapping[str, Any], name: str) -> Expectations:
    scheduler = document.get("scheduler_config") or {}
    kv_cache = document.get("kv_cache_config") or {}
    return Expectations(
        version=engine.version,
        policy=scheduler.get("capacity_scheduler_policy", DEFAULT_POLICY),
        pool_tokens=kv_cache.get("max_tokens"),
        served_model=name,
    )


def _routes(engine: EngineSettings, document: Mapping[str, Any]) -> Routes:
    """Iteration records where they can be read without loss, else the Prometheus page, else none.

    From 1.3 candidates on, both switches together make a background reader drain the records.
    """
    stats = bool(document.get("enable_iter_perf_stats"))
    perf = bool(document.get("return_perf_metrics"))
    kept = perf and bool(document.get("perf_metrics_max_requests"))
    path, kind = None, MetricsKind.NONE
    if stats and not (perf and release(engine.version) >= STATS_DRAINED_SINCE):
        path, kind = "/metrics", MetricsKind.ITERATIONS
    elif perf:
        path, kind = "/prometheus/metrics", MetricsKind.PROMETHEUS
    return Routes(
        metrics_path=path,
        metrics_kind=kind,
        perf_metrics_path="/perf_metrics" if kept else None,
    )

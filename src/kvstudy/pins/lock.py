"""The lock: everything that was resolved, in one file that is enough to run again.

Its digest covers what ran (image manifest, what the probe found, every model file's hash), not
where it lay: two sites that ran the same bytes have the same digest, although SIF files differ
from pull to pull and folders from site to site.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from kvstudy.base.digest import sha256_json
from kvstudy.base.errors import PinError
from kvstudy.pins.runtime import Runtime, ready_runtime, runtime_for
from kvstudy.pins.spec import Document

__all__ = [
    "LOCK_VERSION",
    "Runtime",
    "engine_digest",
    "lock_digest",
    "lock_of",
    "ready_runtime",
    "runtime_for",
]

LOCK_VERSION = 1

_IMAGE_IDENTITY = (
    "backend",
    "engine",
    "adapter",
    "version",
    "kind",
    "manifest_digest",
    "config_digest",
    "layers",
    "gated_sif_sha256",
    "executable_sha256",
)
_MODEL_IDENTITY = ("backend", "repo", "revision", "files")


def lock_of(
    images: Iterable[Document],
    probes: Iterable[Document],
    model: Document,
    spec: Mapping[str, Any] | None = None,
) -> Document:
    """One document out of the parts; the same parts give the same document in any order.

    Raises PinError when an engine has an image but no probe, or parts of two backends meet.
    """
    by_engine = {part["engine"]: part for part in images}
    probe_of = {part["engine"]: part for part in probes}
    if by_engine.keys() != probe_of.keys():
        odd = ", ".join(sorted(by_engine.keys() ^ probe_of.keys()))
        raise PinError(f"lock: image and probe do not come together for {odd}; run both rules")
    backends = {part["backend"] for part in [*by_engine.values(), *probe_of.values(), model]}
    if len(backends) != 1:
        raise PinError(f"lock: parts of several backends ({', '.join(sorted(backends))})")
    engines = {
        name: {
            "image": by_engine[name],
            "probe": probe_of[name],
            "digest": engine_digest(by_engine[name], probe_of[name], model),
        }
        for name in sorted(by_engine)
    }
    lock: Document = {
        "lock_version": LOCK_VERSION,
        "backend": backends.pop(),
        "engines": engines,
        "model": model,
        "spec": dict(spec or {}),
    }
    return {**lock, "digest": lock_digest(lock)}


def engine_digest(image: Mapping[str, Any], probe: Mapping[str, Any], model: Document) -> str:
    """Hex SHA-256 over what one engine's cells ran: the digest a cell records."""
    return sha256_json(
        {
            "image": {key: image[key] for key in _IMAGE_IDENTITY if key in image},
            "probe": probe.get("facts"),
            "model": {key: model[key] for key in _MODEL_IDENTITY if key in model},
        }
    )


def lock_digest(lock: Mapping[str, Any]) -> str:
    """Hex SHA-256 over every engine's digest; the digest the report prints."""
    return sha256_json(
        {
            "lock_version": lock["lock_version"],
            "backend": lock["backend"],
            "engines": {name: part["digest"] for name, part in lock["engines"].items()},
        }
    )

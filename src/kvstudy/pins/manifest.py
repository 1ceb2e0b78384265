"""Registry documents: indexes, manifests, image settings. Bytes in, checked values out.

An index digest names a list of platforms, a manifest digest one platform's layers. They are never
equal, so every message says which one it means.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from kvstudy.base.errors import PinError

PLATFORM = ("linux", "amd64")
INDEX_TYPES = (
    "application/vnd.oci.image.index.v1+json",
    "application/vnd.docker.distribution.manifest.list.v2+json",
)
MANIFEST_TYPES = (
    "application/vnd.oci.image.manifest.v1+json",
    "application/vnd.docker.distribution.manifest.v2+json",
)
ACCEPT = ", ".join((*INDEX_TYPES, *MANIFEST_TYPES))
MOST_BYTES = 4 << 20
"""No registry document may be larger, in bytes."""

_LABEL_CHARS = 1000
_DIGEST_HEX = 64


@dataclass(frozen=True, slots=True)
class Layer:
    """One layer as the manifest states it."""

    digest: str
    size: int
    media_type: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """One platform's manifest."""

    digest: str
    config_digest: str
    config_size: int
    layers: tuple[Layer, ...]

    @property
    def size_bytes(self) -> int:
        """Compressed bytes of all layers and the settings."""
        return self.config_size + sum(layer.size for layer in self.layers)


def digest_of(body: bytes) -> str:
    """`sha256:...` of a document's bytes."""
    return "sha256:" + hashlib.sha256(body).hexdigest()


def short(digest: str | None) -> str:
    """A digest for people: enough to tell two apart; the lock has it whole."""
    return "none" if digest is None else digest[:19] + "..." if len(digest) > 22 else digest


def parse_document(body: bytes, where: str) -> dict[str, Any]:
    """A JSON object; raises PinError that names `where`."""
    try:
        document = json.loads(body)
    except (ValueError, RecursionError):
        raise PinError(f"{where}: the answer is not JSON; is this an image registry?") from None
    if not isinstance(document, dict):
        raise PinError(f"{where}: expected a JSON object")
    return document


def is_index(document: Mapping[str, Any]) -> bool:
    """Whether a document lists platforms instead of layers."""
    return document.get("mediaType") in INDEX_TYPES or "manifests" in document


def platform_digest(index: Mapping[str, Any], where: str) -> str:
    """The linux/amd64 manifest digest of an index; raises PinError when it has none or several."""
    entries = index.get("manifests")
    found = []
    seen = []
    for entry in entries if isinstance(entries, list) else []:
        platform = entry.get("platform") or {}
        seen.append(f"{platform.get('os')}/{platform.get('architecture')}")
        if (platform.get("os"), platform.get("architecture")) == PLATFORM:
            found.append(checked_digest(entry.get("digest"), where))
    if len(set(found)) != 1:
        many = "several manifests" if found else "no manifest"
        raise PinError(
            f"{where}: the index has {many} for linux/amd64 (it lists: {', '.join(seen) or '-'})"
        )
    return found[0]


def parse_manifest(body: bytes, where: str) -> Manifest:
    """A manifest with its own digest; raises PinError for anything that is not one."""
    document = parse_document(body, where)
    try:
        config = document["config"]
        layers = tuple(
            Layer(
                checked_digest(layer["digest"], where),
                int(layer["size"]),
                str(layer.get("mediaType", "")),
            )
            for layer in document["layers"]
        )
        return Manifest(
            digest=digest_of(body),
            config_digest=checked_digest(config["digest"], where),
            config_size=int(config["size"]),
            layers=layers,
        )
    except (KeyError, TypeError, ValueError):
        raise PinError(f"{where}: not an image manifest (no config or layers)") from None


def checked_digest(value: Any, where: str) -> str:
    """`value` when it is a sha256 digest; raises PinError otherwise. Digests become file names."""
    text = str(value)
    algorithm, _, digits = text.partition(":")
    if algorithm != "sha256" or len(digits) != _DIGEST_HEX or set(digits) - set("0123456789abcdef"):
        raise PinError(f"{where}: expected a sha256 digest, got {text[:80]!r}")
    return text


def settings_facts(body: bytes, where: str) -> dict[str, Any]:
    """Labels and platform of an image's settings (its config blob)."""
    document = parse_document(body, where)
    settings = document.get("config") or {}
    labels = settings.get("Labels") or {} if isinstance(settings, dict) else {}
    return {
        "labels": {str(k)[:200]: str(v)[:_LABEL_CHARS] for k, v in sorted(labels.items())},
        "platform": f"{document.get('os')}/{document.get('architecture')}",
    }

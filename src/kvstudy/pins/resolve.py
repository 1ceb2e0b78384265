"""What a registry says an image is, and whether that is what the pin says."""

from __future__ import annotations

from dataclasses import dataclass

import httpx

from kvstudy.base.errors import PinError
from kvstudy.pins.manifest import (
    Manifest,
    digest_of,
    is_index,
    parse_document,
    parse_manifest,
    platform_digest,
)
from kvstudy.pins.reference import Reference
from kvstudy.pins.registry import Registry
from kvstudy.study.model import Image


@dataclass(frozen=True, slots=True)
class Resolved:
    """A tag or digest, followed down to the linux/amd64 manifest and its settings."""

    reference: Reference
    index_digest: str | None
    manifest: Manifest
    settings: bytes


def resolve(
    reference: Reference, *, pinned: str | None = None, transport: httpx.BaseTransport | None = None
) -> Resolved:
    """Ask the registry; `pinned` only sharpens the message for a digest it does not have."""
    where = str(reference)
    with Registry(reference, transport=transport) as registry:
        try:
            body = registry.manifest(reference.wanted)
        except PinError as error:
            also = f" (pinned: manifest digest {pinned})" if pinned else ""
            raise PinError(f"{error}{also}") from None
        index_digest = None
        document = parse_document(body, where)
        if is_index(document):
            index_digest = digest_of(body)
            body = registry.manifest(platform_digest(document, where))
        manifest = parse_manifest(body, where)
        settings = registry.settings(manifest.config_digest)
    return Resolved(reference, index_digest, manifest, settings)


def compare(found: Resolved, image: Image, key: str) -> None:
    """Raise PinError when the registry's digests are not the pinned ones; says which is meant."""
    name = str(found.reference)
    manifest = found.manifest.digest
    if image.digest == found.index_digest:
        raise PinError(
            f"{key}.digest: {image.digest} is the index digest of {name}; pin the linux/amd64 "
            f"manifest digest {manifest} there, and the index digest under index_digest"
        )
    if image.digest != manifest:
        raise PinError(
            f"{key}.digest: expected manifest digest {image.digest} (linux/amd64), found {manifest}"
            f": {name} names another image than the one pinned. To run the pinned bytes whatever "
            f"the tag says, write the uri as {found.reference.by_digest(image.digest)}; "
            "results of two images cannot be mixed"
        )
    if image.index_digest not in (None, found.index_digest) and found.index_digest is not None:
        raise PinError(
            f"{key}.index_digest: expected index digest {image.index_digest}, found "
            f"{found.index_digest} for {name}. The linux/amd64 manifest digest is as pinned, so "
            "only the list of platforms changed: correct or drop index_digest"
        )

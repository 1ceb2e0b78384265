"""What a registry says against what the pin says; every message names the kind of digest."""

from __future__ import annotations

import pins_parts
import pytest

from kvstudy.base.errors import PinError
from kvstudy.pins.reference import parse_reference
from kvstudy.pins.resolve import Resolved, compare, resolve
from kvstudy.study.model import Image

URI = f"docker://{pins_parts.HOST}/{pins_parts.NAME}:v1"
KEY = "engines.e.image"


def resolved(parts: pins_parts.Parts, tags: dict[str, bytes] | None = None) -> Resolved:
    """What the tag resolves to."""
    return resolve(parse_reference(URI), transport=pins_parts.FakeRegistry(parts, tags).transport)


def test_a_tag_is_followed_through_the_index_to_the_settings(parts: pins_parts.Parts) -> None:
    found = resolved(parts)

    assert found.index_digest == parts.index_digest
    assert found.manifest.digest == parts.digest
    assert found.settings == parts.settings
    compare(found, Image(uri=URI, digest=parts.digest, index_digest=parts.index_digest), KEY)


def test_a_tag_of_one_platform_has_no_index_digest(parts: pins_parts.Parts) -> None:
    found = resolved(parts, {"v1": parts.manifest})

    assert found.index_digest is None
    compare(found, Image(uri=URI, digest=parts.digest, index_digest=parts.index_digest), KEY)


def test_a_swapped_tag_stops_and_says_how_to_run_the_pinned_bytes(parts: pins_parts.Parts) -> None:
    other = pins_parts.make_parts("another")
    pinned = Image(uri=URI, digest=parts.digest)

    with pytest.raises(PinError) as caught:
        compare(resolved(other), pinned, KEY)

    text = str(caught.value)
    assert f"engines.e.image.digest: expected manifest digest {parts.digest}" in text
    assert f"found {other.digest}" in text
    assert f"docker://{pins_parts.HOST}/{pins_parts.NAME}@{parts.digest}" in text


def test_an_index_digest_where_a_manifest_digest_belongs_is_said(parts: pins_parts.Parts) -> None:
    pinned = Image(uri=URI, digest=parts.index_digest)

    with pytest.raises(PinError, match=f"is the index digest of .* manifest digest {parts.digest}"):
        compare(resolved(parts), pinned, KEY)


def test_another_index_around_the_same_manifest_is_said(parts: pins_parts.Parts) -> None:
    pinned = Image(uri=URI, digest=parts.digest, index_digest="sha256:" + "0" * 64)

    with pytest.raises(PinError, match="only the list of platforms changed"):
        compare(resolved(parts), pinned, KEY)


def test_a_missing_tag_names_the_pinned_digest(parts: pins_parts.Parts) -> None:
    transport = pins_parts.FakeRegistry(parts, {}).transport

    with pytest.raises(PinError, match=f"404.*pinned: manifest digest {parts.digest}"):
        resolve(parse_reference(URI), pinned=parts.digest, transport=transport)

"""Indexes, manifests and settings: bytes in, checked values out."""

from __future__ import annotations

import json
from typing import Any

import pins_parts
import pytest

from kvstudy.base.errors import PinError
from kvstudy.pins import manifest as m


def test_the_platform_manifest_is_found_in_an_index(parts: pins_parts.Parts) -> None:
    index = m.parse_document(parts.index, "here")

    assert m.is_index(index)
    assert m.platform_digest(index, "here") == parts.digest != parts.index_digest


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ([pins_parts.entry("sha256:" + "1" * 64, "arm64")], "no manifest for linux/amd64 .*arm64"),
        ([], "no manifest"),
        (
            [pins_parts.entry("sha256:" + c * 64, "amd64") for c in "12"],
            "several manifests for linux/amd64",
        ),
        ([pins_parts.entry("sha256:../../etc/passwd", "amd64")], "expected a sha256 digest"),
    ],
)
def test_an_index_without_one_platform_manifest_is_refused(
    entries: list[dict[str, Any]], message: str
) -> None:
    with pytest.raises(PinError, match=message):
        m.platform_digest({"manifests": entries}, "here")


def test_a_manifest_is_read_with_its_own_digest(parts: pins_parts.Parts) -> None:
    found = m.parse_manifest(parts.manifest, "here")

    assert found.digest == parts.digest
    assert found.config_digest == pins_parts.sha(parts.settings)
    assert [layer.digest for layer in found.layers] == [pins_parts.sha(parts.layer)]
    assert found.size_bytes == len(parts.settings) + len(parts.layer)


@pytest.mark.parametrize(
    "body",
    [
        b"<html>",
        b"[]",
        b"{}",
        b'{"config": {"digest": "x", "size": 1}, "layers": []}',
        b'{"config": null, "layers": 1}',
        b"[" * 100_000,
    ],
)
def test_anything_else_is_refused_in_words(body: bytes) -> None:
    with pytest.raises(PinError, match="here: "):
        m.parse_manifest(body, "here")


def test_labels_are_kept_and_bounded() -> None:
    labels = {"com.nvidia.build.id": "42", "long": "x" * 5000}
    body = json.dumps({"os": "linux", "architecture": "amd64", "config": {"Labels": labels}})

    facts = m.settings_facts(body.encode(), "here")

    assert facts["platform"] == "linux/amd64"
    assert facts["labels"]["com.nvidia.build.id"] == "42"
    assert len(facts["labels"]["long"]) == 1000
    assert m.settings_facts(b'{"config": null}', "here")["labels"] == {}


def test_a_digest_for_people_is_short() -> None:
    assert m.short("sha256:" + "ab" * 32) == "sha256:abababababab..."
    assert m.short(None) == "none"

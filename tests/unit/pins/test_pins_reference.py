"""Image addresses: taken apart, never guessed."""

from __future__ import annotations

import pytest

from kvstudy.base.errors import PinError
from kvstudy.pins.reference import is_loopback, parse_reference, plain_http

DIGEST = "sha256:" + "a" * 64


@pytest.mark.parametrize(
    ("uri", "host", "name", "tag", "digest"),
    [
        ("docker://r.example/a/b:1.2.1", "r.example", "a/b", "1.2.1", None),
        ("docker://r.example:5000/a", "r.example:5000", "a", None, None),
        (f"docker://localhost/a/b@{DIGEST}", "localhost", "a/b", None, DIGEST),
        (
            f"docker://127.0.0.1:1/a/b-c__d.e:v_1@{DIGEST}",
            "127.0.0.1:1",
            "a/b-c__d.e",
            "v_1",
            DIGEST,
        ),
    ],
)
def test_an_address_is_taken_apart(
    uri: str, host: str, name: str, tag: str | None, digest: str | None
) -> None:
    found = parse_reference(uri)

    assert (found.host, found.name, found.tag, found.digest) == (host, name, tag, digest)
    assert found.wanted == (digest or tag or "latest")
    assert found.by_digest(DIGEST) == f"docker://{host}/{name}@{DIGEST}"


@pytest.mark.parametrize(
    "uri",
    [
        "docker://a/b:1",
        "docker://ubuntu",
        "docker://r.example/A/b",
        "docker://r.example/a/../b",
        "docker://r.example/a:tag/../../etc",
        "docker://r.example/a@sha256:abc",
        "docker://user:secret@r.example/a",
        "docker://r.example/a --force",
        "https://r.example/a",
    ],
)
def test_an_incomplete_or_strange_address_is_refused(uri: str) -> None:
    with pytest.raises(PinError, match="expected docker://HOST/NAME"):
        parse_reference(uri)


def test_only_this_machine_is_spoken_to_without_tls() -> None:
    assert all(map(is_loopback, ("127.0.0.1:5000", "127.8.8.8", "localhost:1", "[::1]:5", "[::1]")))
    assert not any(map(is_loopback, ("r.example", "10.0.0.1:5000", "127.evil.example")))
    assert plain_http("127.0.0.1:5000", {})
    assert not plain_http("r.example", {})
    assert plain_http("r.example", {"APPTAINER_NO_HTTPS": "true"})

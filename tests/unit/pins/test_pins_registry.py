"""The registry client: digests compared, answers bounded, credentials kept at home."""

from __future__ import annotations

from collections.abc import Callable

import httpx
import pins_parts
import pytest

from kvstudy.base.errors import PinError
from kvstudy.pins.reference import parse_reference
from kvstudy.pins.registry import Registry

REFERENCE = parse_reference(f"docker://{pins_parts.HOST}/{pins_parts.NAME}:v1")


def ask(handler: Callable[[httpx.Request], httpx.Response], wanted: str = "v1") -> bytes:
    """One question to a handler."""
    transport = httpx.MockTransport(handler)
    with Registry(REFERENCE, transport=transport, sleep=lambda _: None) as registry:
        return registry.manifest(wanted)


def test_a_document_comes_back_whole(parts: pins_parts.Parts) -> None:
    fake = pins_parts.FakeRegistry(parts)

    assert ask(fake.answer) == parts.index
    assert ask(fake.answer, parts.digest) == parts.manifest
    assert str(fake.requests[0].url) == "https://registry.example/v2/acme/engine/manifests/v1"
    assert "manifest.list.v2" in fake.requests[0].headers["accept"]


def test_altered_bytes_are_refused_naming_both_digests(parts: pins_parts.Parts) -> None:
    fake = pins_parts.FakeRegistry(parts)
    fake.alter = {parts.digest: parts.manifest + b" ", "v1": parts.index + b" "}

    with pytest.raises(PinError, match=f"expected a document with digest {parts.digest}"):
        ask(fake.answer, parts.digest)
    with pytest.raises(PinError, match=f"expected a document with digest {parts.index_digest}"):
        ask(fake.answer)


def test_altered_settings_are_refused(parts: pins_parts.Parts) -> None:
    fake = pins_parts.FakeRegistry(parts)
    digest = pins_parts.sha(parts.settings)
    fake.alter = {digest: b"{}"}

    with (
        Registry(REFERENCE, transport=fake.transport) as registry,
        pytest.raises(PinError, match=f"expected config digest {digest}"),
    ):
        registry.settings(digest)


def test_an_endless_answer_is_refused() -> None:
    with pytest.raises(PinError, match="larger than 4194304 bytes"):
        ask(lambda _: httpx.Response(200, content=b" " * (5 << 20)))


def test_faults_are_tried_again_then_said_in_words(parts: pins_parts.Parts) -> None:
    answers = iter([httpx.Response(503), httpx.Response(429), httpx.Response(200, content=b"{}")])
    assert ask(lambda _: next(answers)) == b"{}"

    def broken(request: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused", request=request)

    with pytest.raises(PinError, match=r"no answer after 3 tries \(ConnectError"):
        ask(broken)
    with pytest.raises(PinError, match=r"no answer after 3 tries \(status 502"):
        ask(lambda _: httpx.Response(502))


@pytest.mark.parametrize(
    ("status", "message"),
    [(404, "does not have it"), (403, "access refused .403."), (418, "answered 418")],
)
def test_other_answers_say_what_to_do(status: int, message: str) -> None:
    with pytest.raises(PinError, match=message):
        ask(lambda _: httpx.Response(status))


class TokenRegistry:
    """A registry that wants a token from a realm on another host."""

    def __init__(self, realm: str = "https://auth.example/token") -> None:
        self.realm = realm
        self.seen: list[httpx.Request] = []

    def answer(self, request: httpx.Request) -> httpx.Response:
        """One answer."""
        self.seen.append(request)
        if request.url.host == "auth.example":
            return httpx.Response(200, json={"token": "short-lived"})
        if request.headers.get("authorization") != "Bearer short-lived":
            challenge = f'Bearer realm="{self.realm}",service="registry",scope="a:b:pull"'
            return httpx.Response(401, headers={"www-authenticate": challenge})
        if request.url.host == "registry.example":
            return httpx.Response(307, headers={"location": "https://cdn.example/blob?sig=1"})
        return httpx.Response(200, content=b"{}")


def test_a_token_is_fetched_with_the_scope_the_registry_names() -> None:
    def no_redirect(request: httpx.Request) -> httpx.Response:
        response = server.answer(request)
        return httpx.Response(200, content=b"{}") if response.status_code == 307 else response

    server = TokenRegistry()

    assert ask(no_redirect) == b"{}"
    realm = server.seen[1].url
    assert dict(realm.params) == {"service": "registry", "scope": "a:b:pull"}
    assert "authorization" not in server.seen[1].headers


def test_stored_credentials_go_to_the_realm_and_nowhere_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("APPTAINER_DOCKER_USERNAME", "u")
    monkeypatch.setenv("APPTAINER_DOCKER_PASSWORD", "planted")
    server = TokenRegistry()

    def cdn_takes_anyone(request: httpx.Request) -> httpx.Response:
        if request.url.host == "cdn.example":
            server.seen.append(request)
            return httpx.Response(200, content=b"{}")
        return server.answer(request)

    assert ask(cdn_takes_anyone) == b"{}"
    by_host = {request.url.host: request.headers.get("authorization") for request in server.seen}
    assert by_host["auth.example"].startswith("Basic ")
    assert by_host["registry.example"] == "Bearer short-lived"
    assert by_host["cdn.example"] is None


@pytest.mark.parametrize("realm", ["http://auth.example/token", "ftp://x", ""])
def test_a_realm_without_tls_gets_no_credentials(
    realm: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("APPTAINER_DOCKER_USERNAME", "u")
    monkeypatch.setenv("APPTAINER_DOCKER_PASSWORD", "planted")
    server = TokenRegistry(realm)

    with pytest.raises(PinError, match="cannot log in as the registry asks") as caught:
        ask(server.answer)
    assert len(server.seen) == 1
    assert "planted" not in str(caught.value)


def test_a_refused_login_names_the_tools_own_login() -> None:
    def refuse(request: httpx.Request) -> httpx.Response:
        if request.url.host == "auth.example":
            return httpx.Response(401)
        return TokenRegistry().answer(request)

    with pytest.raises(PinError, match=r"registry login docker://registry\.example"):
        ask(refuse)


def test_basic_login_is_answered_with_stored_credentials_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def basic(request: httpx.Request) -> httpx.Response:
        if request.headers.get("authorization") == "Basic dTpw":
            return httpx.Response(200, content=b"{}")
        return httpx.Response(401, headers={"www-authenticate": 'Basic realm="x"'})

    with pytest.raises(PinError, match="access refused"):
        ask(basic)
    monkeypatch.setenv("APPTAINER_DOCKER_USERNAME", "u")
    monkeypatch.setenv("APPTAINER_DOCKER_PASSWORD", "p")
    assert ask(basic) == b"{}"

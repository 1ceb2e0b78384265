"""A registry, asked over its HTTP API v2 for manifests and image settings; layers are not read.

Every answer is bounded and compared with the digest it was asked by. Credentials go to the host
they belong to, and a redirect to another one does not carry them.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import Any

import httpx

from kvstudy.base.errors import PinError
from kvstudy.pins.credentials import credentials_for, scrub
from kvstudy.pins.manifest import ACCEPT, MOST_BYTES, digest_of, parse_document
from kvstudy.pins.reference import Reference, is_loopback, plain_http

_TRIES = 3
_CHALLENGE = re.compile(r'(\w+)="([^"]*)"')
_TOKEN_BYTES = 1 << 20


class Registry:
    """One image name on one registry."""

    def __init__(
        self,
        reference: Reference,
        *,
        transport: httpx.BaseTransport | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.reference = reference
        self._plain = plain_http(reference.host)
        self._base = f"{'http' if self._plain else 'https'}://{reference.host}/v2/{reference.name}"
        self._headers: dict[str, str] = {}
        self._sleep = sleep
        self._client = httpx.Client(
            transport=transport,
            timeout=httpx.Timeout(30.0, connect=10.0),
            trust_env=not is_loopback(reference.host),
            max_redirects=5,
        )

    def __enter__(self) -> Registry:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def manifest(self, wanted: str) -> bytes:
        """Bytes of the index or manifest that a tag or digest names.

        Raises PinError when the bytes do not have the digest they were asked by, or the one that
        the registry says they have.
        """
        where = f"registry {self.reference.host}, {self.reference.name}:{wanted}"
        response, body = self._get(f"{self._base}/manifests/{wanted}", where)
        found = digest_of(body)
        stated = response.headers.get("docker-content-digest", found)
        for expected in (wanted if wanted.startswith("sha256:") else found, stated):
            if expected.startswith("sha256:") and expected != found:
                raise PinError(
                    f"{where}: expected a document with digest {expected}, found {found}. The "
                    "registry or something before it alters documents; nothing was pulled"
                )
        return body

    def settings(self, digest: str) -> bytes:
        """Bytes of the image settings with a config digest; raises PinError when they differ."""
        where = f"registry {self.reference.host}, settings of {self.reference.name}"
        _, body = self._get(f"{self._base}/blobs/{digest}", where)
        if digest_of(body) != digest:
            raise PinError(
                f"{where}: expected config digest {digest}, found {digest_of(body)}. The registry "
                "or something before it alters documents; nothing was pulled"
            )
        return body

    def _get(self, url: str, where: str) -> tuple[httpx.Response, bytes]:
        """A successful answer, with one login when it is asked for and short retries."""
        response, body = self._steady(url, {"Accept": ACCEPT, **self._headers}, where)
        if response.status_code == httpx.codes.UNAUTHORIZED and not self._headers:
            self._headers = self._login(response.headers.get("www-authenticate", ""), where)
            response, body = self._steady(url, {"Accept": ACCEPT, **self._headers}, where)
        if response.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
            raise PinError(
                f"{where}: access refused ({response.status_code}). Log in with the tool's own "
                f"login, for example `apptainer registry login docker://{self.reference.host}`"
            )
        if response.status_code == httpx.codes.NOT_FOUND:
            raise PinError(f"{where}: the registry does not have it (404); check uri and digest")
        if response.status_code != httpx.codes.OK:
            raise PinError(f"{where}: the registry answered {response.status_code}; try again")
        return response, body

    def _steady(
        self, url: str, headers: dict[str, str], where: str
    ) -> tuple[httpx.Response, bytes]:
        """One answer; connection faults and busy answers are tried again, then a PinError."""
        last = ""
        for attempt in range(_TRIES):
            if attempt:
                self._sleep(0.5 * 2 ** (attempt - 1))
            try:
                response, body = self._read(url, headers, where, MOST_BYTES)
            except httpx.HTTPError as error:
                last = f"{type(error).__name__}: {error}"
                continue
            if response.status_code not in (429, 500, 502, 503, 504):
                return response, body
            last = f"status {response.status_code}"
        raise PinError(
            f"{where}: no answer after {_TRIES} tries ({scrub(last)[:300]}). Nothing was pulled; "
            "run again on a machine that reaches the registry, or stage the image (docs/pins.md)"
        )

    def _read(
        self, url: str, headers: dict[str, str], where: str, most: int
    ) -> tuple[httpx.Response, bytes]:
        body = bytearray()
        with self._client.stream("GET", url, headers=headers, follow_redirects=True) as response:
            for piece in response.iter_bytes():
                body += piece
                if len(body) > most:
                    raise PinError(f"{where}: the answer is larger than {most} bytes; refused")
        return response, bytes(body)

    def _login(self, challenge: str, where: str) -> dict[str, str]:
        """The Authorization header a registry asks for."""
        basic = credentials_for(self.reference.host)
        scheme, _, rest = challenge.partition(" ")
        auth = httpx.BasicAuth(basic.user, basic.password) if basic is not None else None
        if scheme.lower() == "basic":
            if auth is None:
                return {}
            signed = next(auth.auth_flow(httpx.Request("GET", self._base)))
            return {"Authorization": signed.headers["Authorization"]}
        parts = dict(_CHALLENGE.findall(rest))
        realm = httpx.URL(parts.get("realm", ""))
        if scheme.lower() != "bearer" or not (
            realm.scheme == "https" or (self._plain and realm.scheme == "http")
        ):
            raise PinError(f"{where}: cannot log in as the registry asks ({scheme[:20]!r})")
        query = {"scope": parts.get("scope", f"repository:{self.reference.name}:pull")}
        if "service" in parts:
            query["service"] = parts["service"]
        return self._token(realm.copy_merge_params(query), auth, where)

    def _token(self, url: httpx.URL, auth: httpx.BasicAuth | None, where: str) -> dict[str, str]:
        try:
            response = self._client.get(url, auth=auth)
        except httpx.HTTPError as error:
            raise PinError(
                f"{where}: login at {url.host} failed ({type(error).__name__})"
            ) from None
        if response.status_code != httpx.codes.OK or len(response.content) > _TOKEN_BYTES:
            raise PinError(
                f"{where}: login at {url.host} answered {response.status_code}. Check the stored "
                f"login, or log in again: `apptainer registry login docker://{self.reference.host}`"
            )
        answer: dict[str, Any] = parse_document(response.content, where)
        token = answer.get("token") or answer.get("access_token")
        if not isinstance(token, str) or not token.isprintable():
            raise PinError(f"{where}: login at {url.host} gave no token")
        return {"Authorization": f"Bearer {token}"}

"""Where an image is: `docker://HOST[:PORT]/NAME[:TAG][@DIGEST]`, taken apart and checked."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass

from kvstudy.base.errors import PinError

_HOST = r"(?:[A-Za-z0-9](?:[A-Za-z0-9.-]*[A-Za-z0-9])?|\[[0-9A-Fa-f:.]+\])(?::[0-9]{1,5})?"
_PART = r"[a-z0-9]+(?:(?:\.|_{1,2}|-+)[a-z0-9]+)*"
_REFERENCE = re.compile(
    rf"docker://(?P<host>{_HOST})/(?P<name>{_PART}(?:/{_PART})*)"
    r"(?::(?P<tag>[A-Za-z0-9_][A-Za-z0-9_.-]{0,127}))?(?:@(?P<digest>sha256:[0-9a-f]{64}))?"
)


@dataclass(frozen=True, slots=True)
class Reference:
    """An image name on a registry."""

    host: str
    name: str
    tag: str | None
    digest: str | None

    @property
    def wanted(self) -> str:
        """What a registry is asked for: the digest when one is given, else the tag."""
        return self.digest or self.tag or "latest"

    def by_digest(self, digest: str) -> str:
        """The same name, by digest and nothing else."""
        return f"docker://{self.host}/{self.name}@{digest}"

    def __str__(self) -> str:
        separator = "@" if self.digest else ":"
        return f"{self.host}/{self.name}{separator}{self.wanted}"


def parse_reference(uri: str) -> Reference:
    """Take a docker:// address apart; raises PinError for one that is not complete.

    The host is never guessed: an address without one means something else on every machine.
    """
    match = _REFERENCE.fullmatch(uri)
    host = match["host"] if match else ""
    if match is None or not ("." in host or ":" in host or host == "localhost"):
        raise PinError(f"{uri!r}: expected docker://HOST/NAME[:TAG][@sha256:...] with a full host")
    return Reference(host, match["name"], match["tag"], match["digest"])


def plain_http(host: str, environ: Mapping[str, str] = os.environ) -> bool:
    """Whether a registry is spoken to without TLS: this machine, or where the tool is told so."""
    if _truthy(environ.get("APPTAINER_NO_HTTPS", environ.get("SINGULARITY_NOHTTPS", ""))):
        return True
    return is_loopback(host)


def is_loopback(host: str) -> bool:
    """Whether a host, with or without a port, is this machine."""
    name = host.rsplit(":", 1)[0] if not host.endswith("]") else host
    name = name.strip("[]")
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return name == "localhost"


def _truthy(text: str) -> bool:
    return text.strip().lower() in {"1", "true", "yes", "y", "t"}

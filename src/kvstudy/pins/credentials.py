"""Registry credentials, only from the tool's own login file or the environment.

They are never taken from the configuration, never put on a command line, and never printed.
"""

from __future__ import annotations

import base64
import binascii
import json
import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

SECRET_NAMES = (
    "APPTAINER_DOCKER_PASSWORD",
    "SINGULARITY_DOCKER_PASSWORD",
    "HF_TOKEN",
    "HUGGING_FACE_HUB_TOKEN",
)
"""Environment variables whose values never leave this process in a message."""

_QUERY = re.compile(r"(https?://[^\s?'\"]+)\?[^\s'\"]+")
_USERINFO = re.compile(r"(https?://)[^\s/@'\"]+@")


@dataclass(frozen=True, slots=True)
class Basic:
    """A name and a password; neither shows in a repr."""

    user: str = field(repr=False)
    password: str = field(repr=False)


def credentials_for(host: str, environ: Mapping[str, str] = os.environ) -> Basic | None:
    """Credentials for a registry host, or None to ask without.

    Looks where Apptainer does: its environment variables, then the login files that
    `apptainer registry login` and `docker login` write. Credential helpers are not run.
    """
    for prefix in ("APPTAINER", "SINGULARITY"):
        user = environ.get(f"{prefix}_DOCKER_USERNAME")
        password = environ.get(f"{prefix}_DOCKER_PASSWORD")
        if user and password:
            return Basic(user, password)
    for path in _login_files(environ):
        found = _from_file(path, host)
        if found is not None:
            return found
    return None


def scrub(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """`text` without secrets of the environment, signed queries and names in URLs."""
    secrets = {value for name in SECRET_NAMES if (value := environ.get(name))}
    for value in sorted(secrets, key=len, reverse=True):
        text = text.replace(value, "***")
    text = _QUERY.sub(r"\1?***", text)
    return _USERINFO.sub(r"\1***@", text)


def without_secrets(environ: Mapping[str, str], *, keep_registry: bool) -> dict[str, str]:
    """An environment for a child: no hub tokens, and registry ones only for a pull."""
    dropped = {"HF_TOKEN", "HUGGING_FACE_HUB_TOKEN"}
    if not keep_registry:
        for prefix in ("APPTAINER", "SINGULARITY"):
            dropped |= {f"{prefix}_DOCKER_USERNAME", f"{prefix}_DOCKER_PASSWORD"}
    return {name: value for name, value in environ.items() if name not in dropped}


def _login_files(environ: Mapping[str, str]) -> Iterator[Path]:
    home = Path(environ.get("HOME", "/nonexistent"))
    yield home / ".apptainer" / "docker-config.json"
    yield home / ".singularity" / "docker-config.json"
    docker = environ.get("DOCKER_CONFIG")
    yield (Path(docker) if docker else home / ".docker") / "config.json"


def _from_file(path: Path, host: str) -> Basic | None:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        entry = document.get("auths", {}).get(host) or document.get("auths", {}).get(
            f"https://{host}"
        )
        if not entry or not entry.get("auth"):
            return None
        user, _, password = base64.b64decode(entry["auth"]).decode().partition(":")
    except (OSError, ValueError, AttributeError, TypeError, binascii.Error):
        return None
    return Basic(user, password) if user and password else None

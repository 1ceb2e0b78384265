"""Secrets out of text: known values of the environment, and what looks like one.

Lines are handled one by one, so that memory stays small. A rule is tried only where one of its
hints stands in the line: most bytes are telemetry, and none of it holds a secret.
"""

from __future__ import annotations

import base64
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from kvstudy.serve.processes import is_secret

MASK = b"***"
_SHORTEST = 6
_PEM_START, _PEM_END = re.compile(rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY"), b"-----END "
_PEM_WHOLE = re.compile(
    rb"-----BEGIN [A-Z0-9 ]*PRIVATE KEY.*?-----END [A-Z0-9 ]*PRIVATE KEY(?: BLOCK)?-----", re.DOTALL
)
# Indented JSON puts an option and its value on two lines.
_FLAG_LINE = re.compile(
    rb"(?i)\"--?(?:api[-_]?key|api[-_]?token|hf[-_]?token|token|password|secret)\",\s*$"
)
_QUOTED = re.compile(rb"\"[^\"]*\"")
_NOT_VALUES = rb"(?!null\b|none\b|true\b|false\b|\*\*\*)"


@dataclass(frozen=True, slots=True)
class Rule:
    """A pattern, what it leaves in place, and the lower-case hints that call for it."""

    hints: tuple[bytes, ...]
    pattern: re.Pattern[bytes]
    leaves: bytes = MASK


RULES = (
    Rule(
        (b"hf_", b"nvapi-", b"sk-", b"gh", b"github_pat_", b"glpat-"),
        re.compile(
            rb"\b(?:hf_[A-Za-z0-9]{16,}|nvapi-[\w-]{16,}|sk-[\w-]{20,}|gh[pousr]_[A-Za-z0-9]{20,}"
            rb"|github_pat_\w{20,}|glpat-[\w-]{16,})"
        ),
    ),
    Rule(
        (b"akia", b"asia", b"aiza", b"xox", b"eyj"),
        re.compile(
            rb"\b(?:A[KS]IA[0-9A-Z]{16}|AIza[\w-]{30,}|xox[abeoprs]-[A-Za-z0-9-]{10,}"
            rb"|eyJ[\w-]{8,}\.eyJ[\w-]{8,}\.[\w-]{8,})"
        ),
    ),
    Rule(
        (b"authorization",),
        re.compile(
            rb"(?i)(\bauthorization\b\\?[\"']?\s*[:=]\s*\\?[\"']?(?:(?:bearer|basic|token)\s+)?)"
            + _NOT_VALUES
            + rb"[^\s\"',;}\\]+"
        ),
        rb"\1" + MASK,
    ),
    Rule(
        (b"bearer ",),
        re.compile(rb"(?i)(\bbearer\s+)(?=[^\s\"']*\d)[\w.~+/=-]{8,}"),
        rb"\1" + MASK,
    ),
    Rule(
        (b"-key", b"_key", b"apikey", b"-token", b"_token", b"-password", b"-secret"),
        re.compile(
            rb"(?i)(--?(?:api[-_]?key|api[-_]?token|hf[-_]?token|token|password|secret)"
            rb"(?:=|\\?[\"']\s*,\s*\\?[\"']|\s+))" + _NOT_VALUES + rb"[^\s\"',\]\\]+"
        ),
        rb"\1" + MASK,
    ),
    Rule(
        (b"_token", b"_key", b"secret", b"passw", b"passphrase", b"apikey", b"credentials"),
        re.compile(
            rb"(\b(?:[A-Z0-9]+_)+(?:TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|APIKEY|CREDENTIALS)"
            rb"\\?[\"']?\s*[:=]\s*\\?[\"']?)" + _NOT_VALUES + rb"[^\s\"',;}\\]+"
        ),
        rb"\1" + MASK,
    ),
    Rule(
        (b"key", b"token", b"secret", b"passw", b"passphrase"),
        re.compile(
            rb"(?i)(\b(?:[a-z0-9]+[_-])*(?:api[_-]?key|api[_-]?token|access[_-]?token"
            rb"|auth[_-]?token|access[_-]?key|secret[_-]?key|private[_-]?key|client[_-]?secret"
            rb"|password|passwd|passphrase|secret)\\?[\"']?\s*[:=]\s*\\?[\"']?)"
            + _NOT_VALUES
            + rb"[^\s\"',;}\])\\]{4,}"
        ),
        rb"\1" + MASK,
    ),
    Rule(
        (b"@",),
        re.compile(rb"(?i)(\b[a-z][a-z0-9+.-]*://)(?!\*\*\*@)[^\s/@\"'<>]+@"),
        rb"\1" + MASK + b"@",
    ),
    Rule(
        (b"signature=", b"sig=", b"token=", b"key=", b"credential=", b"policy="),
        re.compile(
            rb"(?i)([?&;](?:x-amz-(?:signature|credential|security-token)|signature|sig|token"
            rb"|access_token|api_key|key|key-pair-id|policy)=)(?!\*\*\*)[^\s&\"'<>\\]+"
        ),
        rb"\1" + MASK,
    ),
)


class Scrubber:
    """Masks secrets; counts how many lines held one."""

    def __init__(self, environ: Mapping[str, str] = os.environ) -> None:
        self._known = sorted(set(_forms(_values(environ))), key=lambda form: (-len(form), form))

    def lines(self, lines: Iterable[bytes]) -> Iterator[tuple[bytes, bool]]:
        """Each line without its secrets, and whether it held one. Key blocks are left out."""
        in_key = after_flag = False
        for line in lines:
            if in_key:
                in_key = _PEM_END not in line
                continue
            clean = self.line(line)
            if after_flag:
                clean = _QUOTED.sub(b'"' + MASK + b'"', clean, count=1)
            after_flag = _FLAG_LINE.search(clean) is not None
            if _PEM_START.search(clean):
                in_key = True
                clean = _PEM_START.split(clean)[0] + MASK + b"\n"
            yield clean, clean != line

    def line(self, line: bytes) -> bytes:
        """One line without its secrets."""
        clean = self.values(line)
        lower = clean.lower()
        for rule in RULES:
            if any(hint in lower for hint in rule.hints):
                clean = rule.pattern.sub(rule.leaves, clean)
        return _PEM_WHOLE.sub(MASK, clean) if b"PRIVATE KEY" in clean else clean

    def values(self, text: bytes) -> bytes:
        """Text without the known values, in any of the forms in which they are written."""
        for form in self._known:
            if form in text:
                text = text.replace(form, MASK)
        return text


def _values(environ: Mapping[str, str]) -> Iterator[str]:
    """Secret values: variables whose name says so, and the hub's own token file."""
    for name, value in environ.items():
        if is_secret(name):
            yield from (value, *value.splitlines())
    home = Path(environ.get("HF_HOME") or Path(environ.get("HOME", "/nonexistent"), ".cache"))
    for path in (
        Path(environ.get("HF_TOKEN_PATH", "/nonexistent")),
        home / "token",
        home / "huggingface" / "token",
    ):
        try:
            yield path.read_text(encoding="utf-8").strip()
        except (OSError, UnicodeDecodeError):
            continue


def _forms(values: Iterable[str]) -> Iterator[bytes]:
    """A value as it may stand in a file: plain, in JSON, in a URL, in base64."""
    for value in values:
        if len(value) < _SHORTEST:
            continue
        raw = value.encode("utf-8", errors="surrogateescape")
        yield raw
        yield json.dumps(value)[1:-1].encode()
        yield quote(value, safe="", errors="replace").encode()
        yield base64.b64encode(raw)

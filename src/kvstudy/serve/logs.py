"""A server's log: its last lines, what is known to go wrong, and no secret in it."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from kvstudy.base.files import replacing

_TAIL_BYTES = 1 << 16
_LINE_CHARS = 400
_MASK = b"***"
_SHORTEST_SECRET = 6
_CONTROL = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f]")


@dataclass(frozen=True, slots=True)
class Known:
    """One known failure: what the log shows, what it means, what to do."""

    pattern: re.Pattern[str]
    meaning: str
    is_port_taken: bool = False


def _known(pattern: str, meaning: str, *, is_port_taken: bool = False) -> Known:
    return Known(re.compile(pattern, re.IGNORECASE), meaning, is_port_taken)


KNOWN = (
    _known(
        r"address already in use|cannot listen|couldn't bind|could not bind|EADDRINUSE",
        "the port was taken by another process",
        is_port_taken=True,
    ),
    _known(
        r"out of memory|OutOfMemoryError|CUDA_ERROR_OUT_OF_MEMORY|No available memory",
        "memory ran out: is another process on the GPU, is the KV pool too large?",
    ),
    _known(
        r"no such option|unrecognized arguments?|unexpected extra argument|invalid choice"
        r"|extra (inputs|fields) (are )?not permitted|extra_forbidden|unknown (key|option)",
        "this engine version does not know an option: compare the arm's options with its version",
    ),
    _known(
        r"larger than the maximum number of tokens that can be stored"
        r"|the KV pool holds no block|KV cache .*(too small|is not enough)",
        "the KV pool does not hold one request of max_seq_len",
    ),
    _known(
        r"libcuda\.so|no nvidia driver|driver version is insufficient|no cuda gpus are available"
        r"|cuda-capable device",
        "no usable GPU: was the job given one, does the container run with --nv?",
    ),
    _known(
        r"PackageNotFoundError|ModuleNotFoundError|ImportError",
        "the engine's Python environment is incomplete",
    ),
    _known(
        r"illegal instruction|SIGILL",
        "the processor lacks an instruction set that this build needs",
    ),
    _known(
        r"401 client error|403 client error|gated repo|not a valid model identifier"
        r"|is not a local folder|config\.json.*(not found|no such file)",
        "the model is not where the server looks for it: stage it and check model.path",
    ),
    _known(
        r"FATAL:.*(image|sif)|while opening image|exec format error|cannot start ",
        "the image or the executable cannot be started",
    ),
    _known(r"no space left on device", "the disk is full"),
    _known(r"permission denied", "a file or a device cannot be opened by this user"),
)


def size(path: Path) -> int:
    """Bytes of a log; 0 where there is none."""
    return path.stat().st_size if path.is_file() else 0


def tail(path: Path, lines: int = 15, *, after: int = 0) -> list[str]:
    """The last lines of a log after byte `after`, shortened, without control characters.

    Empty if there is nothing to read.
    """
    try:
        with path.open("rb") as handle:
            handle.seek(0, os.SEEK_END)
            handle.seek(max(after, handle.tell() - _TAIL_BYTES))
            text = handle.read().decode("utf-8", errors="replace")
    except OSError:
        return []
    kept = [_CONTROL.sub("", line).rstrip()[:_LINE_CHARS] for line in text.split("\n")]
    return [line for line in kept if line][-lines:]


def diagnose(lines: Iterable[str]) -> Known | None:
    """The first known failure that the last lines show, the latest line first."""
    for line in reversed(list(lines)):
        for known in KNOWN:
            if known.pattern.search(line):
                return known
    return None


def masked(text: str, secrets: Iterable[str]) -> str:
    """`text` without the secrets."""
    for secret in secrets:
        if len(secret) >= _SHORTEST_SECRET:
            text = text.replace(secret, _MASK.decode())
    return text


def scrub(path: Path, secrets: Iterable[str]) -> int:
    """Replace secrets in a log; how many lines held one. The file keeps its mode (0600)."""
    needles = [secret.encode() for secret in secrets if len(secret) >= _SHORTEST_SECRET]
    if not needles or not path.is_file():
        return 0
    with path.open("rb") as handle:
        hit = sum(any(needle in line for needle in needles) for line in handle)
    if hit:
        with (
            replacing(path) as temporary,
            path.open("rb") as source,
            temporary.open("wb") as target,
        ):
            target.writelines(_without(line, needles) for line in source)
        path.chmod(0o600)
    return hit


def _without(line: bytes, needles: Iterable[bytes]) -> bytes:
    for needle in needles:
        line = line.replace(needle, _MASK)
    return line

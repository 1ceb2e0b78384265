"""Raw telemetry: every answer as it came, one JSON line per read, flushed before it is looked at.

The first line is a header (engine, kind, clock, anchor); each later line is one read. The file
alone gives every row again: nothing is parsed while a load runs.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from kvstudy.base.clock import StudyClock
from kvstudy.telemetry.numbers import mapping
from kvstudy.telemetry.trtllm import WallAnchor

FORMAT = "kvstudy-telemetry-1"


@dataclass(frozen=True, slots=True)
class Header:
    """What a file of reads is about. `kind` is iterations or prometheus."""

    kind: str
    adapter: str
    version: str
    interval_ms: int
    scale: float
    origin_ns: int
    anchor_unix_ns: int
    anchor_monotonic_ns: int
    block_tokens: int | None = None

    @property
    def clock(self) -> StudyClock:
        """The study clock of the run."""
        return StudyClock(self.scale, self.origin_ns)

    @property
    def anchor(self) -> WallAnchor:
        """Unix and monotonic time of one instant at the start."""
        return WallAnchor(self.anchor_unix_ns, self.anchor_monotonic_ns)


@dataclass(frozen=True, slots=True)
class Read:
    """One read: when it was asked for and answered (monotonic ns), and what came.

    `status` is None where no answer came; `error` then says why.
    """

    path: str
    sent_ns: int
    received_ns: int
    status: int | None
    body: bytes = b""
    error: str | None = None


class RawFile:
    """The open file; only its owner is a reader of the endpoint."""

    def __init__(self, path: Path, header: Header) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        self._file = os.fdopen(handle, "ab")
        self._write({"format": FORMAT, **asdict(header)})

    def append(self, read: Read) -> None:
        """Write one read and flush it."""
        line: dict[str, Any] = {
            "path": read.path,
            "sent_ns": read.sent_ns,
            "received_ns": read.received_ns,
            "status": read.status,
        }
        if read.error is not None:
            line["error"] = read.error
        try:
            line["body"] = read.body.decode()
        except UnicodeDecodeError:
            line["body_base64"] = base64.b64encode(read.body).decode()
        self._write(line)

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line, separators=(",", ":")).encode() + b"\n")
        self._file.flush()


def read_raw(path: Path) -> tuple[Header, Iterator[Read]]:
    """The header and the reads of a file; a half-written last line is passed over.

    Raises ValueError if the file has no header of this format.
    """
    with path.open("rb") as handle:
        first = _line(handle.readline())
    if first.pop("format", None) != FORMAT:
        raise ValueError(f"{path}: no telemetry file of format {FORMAT}")
    return Header(**first), _reads(path)


def _reads(path: Path) -> Iterator[Read]:
    with path.open("rb") as handle:
        for data in handle:
            line = _line(data)
            if "received_ns" not in line:
                continue
            body = line.get("body")
            encoded = line.get("body_base64")
            yield Read(
                path=str(line.get("path")),
                sent_ns=int(line["sent_ns"]),
                received_ns=int(line["received_ns"]),
                status=line.get("status"),
                body=body.encode() if body is not None else base64.b64decode(encoded or ""),
                error=line.get("error"),
            )


def _line(data: bytes) -> dict[str, Any]:
    try:
        return mapping(json.loads(data))
    except ValueError:
        return {}

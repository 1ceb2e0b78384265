"""Finished requests on disk while the phase runs, so that a killed client loses a second at most.

JSON lines. What is written are the recordings, not rows: parsing streams during the run would
disturb it, compressing them in a thread does not (zlib lets go of the interpreter). Reading the
journal gives the rows the phase would have given.
"""

from __future__ import annotations

import base64
import json
import zlib
from array import array
from collections.abc import Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvstudy.base.clock import StudyClock
from kvstudy.base.errors import DataError
from kvstudy.client.recording import Ending, Recording
from kvstudy.client.request import Facts, Reading, Row, row_of

_SCALARS = ("send_ns", "first_byte_ns", "end_ns", "status", "content_type", "content_encoding")


class Journal:
    """Appends to one file; opens it with a line that says how to read what follows."""

    def __init__(self, path: Path, reading: Reading) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        self._file = path.open("ab")
        head = {
            "clock_scale": reading.clock.scale,
            "clock_origin_wall_ns": reading.clock.origin_wall_ns,
            "promises_done": reading.promises_done,
            "stall_threshold_ms": reading.stall_threshold_ms,
        }
        # A line feed first: the file may end in the torn line of a killed client.
        self._file.write(b"\n" + json.dumps(head).encode() + b"\n")
        self._file.flush()

    def write(self, finished: Iterable[tuple[Facts, Recording]]) -> None:
        """Append finished requests and hand them to the operating system."""
        for facts, recording in finished:
            self._file.write(json.dumps(_packed(facts, recording)).encode() + b"\n")
        self._file.flush()

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def read_journal(path: Path) -> tuple[list[Row], list[Row]]:
    """Rows of CLIENT_REQUESTS and of OUTPUTS, in the order the requests ended.

    A torn last line, as a killed client leaves it, is passed over. Raises DataError for a file
    that is missing or is no journal.
    """
    rows: list[Row] = []
    texts: list[Row] = []
    reading: Reading | None = None
    try:
        with path.open("rb") as file:
            for line in file:
                if not line.strip() or not line.endswith(b"\n"):
                    continue
                entry = _entry(line)
                if entry is None:
                    continue
                if "clock_scale" in entry:
                    reading = _reading(entry)
                    continue
                if reading is None:
                    raise DataError(f"{path}: not a client journal: no line says how to read it")
                row, text = row_of(*_unpacked(entry), reading)
                rows.append(row)
                if text is not None:
                    texts.append({"request_id": row["request_id"], "text": text})
    except OSError as error:
        raise DataError(f"{path}: cannot be read ({error.strerror})") from error
    except (KeyError, TypeError, ValueError, zlib.error) as error:
        raise DataError(f"{path}: damaged journal line ({error})") from error
    return rows, texts


def _entry(line: bytes) -> dict[str, Any] | None:
    """One line; None for one that was torn before another client wrote on."""
    try:
        entry = json.loads(line)
    except ValueError:
        return None
    return entry if isinstance(entry, dict) else None


def _reading(entry: dict[str, Any]) -> Reading:
    clock = StudyClock(entry["clock_scale"], entry["clock_origin_wall_ns"])
    return Reading(clock, entry["promises_done"], entry["stall_threshold_ms"])


def _packed(facts: Facts, recording: Recording) -> dict[str, Any]:
    ending = recording.ending or Ending.CANCELLED
    return {
        "facts": asdict(facts),
        **{name: getattr(recording, name) for name in _SCALARS},
        "ending": ending.value,
        "error": recording.error,
        "body": _shrink(recording.body),
        "stamps": _shrink(recording.stamps.tobytes()),
        "ends": _shrink(recording.ends.tobytes()),
    }


def _unpacked(entry: dict[str, Any]) -> tuple[Facts, Recording]:
    recording = Recording(
        **{name: entry[name] for name in _SCALARS},
        ending=Ending(entry["ending"]),
        error=entry["error"],
        body=bytearray(_grow(entry["body"])),
        stamps=array("q", _grow(entry["stamps"])),
        ends=array("q", _grow(entry["ends"])),
    )
    return Facts(**entry["facts"]), recording


def _shrink(data: bytes | bytearray) -> str:
    return base64.b64encode(zlib.compress(data, 1)).decode("ascii")


def _grow(text: str) -> bytes:
    return zlib.decompress(base64.b64decode(text))

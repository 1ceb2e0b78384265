"""What every subcommand prints with: results on stdout, notes on stderr, nothing executable."""

from __future__ import annotations

import json
import re
import sys
from typing import Any

_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def inert(text: str) -> str:
    """Text with control characters shown, so that no foreign string can drive the terminal."""
    return _CONTROL.sub(lambda found: f"\\x{ord(found.group()):02x}", text)


def out(text: str) -> None:
    """One result line on stdout."""
    sys.stdout.write(inert(text) + "\n")


def note(text: str) -> None:
    """One remark on stderr."""
    sys.stderr.write(inert(text) + "\n")


def out_json(value: Any) -> None:
    """One JSON document on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False) + "\n")


def table(head: list[str], rows: list[list[str]]) -> None:
    """An aligned text table on stdout; numbers to the right."""
    cells = [head, *rows]
    widths = [max(len(row[i]) for row in cells) for i in range(len(head))]
    for row in cells:
        line = "  ".join(_aligned(text, width) for text, width in zip(row, widths, strict=True))
        out(line.rstrip())


def _aligned(text: str, width: int) -> str:
    numeric = bool(re.fullmatch(r"[-+]?[\d.,]+ ?[%x]?", text))
    return text.rjust(width) if numeric else text.ljust(width)

"""Numbers from documents that nobody vouches for: a usable value or None, never an exception."""

from __future__ import annotations

import json
import math
from typing import Any

from kvstudy.base.units import NS_PER_MS

_I64_MAX = (1 << 63) - 1


def count(value: Any) -> int | None:
    """A non-negative whole number that fits 64 bits; None for anything else (NaN, -1, "3")."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    if isinstance(value, float):
        if not math.isfinite(value) or not value.is_integer():
            return None
        value = int(value)
    return value if 0 <= value <= _I64_MAX else None


def real(value: Any) -> float | None:
    """A finite number; None for anything else."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:
        return None
    return number if math.isfinite(number) else None


def ms_as_ns(value: Any) -> int | None:
    """Milliseconds to whole ns; None for what is no time."""
    number = real(value)
    if number is None or not 0 <= number * NS_PER_MS <= _I64_MAX:
        return None
    return round(number * NS_PER_MS)


def parsed(text: str) -> Any:
    """The JSON value of a text; raises ValueError for everything else, however it is broken."""
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None


def mapping(value: Any) -> dict[str, Any]:
    """`value` if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}

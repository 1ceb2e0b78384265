"""Units: integer nanoseconds inside, milliseconds and seconds on paper.

This is the only module in which powers of ten that convert time are written.
"""

from __future__ import annotations

NS_PER_US = 1_000
NS_PER_MS = 1_000_000
NS_PER_S = 1_000_000_000
BYTES_PER_GIB = 1 << 30


def s_to_ns(seconds: float) -> int:
    """Seconds to the nearest whole nanosecond."""
    return round(seconds * NS_PER_S)


def ns_to_s(ns: float) -> float:
    """Nanoseconds to seconds."""
    return ns / NS_PER_S


def ns_to_ms(ns: float) -> float:
    """Nanoseconds to milliseconds."""
    return ns / NS_PER_MS


def ms_to_ns(ms: float) -> int:
    """Milliseconds to the nearest whole nanosecond."""
    return round(ms * NS_PER_MS)


def ceil_div(numerator: int, denominator: int) -> int:
    """Smallest whole number not below `numerator / denominator` (both non-negative)."""
    return -(-numerator // denominator)

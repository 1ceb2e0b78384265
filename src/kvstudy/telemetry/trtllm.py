"""TensorRT-LLM's JSON endpoints: iteration records of /metrics and timings of /perf_metrics.

Both are read destructively: a record is given once, to whoever asks first. Parsers accept missing
and extra keys, and values that are no numbers become null.
"""

from __future__ import annotations

import calendar
import contextlib
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvstudy.base.units import NS_PER_S, NS_PER_US
from kvstudy.telemetry.numbers import count, mapping, ms_as_ns, parsed

Row = dict[str, Any]

BUFFER_RECORDS = 1000
"""How many records the engine keeps for its reader; the oldest are dropped."""

_TIMESTAMP = re.compile(
    r"(\d{2})-(\d{2})-(\d{4}) (\d{2}):(\d{2}):(\d{2})(?:\.(\d{1,6}))?$", re.ASCII
)


def records(text: str) -> list[Mapping[str, Any]]:
    """The records of one answer of /metrics, oldest first.

    Raises ValueError for what is no list of JSON objects.
    """
    value = parsed(text)
    if not isinstance(value, list):
        raise ValueError(f"expected a list of records, got {type(value).__name__}")
    if not all(isinstance(record, dict) for record in value):
        raise ValueError("expected every record to be an object")
    return value


def row(record: Mapping[str, Any], t_ns: int) -> Row:
    """One record as a row of `base.tables.CELL_ITERATIONS`.

    `numPausedRequests` counts pauses decided in that iteration: an event, not a gauge.
    """
    batch = mapping(record.get("inflightBatchingStats"))
    used, free, most = _blocks(record)
    return {
        "t_ns": t_ns,
        "iter": count(record.get("iter")),
        "scheduled_requests": count(batch.get("numScheduledRequests")),
        "context_requests": count(batch.get("numContextRequests")),
        "generation_requests": count(batch.get("numGenRequests")),
        "paused_requests": count(batch.get("numPausedRequests")),
        "context_tokens": count(batch.get("numCtxTokens")),
        "active_requests": count(record.get("numActiveRequests")),
        "queued_requests": count(record.get("numQueuedRequests")),
        "used_blocks": used,
        "free_blocks": free,
        "max_blocks": most,
        "iter_latency_ns": ms_as_ns(record.get("iterLatencyMS")),
    }


def _blocks(record: Mapping[str, Any]) -> tuple[int | None, int | None, int | None]:
    """Used, free and all blocks; used ones above the pool's size are no count."""
    cache = mapping(record.get("kvCacheStats"))
    used, free = count(cache.get("usedNumBlocks")), count(cache.get("freeNumBlocks"))
    most = count(cache.get("maxNumBlocks"))
    if not cache:
        windows = mapping(record.get("kvCacheIterationStats"))
        first = mapping(next(iter(windows.values()), None))
        used, free = (
            count(first.get("primaryUsedNumBlocks")),
            count(first.get("primaryFreeNumBlocks")),
        )
        most = count(first.get("primaryMaxNumBlocks"))
    if most is not None:
        used = used if used is None or used <= most else None
        free = free if free is None or free <= most else None
    return used, free, most


@dataclass(frozen=True, slots=True)
class WallAnchor:
    """One instant on both clocks of this machine: Unix time and the monotonic clock."""

    unix_ns: int
    monotonic_ns: int

    @staticmethod
    def now() -> WallAnchor:
        """The present instant."""
        return WallAnchor(time.time_ns(), time.monotonic_ns())

    def monotonic_of(self, unix_ns: int) -> int:
        """The monotonic reading of a Unix time, as long as the wall clock is not stepped."""
        return self.monotonic_ns + unix_ns - self.unix_ns


def unix_candidates(timestamp: Any) -> list[int]:
    """Unix times (ns) that `MM-DD-YYYY HH:MM:SS.ffffff` may mean: read as UTC and as local time.

    Empty for anything else.
    """
    found = _TIMESTAMP.match(timestamp) if isinstance(timestamp, str) else None
    if found is None:
        return []
    month, day, year, hour, minute, second = (int(found[i]) for i in range(1, 7))
    if not (1970 <= year < 2262 and 1 <= month <= 12 and 1 <= day <= 31 and hour < 24):
        return []
    fields = (year, month, day, hour, minute, second, 0, 0, -1)
    rest = int((found[7] or "0").ljust(6, "0")) * NS_PER_US
    seconds = [calendar.timegm(fields)]
    with contextlib.suppress(OverflowError, ValueError):
        seconds.append(round(time.mktime(fields)))
    return [s * NS_PER_S + rest for s in dict.fromkeys(seconds)]


def monotonic_ns(
    record: Mapping[str, Any], anchor: WallAnchor, *, earliest_ns: int, received_ns: int
) -> int:
    """When a record was made, as a reading of the monotonic clock.

    The record's own timestamp where it lies between the previous read and this one, else the
    receipt, which is an upper bound.
    """
    for unix_ns in unix_candidates(record.get("timestamp")):
        reading = anchor.monotonic_of(unix_ns)
        if earliest_ns <= reading <= received_ns:
            return reading
    return received_ns


@dataclass(frozen=True, slots=True)
class Coverage:
    """Which iterations were seen. `expected` counts from the first to the last one seen.

    `gaps` are missing spans, both ends included; `restarts` counts where numbers began anew.
    """

    seen: int
    expected: int
    gaps: tuple[tuple[int, int], ...]
    restarts: int = 0

    @property
    def share(self) -> float | None:
        """Seen / expected; None where nothing was expected."""
        return self.seen / self.expected if self.expected else None


def coverage(
    rows: Sequence[Mapping[str, Any]], *, first: int | None = None, last: int | None = None
) -> Coverage:
    """Coverage of the iteration numbers in `rows`, optionally of a known span [first, last]."""
    numbers = [n for n in (row.get("iter") for row in rows) if isinstance(n, int)]
    restarts = sum(after < before for before, after in pairwise(numbers))
    known = sorted(set(numbers))
    low = first if first is not None else (known[0] if known else None)
    high = last if last is not None else (known[-1] if known else None)
    if low is None or high is None or high < low:
        return Coverage(len(known), 0, (), restarts)
    inside = [n for n in known if low <= n <= high]
    gaps = []
    due = low
    for number in [*inside, high + 1]:
        if number > due:
            gaps.append((due, number - 1))
        due = number + 1
    return Coverage(len(inside), high - low + 1, tuple(gaps), restarts)


@dataclass(frozen=True, slots=True)
class RequestTiming:
    """One ended request of /perf_metrics."""

    request_id: str
    first_iter: int | None
    last_iter: int | None
    allocated_blocks: int | None

    @property
    def iterations_lived(self) -> int | None:
        """Iterations from its first to its last, both included."""
        if self.first_iter is None or self.last_iter is None or self.last_iter < self.first_iter:
            return None
        return self.last_iter - self.first_iter + 1


def timings(text: str) -> list[RequestTiming]:
    """The entries of one answer of /perf_metrics. Raises ValueError for what is no such list."""
    result = []
    for entry in records(text):
        metrics = mapping(entry.get("perf_metrics"))
        cache = mapping(metrics.get("kv_cache_metrics"))
        result.append(
            RequestTiming(
                request_id=str(entry.get("request_id")),
                first_iter=count(metrics.get("first_iter")),
                last_iter=count(metrics.get("last_iter")),
                allocated_blocks=count(cache.get("num_total_allocated_blocks")),
            )
        )
    return result

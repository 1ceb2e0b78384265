"""What rows say about pauses: pure functions over `iterations` and `requests` rows.

Evidence that rests on complete rows is None where rows are missing; None is never zero.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

Row = Mapping[str, Any]


def window(rows: Iterable[Row], start_ns: int, end_ns: int) -> list[Row]:
    """Rows whose time lies in [start, end]."""
    return [row for row in rows if start_ns <= row["t_ns"] <= end_ns]


def _sum(rows: Iterable[Row], column: str) -> int | None:
    values = [row[column] for row in rows if row.get(column) is not None]
    return sum(values) if values else None


def pauses(rows: Iterable[Row]) -> int | None:
    """Pauses of the run: the sum of `paused_requests`. None where no row states it.

    On TensorRT-LLM each row counts the pauses decided in its iteration, so a lost row may hide
    some; a scrape's row counts those since the scrape before, and loses none.
    """
    return _sum(rows, "paused_requests")


def recomputed_tokens(rows: Iterable[Row], prompt_tokens: int) -> int | None:
    """Context tokens computed beyond the prompts: sum of `context_tokens` - sum of prompts.

    `prompt_tokens` is the sum over the requests of the same span of time. None where no row states
    context tokens, and where fewer were seen than the prompts have: rows are missing then.
    """
    computed = _sum(rows, "context_tokens")
    if computed is None or computed < prompt_tokens:
        return None
    return computed - prompt_tokens


def peak_blocks(rows: Iterable[Row]) -> int | None:
    """Most KV blocks held at once; None where no row states it."""
    return max(
        (row["used_blocks"] for row in rows if row.get("used_blocks") is not None), default=None
    )


@dataclass(frozen=True, slots=True)
class Hidden:
    """One request's silent decoding: iterations it lived beyond the chunks that were seen."""

    request_id: str
    iterations_lived: int
    chunks: int

    @property
    def hidden(self) -> int:
        """Iterations that gave the client nothing."""
        return max(0, self.iterations_lived - self.chunks)


def hidden_decoding(requests: Iterable[Row], rows: Iterable[Row]) -> list[Hidden]:
    """Per request: iterations from its first chunk to its last, against the chunks seen.

    Without pauses a request emits one token in each iteration it is scheduled in, so the two
    agree to within the few iterations that receipt lags behind. A paused request that recomputes
    misses as many as its wait and prefill take; one that was truncated decodes thousands that
    nobody sees. Requests with fewer than two chunks say nothing and are left out.
    """
    times = sorted(row["t_ns"] for row in rows)
    result = []
    for request in requests:
        chunks = request["chunk_ns"]
        if len(chunks) < 2:
            continue
        lived = bisect_right(times, chunks[-1]) - bisect_left(times, chunks[0]) + 1
        result.append(Hidden(request["request_id"], lived, len(chunks)))
    return result


@dataclass(frozen=True, slots=True)
class Gap:
    """The largest gap between chunks of one request, and the pauses that fall into it.

    `pause_ns` are times of rows with pauses inside the gap, or shortly before its start: the last
    chunk before a pause is received after the iteration that decided it began.
    """

    request_id: str
    start_ns: int
    end_ns: int
    pause_ns: tuple[int, ...]

    @property
    def length_ns(self) -> int:
        """Length of the gap."""
        return self.end_ns - self.start_ns

    @property
    def is_paused(self) -> bool:
        """Whether a pause may be what made the gap."""
        return bool(self.pause_ns)


def largest_gaps(requests: Iterable[Row], rows: Sequence[Row], *, slack_ns: int) -> list[Gap]:
    """The largest gap of each request that has one, longest first.

    `slack_ns` is how long before the gap's start a pause may have been recorded: about one
    iteration. A pause in the gap is a candidate cause, not a proof: records do not name requests.
    """
    paused = sorted(row["t_ns"] for row in rows if (row.get("paused_requests") or 0) > 0)
    gaps = []
    for request in requests:
        steps = list(pairwise(request["chunk_ns"]))
        if not steps:
            continue
        start, end = max(steps, key=lambda step: step[1] - step[0])
        first, last = bisect_left(paused, start - slack_ns), bisect_right(paused, end)
        gaps.append(Gap(request["request_id"], start, end, tuple(paused[first:last])))
    return sorted(gaps, key=lambda gap: -gap.length_ns)


def oddities(rows: Sequence[Row]) -> list[str]:
    """What iteration records cannot truly say, in words; empty when nothing is seen.

    A pause under GUARANTEED_NO_EVICT is for the caller to see: rows do not name the policy.
    """
    found = []
    numbers = [row["iter"] for row in rows if row.get("iter") is not None]
    back = sum(after < before for before, after in pairwise(numbers))
    if back:
        found.append(f"iteration numbers went back {back} times: was the server restarted?")
    doubled = sum(after == before for before, after in pairwise(numbers))
    if doubled:
        found.append(f"{doubled} iteration numbers came twice in a row")
    for row in rows:
        used, free, most = (row.get(f"{name}_blocks") for name in ("used", "free", "max"))
        if used is not None and free is not None and most is not None and used + free != most:
            found.append(f"iteration {row.get('iter')}: {used} used + {free} free != {most} blocks")
            break
    return found

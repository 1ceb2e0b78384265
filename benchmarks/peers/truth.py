"""What the server knows against what a client says: pure arithmetic, checked by hand in the tests.

The server's record of a request: when its body had arrived, and the time of every write.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from benchmarks.peers.results import Seen

Sent = dict[str, Any]
_NS_PER_MS = 1e6


@dataclass(frozen=True)
class Case:
    """A scripted answer of 20 planned tokens, one event each 20 ms, and the facts about it.

    `first` and `last` are the events that hold the first and the last text.
    """

    shape: str
    title: str
    ok: bool
    tokens: int
    chunks: int
    last: int
    empty: int = 0
    first: int = 0


CASES = (
    Case("normal", "one token a chunk", True, 20, 20, 19),
    Case("two_tokens", "two tokens a chunk", True, 20, 10, 9),
    Case("every_fourth_empty", "every 4th chunk empty", True, 20, 16, 19, empty=4),
    Case("short", "stops at 10 of 20", True, 10, 10, 9),
    Case("error_event", "error event after 10", False, 10, 10, 9),
    Case("reset", "connection lost after 10", False, 10, 10, 9),
    Case("no_usage", "no usage", True, 20, 20, 19),
)
COLUMNS = ("outcome", "tokens", "tpot", "chunks", "empty", "finish", "partial")
_TPOT_TOLERANCE = 0.03


def closed_loop_rate(requests: Sequence[Sent], lanes: int, chunks: int) -> float:
    """Chunks per second that were asked for, received and answered by the next request.

    In a closed loop of N lanes, N fewer answers have been read to their end by the last arrival
    than requests have come. Nothing of it depends on the client's clock or arithmetic.
    """
    arrived = sorted(one["arrived_ns"] for one in requests)
    return (len(arrived) - lanes) * chunks / (arrived[-1] - arrived[0]) * 1e9


def true_ttft_ms(one: Sent, first: int = 0) -> float:
    """First text written minus request arrived."""
    return float(one["sent_ns"][first] - one["arrived_ns"]) / _NS_PER_MS


def true_tpot_ms(one: Sent, first: int, last: int, tokens: int) -> float:
    """Last text written minus first text written, over tokens - 1."""
    return float(one["sent_ns"][last] - one["sent_ns"][first]) / (tokens - 1) / _NS_PER_MS


@dataclass(frozen=True)
class Errors:
    """Client minus server over the requests of a run; `matched` says by what they were paired."""

    n: int
    matched: str
    ttft_p50_ms: float
    ttft_max_ms: float
    tpot_p50_ms: float
    tpot_max_ms: float


def errors(seen: Sequence[Seen], requests: Sequence[Sent], tokens: int) -> Errors | None:
    """Absolute errors of TTFT and TPOT, request by request; None if nothing can be compared.

    Answers carry their arrival number; a client that keeps no text is compared rank by rank,
    which can only flatter it.
    """
    whole = [one for one in seen if one.ttft_ms is not None and one.tpot_ms is not None]
    last = tokens - 1
    ttfts = [true_ttft_ms(one) for one in requests]
    tpots = [true_tpot_ms(one, 0, last, tokens) for one in requests]
    if whole and all(one.tag is not None and one.tag < len(requests) for one in whole):
        matched = "text"
        pairs = [(one.ttft_ms, ttfts[one.tag or 0]) for one in whole]
        rates = [(one.tpot_ms, tpots[one.tag or 0]) for one in whole]
    elif len(whole) == len(requests) and whole:
        matched = "rank"
        pairs = list(zip(sorted(one.ttft_ms or 0 for one in whole), sorted(ttfts), strict=True))
        rates = list(zip(sorted(one.tpot_ms or 0 for one in whole), sorted(tpots), strict=True))
    else:
        return None
    off = [abs((a or 0) - b) for a, b in pairs]
    slope = [abs((a or 0) - b) for a, b in rates]
    return Errors(len(whole), matched, median(off), max(off), median(slope), max(slope))


def judge(seen: Sequence[Seen], requests: Sequence[Sent], case: Case) -> dict[str, Any]:
    """One client in one case: its figures, and for each column right, wrong or absent.

    Where a request counts as failed, its counts are judged only as far as they are kept: what a
    client leaves out is absent, not wrong.
    """
    ok = [one for one in seen if one.ok]
    expected = len(requests) if case.ok else 0
    shown = ok or list(seen)
    tokens, chunks = _middle(shown, "tokens"), _middle(shown, "chunks")
    tpot, empty = _middle(shown, "tpot_ms"), _middle(shown, "empty")
    whole = [one for one in requests if len(one["sent_ns"]) > case.last]
    true_tpot = median(true_tpot_ms(one, case.first, case.last, case.tokens) for one in whole)
    kept = {one.finish for one in shown} - {None}
    failed = not case.ok
    partial = None
    if failed and not ok:
        partial = bool(chunks or tokens)
    return {
        "ok": len(ok),
        "tokens": tokens,
        "tpot_ms": tpot,
        "chunks": chunks,
        "true_tpot_ms": true_tpot,
        "finish": next(iter(kept)) if len(kept) == 1 else None,
        "verdicts": {
            "outcome": _verdict(len(ok), expected, absent=not seen and case.ok),
            "tokens": _verdict(tokens, case.tokens, absent=not tokens),
            "tpot": _verdict(tpot, true_tpot, _TPOT_TOLERANCE * true_tpot, absent=not tpot),
            "chunks": _verdict(chunks, case.chunks, absent=not chunks),
            "empty": _verdict(empty, case.empty, absent=empty is None),
            "finish": "absent" if failed or not kept else "right",
            "partial": {None: "absent", True: "right", False: "wrong"}[partial],
        },
    }


def _middle(seen: Sequence[Seen], name: str) -> float | None:
    values = [getattr(one, name) for one in seen if getattr(one, name) is not None]
    return median(values) if values else None


def _verdict(value: float | None, true: float, within: float = 0.0, *, absent: bool) -> str:
    if absent or value is None:
        return "absent"
    return "right" if abs(value - true) <= within else "wrong"

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
    true = {
        at: (true_ttft_ms(one), true_tpot_ms(one, 0, last, tokens))
        for at, one in enumerate(requests)
        if len(one["sent_ns"]) > last
    }
    if whole and all(one.tag in true for one in whole):
        matched = "text"
        pairs = [(one.ttft_ms, true[one.tag or 0][0]) for one in whole]
        rates = [(one.tpot_ms, true[one.tag or 0][1]) for one in whole]
    elif whole and len(true) >= len(whole):
        matched = "rank"
        some = list(true.values())[: len(whole)]
        pairs = _ranked([one.ttft_ms for one in whole], [ttft for ttft, _ in some])
        rates = _ranked([one.tpot_ms for one in whole], [tpot for _, tpot in some])
    else:
        return None
    off = [abs((a or 0) - b) for a, b in pairs]
    slope = [abs((a or 0) - b) for a, b in rates]
    return Errors(len(whole), matched, median(off), max(off), median(slope), max(slope))


def _ranked(said: list[float | None], true: list[float]) -> list[tuple[float | None, float]]:
    return list(zip(sorted(one or 0 for one in said), sorted(true), strict=True))


def judge(
    seen: Sequence[Seen], requests: Sequence[Sent], case: Case, *, slack: int = 0
) -> dict[str, Any]:
    """One client in one case: its figures, and for each column right, wrong or absent.

    What a client leaves out is absent, not wrong. Chunks may be counted with the empty ones or
    without. `slack` is how many requests may have been answered after the client stopped reading.
    """
    ok = [one for one in seen if one.ok]
    shown = ok or list(seen)
    tokens, chunks = _middle(shown, "tokens"), _middle(shown, "chunks")
    tpot, empty = _middle(shown, "tpot_ms"), _middle(shown, "empty")
    whole = [one for one in requests if len(one["sent_ns"]) > case.last]
    expected = len(whole) if case.ok else 0
    tpots = [true_tpot_ms(one, case.first, case.last, case.tokens) for one in whole]
    true_tpot = median(tpots) if tpots else 0.0
    kept = {one.finish for one in shown} - {None}
    failed = not case.ok
    partial = failed and not ok and bool(chunks or tokens)
    true_chunks = case.chunks + (case.empty if chunks == case.chunks + case.empty else 0)
    return {
        "ok": len(ok),
        "sent": len(whole),
        "tokens": tokens,
        "tpot_ms": tpot,
        "chunks": chunks,
        "true_tpot_ms": true_tpot,
        "finish": next(iter(kept)) if len(kept) == 1 else None,
        "verdicts": {
            "outcome": _verdict(len(ok), expected, slack, absent=not seen),
            "tokens": _verdict(tokens, case.tokens, absent=not tokens),
            "tpot": _verdict(tpot, true_tpot, _TPOT_TOLERANCE * true_tpot, absent=not tpot),
            "chunks": _verdict(chunks, true_chunks, absent=not chunks),
            "empty": _verdict(empty, case.empty, absent=empty is None),
            "finish": "absent" if failed or not kept else "right",
            "partial": "right" if partial else "absent",
        },
    }


def _middle(seen: Sequence[Seen], name: str) -> float | None:
    values = [getattr(one, name) for one in seen if getattr(one, name) is not None]
    return median(values) if values else None


def _verdict(value: float | None, true: float, within: float = 0.0, *, absent: bool) -> str:
    if absent or value is None:
        return "absent"
    return "right" if abs(value - true) <= within else "wrong"

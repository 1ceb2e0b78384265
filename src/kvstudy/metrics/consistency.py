"""Consistency of a cell's row with its own requests: identities that no measurement can break.

Each check gives reason codes of `base.reasons` and a line that names the numbers. A cell that was
not run has nothing to check. Nulls are not violations: what an engine does not say is not wrong.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from kvstudy.metrics.audit import audit_requests, littles_law_holds
from kvstudy.metrics.per_cell import mean_in_flight, window

Row = Mapping[str, Any]
RELATIVE = 1e-6
_SPREADS = (("ttft", "ms"), ("tpot", "ms"), ("tpot_chunks", "ms"), ("e2e", "s"))
_ORDER = ("p50", "p90", "p95", "p99", "max")
_THROUGHPUTS = (
    ("output_tokens", "output_tok_per_s"),
    ("output_chunks", "output_tok_per_s_chunks"),
    ("usage_tokens", "output_tok_per_s_usage"),
    ("completed", "requests_per_s"),
)
_DATA_FACTS = frozenset({"early_ended"})
"""Codes that describe what happened; they contradict nothing."""


@dataclass(frozen=True, slots=True)
class Violation:
    """One identity that does not hold."""

    code: str
    line: str


def audit_cell(
    cell: Row, requests: Sequence[Row], iterations: Sequence[Row], *, prefix_reuse: bool
) -> list[Violation]:
    """Every violation of one cell's row, its request rows and its iteration rows."""
    if "not_run" in cell["reasons"]:
        return []
    found: list[Violation] = []
    for check in _CHECKS:
        found += check(cell, requests)
    found += _peaks(cell, requests, iterations)
    planned = cell["requests"]
    found += [
        Violation(code, f"{code} by the request rows")
        for code in audit_requests(requests, planned, prefix_reuse)
        if code not in _DATA_FACTS
    ]
    return found


def audit_prompts(workload: Mapping[str, Mapping[str, Any]], planned: int) -> list[Violation]:
    """Distinct prompts = requests, by the digests of the workload that was sent."""
    digests = [entry["prompt_sha256"] for entry in workload.values()]
    if len(set(digests)) < len(digests):
        line = f"{len(set(digests))} distinct prompts in {len(digests)} requests"
        return [Violation("duplicate_prompts", line)]
    if len(digests) < planned:
        line = f"{len(digests)} prompts for {planned} requests"
        return [Violation("duplicate_prompts", line)]
    return []


def _close(left: float, right: float) -> bool:
    return math.isclose(left, right, rel_tol=RELATIVE, abs_tol=1e-9)


def _little(cell: Row, requests: Sequence[Row]) -> Iterator[Violation]:
    """Mean in flight = arrivals x residence, and what the cell's row says of it."""
    held, said = mean_in_flight(requests), cell["mean_in_flight"]
    if not littles_law_holds(requests):
        yield Violation("littles_law", "mean in flight is not arrival rate x mean residence")
    if held is not None and said is not None and not _close(held, said):
        yield Violation("littles_law", f"mean in flight {said:.6g}, by the rows {held:.6g}")


def _throughput(cell: Row, requests: Sequence[Row]) -> Iterator[Violation]:
    """Tokens = throughput x window, for each way of counting, and tokens = those of the rows."""
    wall_s, span = cell["wall_s"], window(requests)
    if wall_s is not None and span is not None and not _close(wall_s, (span[1] - span[0]) / 1e9):
        line = f"window {wall_s:.9g} s, by the rows {(span[1] - span[0]) / 1e9:.9g} s"
        yield Violation("throughput_differs", line)
    for count, rate in _THROUGHPUTS:
        if None in (cell[count], cell[rate], wall_s):
            continue
        if not _close(cell[rate] * wall_s, cell[count]):
            line = f"{rate} x window = {cell[rate] * wall_s:.9g}, {count} {cell[count]}"
            yield Violation("throughput_differs", line)


def _counts(cell: Row, requests: Sequence[Row]) -> Iterator[Violation]:
    """Planned = completed + failed, and every count is that of the rows."""
    ok = [r for r in requests if r["outcome"] == "ok"]
    by_rows = {
        "completed": len(ok),
        "failed": len(requests) - len(ok),
        "output_chunks": _total(ok, "chunk_count"),
        "output_tokens": _total(ok, "retokenized_tokens"),
        "usage_tokens": _total(ok, "usage_tokens"),
    }
    for name, value in by_rows.items():
        if cell[name] is not None and value is not None and cell[name] != value:
            yield Violation("counts_differ", f"{name} {cell[name]}, by the rows {value}")
    if None not in (cell["completed"], cell["failed"]):
        total = cell["completed"] + cell["failed"]
        if total != cell["requests"]:
            line = f"completed + failed = {total}, planned {cell['requests']}"
            yield Violation("counts_differ", line)
    for part in ("early_ended", "retokenized_short"):
        if cell[part] is not None and cell[part] > (cell["completed"] or 0):
            line = f"{part} {cell[part]}, completed {cell['completed']}"
            yield Violation("counts_differ", line)


def _total(rows: Sequence[Row], name: str) -> int | None:
    values = [row[name] for row in rows]
    return None if not values or any(v is None for v in values) else int(sum(values))


def _percentiles(cell: Row, _requests: Sequence[Row]) -> Iterator[Violation]:
    """p50 <= p90 <= p95 <= p99 <= max and mean <= max, for every spread."""
    for prefix, unit in _SPREADS:
        values = [cell[f"{prefix}_{stat}_{unit}"] for stat in _ORDER]
        known = [value for value in values if value is not None]
        mean, top = cell[f"{prefix}_mean_{unit}"], cell[f"{prefix}_max_{unit}"]
        falling = any(low > high * (1 + 1e-12) for low, high in pairwise(known))
        if falling or (mean is not None and top is not None and mean > top * (1 + RELATIVE)):
            shown = ", ".join(f"{value:.6g}" for value in known)
            yield Violation("percentile_order", f"{prefix} ({unit}): {shown}; mean {mean:.6g}")


_CHECKS: tuple[Callable[[Row, Sequence[Row]], Iterator[Violation]], ...] = (
    _little, _throughput, _counts, _percentiles,
)  # fmt: skip


def _peaks(cell: Row, requests: Sequence[Row], iterations: Sequence[Row]) -> Iterator[Violation]:
    """Peak >= mean: requests in flight, requests scheduled, KV blocks held; in flight <= lanes."""
    peak, mean = peak_in_flight(requests), mean_in_flight(requests)
    if peak is not None and mean is not None and mean > peak * (1 + RELATIVE):
        yield Violation("peak_below_mean", f"in flight: peak {peak}, mean {mean:.6g}")
    if peak is not None and peak > cell["concurrency"]:
        line = f"{peak} requests in flight, {cell['concurrency']} declared"
        yield Violation("concurrency_not_held", line)
    for column, name in (("peak_blocks", "used_blocks"), ("residents_max", "scheduled_requests")):
        values = [row[name] for row in _inside(cell, iterations) if row[name] is not None]
        if cell[column] is None or not values:
            continue
        if max(values) != cell[column] or math.fsum(values) / len(values) > cell[column]:
            line = f"{column} {cell[column]}, by the iteration rows {max(values)}"
            yield Violation("peak_below_mean", line)


def _inside(cell: Row, iterations: Sequence[Row]) -> list[Row]:
    start, end = cell["window_start_ns"], cell["window_end_ns"]
    if start is None or end is None:
        return []
    return [row for row in iterations if start < row["t_ns"] <= end]


def peak_in_flight(requests: Sequence[Row]) -> int | None:
    """Most requests in flight at once; a lane's end comes before its next send at the same time."""
    sent = [r for r in requests if r["send_ns"] is not None and r["end_ns"] is not None]
    if not sent:
        return None
    events = [(r["send_ns"], 1) for r in sent] + [(r["end_ns"], -1) for r in sent]
    in_flight = peak = 0
    for _, change in sorted(events):
        in_flight += change
        peak = max(peak, in_flight)
    return peak

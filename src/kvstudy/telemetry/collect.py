"""Raw reads to rows, and a statement of what was measured and what was not."""

from __future__ import annotations

import codecs
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any

from kvstudy.telemetry import knowledge, prometheus, trtllm
from kvstudy.telemetry.raw import Header, Read, read_raw

Row = dict[str, Any]

_SLACK_NS = 100_000_000
_OK = 200
_MOST_FAILED = 10
_NOT_FOUND = frozenset({404, 405})
_REFUSED = frozenset({401, 403})
PERF_METRICS = "/perf_metrics"


class Status(StrEnum):
    """Whether a cell's telemetry can carry a statement."""

    MEASURED = "measured"
    PARTIAL = "partial"
    NOT_MEASURED = "not_measured"


class Why(StrEnum):
    """Why telemetry is partial or not measured."""

    OFF = "off"
    NOT_ENABLED = "not_enabled"
    MISSING = "missing"
    REFUSED = "refused"
    UNREADABLE = "unreadable"
    UNREACHABLE = "unreachable"
    GAPS = "gaps"
    NO_COUNTER = "no_counter"
    NOT_WRITTEN = "not_written"


@dataclass(slots=True)
class Counts:
    """What reading took, and how often it failed."""

    reads: int = 0
    empty: int = 0
    failed: int = 0
    unreadable: int = 0
    bytes_read: int = 0
    longest_ns: int = 0
    statuses: set[int | None] = field(default_factory=set)
    last_error: str = ""

    def see(self, read: Read) -> None:
        """Count one read."""
        self.reads += 1
        self.bytes_read += len(read.body)
        self.longest_ns = max(self.longest_ns, read.received_ns - read.sent_ns)
        self.statuses.add(read.status)
        if read.status == _OK:
            self.empty += is_empty(read.body)
        else:
            self.failed += 1
            self.last_error = read.error or f"HTTP {read.status}"


@dataclass(frozen=True, slots=True)
class Collected:
    """The rows of one run and how complete they are.

    `hint` names the option that would show what is missing. `coverage` is None for scrapes:
    a photograph has no iterations to miss.
    """

    status: Status
    rows: list[Row] = field(default_factory=list)
    why: Why | None = None
    reason: str = ""
    hint: str = ""
    coverage: trtllm.Coverage | None = None
    timings: list[trtllm.RequestTiming] = field(default_factory=list)
    readings: list[tuple[int, prometheus.Reading]] = field(default_factory=list)
    counts: Counts = field(default_factory=Counts)

    def as_json(self) -> dict[str, Any]:
        """The statement without the rows, as plain JSON."""
        share = self.coverage.share if self.coverage else None
        gaps = [list(gap) for gap in self.coverage.gaps[:100]] if self.coverage else []
        return {
            "status": str(self.status),
            "why": None if self.why is None else str(self.why),
            "reason": self.reason,
            "hint": self.hint,
            "rows": len(self.rows),
            "coverage": share,
            "gaps": gaps,
            "reads": self.counts.reads,
            "empty_reads": self.counts.empty,
            "failed_reads": self.counts.failed,
            "unreadable_reads": self.counts.unreadable,
            "bytes_read": self.counts.bytes_read,
            "longest_read_ns": self.counts.longest_ns,
        }


def not_measured(why: Why, reason: str, *, adapter: str, version: str) -> Collected:
    """Telemetry that was never read."""
    hint = knowledge.switch_for(adapter, version)
    return Collected(Status.NOT_MEASURED, why=why, reason=reason, hint=hint)


def collect(path: Path) -> Collected:
    """Everything a raw file gives. Raises ValueError if it is none."""
    header, reads = read_raw(path)
    return from_reads(header, reads)


def from_reads(header: Header, reads: Iterable[Read]) -> Collected:
    """Everything a header and its reads give."""
    counts = Counts()
    rows: list[Row] = []
    readings: list[tuple[int, prometheus.Reading]] = []
    timings: list[trtllm.RequestTiming] = []
    earliest_ns = 0
    for read in reads:
        counts.see(read)
        if read.status != _OK:
            continue
        text = decoded(read.body)
        try:
            if read.path == PERF_METRICS:
                timings += trtllm.timings(text)
            elif header.kind == "iterations":
                rows += _record_rows(header, text, earliest_ns, read.received_ns)
                earliest_ns = read.sent_ns - _SLACK_NS
            else:
                page = prometheus.parse(text)
                t_ns = header.clock.from_wall_ns(read.received_ns)
                counts.unreadable += not page.samples and bool(text.strip())
                if page.samples:
                    block_tokens = header.block_tokens
                    readings.append((t_ns, prometheus.reading(page, block_tokens=block_tokens)))
        except ValueError:
            counts.unreadable += 1
    if header.kind == "iterations":
        return _iterations(header, rows, timings, counts)
    return _scrapes(header, readings, timings, counts)


def decoded(body: bytes) -> str:
    """A body as text; broken bytes become replacement characters."""
    return codecs.decode(body, "utf-8", "replace")


def _record_rows(header: Header, text: str, earliest_ns: int, received_ns: int) -> list[Row]:
    anchor, clock = header.anchor, header.clock
    found = []
    for record in trtllm.records(text):
        made_ns = trtllm.monotonic_ns(
            record, anchor, earliest_ns=earliest_ns, received_ns=received_ns
        )
        found.append(trtllm.row(record, clock.from_wall_ns(made_ns)))
    return found


def is_empty(body: bytes) -> bool:
    """Whether an answer carries nothing: no bytes, or an empty list."""
    return body.strip() in (b"", b"[]")


def _iterations(
    header: Header,
    rows: list[Row],
    timings: list[trtllm.RequestTiming],
    counts: Counts,
) -> Collected:
    coverage = trtllm.coverage(rows)
    why, reason = _nothing(counts) if not rows else _incomplete(coverage, counts)
    if rows and why is None and all(row["paused_requests"] is None for row in rows):
        why, reason = Why.NO_COUNTER, "no record states a usable number of pauses"
    status = Status.MEASURED
    if why is not None:
        status = Status.PARTIAL if rows else Status.NOT_MEASURED
    return Collected(
        status,
        rows=rows,
        why=why,
        reason=reason,
        hint="" if why is None else knowledge.switch_for(header.adapter, header.version),
        coverage=coverage,
        timings=timings,
        counts=counts,
    )


def _scrapes(
    header: Header,
    readings: list[tuple[int, prometheus.Reading]],
    timings: list[trtllm.RequestTiming],
    counts: Counts,
) -> Collected:
    rows = prometheus.rows(readings)
    why, reason = _nothing(counts) if not rows else (None, "")
    has_counter = any(reading.pauses_total is not None for _, reading in readings)
    if rows and not has_counter and header.adapter not in knowledge.NEVER_PAUSE:
        why = Why.NO_COUNTER
        reason = "the page has no counter of pauses; gauges between two scrapes are not seen"
    elif rows and counts.failed * _MOST_FAILED > counts.reads:
        why, reason = Why.UNREACHABLE, f"{counts.failed} of {counts.reads} reads failed"
    status = Status.MEASURED
    if why is not None:
        status = Status.PARTIAL if rows else Status.NOT_MEASURED
    return Collected(
        status,
        rows=rows,
        why=why,
        reason=reason,
        hint="" if why is None else knowledge.switch_for(header.adapter, header.version),
        timings=timings,
        readings=readings,
        counts=counts,
    )


def _nothing(counts: Counts) -> tuple[Why, str]:
    """Why no row came out of the reads."""
    if counts.reads == 0:
        return Why.OFF, "no read was made"
    statuses = counts.statuses
    if statuses & _NOT_FOUND and _OK not in statuses:
        return Why.MISSING, "the server has no such route"
    if statuses & _REFUSED and _OK not in statuses:
        return Why.REFUSED, "the server refused the key"
    if counts.unreadable:
        return Why.UNREADABLE, f"{counts.unreadable} of {counts.reads} answers were unreadable"
    if _OK not in statuses:
        return Why.UNREACHABLE, f"no answer came: {counts.last_error}"
    return Why.NOT_ENABLED, "every answer was empty: the engine keeps no statistics"


def _incomplete(coverage: trtllm.Coverage, counts: Counts) -> tuple[Why | None, str]:
    """What is missing although rows came."""
    share = coverage.share
    if share is not None and share < 1:
        missing = coverage.expected - coverage.seen
        return Why.GAPS, (
            f"{missing} of {coverage.expected} iterations are missing: the buffer of "
            f"{trtllm.BUFFER_RECORDS} records overflowed, or another reader took them"
        )
    if coverage.expected == 0:
        return Why.GAPS, "no record carries an iteration number"
    if counts.unreadable:
        return Why.UNREADABLE, f"{counts.unreadable} of {counts.reads} answers were unreadable"
    return None, ""

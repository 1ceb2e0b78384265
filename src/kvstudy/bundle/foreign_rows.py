"""Foreign raw rows to rows of `tables.REQUESTS`: what is said, what follows from it, else null."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from collections.abc import Mapping as Map
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from kvstudy.base.digest import sha256_text
from kvstudy.base.errors import DataError
from kvstudy.base.units import NS_PER_MS, NS_PER_S, NS_PER_US
from kvstudy.bundle.mapping import Fixed, Mapping, Time, Where
from kvstudy.metrics.per_request import tpot_ns

Row = dict[str, Any]
_PER_UNIT = {"ns": 1, "us": NS_PER_US, "ms": NS_PER_MS, "s": NS_PER_S}
_POINTS = ("send_ns", "first_chunk_ns", "last_chunk_ns", "end_ns")
_COUNTS = (
    "chunk_count",
    "empty_chunk_count",
    "planned_input_tokens",
    "planned_output_tokens",
    "output_cap_tokens",
    "server_input_tokens",
    "cached_tokens",
    "usage_tokens",
    "retokenized_tokens",
    "http_status",
)


class Raw:
    """One raw row and the fields in it, with the place to name when one is odd."""

    def __init__(self, row: Any, place: str) -> None:
        self._row = row
        self.place = place

    def value(self, where: Where | None) -> Any:
        """The first field that is there; None for none."""
        for path in where.paths if where else ():
            found = lookup(self._row, path)
            if found is not None:
                return found
        return None

    def count(self, where: Where | None) -> int | None:
        """A whole number."""
        found = self.value(where)
        if found is None:
            return None
        if isinstance(found, bool) or not isinstance(found, int | float) or found != int(found):
            raise DataError(f"{self.place}: {where and where.field}: not a count: {found!r}")
        return int(found)

    def time(self, where: Time | None) -> int | None:
        """A time in ns."""
        found = self.value(where)
        return None if where is None or found is None else self._ns(found, where)

    def times(self, where: Time | None) -> list[int] | None:
        """A list of times in ns."""
        found = self.value(where)
        if where is None or found is None:
            return None
        if not isinstance(found, list):
            raise DataError(f"{self.place}: {where.field}: expected a list, got {found!r:.40}")
        return [self._ns(value, where) for value in found]

    def _ns(self, value: Any, where: Time) -> int:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise DataError(f"{self.place}: {where.field}: not a time: {value!r:.40}")
        per = _PER_UNIT[where.unit]
        return value * per if isinstance(value, int) else round(value * per)


def lookup(row: Any, path: str) -> Any:
    """The value at a dotted path; None where there is none."""
    for part in path.split(".") if path else ():
        if not isinstance(row, Map) or part not in row:
            return None
        row = row[part]
    return row


def raw_rows(path: Path, mapping: Mapping) -> tuple[list[Raw], float | None]:
    """The rows of a file, and the length of the run in s where the mapping says where it is."""
    rows = mapping.rows
    window_s = None
    if rows.layout == "lines":
        found = list(_lines(path))
    else:
        document = _document(path)
        at = lookup(document, rows.at)
        found = _columns(at, mapping, path) if rows.layout == "columns" else at
        if not isinstance(found, list):
            raise DataError(f"{path}: {rows.at or 'the document'}: expected a list of rows")
        if mapping.window_s is not None:
            window_s = Raw(document, str(path)).value(mapping.window_s)
            if window_s is not None and not isinstance(window_s, int | float):
                raise DataError(f"{path}: {mapping.window_s.field}: not a length of time")
    kept = [
        Raw(row, f"{path}: row {index}")
        for index, row in enumerate(found)
        if all(lookup(row, key) in (None, value) for key, value in rows.keep.items())
    ]
    if not kept:
        raise DataError(f"{path}: no rows; does the mapping fit this file?")
    return kept, window_s


def _document(path: Path) -> Any:
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path}: not valid JSON ({error})") from None


def _lines(path: Path) -> Iterator[Any]:
    try:
        with path.open(encoding="utf-8") as handle:
            for number, line in enumerate(handle, start=1):
                if line.strip():
                    try:
                        yield json.loads(line)
                    except (ValueError, RecursionError) as error:
                        raise DataError(f"{path}: line {number}: not JSON ({error})") from None
    except FileNotFoundError:
        raise DataError(f"{path}: no such file") from None


def _columns(document: Any, mapping: Mapping, path: Path) -> list[Row]:
    """Lists side by side as rows; they must be equally long."""
    fields = {
        name
        for _, where in mapping.columns
        if where is not None
        for name in where.paths
        if isinstance(lookup(document, name), list)
    }
    lengths = {name: len(lookup(document, name)) for name in sorted(fields)}
    if len(set(lengths.values())) != 1:
        raise DataError(f"{path}: lists of unequal length, or none: {lengths}")
    count = next(iter(lengths.values()))
    return [{name: lookup(document, name)[at] for name in fields} for at in range(count)]


def request_rows(
    raws: Sequence[Raw], mapping: Mapping, fixed: Fixed
) -> tuple[list[Row], list[str | None]]:
    """Rows without keys and re-tokenised counts, in order of sending, and the generated texts."""
    rows = [_request(raw, mapping, fixed, index) for index, raw in enumerate(raws)]
    _from_first_send([row for row, _ in rows])
    if all(row["send_ns"] is not None for row, _ in rows):
        rows.sort(key=lambda pair: pair[0]["send_ns"])
    for order, (row, _) in enumerate(rows):
        row["submit_order"] = order
    return [row for row, _ in rows], [text for _, text in rows]


def _from_first_send(rows: Sequence[Row]) -> None:
    """Times from the first one of the file on: clients write the time of day, or of their boot."""
    known = [row[name] for row in rows for name in _POINTS if row[name] is not None]
    origin = min(known, default=0)
    for row in rows:
        for name in _POINTS:
            row[name] = _difference(row[name], origin)
        row["chunk_ns"] = [time_ns - origin for time_ns in row["chunk_ns"]]


def _request(raw: Raw, mapping: Mapping, fixed: Fixed, index: int) -> tuple[Row, str | None]:
    columns = mapping.columns
    where = dict(columns)
    counts = {name: raw.count(where[name]) for name in _COUNTS}
    for name, value in fixed:
        counts[name] = value if counts[name] is None else counts[name]
    error = _error(raw.value(columns.error))
    outcome = _outcome(raw, mapping, error)
    text = raw.value(columns.text)
    text = text if isinstance(text, str) and text else None
    identity = raw.value(columns.request_id)
    reason = raw.value(columns.finish_reason)
    return {
        "request_id": str(index if identity is None else identity),
        **counts,
        **_times(raw, mapping, counts["chunk_count"], outcome == "ok"),
        "lane": None,
        "scheduled_ns": None,
        "first_byte_ns": None,
        "read_count": None,
        "finish_reason": None if reason is None else str(reason),
        "outcome": outcome,
        "error": error,
        "output_sha256": None if text is None else sha256_text(text),
    }, text


def _error(value: Any) -> str | None:
    if value in (None, "", False, {}, []):
        return None
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


def _outcome(raw: Raw, mapping: Mapping, error: str | None) -> str:
    if raw.value(mapping.columns.cancelled) is True:
        return "cancelled"
    if error is not None or raw.value(mapping.columns.success) is False:
        return "stream_error"
    return "ok"


def _times(raw: Raw, mapping: Mapping, chunk_count: int | None, is_ok: bool) -> Row:
    """Times as said, and what follows: first = send + TTFT, chunks = first + gaps, and so on.

    A failed request's zeros are no times: clients write 0 where nothing came.
    """
    columns = mapping.columns
    send, ttft = raw.time(columns.send_ns), raw.time(columns.ttft_ns)
    first, gaps = raw.time(columns.first_chunk_ns), raw.times(columns.gaps_ns)
    chunks = raw.times(columns.chunk_ns)
    last, e2e = raw.time(columns.last_chunk_ns), raw.time(columns.e2e_ns)
    if not is_ok and not ttft:
        ttft, gaps, e2e = None, None, None
    if chunks:
        first, last = first or chunks[0], last or chunks[-1]
    first = _sum(send, ttft) if first is None else first
    if chunks is None and first is not None and gaps is not None:
        chunks = list(accumulate(gaps, initial=first))
    if last is None:
        last = chunks[-1] if chunks else _sum(send, e2e)
    if gaps is None and chunks:
        gaps = [after - before for before, after in pairwise(chunks)]
    count = chunk_count
    if count is None and (chunks is not None or gaps is not None):
        count = len(chunks) if chunks is not None else len(gaps or ()) + 1
    end = raw.time(columns.end_ns)
    return {
        "send_ns": send,
        "first_chunk_ns": first,
        "last_chunk_ns": last,
        "end_ns": last if end is None else end,
        "chunk_ns": chunks or [],
        "chunk_count": count if is_ok or count is not None else 0,
        "ttft_ns": _difference(first, send) if ttft is None else ttft,
        "e2e_ns": _e2e(send, last, e2e, ttft, gaps),
        "tpot_chunks_ns": _per_chunk(first, last, count, gaps),
        "max_gap_ns": max(gaps) if gaps else None,
        "stall_count": None,
    }


def _sum(one: int | None, two: int | None) -> int | None:
    return None if one is None or two is None else one + two


def _difference(one: int | None, two: int | None) -> int | None:
    return None if one is None or two is None else one - two


def _e2e(
    send: int | None, last: int | None, e2e: int | None, ttft: int | None, gaps: list[int] | None
) -> int | None:
    found = _difference(last, send)
    if found is None:
        found = e2e
    if found is None and ttft is not None and gaps is not None:
        found = ttft + sum(gaps)
    return found


def _per_chunk(
    first: int | None, last: int | None, count: int | None, gaps: list[int] | None
) -> float | None:
    if first is None and gaps:
        return sum(gaps) / len(gaps)
    return tpot_ns(first, last, count)


def with_counts(rows: list[Row], texts: Sequence[str | None], counts: Sequence[int] | None) -> None:
    """Fill in re-tokenised counts (of the texts that are there), and TPOT with them."""
    if counts is not None:
        found = iter(counts)
        for row, text in zip(rows, texts, strict=True):
            if text is not None:
                row["retokenized_tokens"] = next(found)
    for row in rows:
        tokens = row["retokenized_tokens"]
        span = tpot_ns(row["first_chunk_ns"], row["last_chunk_ns"], tokens)
        if span is None and tokens is not None and tokens > 1 and row["tpot_chunks_ns"]:
            count = row["chunk_count"] or 0
            span = row["tpot_chunks_ns"] * (count - 1) / (tokens - 1) if count > 1 else None
        row["tpot_ns"] = span

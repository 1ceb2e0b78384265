"""Every Arrow schema that crosses a file boundary, with unit, meaning and what null means.

Times are int64 nanoseconds of study time on one monotonic clock per cell. An undefined value is
null, never zero. `docs/tables.md` is printed from this module.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from kvstudy.base.errors import DataError
from kvstudy.base.files import replacing

VERSION = "1"
_VERSION_KEY = b"kvstudy.table_version"
_NAME_KEY = b"kvstudy.table"

I64, F64, TEXT, BOOL = pa.int64(), pa.float64(), pa.string(), pa.bool_()


@dataclass(frozen=True, slots=True)
class Column:
    """One column: type, unit, meaning, and what a null in it says (None: never null)."""

    name: str
    type: pa.DataType
    unit: str
    meaning: str
    null_means: str | None = None


@dataclass(frozen=True, slots=True)
class Table:
    """One table's name, purpose and columns in file order."""

    name: str
    purpose: str
    columns: tuple[Column, ...]

    @property
    def schema(self) -> pa.Schema:
        """The Arrow schema, with the table's name and version in its metadata."""
        fields = [pa.field(c.name, c.type, nullable=c.null_means is not None) for c in self.columns]
        return pa.schema(fields, metadata={_NAME_KEY: self.name, _VERSION_KEY: VERSION})

    @property
    def names(self) -> list[str]:
        """Column names in file order."""
        return [column.name for column in self.columns]


def _ns(name: str, meaning: str, null_means: str | None = None) -> Column:
    return Column(name, I64, "ns", meaning, null_means)


def _count(name: str, unit: str, meaning: str, null_means: str | None = None) -> Column:
    return Column(name, I64, unit, meaning, null_means)


def _text(name: str, meaning: str, null_means: str | None = None) -> Column:
    return Column(name, TEXT, "", meaning, null_means)


def _real(name: str, unit: str, meaning: str, null_means: str | None = None) -> Column:
    return Column(name, F64, unit, meaning, null_means)


WORKLOAD = Table(
    "workload",
    "The fixed request set of one workload: warm-up and measured prompts, in generation order.",
    (
        _text("request_id", "stable name of the request within the workload"),
        _text("phase", "warmup or measured"),
        _count("index", "", "position in the fixed set, within its phase"),
        _count("input_tokens", "tokens", "exact prompt length"),
        _count("output_tokens", "tokens", "true output length; never shown to a scheduler"),
        _count("output_cap_tokens", "tokens", "max_tokens sent with the request"),
        _real("arrival_s", "s", "scheduled arrival after the start", "closed loop"),
        Column("prompt_token_ids", pa.list_(pa.int32()), "", "the prompt, as token ids"),
        _text("prompt_text", "text that re-tokenises to exactly the same ids"),
        _text("prompt_sha256", "SHA-256 of the ids as little-endian uint32"),
    ),
)

EXPECTED = Table(
    "expected",
    "What the emulator will be sent in one cell: true lengths and order, by prompt digest.",
    (
        _text("phase", "warmup or measured"),
        _count("position", "", "submission position within the phase, from 0"),
        _text("prompt_sha256", "SHA-256 of the prompt's ids as little-endian uint32"),
        _count("output_tokens", "tokens", "true output length"),
        _count("concurrency", "requests", "closed-loop lanes of the phase; 0: open loop"),
    ),
)

_CLIENT_COLUMNS = (
    _text("request_id", "name of the request within its workload"),
    _count("submit_order", "", "position in this repeat's submission order, from 0"),
    _count("lane", "", "closed-loop lane that sent it", "open loop"),
    _ns("scheduled_ns", "when the request was due", "closed loop: due when its lane is free"),
    _ns("send_ns", "just before the request bytes are written", "never sent"),
    _ns("first_byte_ns", "first byte of the response", "no response"),
    _ns("first_chunk_ns", "receipt of the first non-empty content chunk", "no content"),
    _ns("last_chunk_ns", "receipt of the last non-empty content chunk", "no content"),
    _ns("end_ns", "end of the response or of the attempt", "never sent"),
    Column("chunk_ns", pa.list_(I64), "ns", "receipt of every non-empty content chunk"),
    _count("chunk_count", "chunks", "events that carried output text"),
    _count("empty_chunk_count", "chunks", "choice events with empty text"),
    _count("read_count", "reads", "socket reads that carried chunks", "no response"),
    _count("planned_input_tokens", "tokens", "prompt length the workload planned"),
    _count("server_input_tokens", "tokens", "usage.prompt_tokens", "not said by the server"),
    _count("cached_tokens", "tokens", "prompt tokens from cache", "not said by the server"),
    _count("planned_output_tokens", "tokens", "true output length the workload planned"),
    _count("output_cap_tokens", "tokens", "max_tokens sent"),
    _count("usage_tokens", "tokens", "usage.completion_tokens", "not said by the server"),
    _text("finish_reason", "finish_reason of the stream", "not said by the server"),
    _text("outcome", "ok, http_error, stream_error, truncated_stream, timeout, cancelled"),
    _count("http_status", "", "HTTP status", "no response"),
    _text("error", "what went wrong, in words", "nothing went wrong"),
    _text("output_sha256", "SHA-256 of the generated text, UTF-8", "no content"),
    _ns("ttft_ns", "first_chunk_ns - send_ns", "no content"),
    _real("tpot_chunks_ns", "ns", "(last - first chunk) / (chunk_count - 1)", "below 2 chunks"),
    _ns("e2e_ns", "last_chunk_ns - send_ns", "no content"),
    _ns("max_gap_ns", "longest gap between successive chunks", "below 2 chunks"),
    _count("stall_count", "", "gaps longer than the stall threshold", "below 2 chunks"),
)

CLIENT_REQUESTS = Table(
    "client_requests", "One row per request, as the client wrote it.", _CLIENT_COLUMNS
)

OUTPUTS = Table(
    "outputs",
    "Generated text per request.",
    (
        _text("request_id", "name of the request within its workload"),
        _text("text", "the generated text, all chunks joined"),
    ),
)

_CELL_KEYS = (
    _text("cell_id", "<workload>.c<concurrency>.<engine>.<arm>.r<repeat>"),
    _text("source", "measured, emulated or predicted"),
)

_DESIGN_KEYS = (
    _text("study", "name of the study"),
    _text("engine", "key of the engine in the config"),
    _text("engine_version", "version the engine entry pins"),
    _text("arm", "key of the arm in the config"),
    _text("workload", "key of the workload in the config"),
    _count("concurrency", "requests", "closed-loop lanes"),
    _count("repeat", "", "repeat index, from 1"),
)


def _request_columns() -> tuple[Column, ...]:
    columns = list(_CELL_KEYS + _DESIGN_KEYS + _CLIENT_COLUMNS)
    at = [c.name for c in columns].index("usage_tokens")
    columns.insert(
        at,
        _count(
            "retokenized_tokens",
            "tokens",
            "length of the generated text, re-tokenised once after the run, no special tokens; "
            "predicted rows: the tokens streamed",
            "no text kept, or no content",
        ),
    )
    at = [c.name for c in columns].index("tpot_chunks_ns")
    columns.insert(
        at,
        _real(
            "tpot_ns",
            "ns",
            "(last - first chunk) / (retokenized_tokens - 1), the issue's definition",
            "below 2 re-tokenised tokens",
        ),
    )
    return tuple(columns)


LOAD_REQUESTS = Table(
    "load_requests",
    "One row per request of `kvstudy load`: the columns of requests without a study's keys.",
    tuple(c for c in _request_columns() if c not in _CELL_KEYS + _DESIGN_KEYS),
)

REQUESTS = Table("requests", "One row per request, cell and source.", _request_columns())

_ITERATION_COLUMNS = (
    _ns("t_ns", "study time of the record"),
    _count("iter", "", "iteration number the server gave", "not said by the engine"),
    _count("scheduled_requests", "requests", "scheduled in the step", "not said by the engine"),
    _count("context_requests", "requests", "in their context phase", "not said by the engine"),
    _count("generation_requests", "requests", "in their generation phase", "not said"),
    _count("paused_requests", "events", "pauses decided in the step", "not said by the engine"),
    _count("context_tokens", "tokens", "prompt tokens computed in the step", "not said"),
    _count("active_requests", "requests", "known to the executor", "not said by the engine"),
    _count("queued_requests", "requests", "waiting in front of the executor", "not said"),
    _count("used_blocks", "blocks", "KV blocks held", "not said by the engine"),
    _count("free_blocks", "blocks", "KV blocks free", "not said by the engine"),
    _count("max_blocks", "blocks", "KV pool size", "not said by the engine"),
    _ns("iter_latency_ns", "length of the step in study time", "not said by the engine"),
)

CELL_ITERATIONS = Table(
    "cell_iterations", "One row per server iteration record of one cell.", _ITERATION_COLUMNS
)

ITERATIONS = Table(
    "iterations",
    "One row per server iteration record or scrape, cell and source.",
    _CELL_KEYS + _ITERATION_COLUMNS,
)


def _spread(prefix: str, unit: str, meaning: str) -> tuple[Column, ...]:
    null = "no request with a defined value"
    return tuple(
        _real(f"{prefix}_{stat}_{unit}", unit, f"{stat} of {meaning}", null)
        for stat in ("mean", "p50", "p90", "p95", "p99", "max")
    )


CELLS = Table(
    "cells",
    "One row per cell and source: what the report is made of.",
    (
        *_CELL_KEYS,
        *_DESIGN_KEYS,
        _text("basis", "measured, fitted, held_out or assumed"),
        Column("valid", BOOL, "", "whether the cell may carry a verdict"),
        Column("reasons", pa.list_(TEXT), "", "reason codes when not valid, and warnings"),
        _count("attempt", "", "attempt number shown", "predicted"),
        _text("spec_digest", "identity of everything that can change the cell's outcome"),
        _count("requests", "requests", "requests planned"),
        _count("completed", "requests", "outcome ok", "not run"),
        _count("failed", "requests", "outcome other than ok", "not run"),
        _count("early_ended", "requests", "ok, but fewer chunks than planned", "not run"),
        _count(
            "retokenized_short",
            "requests",
            "all chunks came, fewer re-tokenised tokens",
            "no text kept",
        ),
        _ns("window_start_ns", "first send of the measured phase", "not run"),
        _ns("window_end_ns", "last end of the measured phase", "not run"),
        _real("wall_s", "s", "length of the window in study time", "not run"),
        _count("output_tokens", "tokens", "re-tokenised tokens of completed requests", "no text"),
        _count("output_chunks", "chunks", "content chunks of completed requests", "not run"),
        _count("usage_tokens", "tokens", "usage tokens of completed requests", "not said"),
        _real("output_tok_per_s", "tok/s", "re-tokenised tokens / window", "no text kept"),
        _real(
            "output_tok_per_s_nominal",
            "tok/s",
            "planned tokens of all requests / window",
            "not run",
        ),
        _real("output_tok_per_s_chunks", "tok/s", "content chunks / window", "not run"),
        _real("output_tok_per_s_usage", "tok/s", "usage tokens / window", "not said"),
        _real("output_tok_per_s_steady", "tok/s", "chunks/s while all lanes are busy", "no span"),
        _real("requests_per_s", "1/s", "completed requests / window", "not run"),
        _real("goodput_req_per_s", "1/s", "completed within every SLO / window", "no SLO"),
        *_spread("ttft", "ms", "time to first token"),
        *_spread("tpot", "ms", "time per output token (re-tokenised count)"),
        *_spread("tpot_chunks", "ms", "time per output chunk"),
        *_spread("e2e", "s", "end-to-end latency"),
        _real("max_gap_ms", "ms", "longest gap between chunks of one request", "no gap"),
        _count("stalls", "", "gaps longer than the stall threshold", "no gap"),
        _count("iterations", "steps", "steps the server ran in the window", "not measured"),
        _count("pauses", "events", "pauses in the window", "not measured"),
        _count("recomputed_tokens", "tokens", "tokens computed again after pauses", "not measured"),
        _count("hidden_tokens", "tokens", "tokens decoded without being streamed", "not measured"),
        _count("peak_blocks", "blocks", "most KV blocks held", "not measured"),
        _count("pool_blocks", "blocks", "KV pool the server says it has", "not measured"),
        _count("residents_max", "requests", "most requests scheduled at once", "not measured"),
        _real("telemetry_coverage", "", "iterations seen / iterations run", "not measured"),
        _real("loop_lag_p99_ms", "ms", "client event-loop lag, wall time", "predicted"),
        _real("loop_lag_max_ms", "ms", "client event-loop lag, wall time", "predicted"),
        _real("client_cpu_share", "", "client CPU time / wall time", "predicted"),
        _real("client_load_share", "", "chunk rate / calibrated ceiling", "not calibrated"),
        _real("mean_in_flight", "requests", "time-weighted requests in flight", "no window"),
        _real("time_scale", "", "study seconds per wall second", "predicted"),
        _real("gpu_seconds_allocated", "s", "GPU time of the cell, wall", "no GPU or predicted"),
        _real("gpu_seconds_measuring", "s", "GPU time inside the window, wall", "no GPU"),
        _real("starting_s", "s", "server launch to ready, wall", "predicted"),
        _real("warming_s", "s", "warm-up phase, wall", "predicted"),
        _real("measuring_s", "s", "measured phase, wall", "predicted"),
        _real("stopping_s", "s", "server stop, wall", "predicted"),
        _text("node", "host the cell ran on", "predicted"),
        _text("gpu_uuid", "GPU the cell ran on", "no GPU"),
        _text("allocation", "allocation the cell belongs to"),
        _text("commit", "commit of this repository", "not in a checkout, or predicted"),
    ),
)

CONTRASTS = Table(
    "contrasts",
    "One row per contrast, group and metric: treatment over baseline.",
    (
        _text("contrast", "name of the contrast"),
        _text("source", "measured, emulated or predicted"),
        _text("workload", "workload of both sides"),
        _count("concurrency", "requests", "concurrency of both sides"),
        _text("within", "engine or arm both sides share"),
        _text("baseline", "baseline side"),
        _text("treatment", "treatment side"),
        _text("metric", "column of cells"),
        _text("unit", "unit of the two values"),
        _real("baseline_value", "", "mean over valid repeats", "no valid cell"),
        _real("treatment_value", "", "mean over valid repeats", "no valid cell"),
        _real("ratio", "", "treatment / baseline", "a side is missing or zero"),
        _real("ratio_low", "", "lower end of the interval", "fewer than two repeats"),
        _real("ratio_high", "", "upper end of the interval", "fewer than two repeats"),
        _real("noise_ratio", "", "largest repeat-to-repeat ratio on either side", "one repeat"),
        _real("noise_factor", "", "|ln ratio| / |ln noise_ratio|", "one repeat, or no noise"),
        _count("repeats", "", "valid repeats per side (the smaller)"),
        Column("paired", BOOL, "", "both sides ran in one allocation on one GPU"),
        _text("remark", "what a reader must know", "nothing"),
    ),
)

VERDICTS = Table(
    "verdicts",
    "One row per published number and source.",
    (
        _text("claim_id", "id of the published number"),
        _text("group", "table or paragraph the number is from"),
        _text("label", "what the number is, in words"),
        _real("published", "", "the published value"),
        _real("observed", "", "this run's value", "not measured or not modelled"),
        _text("unit", "unit of both"),
        _real("tolerance", "", "allowed |observed - published|, same unit", "not applicable"),
        _text("tolerance_reason", "where the tolerance comes from"),
        _real("distance", "", "(observed - published) / |published|", "nothing observed"),
        _text("basis", "measured, fitted, held_out or assumed"),
        _text("source", "measured, emulated or predicted"),
        _text(
            "verdict",
            "reproduced, not_reproduced, not_measured, invalid; "
            "model_agrees, model_differs, not_modelled",
        ),
        _text("why", "one sentence on the verdict", "nothing to add"),
        Column("cells", pa.list_(TEXT), "", "cells the value was computed from"),
    ),
)

ALL = (
    WORKLOAD,
    EXPECTED,
    CLIENT_REQUESTS,
    OUTPUTS,
    CELL_ITERATIONS,
    REQUESTS,
    ITERATIONS,
    CELLS,
    CONTRASTS,
    VERDICTS,
)


def write(path: Path, rows: Sequence[dict[str, Any]] | pa.Table, table: Table) -> None:
    """Write rows durably under a table's schema (zstd).

    A missing or extra column, a wrong type, or a null where none may be is a DataError: the
    mistake is in the writer, and no file appears.
    """
    schema = table.schema
    if not isinstance(rows, pa.Table):
        rows = _from_rows(rows, table)
    if rows.schema.names != schema.names:
        odd = sorted(set(rows.schema.names) ^ set(schema.names))
        raise DataError(f"{path}: table {table.name} does not have the columns {odd}")
    try:
        arrow = rows.cast(schema)
    except (pa.ArrowInvalid, pa.ArrowTypeError, ValueError) as error:
        raise DataError(f"{path}: table {table.name}: {error}") from error
    for field in schema:
        if not field.nullable and arrow.column(field.name).null_count:
            raise DataError(f"{path}: table {table.name}: null in {field.name}, which has none")
    with replacing(path) as temporary:
        pq.write_table(arrow, temporary, compression="zstd")


def _from_rows(rows: Sequence[dict[str, Any]], table: Table) -> pa.Table:
    names = set(table.names)
    for row in rows:
        if row.keys() != names:
            odd = sorted(row.keys() ^ names)
            raise DataError(f"table {table.name}: a row has missing or extra columns {odd}")
    loose = pa.schema([pa.field(c.name, c.type) for c in table.columns])
    try:
        return pa.Table.from_pylist(list(rows), schema=loose)
    except (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError) as error:
        raise DataError(f"table {table.name}: {error}") from error


def read(path: Path, table: Table, columns: list[str] | None = None) -> pa.Table:
    """Read a Parquet file and check its schema and version.

    A missing, damaged or differently shaped file is a DataError that names it.
    """
    try:
        schema = pq.read_schema(path)
        found = {
            key: (schema.metadata or {}).get(key, b"").decode() for key in (_NAME_KEY, _VERSION_KEY)
        }
        if found[_NAME_KEY] != table.name or found[_VERSION_KEY] != VERSION:
            raise DataError(
                f"{path}: holds table {found[_NAME_KEY] or '?'} version "
                f"{found[_VERSION_KEY] or '?'}, expected {table.name} version {VERSION}; "
                "delete it and run again"
            )
        if not schema.equals(table.schema):
            raise DataError(f"{path}: columns differ from table {table.name}; run again")
        # ParquetFile, unlike read_table, does not import pandas: most steps start a second faster.
        with pq.ParquetFile(path) as file:
            return file.read(columns=columns)
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; run the stage that makes it again") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error})") from error


def nullable(table: Table, *names: str) -> Table:
    """A copy of a table in which the named columns may be null (for partial rows)."""
    columns = tuple(
        replace(c, null_means="not known") if c.name in names else c for c in table.columns
    )
    return replace(table, columns=columns)

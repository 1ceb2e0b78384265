"""Foreign raw results as a side of comparison: tables, and verdicts by the same claims."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from kvstudy.base import tables
from kvstudy.base.digest import sha256_file, sha256_json
from kvstudy.base.errors import DataError, UsageError
from kvstudy.base.files import write_json
from kvstudy.bundle.bring import ORIGIN, arriving
from kvstudy.bundle.foreign_rows import raw_rows, request_rows, with_counts
from kvstudy.bundle.mapping import Fixed, ForeignCell, Mapping
from kvstudy.bundle.sides import FOREIGN_REQUESTS
from kvstudy.metrics.audit import in_order
from kvstudy.metrics.rows import cell_row
from kvstudy.stats.claims import read_published
from kvstudy.stats.contrast import aa_pairs, contrast_rows
from kvstudy.stats.data import data_of
from kvstudy.stats.verdict import judge
from kvstudy.workload.tokens import HubTokenizer

Row = dict[str, Any]
_NEED_PLAN = ("output_tok_per_s_nominal", "early_ended", "retokenized_short")
_NEED_CHUNKS = ("output_chunks", "output_tok_per_s_chunks", "early_ended", "retokenized_short")
_RATES = {
    "output_tok_per_s": "output_tokens",
    "output_tok_per_s_chunks": "output_chunks",
    "output_tok_per_s_usage": "usage_tokens",
    "requests_per_s": "completed",
}


@dataclass(frozen=True, slots=True)
class Foreign:
    """What was imported."""

    place: Path
    cells: list[Row]
    verdicts: list[Row]


def import_foreign(
    base: Path,
    mapping: Mapping,
    place: Path,
    *,
    published: Sequence[Path] = (),
    tokenizer: Path | None = None,
) -> Foreign:
    """Read every file that the mapping names, below `base`, and write the side to `place`."""
    if not mapping.cells:
        raise UsageError("no cells: list them in the mapping, or give --cell FILE=CELL_ID for each")
    _check_distinct(mapping.cells)
    counter = HubTokenizer(tokenizer) if tokenizer is not None else None
    cells, requests, origins = [], [], []
    for cell in mapping.cells:
        path = base / cell.file
        raws, window_s = raw_rows(path, mapping)
        rows, texts = request_rows(raws, mapping, _fixed(mapping, cell))
        known = [text for text in texts if text is not None]
        with_counts(rows, texts, counter.count(known) if counter and known else None)
        sha256 = sha256_file(path)
        cells.append(_cell(cell, mapping, rows, window_s, sha256))
        requests.append(_arrow(cell, mapping, rows))
        origins.append({"file": cell.file, "sha256": sha256, "cell_id": cell.cell_id})
    table = pa.concat_tables(requests)
    verdicts = _write(place, cells, table, origins, mapping, published)
    return Foreign(place, cells, verdicts)


def _check_distinct(cells: Sequence[ForeignCell]) -> None:
    seen: set[str] = set()
    for cell in cells:
        if cell.cell_id in seen:
            raise UsageError(f"cell {cell.cell_id} stands twice; repeats need numbers of their own")
        seen.add(cell.cell_id)


def _fixed(mapping: Mapping, cell: ForeignCell) -> Fixed:
    own = cell.values.model_dump(exclude_none=True)
    return Fixed.model_validate({**mapping.values.model_dump(exclude_none=True), **own})


def _keys(cell: ForeignCell, mapping: Mapping) -> Row:
    return {
        "cell_id": cell.cell_id,
        "source": mapping.source,
        "study": mapping.study,
        "engine": cell.engine,
        "engine_version": cell.engine_version or "not said",
        "arm": cell.arm,
        "workload": cell.workload,
        "concurrency": cell.concurrency,
        "repeat": cell.repeat,
    }


def _arrow(cell: ForeignCell, mapping: Mapping, rows: list[Row]) -> pa.Table:
    loose = pa.schema([pa.field(c.name, c.type) for c in FOREIGN_REQUESTS.columns])
    keyed = [{**_keys(cell, mapping), **row} for row in rows]
    try:
        return pa.Table.from_pylist(keyed, schema=loose)
    except (pa.ArrowException, OverflowError) as error:
        raise DataError(f"{cell.file}: a value does not fit its column ({error})") from error


def _cell(
    cell: ForeignCell, mapping: Mapping, rows: list[Row], window_s: float | None, sha256: str
) -> Row:
    """The cell's row by the project's own metrics; what needs an unknown column is null."""
    no_plan = any(row["planned_output_tokens"] is None for row in rows)
    no_chunks = any(row["chunk_count"] is None for row in rows)
    zeros = {"chunk_count": 0, "planned_output_tokens": 0, "planned_input_tokens": 0}
    filled = [{**row, **{k: zero for k, zero in zeros.items() if row[k] is None}} for row in rows]
    plan = {"study": mapping.study, "slo": {}, "fitted_to": []}
    plan_cell = {
        **_keys(cell, mapping),
        "allocation": cell.allocation or cell.cell_id,
        "digest": sha256_json([sha256, mapping.columns.model_dump()])[:16],
        "pause": "recompute",
    }
    facts = {"planned": len(rows), "reasons": _reasons(rows)}
    found = cell_row(plan, plan_cell, mapping.source, filled, [], facts)
    unknown = [*(_NEED_PLAN if no_plan else ()), *(_NEED_CHUNKS if no_chunks else ())]
    found |= dict.fromkeys(unknown)
    if found["wall_s"] is None and window_s:
        found["wall_s"] = float(window_s)
        for rate, count in _RATES.items():
            found[rate] = None if found[count] is None else found[count] / window_s
        if not no_plan:
            planned = sum(row["planned_output_tokens"] for row in rows)
            found["output_tok_per_s_nominal"] = planned / window_s
    return found


def _reasons(rows: list[Row]) -> list[str]:
    found = {
        "requests_failed": any(row["outcome"] != "ok" for row in rows),
        "time_order": any(not in_order(row) for row in rows),
        "early_ended": any(
            None not in (row["chunk_count"], row["planned_output_tokens"])
            and row["outcome"] == "ok"
            and row["chunk_count"] < row["planned_output_tokens"]
            for row in rows
        ),
    }
    return [code for code, holds in found.items() if holds]


def _write(
    place: Path,
    cells: list[Row],
    requests: pa.Table,
    origins: list[Row],
    mapping: Mapping,
    published: Sequence[Path],
) -> list[Row]:
    """Tables, statistics and where it all came from; returns the verdicts."""
    claims = [claim for file in read_published(list(published)) for claim in file.claims]
    with arriving(place) as folder:
        tables.write(folder / "tables" / "cells.parquet", cells, tables.CELLS)
        tables.write(folder / "tables" / "requests.parquet", requests, FOREIGN_REQUESTS)
        tables.write(folder / "tables" / "iterations.parquet", [], tables.ITERATIONS)
        data = data_of(tables.read(folder / "tables" / "cells.parquet", tables.CELLS), requests)
        rows = contrast_rows(aa_pairs(data), data, seed=0)
        verdicts = judge(claims, data)
        tables.write(folder / "stats" / "contrasts.parquet", rows, tables.CONTRASTS)
        tables.write(folder / "stats" / "verdicts.parquet", verdicts, tables.VERDICTS)
        write_json(
            folder / ORIGIN,
            {
                "kind": "foreign",
                "study": mapping.study,
                "source": mapping.source,
                "files": origins,
                "mapping": mapping.model_dump(exclude_none=True, exclude={"cells"}),
            },
        )
    return verdicts

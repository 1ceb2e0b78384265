"""Parquet files of a bundle: no secret in their texts, no bomb in their sizes."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from kvstudy.base.errors import DataError
from kvstudy.bundle.scrub import RULES, Scrubber

MAX_ROWS, MAX_BYTES = 100_000_000, 16 << 30
_MASKED_COLUMN = "error"
_SHAPES = RULES[:2]


def scrubbed_parquet(path: Path, scrubber: Scrubber) -> tuple[bytes | None, int]:
    """(new file, rows masked); (None, 0) for a file that holds no secret.

    Only `error`, words about what went wrong, is masked. A secret in any other column cannot be
    taken out without changing data that numbers are made of: that is a DataError, and nothing is
    published.
    """
    check_size(path)
    try:
        with pq.ParquetFile(path) as file:
            names = [f.name for f in file.schema_arrow if f.type == pa.string()]
            texts = file.read(columns=names)
            for name in names:
                if name != _MASKED_COLUMN and _holds_secret(texts[name], scrubber):
                    raise DataError(
                        f"{path}: column {name} holds a secret; it cannot be masked without "
                        "changing data. Nothing was published: take the cell out of the study"
                    )
            if _MASKED_COLUMN not in names:
                return None, 0
            clean = [_clean(value, scrubber) for value in texts[_MASKED_COLUMN].to_pylist()]
            hits = sum(
                new != old
                for new, old in zip(clean, texts[_MASKED_COLUMN].to_pylist(), strict=True)
            )
            return (_rewritten(file.read(), clean), hits) if hits else (None, 0)
    except pa.ArrowException as error:
        raise DataError(f"{path}: not a readable Parquet file ({error})") from error


def check_size(path: Path) -> None:
    """Refuse a file that says it holds more than a machine can take."""
    try:
        with pq.ParquetFile(path) as file:
            found = file.metadata
            size = sum(found.row_group(at).total_byte_size for at in range(found.num_row_groups))
            if found.num_rows > MAX_ROWS or size > MAX_BYTES:
                raise DataError(f"{path}: refused: {found.num_rows} rows, {size} bytes unpacked")
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error})") from error


def _clean(text: str | None, scrubber: Scrubber) -> str | None:
    if text is None:
        return None
    lines = text.encode().splitlines(keepends=True)
    return b"".join(line for line, _ in scrubber.lines(lines)).decode()


def _texts(column: pa.ChunkedArray) -> Iterator[bytes]:
    """Distinct texts of a column, joined: most columns repeat a few words."""
    for chunk in column.chunks:
        yield "\n".join(text for text in chunk.unique().to_pylist() if text is not None).encode()


def _holds_secret(column: pa.ChunkedArray, scrubber: Scrubber) -> bool:
    for text in _texts(column):
        if scrubber.values(text) != text or any(rule.pattern.search(text) for rule in _SHAPES):
            return True
    return False


def _rewritten(table: pa.Table, errors: list[str | None]) -> bytes:
    at = table.schema.get_field_index(_MASKED_COLUMN)
    masked = table.set_column(at, table.schema.field(at), pa.array(errors, pa.string()))
    buffer = io.BytesIO()
    pq.write_table(masked, buffer, compression="zstd")
    return buffer.getvalue()

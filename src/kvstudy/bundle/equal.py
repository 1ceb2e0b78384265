"""Two tables compared value by value; what differs is named, a few lines per table."""

from __future__ import annotations

from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

RELATIVE = 1e-9
"""Floats may differ by this share: another libm or numpy rounds a sum's last digit otherwise."""

_KEYS = ("cell_id", "source", "request_id", "claim_id", "contrast", "metric", "within", "workload")


def differences(bundled: pa.Table, rebuilt: pa.Table) -> list[str]:
    """One line per column that differs, with the first row that does; empty when equal."""
    if bundled.schema.names != rebuilt.schema.names:
        odd = sorted(set(bundled.schema.names) ^ set(rebuilt.schema.names))
        return [f"columns differ: {', '.join(odd)}"]
    if bundled.num_rows != rebuilt.num_rows:
        return [f"{bundled.num_rows} rows in the bundle, {rebuilt.num_rows} recomputed"]
    lines = []
    for name in bundled.schema.names:
        left, right = bundled[name].combine_chunks(), rebuilt[name].combine_chunks()
        bad = _unequal(left, right)
        if bad:
            at = bad[0]
            lines.append(
                f"{name}: {_shown(left, at)} in the bundle, {_shown(right, at)} recomputed"
                f" ({_row(bundled, at)}{f', and {len(bad) - 1} more rows' if bad[1:] else ''})"
            )
    return lines


def _unequal(left: pa.Array, right: pa.Array) -> list[int]:
    """Row numbers in which two columns differ."""
    if left.equals(right):
        return []
    if left.type != right.type:
        return list(range(len(left)))
    if pa.types.is_floating(left.type):
        values = [column.to_numpy(zero_copy_only=False) for column in (left, right)]
        same = np.isclose(values[0], values[1], rtol=RELATIVE, atol=0.0, equal_nan=True)
        nulls = [column.is_null().to_numpy(zero_copy_only=False) for column in (left, right)]
        return [int(at) for at in np.flatnonzero(~same | (nulls[0] != nulls[1]))]
    if pa.types.is_nested(left.type):
        pairs = zip(left.to_pylist(), right.to_pylist(), strict=True)
        return [at for at, (one, two) in enumerate(pairs) if one != two]
    same_rows = pc.fill_null(pc.equal(left, right), False)
    both_null = pc.and_(left.is_null(), right.is_null())
    found = pc.invert(pc.or_(same_rows, both_null)).to_numpy(zero_copy_only=False)
    return [int(at) for at in np.flatnonzero(found)]


def _shown(column: pa.Array, at: int) -> str:
    text = str(column[at].as_py())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _row(table: pa.Table, at: int) -> str:
    known = [str(table[name][at].as_py()) for name in _KEYS if name in table.schema.names]
    return " ".join(known) or f"row {at}"


def json_differences(bundled: Any, rebuilt: Any) -> list[str]:
    """Top-level keys of two JSON objects whose values differ."""
    if not isinstance(bundled, dict) or not isinstance(rebuilt, dict):
        return [] if bundled == rebuilt else ["the documents differ"]
    return [
        f"{key}: differs"
        for key in sorted(bundled.keys() | rebuilt.keys())
        if bundled.get(key) != rebuilt.get(key)
    ]

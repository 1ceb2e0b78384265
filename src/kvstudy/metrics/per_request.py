"""Per-request metrics that need more than the client's own row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def tpot_ns(first_ns: int | None, last_ns: int | None, tokens: int | None) -> float | None:
    """(last - first) / (tokens - 1) in ns; None below two tokens or with no content."""
    if first_ns is None or last_ns is None or tokens is None or tokens < 2:
        return None
    return (last_ns - first_ns) / (tokens - 1)


def complete(
    row: Mapping[str, Any], keys: Mapping[str, Any], retokenized_tokens: int | None
) -> dict[str, Any]:
    """A client's row with its cell's keys and the counts that are taken after the run."""
    return {
        **keys,
        **row,
        "retokenized_tokens": retokenized_tokens,
        "tpot_ns": tpot_ns(row["first_chunk_ns"], row["last_chunk_ns"], retokenized_tokens),
    }


def meets_slo(row: Mapping[str, Any], slo: Mapping[str, float | None]) -> bool:
    """Outcome ok and every configured bound met; an undefined metric meets no bound."""
    if row["outcome"] != "ok":
        return False
    for bound, value_ns, ns_per_unit in (
        (slo.get("ttft_ms"), row["ttft_ns"], 1e6),
        (slo.get("tpot_ms"), row["tpot_chunks_ns"], 1e6),
        (slo.get("e2e_s"), row["e2e_ns"], 1e9),
    ):
        if bound is not None and (value_ns is None or value_ns > bound * ns_per_unit):
            return False
    return True

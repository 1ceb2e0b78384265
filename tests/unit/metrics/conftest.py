"""Hand-sized request and iteration rows."""

from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest

from kvstudy.base import tables

Row = dict[str, Any]


@pytest.fixture
def request_row() -> Callable[..., Row]:
    """Makes a complete request row from its send time and chunk times, in seconds."""

    def make(send_s: float, chunks_s: list[float], **changes: Any) -> Row:
        chunks = [round(t * 1e9) for t in chunks_s]
        send = round(send_s * 1e9)
        gaps = [b - a for a, b in pairwise(chunks)]
        tpot = (chunks[-1] - chunks[0]) / (len(chunks) - 1) if gaps else None
        row: Row = dict.fromkeys(tables.REQUESTS.names)
        row |= {
            "send_ns": send,
            "scheduled_ns": send,
            "chunk_ns": chunks,
            "chunk_count": len(chunks),
            "planned_output_tokens": len(chunks),
            "planned_input_tokens": 100,
            "retokenized_tokens": len(chunks),
            "usage_tokens": len(chunks),
            "first_chunk_ns": chunks[0] if chunks else None,
            "last_chunk_ns": chunks[-1] if chunks else None,
            "end_ns": chunks[-1] if chunks else send,
            "ttft_ns": chunks[0] - send if chunks else None,
            "e2e_ns": chunks[-1] - send if chunks else None,
            "tpot_ns": tpot,
            "tpot_chunks_ns": tpot,
            "max_gap_ns": max(gaps, default=None),
            "stall_count": sum(g > 1e9 for g in gaps) if gaps else None,
            "outcome": "ok",
        }
        return row | changes

    return make


@pytest.fixture
def iteration_row() -> Callable[..., Row]:
    """Makes an iteration row at a time in seconds."""

    def make(t_s: float, number: int, **changes: Any) -> Row:
        row: Row = dict.fromkeys(tables.CELL_ITERATIONS.names)
        row |= {
            "t_ns": round(t_s * 1e9),
            "iter": number,
            "scheduled_requests": 2,
            "generation_requests": 2,
            "paused_requests": 0,
            "context_tokens": 0,
            "used_blocks": 7,
            "max_blocks": 10,
        }
        return row | changes

    return make

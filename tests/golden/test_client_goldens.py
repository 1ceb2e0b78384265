"""Streams as real engines write them, and the row each must give. Expected values are by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvstudy.base.clock import StudyClock
from kvstudy.client.recording import Ending, Recording
from kvstudy.client.request import Facts, Reading, row_of

STREAMS = Path(__file__).parent / "client"

# stem -> text, outcome, chunks, empty, usage (prompt, cached, completion), finish_reason
EXPECTED: dict[str, tuple[Any, ...]] = {
    "vllm": ("ignativéivative", "ok", 4, 2, (8, None, 6), "length"),
    "llama_cpp": (" statusory Modifnetwork", "ok", 4, 1, (8, 0, 4), "length"),
    "llama_cpp_context_exceeded": (" statusory", "stream_error", 2, 0, (None,) * 3, None),
    "trtllm": (" The cat.", "ok", 3, 1, (16384, 0, 4), "length"),
    "trtllm_died": (" The cat", "truncated_stream", 2, 0, (None,) * 3, None),
    "sglang": (" a b", "ok", 2, 0, (5, None, 2), "length"),
    "sglang_abort": (" a", "stream_error", 1, 0, (None,) * 3, None),
    "transformers": ("xy", "truncated_stream", 2, 1, (3, None, 2), "length"),
}
ERRORS = {
    "llama_cpp_context_exceeded": "Context size has been exceeded.",
    "sglang_abort": "Out of memory even after retracting all other requests",
    "trtllm_died": "the stream ended without [DONE]",
    "transformers": "the stream ended without [DONE]",
}


def read(stem: str, *, promises_done: bool = True, step: int = 1 << 20) -> Any:
    body = (STREAMS / f"{stem}.sse").read_bytes()
    recording = Recording(send_ns=0, first_byte_ns=1, status=200, ending=Ending.COMPLETE)
    for at in range(0, len(body), step):
        recording.add(10 + at, body[at : at + step])
    recording.end_ns = 10 + len(body)
    reading = Reading(StudyClock(1.0, 0), promises_done, 1000)
    return row_of(Facts("r", 0, 0, None, 8, 6, 6), recording, reading)


def test_every_stream_has_its_expected_row() -> None:
    assert {path.stem for path in STREAMS.glob("*.sse")} == EXPECTED.keys()


@pytest.mark.parametrize("step", [1, 37, 1 << 20])
@pytest.mark.parametrize("stem", EXPECTED)
def test_an_engines_stream(stem: str, step: int) -> None:
    row, text = read(stem, step=step)

    usage = tuple(row[k] for k in ("server_input_tokens", "cached_tokens", "usage_tokens"))
    counts = (row["chunk_count"], row["empty_chunk_count"])
    assert (text, row["outcome"], *counts, usage, row["finish_reason"]) == EXPECTED[stem]
    assert row["error"] == ERRORS.get(stem)


def test_an_engine_that_promises_no_done_is_believed() -> None:
    row, _ = read("transformers", promises_done=False)

    assert (row["outcome"], row["error"]) == ("ok", None)

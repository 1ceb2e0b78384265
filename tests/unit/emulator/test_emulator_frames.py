"""Frames byte by byte, and iteration records field by field."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvstudy.emulator.frames import DONE, Echo, Frames
from kvstudy.emulator.metrics_text import Histogram, Sample, label, render
from kvstudy.emulator.records import MOST_RECORDS, Pool, Record, RecordBuffer, release, timestamp
from kvstudy.emulator.settings import Dialect

FRAME_KEYS = {
    Dialect.TRTLLM: [
        "index", "text", "token_ids", "logprobs", "finish_reason", "stop_reason",
        "avg_decoded_tokens_per_iter",
    ],
    Dialect.VLLM: [
        "index", "text", "logprobs", "finish_reason", "stop_reason", "prompt_token_ids", "token_ids"
    ],
    Dialect.SGLANG: ["index", "text", "logprobs", "finish_reason", "matched_stop"],
}  # fmt: skip


def echo(dialect: Dialect, **more: Any) -> Echo:
    return Echo(dialect, "1.2.1", 'a "name"', 8, **more)


def read(frame: bytes) -> dict[str, Any]:
    assert frame.startswith(b"data: ") and frame.endswith(b"\n\n")
    loaded: dict[str, Any] = json.loads(frame[6:])
    return loaded


@pytest.mark.parametrize("dialect", list(Dialect))
def test_a_token_frame_has_exactly_the_dialects_fields(dialect: Dialect) -> None:
    """In order, with null where nothing is to say."""
    frame = read(Frames(echo(dialect)).token(3, b" word", 77))
    usage = [] if dialect is Dialect.VLLM else ["usage"]
    assert list(frame) == ["id", "object", "created", "model", "choices", *usage]
    choice = frame["choices"][0]
    assert list(choice) == FRAME_KEYS[dialect]
    assert frame["object"] == "text_completion" and frame["model"] == 'a "name"'
    assert (choice["text"], choice["finish_reason"], choice["logprobs"]) == (" word", None, None)
    assert frame.get("usage") is None


@pytest.mark.parametrize("dialect", list(Dialect))
def test_plain_pieces_build_the_same_frame(dialect: Dialect) -> None:
    """What the hot path joins equals what the slow path builds."""
    frames = Frames(echo(dialect))
    plain = frames.plain()
    assert plain is not None
    head, between, tail = plain
    number = b"%08x" % 9 if between else b""
    assert head + number + between + b" word" + tail == frames.token(9, b" word", 1)


def test_only_trtllm_changes_the_id_with_every_chunk() -> None:
    """As seen of the real ones."""
    for dialect in Dialect:
        frames = Frames(echo(dialect))
        ids = {read(frames.token(n, b" a", 1))["id"] for n in range(5)}
        assert len(ids) == (5 if dialect is Dialect.TRTLLM else 1)


def test_the_last_token_carries_the_reason_and_what_follows_is_usage_and_done() -> None:
    """One frame with empty choices, then [DONE]; without usage only [DONE]."""
    assert read(Frames(echo(Dialect.TRTLLM)).token(4, b" a", 1, "stop"))["choices"][0][
        "finish_reason"
    ] == "stop"  # fmt: skip
    assert Frames(echo(Dialect.TRTLLM)).closing(5) == DONE
    closing = Frames(echo(Dialect.TRTLLM, include_usage=True)).closing(5)
    assert closing.endswith(DONE)
    frame = read(closing[: -len(DONE)])
    assert frame["choices"] == [] and frame["object"] == "chat.completion.chunk"
    assert frame["usage"] == {
        "prompt_tokens": 8, "total_tokens": 13, "completion_tokens": 5,
        "prompt_tokens_details": {"cached_tokens": 0},
    }  # fmt: skip
    vllm = read(Frames(echo(Dialect.VLLM, include_usage=True)).closing(5)[: -len(DONE)])
    assert vllm["object"] == "text_completion" and "system_fingerprint" in vllm
    assert vllm["usage"] == {"prompt_tokens": 8, "total_tokens": 13, "completion_tokens": 5}


def test_ids_and_running_usage_on_request() -> None:
    """Then every frame carries more than a word, and the fast path is off."""
    asked = echo(Dialect.VLLM, token_ids=True, prompt_ids=[4, 5], continuous_usage=True)
    frames = Frames(asked)
    assert frames.plain() is None
    first, second = read(frames.token(0, b" a", 7)), read(frames.token(1, b" b", 8))
    assert first["choices"][0]["prompt_token_ids"] == [4, 5]
    assert second["choices"][0]["prompt_token_ids"] is None
    assert [f["choices"][0]["token_ids"] for f in (first, second)] == [[7], [8]]
    assert [f["usage"]["completion_tokens"] for f in (first, second)] == [1, 2]


@pytest.mark.parametrize("dialect", list(Dialect))
def test_an_unstreamed_answer_is_one_object(dialect: Dialect) -> None:
    """All words joined, usage beside."""
    whole = json.loads(Frames(echo(dialect)).whole([b" a", b" b"], [1, 2], "length"))
    assert whole["choices"][0]["text"] == " a b"
    assert whole["choices"][0]["finish_reason"] == "length"
    assert whole["usage"]["completion_tokens"] == 2


def record(iteration: int) -> Record:
    return Record(
        iteration=iteration, latency_ns=20_500_000, end_unix_ns=1_785_000_000_123_456_789, joined=1,
        finished=0, scheduled=22, context_requests=1, generation_requests=21, paused=1,
        context_tokens=8160, active=70, used_blocks=90, free_blocks=10, allocated_blocks=500,
    )  # fmt: skip


def test_a_record_has_exactly_the_fields_of_the_real_one() -> None:
    """The constructed sample of facts/engines.md 4.4."""
    buffer = RecordBuffer(Pool(max_blocks=100, block_tokens=32, max_active=64))
    buffer.append(record(1287))
    (shaped,) = json.loads(buffer.drain())
    assert list(shaped) == [
        "cpuMemUsage", "gpuMemUsage", "pinnedMemUsage", "iter", "iterLatencyMS", "timestamp",
        "numActiveRequests", "numNewActiveRequests", "numQueuedRequests", "numCompletedRequests",
        "maxNumActiveRequests", "newActiveRequestsQueueLatencyMS", "maxBatchSizeStatic",
        "maxBatchSizeRuntime", "maxBatchSizeTunerRecommended", "maxNumTokensStatic",
        "maxNumTokensRuntime", "maxNumTokensTunerRecommended", "inflightBatchingStats",
        "kvCacheStats", "staticBatchingStats", "specDecodingStats",
    ]  # fmt: skip
    assert (shaped["iter"], shaped["iterLatencyMS"]) == (1287, 20.5)
    assert shaped["timestamp"] == "07-25-2026 17:20:00.123456"
    assert (shaped["numActiveRequests"], shaped["numQueuedRequests"]) == (64, 6)
    assert shaped["inflightBatchingStats"] == {
        "numScheduledRequests": 22, "numContextRequests": 1, "numGenRequests": 21,
        "numPausedRequests": 1, "numCtxTokens": 8160, "microBatchId": 0,
        "avgNumDecodedTokensPerIter": 0.0,
    }  # fmt: skip
    assert list(shaped["kvCacheStats"]) == [
        "maxNumBlocks", "freeNumBlocks", "usedNumBlocks", "tokensPerBlock", "allocTotalBlocks",
        "allocNewBlocks", "reusedBlocks", "missedBlocks", "cacheHitRate",
    ]  # fmt: skip
    assert buffer.drain() == b"[]"


def test_the_oldest_records_are_lost_when_nobody_reads() -> None:
    """1,000 are kept, and the loss is known."""
    buffer = RecordBuffer(Pool(max_blocks=1, block_tokens=1, max_active=1, has_window_stats=True))
    for iteration in range(MOST_RECORDS + 5):
        buffer.append(record(iteration))
    drained = json.loads(buffer.drain())
    assert (len(drained), drained[0]["iter"], buffer.dropped) == (MOST_RECORDS, 5, 5)
    assert "kvCacheIterationStats" in drained[0]


def test_releases_are_ordered() -> None:
    """Candidates come before the release, rc9 before rc22."""
    versions = ["nonsense", "1.2.1", "1.3.0rc9", "1.3.0rc22", "1.3.0", "1.4.0rc1"]
    assert sorted(versions, key=release) == versions
    assert timestamp(0) == "01-01-1970 00:00:00.000000"


def test_prometheus_text_is_well_formed() -> None:
    """One TYPE line per family, labels escaped, cumulative buckets."""
    histogram = Histogram()
    histogram.observe(0.2)
    histogram.observe(1e9)
    samples = [Sample("a_total", "counter", 1, 'r="x"'), Sample("a_total", "counter", 2, 'r="y"')]
    text = render(samples, [("h", histogram)], f'model="{label(chr(34) + chr(10))}"')
    assert text.count("# TYPE a_total counter") == 1
    assert 'a_total{model="\\"\\n",r="x"} 1' in text
    assert 'h_bucket{le="0.1",model="\\"\\n"} 0' in text
    assert 'h_bucket{le="+Inf",model="\\"\\n"} 2' in text
    assert "h_count{" in text and text.endswith("\n")

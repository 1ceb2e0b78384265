"""What each client says about its requests → one form. Times in ms, null where it says nothing."""

from __future__ import annotations

import base64
import json
import re
import sqlite3
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from tokenizers import Tokenizer

from kvstudy.base import tables
from kvstudy.metrics.per_request import tpot_ns

_TAG = re.compile(r" #(\d+)\b")
_REASON = re.compile(r'finish_reason"?\W{1,6}(length|stop)')


@dataclass(frozen=True)
class Seen:
    """One request in a client's results.

    `tag` is the number in the first text, by which it is matched with the server's times.
    `finish` says where finish_reason is kept: "field", "raw" (in stored bytes only) or None.
    `tokens` is the count that the client's own per-token figure rests on.
    """

    ok: bool
    ttft_ms: float | None = None
    tpot_ms: float | None = None
    tokens: int | None = None
    chunks: int | None = None
    empty: int | None = None
    finish: str | None = None
    tag: int | None = None


class _Place(Protocol):
    @property
    def out(self) -> Path: ...
    @property
    def tokenizer(self) -> Path: ...


def tag_of(text: str) -> int | None:
    """The number of the answer that a text belongs to."""
    found = _TAG.search(text)
    return int(found[1]) if found else None


def _raw(text: str) -> str | None:
    return "raw" if _REASON.search(text) else None


def _times(value: float | None, scale: float) -> float | None:
    return None if value is None else value * scale


def kvstudy(task: _Place) -> list[Seen]:
    """Our rows. Tokens are the server's count, or, where it gives none, the re-tokenised text's."""
    rows = tables.read(task.out / "requests.parquet", tables.CLIENT_REQUESTS).to_pylist()
    outputs = tables.read(task.out / "outputs.parquet", tables.OUTPUTS).to_pylist()
    texts = {row["request_id"]: row["text"] for row in outputs}
    tokenizer = Tokenizer.from_file(str(task.tokenizer / "tokenizer.json"))
    seen = []
    for row in rows:
        text = texts.get(row["request_id"], "")
        tokens = row["usage_tokens"]
        if tokens is None:
            tokens = len(tokenizer.encode(text, add_special_tokens=False).ids)
        tpot = tpot_ns(row["first_chunk_ns"], row["last_chunk_ns"], tokens)
        one = Seen(
            ok=row["outcome"] == "ok",
            ttft_ms=_times(row["ttft_ns"], 1e-6),
            tpot_ms=_times(tpot, 1e-6),
            tokens=tokens,
            chunks=row["chunk_count"],
            empty=row["empty_chunk_count"],
            finish="field" if row["finish_reason"] else None,
            tag=tag_of(text),
        )
        seen.append(one)
    return seen


def vllm(task: _Place) -> list[Seen]:
    """Lists in parallel; TPOT is (latency - TTFT) / (tokens - 1), as its report has it."""
    result = _read(task.out / "result.json")
    errors = result.get("errors") or [""] * len(result["ttfts"])
    seen = []
    for at, ttft in enumerate(result["ttfts"]):
        tokens, text = result["output_lens"][at], result["generated_texts"][at]
        rest_s = result["latencies"][at] - ttft
        one = Seen(
            ok=not errors[at],
            ttft_ms=ttft * 1e3 if ttft else None,
            tpot_ms=rest_s / (tokens - 1) * 1e3 if tokens > 1 else None,
            tokens=tokens,
            chunks=len(result["itls"][at]) + bool(ttft),
            tag=tag_of(text),
        )
        seen.append(one)
    ok = result["completed"]
    if not any(errors) and ok != len(seen):
        seen = [*seen[:ok], *[Seen(ok=False)] * result["failed"]]
    return seen


def guidellm(task: _Place) -> list[Seen]:
    """Its inter-token latency is the gap per token after the first."""
    kinds = _read(task.out / "result.json")["benchmarks"][0]["requests"]
    return [
        Seen(
            ok=kind == "successful",
            ttft_ms=one.get("time_to_first_token_ms"),
            tpot_ms=one.get("inter_token_latency_ms"),
            tokens=one.get("output_tokens"),
            chunks=one["info"]["timings"].get("token_iterations"),
            tag=tag_of(one.get("output") or ""),
        )
        for kind in ("successful", "errored", "incomplete")
        for one in kinds.get(kind) or []
    ]


def evalscope(task: _Place) -> list[Seen]:
    """Rows of its SQLite file; the answers in it are pickled, and only searched here."""
    (path,) = task.out.rglob("benchmark_data.db")
    base = sqlite3.connect(path)
    names = "success, first_chunk_latency, time_per_output_token, completion_tokens"
    rows = base.execute(f"SELECT {names}, inter_token_latencies, response_messages FROM result")  # noqa: S608
    seen = []
    for success, ttft_s, tpot_s, tokens, gaps, messages in rows:
        stored = base64.b64decode(messages or "").decode("latin-1")
        one = Seen(
            ok=bool(success),
            ttft_ms=_times(ttft_s, 1e3),
            tpot_ms=_times(tpot_s, 1e3),
            tokens=tokens,
            chunks=len(json.loads(gaps)) + 1 if gaps else None,
            finish="raw" if "finish_reason" in stored else None,
            tag=tag_of(stored),
        )
        seen.append(one)
    base.close()
    return seen


def aiperf(task: _Place) -> list[Seen]:
    """Its records, joined with its raw export for the text."""
    raw = {one["metadata"]["x_request_id"]: one for one in _lines(task.out, "_raw.jsonl")}
    seen = []
    for one in _lines(task.out, "profile_export.jsonl"):
        metrics = {name: value["value"] for name, value in (one.get("metrics") or {}).items()}
        stored = json.dumps(raw.get(one["metadata"]["x_request_id"], {}).get("responses"))
        stored = stored.replace("\\", "")
        gaps = metrics.get("inter_chunk_latency")
        row = Seen(
            ok=not one.get("error"),
            ttft_ms=metrics.get("time_to_first_token"),
            tpot_ms=metrics.get("inter_token_latency"),
            tokens=metrics.get("output_sequence_length"),
            chunks=None if gaps is None else len(gaps) + 1,
            finish=_raw(stored),
            tag=tag_of(stored),
        )
        seen.append(row)
    return seen


def inference_perf(task: _Place) -> list[Seen]:
    """Its per-request report: raw events and their times; TPOT as its summary has it."""
    seen = []
    for one in _read(task.out / "report" / "per_request_lifecycle_metrics.json"):
        response = (one.get("info") or {}).get("response_metrics") or {}
        times = response.get("output_token_times") or []
        tokens = response.get("output_tokens")
        rate = None
        if len(times) > 1 and tokens and tokens > 1:
            rate = (times[-1] - times[0]) / (tokens - 1) * 1e3
        row = Seen(
            ok=one.get("error") is None,
            ttft_ms=(times[0] - one["start_time"]) * 1e3 if times else None,
            tpot_ms=rate,
            tokens=tokens,
            chunks=len(response.get("chunk_times") or []) or None,
            finish=_raw(one.get("response") or ""),
            tag=tag_of(one.get("response") or ""),
        )
        seen.append(row)
    return seen


def genai_bench(task: _Place) -> list[Seen]:
    """Its per-request metrics; no text is kept, so nothing tells which request was which."""
    paths = [path for path in (task.out / "result").glob("D*.json") if path.is_file()]
    seen = []
    for one in _read(paths[0])["individual_request_metrics"]:
        row = Seen(
            ok=one.get("error_code") is None,
            ttft_ms=_times(one.get("ttft"), 1e3),
            tpot_ms=_times(one.get("tpot"), 1e3),
            tokens=one.get("num_output_tokens"),
        )
        seen.append(row)
    return seen


def _read(path: Path) -> Any:
    return json.loads(path.read_text(encoding="utf-8"))


def _lines(folder: Path, ending: str) -> Iterable[dict[str, Any]]:
    for path in folder.rglob(f"*{ending}"):
        with path.open(encoding="utf-8") as lines:
            yield from map(json.loads, lines)

"""Prometheus text of vLLM, SGLang, TensorRT-LLM and llama.cpp: samples, readings, rows.

A scrape is a photograph: gauges show one moment, counters what happened since the start. A row's
`paused_requests` is the growth of a true counter since the previous scrape; where an engine only
has a last-value gauge, pauses are not stated and stay null.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from kvstudy.base.units import NS_PER_S, ceil_div
from kvstudy.telemetry.numbers import count

Row = dict[str, Any]

_MOST_LINE = 65_536
_SAMPLE = re.compile(
    r"([a-zA-Z_:][\w:]*)(?:\{(.*)\})?[ \t]+([^\s]+)(?:[ \t]+[-+]?\d+)?[ \t]*$", re.ASCII
)
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*(?:,|$)', re.ASCII)
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True)
class Sample:
    """One line: a name, its labels, a value (NaN and infinities included)."""

    name: str
    labels: Mapping[str, str]
    value: float


@dataclass(frozen=True, slots=True)
class Page:
    """One scrape; `bad_lines` counts lines that are no samples."""

    samples: tuple[Sample, ...]
    bad_lines: int

    def total(self, name: str) -> float | None:
        """The finite values of a name, summed over its labels; None where there is none."""
        values = [s.value for s in self.samples if s.name == name and math.isfinite(s.value)]
        return sum(values) if values else None

    def first(self, *names: str) -> float | None:
        """The total of the first of several names that the page has."""
        for name in names:
            value = self.total(name)
            if value is not None:
                return value
        return None

    def labels(self, name: str) -> Mapping[str, str]:
        """Labels of the first sample of a name; empty where there is none."""
        return next((s.labels for s in self.samples if s.name == name), {})


def parse(text: str) -> Page:
    """All samples of a text; comments and blank lines are passed over, bad lines counted."""
    samples, bad = [], 0
    for line in text.split("\n"):
        stripped = line.strip()
        if not stripped or stripped.startswith("#"):
            continue
        sample = _sample(stripped) if len(stripped) <= _MOST_LINE else None
        if sample is None:
            bad += 1
        else:
            samples.append(sample)
    return Page(tuple(samples), bad)


def _sample(line: str) -> Sample | None:
    found = _SAMPLE.match(line)
    if found is None:
        return None
    labels = _labels(found[2] or "")
    value = _value(found[3])
    if labels is None or value is None:
        return None
    return Sample(found[1], labels, value)


def _labels(text: str) -> dict[str, str] | None:
    labels: dict[str, str] = {}
    at = 0
    while at < len(text):
        found = _LABEL.match(text, at)
        if found is None or found.end() == at:
            return None
        labels[found[1]] = re.sub(r"\\[\\\"n]", lambda m: _ESCAPES[m[0]], found[2])
        at = found.end()
    return labels


def _value(text: str) -> float | None:
    try:
        return float(text.replace("_", "x"))
    except ValueError:
        return None


@dataclass(frozen=True, slots=True)
class Reading:
    """What one scrape says of KV pressure; None where the engine does not say.

    Totals are counters since the server's start; the rest are gauges.
    """

    running: int | None = None
    waiting: int | None = None
    used_blocks: int | None = None
    max_blocks: int | None = None
    iterations_total: int | None = None
    pauses_total: int | None = None
    recomputed_tokens_total: int | None = None
    prompt_tokens_total: int | None = None
    generation_tokens_total: int | None = None
    context_requests: int | None = None
    generation_requests: int | None = None
    iteration_s: float | None = None


def reading(page: Page, *, block_tokens: int | None = None) -> Reading:
    """The reading of a page, whichever engine's prefix it has.

    `block_tokens` turns SGLang's token counts into blocks.
    """
    names = {sample.name.partition(":")[0] if ":" in sample.name else "" for sample in page.samples}
    if "vllm" in names:
        return _vllm(page)
    if "sglang" in names:
        return _sglang(page, block_tokens)
    if "llamacpp" in names:
        return _llamacpp(page)
    return _trtllm(page)


def _whole(value: float | None) -> int | None:
    return None if value is None else count(float(round(value)))


def _vllm(page: Page) -> Reading:
    """`vllm:num_preemptions_total` is a true counter; one block of the pool is the null block."""
    labels = page.labels("vllm:cache_config_info")
    blocks = labels.get("num_gpu_blocks", "")
    usable = int(blocks) - 1 if blocks.isdecimal() and len(blocks) < 16 and int(blocks) else None
    usage = page.first("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc")
    used = None if usage is None or usable is None else _whole(usage * usable)
    return Reading(
        running=_whole(page.total("vllm:num_requests_running")),
        waiting=_whole(page.total("vllm:num_requests_waiting")),
        used_blocks=used,
        max_blocks=usable,
        iterations_total=_whole(page.total("vllm:iteration_tokens_total_count")),
        pauses_total=_whole(page.first("vllm:num_preemptions_total", "vllm:num_preemptions")),
        prompt_tokens_total=_whole(page.total("vllm:prompt_tokens_total")),
        generation_tokens_total=_whole(page.total("vllm:generation_tokens_total")),
    )


def _sglang(page: Page, block_tokens: int | None) -> Reading:
    """`sglang:num_retracted_requests_total` is a true counter; `num_retracted_reqs` is not."""
    used = _whole(page.first("sglang:kv_used_tokens", "sglang:num_used_tokens"))
    most = _whole(page.total("sglang:max_total_num_tokens"))
    retracted = [
        page.total(f"sglang:num_retracted_{kind}_tokens_total") for kind in ("input", "output")
    ]
    known = [value for value in retracted if value is not None]
    return Reading(
        running=_whole(page.total("sglang:num_running_reqs")),
        waiting=_whole(page.total("sglang:num_queue_reqs")),
        used_blocks=_in_blocks(used, block_tokens),
        max_blocks=_in_blocks(most, block_tokens),
        pauses_total=_whole(page.total("sglang:num_retracted_requests_total")),
        recomputed_tokens_total=_whole(sum(known)) if known else None,
        prompt_tokens_total=_whole(page.total("sglang:prompt_tokens_total")),
        generation_tokens_total=_whole(page.total("sglang:generation_tokens_total")),
    )


def _in_blocks(tokens: int | None, block_tokens: int | None) -> int | None:
    return None if tokens is None or not block_tokens else ceil_div(tokens, block_tokens)


def _llamacpp(page: Page) -> Reading:
    """llama.cpp never preempts, so it has no counter of pauses."""
    return Reading(
        running=_whole(page.total("llamacpp:requests_processing")),
        waiting=_whole(page.total("llamacpp:requests_deferred")),
        iterations_total=_whole(page.total("llamacpp:n_decode_total")),
        prompt_tokens_total=_whole(page.total("llamacpp:prompt_tokens_total")),
        generation_tokens_total=_whole(page.total("llamacpp:tokens_predicted_total")),
    )


def _trtllm(page: Page) -> Reading:
    """`trtllm_num_paused_requests` is the last iteration's value: scrapes miss events."""
    return Reading(
        running=_whole(page.first("trtllm_num_requests_running", "trtllm_num_scheduled_requests")),
        waiting=_whole(page.total("trtllm_num_requests_waiting")),
        used_blocks=_whole(page.total("trtllm_kv_cache_used_blocks")),
        max_blocks=_whole(page.total("trtllm_kv_cache_max_blocks")),
        prompt_tokens_total=_whole(page.total("trtllm_prompt_tokens_total")),
        generation_tokens_total=_whole(page.total("trtllm_generation_tokens_total")),
        context_requests=_whole(page.total("trtllm_num_context_requests")),
        generation_requests=_whole(page.total("trtllm_num_generation_requests")),
        iteration_s=page.total("trtllm_iteration_latency_seconds"),
    )


def row(now: Reading, before: Reading | None, t_ns: int) -> Row:
    """One scrape as a row of `base.tables.CELL_ITERATIONS`.

    Pauses are those since the scrape before; the first scrape has none to compare with. A counter
    that went down belongs to a server that began anew: it counts from zero.
    """
    waiting, running = now.waiting, now.running
    used, most = now.used_blocks, now.max_blocks
    seconds = now.iteration_s
    usable = seconds is not None and 0 <= seconds < NS_PER_S
    return {
        "t_ns": t_ns,
        "iter": now.iterations_total,
        "scheduled_requests": running,
        "context_requests": now.context_requests,
        "generation_requests": now.generation_requests,
        "paused_requests": grown(before.pauses_total, now.pauses_total) if before else None,
        "context_tokens": None,
        "active_requests": None if running is None or waiting is None else running + waiting,
        "queued_requests": waiting,
        "used_blocks": used,
        "free_blocks": None if used is None or most is None else max(0, most - used),
        "max_blocks": most,
        "iter_latency_ns": round(seconds * NS_PER_S) if usable and seconds is not None else None,
    }


def grown(before: int | None, now: int | None) -> int | None:
    """Growth of a counter between two scrapes; None where one of them does not state it."""
    if before is None or now is None:
        return None
    return now - before if now >= before else now


def rows(readings: Iterable[tuple[int, Reading]]) -> list[Row]:
    """Rows of scrapes in order, each as (study time, reading)."""
    result: list[Row] = []
    before: Reading | None = None
    for t_ns, now in readings:
        result.append(row(now, before, t_ns))
        before = now
    return result

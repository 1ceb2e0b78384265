"""What a server resolved its configuration to, from its log and endpoints, and whether it fits.

Parsers take text and return values; a key that nothing states is None, which is not a mismatch but
is listed by `unstated`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import httpx

from kvstudy.serve.model import Expectations, Launch

_EXCERPT_CHARS = 300
_MOST_LINE = 20_000
_NULL_BLOCKS = 1


@dataclass(frozen=True, slots=True)
class Resolved:
    """The server's configuration in its own words; None: not stated.

    `pool_tokens` counts tokens that requests can use. `excerpts` are the lines it was read from.
    """

    policy: str | None = None
    pool_tokens: int | None = None
    block_tokens: int | None = None
    kv_dtype: str | None = None
    max_batch_size: int | None = None
    max_num_tokens: int | None = None
    max_seq_len: int | None = None
    chunked_prefill: bool | None = None
    prefix_reuse: bool | None = None
    excerpts: tuple[str, ...] = ()

    def as_json(self) -> dict[str, Any]:
        """The values and excerpts as plain JSON."""
        return {**asdict(self), "excerpts": list(self.excerpts)}


def resolve(launch: Launch, log: str, endpoints: Mapping[str, str]) -> Resolved:
    """The resolved configuration of a launch; `endpoints` maps a path to the text it answered."""
    info = endpoints.get(launch.routes.info_path or "", "")
    metrics = endpoints.get("/metrics", "")
    parsers: dict[str, Callable[[], Resolved]] = {
        "trtllm": lambda: from_trtllm_log(log),
        "vllm": lambda: from_vllm(log, metrics),
        "sglang": lambda: from_sglang(log, info),
        "llamacpp": lambda: from_llamacpp(log, info),
    }
    return parsers[launch.adapter]()


def endpoint_paths(launch: Launch) -> tuple[str, ...]:
    """Routes whose answers `resolve` reads. trtllm's /metrics is none: reading it takes records."""
    paths = [launch.routes.info_path]
    if launch.adapter == "vllm":
        paths.append(launch.routes.metrics_path)
    return tuple(path for path in paths if path)


async def read(launch: Launch, log: str) -> Resolved:
    """Ask a running server's endpoints and resolve; an endpoint that fails counts as silent."""
    answers: dict[str, str] = {}
    async with httpx.AsyncClient(
        base_url=launch.url, headers=launch.headers, timeout=10.0, trust_env=False
    ) as client:
        for path in endpoint_paths(launch):
            try:
                response = await client.get(path)
            except httpx.HTTPError:
                continue
            if response.status_code == httpx.codes.OK:
                answers[path] = response.text
    return resolve(launch, log, answers)


def mismatches(expected: Expectations, found: Resolved) -> list[str]:
    """Where the server is not what was declared, one sentence each; empty when all fits.

    Pools are made of whole blocks, which versions round up or down: less than one is no mismatch.
    """
    problems = []
    if expected.policy and found.policy and expected.policy != found.policy:
        problems.append(f"policy: declared {expected.policy}, the server took {found.policy}")
    missing = abs((expected.pool_tokens or 0) - (found.pool_tokens or 0))
    both = expected.pool_tokens is not None and found.pool_tokens is not None
    if both and missing >= (found.block_tokens or 1):
        problems.append(
            f"KV pool: declared {expected.pool_tokens} tokens, "
            f"the server allocated {found.pool_tokens}"
        )
    return problems


def unstated(expected: Expectations, found: Resolved) -> list[str]:
    """What was declared but is stated nowhere, so that nobody has checked it."""
    problems = []
    if expected.policy and not found.policy:
        problems.append("policy: stated neither in the log nor by an endpoint")
    if expected.pool_tokens is not None and found.pool_tokens is None:
        problems.append("KV pool: stated neither in the log nor by an endpoint")
    return problems


# ---- TensorRT-LLM ----------------------------------------------------------------------------

_POLICY = re.compile(
    r"capacity_scheduler_policy=<?(?:CapacitySchedulerPolicy\.)?['\"]?([A-Z_]{4,40})\b"
)
_ALLOCATED = re.compile(r"Allocated .{1,40} for max tokens in paged KV cache \((\d{1,15})\)")
_TRTLLM_BLOCK = re.compile(r"Number of tokens per block: (\d{1,9})")
_TRTLLM_SIZES = re.compile(r"\b(max_seq_len|max_num_tokens|max_batch_size)=(\d{1,12})\b")
_TRTLLM_FLAGS = re.compile(r"\b(enable_chunked_prefill|enable_block_reuse)=(True|False)\b")
_TRTLLM_DTYPE = re.compile(r"KvCacheConfig\([^)]{0,4000}?\bdtype='([\w-]{1,20})'")


def from_trtllm_log(log: str) -> Resolved:
    """From trtllm-serve's launch log.

    The allocation is printed twice: first the small cache that memory is estimated with, then the
    real one. The last line counts, as for every other key.
    """
    seen = _Seen()
    for line in log.splitlines():
        text = line[:_MOST_LINE]
        seen.text("policy", _POLICY, text)
        seen.count("pool_tokens", _ALLOCATED, text)
        seen.count("block_tokens", _TRTLLM_BLOCK, text)
        seen.text("kv_dtype", _TRTLLM_DTYPE, text)
        for name, number in _TRTLLM_SIZES.findall(text):
            seen.set(name, int(number), text)
        for name, flag in _TRTLLM_FLAGS.findall(text):
            key = "chunked_prefill" if name == "enable_chunked_prefill" else "prefix_reuse"
            seen.set(key, flag == "True", text)
    return seen.resolved()


# ---- vLLM ------------------------------------------------------------------------------------

_CACHE_INFO = re.compile(r"^vllm:cache_config_info\{(.{0,8000})\}", re.MULTILINE)
_LABEL = re.compile(r'(\w{1,60})="((?:[^"\\]|\\.){0,500})"')
_VLLM_SIZE = re.compile(r"GPU KV cache size: ([\d,]{1,20}) tokens")
_VLLM_ARGS = re.compile(
    r"['\"]?(max_num_seqs|max_num_batched_tokens|max_model_len)['\"]?[:=] ?(\d{1,12})"
)
_VLLM_NAMES = {
    "max_num_seqs": "max_batch_size",
    "max_num_batched_tokens": "max_num_tokens",
    "max_model_len": "max_seq_len",
}


def from_vllm(log: str, metrics: str) -> Resolved:
    """From `vllm:cache_config_info` of /metrics where there is one, else from the log.

    The null block is taken off: the log's size may count it, the metric's block count does.
    """
    seen = _Seen()
    for line in log.splitlines():
        text = line[:_MOST_LINE]
        size = _VLLM_SIZE.search(text)
        if size:
            seen.set("pool_tokens", _int(size[1].replace(",", "")), text)
        for name, number in _VLLM_ARGS.findall(text):
            seen.set(_VLLM_NAMES[name], int(number), text)
    info = _CACHE_INFO.search(metrics[: 1 << 24])
    if info:
        labels = dict(_LABEL.findall(info[1]))
        blocks, block_size = _int(labels.get("num_gpu_blocks")), _int(labels.get("block_size"))
        if blocks is not None and block_size is not None:
            seen.set("pool_tokens", max(0, blocks - _NULL_BLOCKS) * block_size, info[0])
        seen.set("block_tokens", block_size, info[0])
        seen.set("kv_dtype", labels.get("cache_dtype"), info[0])
        reuse = labels.get("enable_prefix_caching")
        seen.set("prefix_reuse", {"True": True, "False": False}.get(reuse or ""), info[0])
    return seen.resolved()


# ---- SGLang ----------------------------------------------------------------------------------

_SGLANG_POOL = re.compile(r"\bmax_total_num_tokens=(\d{1,15})")
_SGLANG_SIZES = {
    "page_size": "block_tokens",
    "max_running_requests": "max_batch_size",
    "context_length": "max_seq_len",
    "chunked_prefill_size": "max_num_tokens",
}


def from_sglang(log: str, info: str) -> Resolved:
    """From the server info route where it answers, else from the log's allocation line."""
    seen = _Seen()
    for line in log.splitlines():
        seen.count("pool_tokens", _SGLANG_POOL, line[:_MOST_LINE])
    document = {key: value for key, value in _document(info).items() if "api_key" not in key}
    shown = f"server_info: {json.dumps(document)}" if document else ""
    for name, key in _SGLANG_SIZES.items():
        number = _int(document.get(name))
        seen.set(key, number if number is None or number > 0 else None, shown)
    pool = _int(document.get("max_total_num_tokens"))
    seen.set("pool_tokens", pool if pool is not None else _inner_pool(document), shown)
    chunk = _int(document.get("chunked_prefill_size"))
    seen.set("chunked_prefill", None if chunk is None else chunk > 0, shown)
    radix_off = document.get("disable_radix_cache")
    seen.set("prefix_reuse", not radix_off if isinstance(radix_off, bool) else None, shown)
    dtype = document.get("kv_cache_dtype")
    seen.set("kv_dtype", dtype if isinstance(dtype, str) else None, shown)
    return seen.resolved()


def _inner_pool(document: Mapping[str, Any]) -> int | None:
    """The pool as some versions state it: per scheduler, in internal_states."""
    states = document.get("internal_states")
    first = states[0] if isinstance(states, list) and states else None
    if not isinstance(first, dict):
        return None
    usage = first.get("memory_usage")
    inner = usage.get("token_capacity") if isinstance(usage, dict) else None
    return _int(first.get("max_total_num_tokens", inner))


# ---- llama.cpp -------------------------------------------------------------------------------

_LLAMA_CTX = re.compile(r"\bn_ctx\s*=\s*(\d{1,12})\b")
_LLAMA_SLOTS = re.compile(r"\bn_(?:seq_max|parallel|slots)\s*=\s*(\d{1,9})\b")


def from_llamacpp(log: str, props: str) -> Resolved:
    """From the log's context lines, and the slot count of /props."""
    seen = _Seen()
    for line in log.splitlines():
        seen.count("pool_tokens", _LLAMA_CTX, line[:_MOST_LINE])
        seen.count("max_batch_size", _LLAMA_SLOTS, line[:_MOST_LINE])
    slots = _int(_document(props).get("total_slots"))
    seen.set("max_batch_size", slots, f"props: total_slots {slots}")
    return seen.resolved()


# ---- shared ----------------------------------------------------------------------------------


class _Seen:
    """Values by key, each with the line that stated it last."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._lines: dict[str, str] = {}

    def set(self, key: str, value: Any, line: str) -> None:
        if value is not None:
            self._values[key] = value
            self._lines[key] = line.strip()

    def text(self, key: str, pattern: re.Pattern[str], line: str) -> None:
        found = pattern.search(line)
        if found:
            self.set(key, found[1], _around(line, found))

    def count(self, key: str, pattern: re.Pattern[str], line: str) -> None:
        found = pattern.search(line)
        if found:
            self.set(key, int(found[1]), _around(line, found))

    def resolved(self) -> Resolved:
        excerpts = dict.fromkeys(line[:_EXCERPT_CHARS] for line in self._lines.values())
        return replace(Resolved(), **self._values, excerpts=tuple(excerpts))


def _around(line: str, found: re.Match[str]) -> str:
    """The part of a long line that a match stands in."""
    if len(line) <= _EXCERPT_CHARS:
        return line
    start = max(0, found.start() - 60)
    return f"…{line[start : start + _EXCERPT_CHARS - 2]}…"


def _int(value: Any) -> int | None:
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return value
    text = value.strip() if isinstance(value, str) else ""
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 16 else None


def _document(text: str) -> dict[str, Any]:
    try:
        value = json.loads(text) if text else {}
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}

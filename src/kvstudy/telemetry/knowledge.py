"""The one source of what each engine version shows of KV pressure, and how to switch it on.

Collectors take their hints from here; `docs/observing-kv-pressure.md` is printed from it by
`telemetry.guide`.
"""

from __future__ import annotations

import re

from kvstudy.telemetry.signs import Entry, Nature, Release, Sign

_FINAL = 1 << 30

_PAUSED = Sign(
    "inflightBatchingStats.numPausedRequests",
    Nature.EVENT,
    "pauses decided in this iteration; the sum over all records is the number of pauses of the "
    "run. It is not the number of requests that wait paused. Always 0 under GUARANTEED_NO_EVICT: "
    "anything else there means a broken reader",
)
_CONTEXT = Sign(
    "inflightBatchingStats.numCtxTokens",
    Nature.EVENT,
    "prompt tokens computed in this iteration; the sum minus the sum of all prompts is what was "
    "computed again after pauses",
)
_BLOCKS = Sign(
    "kvCacheStats.usedNumBlocks / freeNumBlocks / maxNumBlocks",
    Nature.GAUGE,
    "KV blocks at the end of the iteration; free blocks near 0 announce pauses",
)
_WAITING = Sign(
    "numActiveRequests - inflightBatchingStats.numScheduledRequests",
    Nature.GAUGE,
    "requests that wait for KV blocks, paused ones among them. `numQueuedRequests` stays near 0: "
    "requests are taken into the executor up to the batch limit and wait there",
)
_TRTLLM_SIGNS = (_PAUSED, _CONTEXT, _BLOCKS, _WAITING)
_ITER_LOG = Sign(
    "`print_iter_log: true`, field `num_ctx_tokens`",
    Nature.LOG,
    "one line per iteration, rank 0. It has no field for pauses; recomputation shows as context "
    "tokens beyond the prompts",
)
_DEBUG_LOG = Sign(
    "`TLLM_LOG_LEVEL=debug`, `[Summary] Capacity scheduler allows N requests, pauses M requests`",
    Nature.LOG,
    "works in every version, needs no endpoint, and is verbose: not for measured runs",
)
_PERF = Sign(
    "`/perf_metrics`: `last_iter - first_iter`, `num_total_allocated_blocks`",
    Nature.EVENT,
    "per ended request, with `return_perf_metrics: true` and `perf_metrics_max_requests: N`. Far "
    "more iterations than output tokens betray silent decoding; more blocks than prompt + output "
    "need betray recomputation",
)
_LATE_1_3_SIGNS = (
    Sign(
        "kvCacheIterationStats (late candidates)",
        Nature.EVENT,
        "per window size: blocks allocated, reused and missed in this iteration; more "
        "allocated blocks than new tokens need betray recomputation",
    ),
    Sign(
        "trtllm_num_paused_requests",
        Nature.GAUGE,
        "Prometheus, late candidates: the last iteration's value. Scrapes miss nearly all "
        "pauses; do not add it up",
    ),
    Sign(
        "trtllm_kv_cache_utilization, trtllm_num_requests_waiting",
        Nature.GAUGE,
        "Prometheus, late candidates: how full the pool is, how many wait",
    ),
)
_DESTRUCTIVE = (
    "yes: each record is given once, to whoever asks first. Exactly one reader; a second one "
    "steals records, and the gaps in `iter` are the only trace. At most 1,000 records are kept, "
    "the oldest are dropped"
)
_TRTLLM_INTERVAL = (
    "1 s. The limit is 1,000 iterations: about 20 s at 20 ms per decode-only step, about 2 minutes "
    "at 118 ms. Check that `iter` has no gap, and state the coverage"
)
_TRTLLM_PITFALLS = (
    "`[]` from `/metrics` does not mean that nothing happened: it is the answer when "
    "`enable_iter_perf_stats` is off, when there is nothing new, and when somebody else read first",
    "with the statistics off, each call may wait up to about 2 s in the engine: probe, then stop "
    "polling",
    "`iter_stats_max_iterations` and `request_stats_max_iterations` belong to the TensorRT engine "
    "backend and change nothing on the PyTorch backend",
    "unknown YAML keys are refused at start; use only keys that the version knows",
)

ENTRIES = (
    Entry(
        adapter="trtllm",
        engine="TensorRT-LLM, PyTorch backend (trtllm-serve)",
        since=(0, 0, 0, 0),
        versions="1.2.x",
        switch=(
            "enable_iter_perf_stats: true and return_perf_metrics: false in the YAML of --config, "
            "then GET /metrics"
        ),
        settings=(
            "# extra.yaml, given with --config\n"
            "enable_iter_perf_stats: true   # off by default; without it /metrics answers []\n"
            "return_perf_metrics: false     # Prometheus has no pause counter in this version\n"
            "# print_iter_log: true         # optional second source, one line per iteration"
        ),
        language="yaml",
        look=(
            "# each call takes the records it shows: keep them, then add up\n"
            "while sleep 1; do curl -s http://127.0.0.1:$PORT/metrics; echo; done "
            ">> metrics.jsonl\n"
            "jq -s 'flatten | map(.inflightBatchingStats.numPausedRequests) | add' metrics.jsonl"
        ),
        destructive=_DESTRUCTIVE,
        interval=_TRTLLM_INTERVAL,
        signs=(*_TRTLLM_SIGNS, _ITER_LOG, _DEBUG_LOG, _PERF),
        not_shown=(
            "which request was paused: no record names requests",
            "how many tokens a pause throws away. If the executor's `max_input_len` default is in "
            "force, a paused prompt comes back cut, and the rest is decoded silently: in the "
            "records as iterations without chunks, at the client as one gap of minutes",
            "pauses on the Prometheus page: with `return_perf_metrics: true`, "
            "`/prometheus/metrics` has request counts and latencies only",
        ),
        pitfalls=(
            "`/metrics` exists in 1.2.1: the route is always there and answers `[]` until "
            "`enable_iter_perf_stats` is set. It speaks JSON, not Prometheus",
            *_TRTLLM_PITFALLS,
        ),
        basis="released sources near 1.2 and public issues; 1.2.1's own files were not read",
    ),
    Entry(
        adapter="trtllm",
        engine="TensorRT-LLM, PyTorch backend (trtllm-serve)",
        since=(1, 3, 0, 0),
        versions="1.3.0rc",
        switch=(
            "enable_iter_perf_stats: true and return_perf_metrics: false in the YAML of --config, "
            "then GET /metrics (both true: only /prometheus/metrics, gauges)"
        ),
        settings=(
            "# extra.yaml, given with --config: choose ONE of two ways\n"
            "# (a) loss-free events, for measuring\n"
            "enable_iter_perf_stats: true\n"
            "return_perf_metrics: false\n"
            "# (b) gauges for a dashboard: both true, then scrape /prometheus/metrics\n"
            "# enable_iter_perf_stats: true\n"
            "# return_perf_metrics: true"
        ),
        language="yaml",
        look=(
            "curl -s http://127.0.0.1:$PORT/metrics              # (a)\n"
            "curl -s http://127.0.0.1:$PORT/prometheus/metrics   # (b)"
        ),
        destructive=_DESTRUCTIVE + ". The Prometheus page is not read destructively",
        interval=_TRTLLM_INTERVAL,
        signs=(
            *_TRTLLM_SIGNS,
            *_LATE_1_3_SIGNS,
            _ITER_LOG,
            _DEBUG_LOG,
            _PERF,
        ),
        not_shown=(
            "which request was paused",
            "a true counter of pauses on the Prometheus page: only the gauge",
        ),
        pitfalls=(
            "with both switches on, a background reader feeds Prometheus from the same queue, and "
            "`/metrics` looks empty",
            *_TRTLLM_PITFALLS,
        ),
        basis="public sources of the candidates; which candidate added what is dated, not tested",
    ),
    Entry(
        adapter="trtllm",
        engine="TensorRT-LLM, PyTorch backend (trtllm-serve)",
        since=(1, 4, 0, 0),
        versions="1.4 (candidates)",
        switch=(
            "enable_iter_perf_stats: true, return_perf_metrics: false and "
            "kv_cache_config.use_kv_cache_manager_v2 pinned in the YAML of --config, "
            "then GET /metrics"
        ),
        settings=(
            "# extra.yaml, given with --config\n"
            "enable_iter_perf_stats: true\n"
            "return_perf_metrics: false\n"
            "kv_cache_config:\n"
            "  use_kv_cache_manager_v2: false   # pin it: 1.4.0rc1 changed the default"
        ),
        language="yaml",
        look="curl -s http://127.0.0.1:$PORT/metrics",
        destructive=_DESTRUCTIVE,
        interval=_TRTLLM_INTERVAL,
        signs=(*_TRTLLM_SIGNS, *_LATE_1_3_SIGNS, _ITER_LOG, _DEBUG_LOG, _PERF),
        not_shown=("which request was paused",),
        pitfalls=(
            "KV-cache manager V2 has another scheduler: under MAX_UTILIZATION it may suspend a "
            "request to host memory instead of recomputing it, keeps a list of its own for each, "
            "and resumes by `max_util_for_resume`. Counts of V1 and V2 are not comparable",
            *_TRTLLM_PITFALLS,
        ),
        basis="release notes and pull requests of 1.4.0rc1; no run",
    ),
    Entry(
        adapter="vllm",
        engine="vLLM (vllm serve)",
        since=(0, 0, 0, 0),
        versions="0.32, 0.33",
        switch="metrics are on unless --disable-log-stats is given; GET /metrics",
        settings="vllm serve MODEL …        # do not give --disable-log-stats",
        language="sh",
        look="curl -s http://127.0.0.1:$PORT/metrics | grep -E 'preempt|kv_cache_usage|waiting'",
        destructive="no",
        interval=(
            "1 s for gauges. Preemptions need only a scrape before and one after the run, on the "
            "same server"
        ),
        signs=(
            Sign(
                "vllm:num_preemptions_total",
                Nature.COUNTER,
                "preemptions since the start. Each one frees the request's blocks and computes its "
                "prompt and output so far again",
            ),
            Sign(
                "vllm:request_num_preemptions",
                Nature.COUNTER,
                "histogram: preemptions per ended request (newer versions)",
            ),
            Sign("vllm:kv_cache_usage_perc", Nature.GAUGE, "share of the pool in use, 0 to 1"),
            Sign(
                "vllm:num_requests_running, vllm:num_requests_waiting",
                Nature.GAUGE,
                "preempted requests wait at the front of the queue and count as waiting",
            ),
            Sign(
                "vllm:cache_config_info",
                Nature.GAUGE,
                "labels `num_gpu_blocks` and `block_size`: the pool. One block is the null block "
                "that no request gets",
            ),
        ),
        not_shown=(
            "how many tokens preemptions compute again: estimate it from the lengths, or from the "
            "steps' token counts (`vllm:iteration_tokens_total`)",
            "which request was preempted; `vllm:request_num_preemptions` counts per request, "
            "without its name",
        ),
        pitfalls=(
            "the number of preemptions depends on the client: the same server and load gave 66 to "
            "106 with different clients. Record it per run",
            "a chunk with empty text can be a real token (incomplete UTF-8): chunks undercount",
            "generation_config.json may cap outputs: give `--generation-config vllm`",
            "on a CPU the block size must be a multiple of 32",
        ),
        basis="run on a CPU with 0.32.0; the 0.33.0 wheel was read",
    ),
    Entry(
        adapter="sglang",
        engine="SGLang (sglang.launch_server)",
        since=(0, 0, 0, 0),
        versions="0.5.23",
        switch="--enable-metrics (off by default), then GET /metrics",
        settings="python3 -m sglang.launch_server --model-path MODEL --enable-metrics …",
        language="sh",
        look="curl -s http://127.0.0.1:$PORT/metrics | grep -E 'retract|token_usage|queue'",
        destructive="no",
        interval="1 s for gauges. Retractions need only a scrape before and one after the run",
        signs=(
            Sign(
                "sglang:num_retracted_requests_total",
                Nature.COUNTER,
                "retractions since the start. The request goes to the end of the queue, its KV is "
                "dropped and computed again",
            ),
            Sign(
                "sglang:num_retracted_input_tokens_total, sglang:num_retracted_output_tokens_total",
                Nature.COUNTER,
                "tokens of retracted requests: their sum is what has to be computed again",
            ),
            Sign(
                "sglang:num_retracted_reqs",
                Nature.GAUGE,
                "the last retraction's size. Not a total: do not add it up",
            ),
            Sign(
                "sglang:token_usage, sglang:num_running_reqs, sglang:num_queue_reqs",
                Nature.GAUGE,
                "share of the pool in use; running; waiting, retracted ones among them",
            ),
            Sign(
                "`KV cache pool is full. Retract requests. #retracted_reqs: …, "
                "#new_token_ratio: a -> b`",
                Nature.LOG,
                "each retraction, and how admission becomes more careful after it",
            ),
        ),
        not_shown=("which request was retracted",),
        pitfalls=(
            "`sglang:num_paused_reqs` is about weight updates, not about KV",
            "the last request that does not fit alone is aborted: an error frame in a stream that "
            "began with 200",
            "`--max-total-tokens` is a cap: the profiled pool may be smaller, compare "
            "`max_total_num_tokens`",
        ),
        basis="the 0.5.23 wheel was read; no run",
    ),
    Entry(
        adapter="llamacpp",
        engine="llama.cpp (llama-server)",
        since=(0, 0, 0, 0),
        versions="2026 builds",
        switch="--metrics, then GET /metrics",
        settings="llama-server --model FILE.gguf --metrics …",
        language="sh",
        look="curl -s http://127.0.0.1:$PORT/metrics",
        destructive="no",
        interval="1 s",
        signs=(
            Sign(
                "llamacpp:requests_processing, llamacpp:requests_deferred",
                Nature.GAUGE,
                "running and waiting requests",
            ),
            Sign(
                "`Context size has been exceeded` in a stream or as HTTP 500",
                Nature.EVENT,
                "a full unified cache fails requests; nothing is preempted",
            ),
        ),
        not_shown=("preemptions: there are none, and so no counter",),
        pitfalls=(
            "the error comes inside a stream that began with 200 and has no `[DONE]`: a client "
            "that looks at the status alone counts a short success",
        ),
        basis="run on a CPU",
    ),
)


def release(version: str) -> Release:
    """(major, minor, patch, candidate) of a version text; zeros for what is none."""
    found = re.match(r"v?(\d{1,6})\.(\d{1,6})(?:\.(\d{1,6}))?(?:\.?rc(\d{1,6}))?", version)
    if found is None:
        return (0, 0, 0, 0)
    major, minor, patch, candidate = found.groups()
    last = _FINAL if candidate is None else int(candidate)
    return (int(major), int(minor), int(patch or 0), last)


def entry_for(adapter: str, version: str) -> Entry | None:
    """What is known of an engine version; None for an engine nobody wrote down."""
    own = [entry for entry in ENTRIES if entry.adapter == adapter]
    fitting = [entry for entry in own if entry.since <= release(version)]
    return fitting[-1] if fitting else None


NEVER_PAUSE = frozenset({"llamacpp"})
"""Engines that take no blocks away from a running request, and so have nothing to count."""


def switch_for(adapter: str, version: str) -> str:
    """The option that makes a version show its pauses; empty for an unknown engine."""
    entry = entry_for(adapter, version)
    return "" if entry is None else entry.switch

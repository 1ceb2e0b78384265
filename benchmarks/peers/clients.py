"""How each client is told to put the same load on the scripted server, and where its results lie.

All are asked for what is nearest to our own load: the completions endpoint, streaming, greedy,
`ignore_eos`, usage from the server, no warm-up, a result for every request.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.peers import results
from benchmarks.peers.results import Seen
from benchmarks.peers.setup import PEERS, ROOT

MODEL = "scripted"
PROMPT_TOKENS = 8
_PEER = {peer.name: peer for peer in PEERS}
_OFFLINE = {"HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


@dataclass(frozen=True)
class Task:
    """One load. `out` is an empty folder for results, `tokenizer` a folder with a tokenizer."""

    url: str
    streams: int
    requests: int
    tokens: int
    out: Path
    tokenizer: Path


@dataclass(frozen=True)
class Client:
    """A client: its command line and the reader of what it leaves."""

    name: str
    command: Callable[[Task], list[str]]
    read: Callable[[Task], list[Seen]]
    env: dict[str, str] = field(default_factory=lambda: dict(_OFFLINE))
    overshoots: bool = False

    @property
    def missing(self) -> str | None:
        """Why it cannot run; None when it can."""
        peer = _PEER.get(self.name)
        if peer is None or peer.path.exists():
            return None
        return f"not installed (`python -m benchmarks.peers.setup {self.name}`)"

    @property
    def version(self) -> str:
        """The version that is measured."""
        peer = _PEER.get(self.name)
        return f"{peer.dist} {peer.version}" if peer else "this checkout"

    def environment(self) -> dict[str, str]:
        """Environment variables of its process."""
        return {**os.environ, **self.env, "NO_COLOR": "1", "COLUMNS": "200"}


def _kvstudy(task: Task) -> list[str]:
    argv = [sys.executable, "-m", "benchmarks.peers.ours", "--url", task.url]
    argv += ["--streams", str(task.streams), "--requests", str(task.requests)]
    return [*argv, "--tokens", str(task.tokens), "--out", str(task.out)]


def _raw(task: Task) -> list[str]:
    return [*_kvstudy(task), "--raw"]


def _vllm(task: Task) -> list[str]:
    argv = [str(_PEER["vllm"].path), "bench", "serve", "--backend", "openai"]
    argv += ["--base-url", task.url, "--endpoint", "/v1/completions", "--model", MODEL]
    argv += ["--tokenizer", str(task.tokenizer), "--dataset-name", "random"]
    argv += ["--random-input-len", str(PROMPT_TOKENS), "--random-output-len", str(task.tokens)]
    argv += ["--random-range-ratio", "0", "--num-prompts", str(task.requests)]
    argv += ["--max-concurrency", str(task.streams), "--ignore-eos", "--temperature", "0"]
    argv += ["--seed", "1", "--percentile-metrics", "ttft,tpot,itl,e2el", "--disable-tqdm"]
    argv += ["--save-result", "--save-detailed", "--result-dir", str(task.out)]
    return [*argv, "--result-filename", "result.json"]


def _guidellm(task: Task) -> list[str]:
    backend = f"kind=openai_http,target={task.url},model={MODEL},request_format=/v1/completions"
    data = f"kind=synthetic_text,prompt_tokens={PROMPT_TOKENS},output_tokens={task.tokens}"
    argv = [str(_PEER["guidellm"].path), "run", "--backend", backend]
    argv += ["--profile", f"kind=concurrent,streams={task.streams}"]
    argv += ["--constraint", f"kind=max_requests,count={task.requests}"]
    argv += ["--tokenizer", f"kind=huggingface_auto,model={task.tokenizer}", "--data", data]
    argv += ["--seed", "kind=static,value=1", "--disable-console-interactive"]
    return [*argv, "--output", f"kind=json,path={task.out / 'result.json'}"]


def _evalscope(task: Task) -> list[str]:
    argv = [str(_PEER["evalscope"].path), "perf", "--api", "openai"]
    argv += ["--url", f"{task.url}/v1/completions", "--model", MODEL]
    argv += ["--tokenizer-path", str(task.tokenizer), "--dataset", "random"]
    argv += ["--min-prompt-length", str(PROMPT_TOKENS), "--max-prompt-length", str(PROMPT_TOKENS)]
    argv += ["--prefix-length", "0", "--max-tokens", str(task.tokens)]
    argv += ["--min-tokens", str(task.tokens), "-n", str(task.requests)]
    argv += ["--parallel", str(task.streams), "--seed", "1", "--stream", "--tokenize-prompt"]
    argv += ["--temperature", "0", "--extra-args", '{"ignore_eos":true}', "--no-timestamp"]
    argv += ["--no-test-connection", "--num-workers", "1"]
    return [*argv, "--outputs-dir", str(task.out)]


def _aiperf(task: Task) -> list[str]:
    argv = [str(_PEER["aiperf"].path), "profile", "-m", MODEL, "--url", task.url]
    argv += ["--endpoint-type", "completions", "--streaming", "--tokenizer", str(task.tokenizer)]
    argv += ["--isl", str(PROMPT_TOKENS), "--isl-stddev", "0", "--osl", str(task.tokens)]
    argv += ["--osl-stddev", "0", "--extra-inputs", "ignore_eos:true"]
    argv += ["--extra-inputs", "temperature:0", "--use-server-token-count"]
    argv += ["--concurrency", str(task.streams), "--request-count", str(task.requests)]
    argv += ["--random-seed", "1", "--artifact-dir", str(task.out), "--ui", "none"]
    return [*argv, "--no-gpu-telemetry", "--export-level", "raw"]


def _inference_perf(task: Task) -> list[str]:
    def exactly(count: int) -> dict[str, int]:
        return {"min": count, "max": count, "mean": count, "std_dev": 0, "total_count": 1000}

    stage = {"num_requests": task.requests, "concurrency_level": task.streams}
    load = {"type": "concurrent", "stages": [stage], "num_workers": 1}
    server = {"type": "vllm", "model_name": MODEL, "base_url": task.url, "ignore_eos": True}
    config = {
        "api": {"type": "completion", "streaming": True},
        "data": {
            "type": "random",
            "input_distribution": exactly(PROMPT_TOKENS),
            "output_distribution": exactly(task.tokens),
        },
        "load": {**load, "worker_max_concurrency": 1024},
        "server": server,
        "tokenizer": {"pretrained_model_name_or_path": str(task.tokenizer)},
        "report": {"request_lifecycle": {"summary": True, "per_stage": True, "per_request": True}},
        "storage": {"local_storage": {"path": str(task.out / "report")}},
    }
    path = task.out / "config.yml"
    path.write_text(json.dumps(config), encoding="utf-8")  # JSON is YAML
    return [str(_PEER["inference-perf"].path), "-c", str(path)]


def _genai_bench(task: Task) -> list[str]:
    argv = [str(_PEER["genai-bench"].path), "benchmark", "--api-backend", "vllm"]
    argv += ["--api-base", task.url, "--api-key", "none", "--api-model-name", MODEL]
    argv += ["--model-tokenizer", str(task.tokenizer), "--task", "text-to-text"]
    argv += ["--traffic-scenario", f"D({PROMPT_TOKENS},{task.tokens})"]
    argv += ["--num-concurrency", str(task.streams), "--max-time-per-run", "2"]
    argv += ["--max-requests-per-run", str(task.requests)]
    argv += ["--experiment-base-dir", str(task.out), "--experiment-folder-name", "result"]
    argv += ["--log-dir", str(task.out / "logs")]
    return [*argv, "--additional-request-params", '{"ignore_eos": true, "temperature": 0}']


RAW = Client("raw reader", _raw, lambda _: [])
KVSTUDY = Client("kvstudy", _kvstudy, results.kvstudy)
CLIENTS = (
    KVSTUDY,
    Client("vllm", _vllm, results.vllm),
    Client("evalscope", _evalscope, results.evalscope),
    Client("guidellm", _guidellm, results.guidellm),
    # Offline, aiperf takes a tokenizer's folder for the name of a repository.
    Client("aiperf", _aiperf, results.aiperf, {"HF_HUB_DISABLE_TELEMETRY": "1"}),
    Client("inference-perf", _inference_perf, results.inference_perf),
    Client("genai-bench", _genai_bench, results.genai_bench, overshoots=True),
)
__all__ = ["CLIENTS", "KVSTUDY", "RAW", "ROOT", "Client", "Task"]

"""llama.cpp's own HTTP server out of the `xllamacpp` wheel, with llama-server's flags.

    SIDE_VENV/bin/python xllamacpp_server.py --model FILE.gguf --alias NAME --port P …

It stands in for the `llama-server` binary where only the wheel installs (engines.<name>.command).
It runs in a side environment without kvstudy: standard library and xllamacpp only.
"""

from __future__ import annotations

import argparse
import importlib
import os
import sys
import threading
from typing import Any

_HTTP_THREADS = 64


def parse(argv: list[str]) -> argparse.Namespace:
    """The flags of llama-server that this study uses."""
    parser = argparse.ArgumentParser(prog="xllamacpp_server", allow_abbrev=False)
    parser.add_argument("--model", required=True)
    parser.add_argument("--alias", required=True)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--ctx-size", type=int, required=True)
    parser.add_argument("--parallel", type=int, default=1)
    parser.add_argument("--batch-size", type=int, default=2048)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--cache-ram", type=int, default=0)
    parser.add_argument("--cache-type-k", default="f16", choices=["f16"])
    parser.add_argument("--cache-type-v", default="f16", choices=["f16"])
    parser.add_argument("--kv-unified", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--context-shift", action=argparse.BooleanOptionalAction, default=False)
    parser.add_argument("--metrics", action="store_true")
    return parser.parse_args(argv)


def configured(params: Any, known: argparse.Namespace, api_key: str | None) -> Any:
    """The wheel's parameter object, filled; attributes that a build lacks are left out."""
    params.model.path = known.model
    params.model_alias = known.alias if isinstance(params.model_alias, str) else {known.alias}
    params.hostnames = [known.host]
    wanted = {
        "port": known.port,
        "n_ctx": known.ctx_size,
        "n_parallel": known.parallel,
        "n_batch": known.batch_size,
        "kv_unified": known.kv_unified,
        "ctx_shift": known.context_shift,
        "cache_ram_mib": known.cache_ram,
        "endpoint_metrics": known.metrics,
        "n_threads_http": _HTTP_THREADS,
    }
    if api_key:
        wanted["api_keys"] = [api_key]
    for name, value in wanted.items():
        if hasattr(params, name):
            setattr(params, name, value)
    for threads in (params.cpuparams, params.cpuparams_batch):
        threads.n_threads = known.threads
    return params


def main(argv: list[str]) -> int:
    """Serve until the process is ended."""
    known = parse(argv)
    wheel = importlib.import_module("xllamacpp")
    server = wheel.Server(configured(wheel.CommonParams(), known, os.environ.get("LLAMA_API_KEY")))
    sys.stderr.write(f"n_ctx = {known.ctx_size}, n_parallel = {known.parallel}\n")
    sys.stderr.write(f"listening on {server.listening_address}\n")
    sys.stderr.flush()
    threading.Event().wait()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

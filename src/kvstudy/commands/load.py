"""`kvstudy load`: only the client, against a server that is already up.

Prompts are token ids of exactly the length asked for; output lengths are forced by ignore_eos.
Writes DIR/requests.parquet, DIR/outputs.parquet and DIR/summary.json, and prints the summary.
"""

from __future__ import annotations

import argparse
import asyncio
import os
from dataclasses import asdict
from pathlib import Path
from typing import Any

from kvstudy.base import tables
from kvstudy.base.clock import StudyClock
from kvstudy.base.errors import EXIT_INVALID, EXIT_OK, UsageError
from kvstudy.base.files import write_json
from kvstudy.client.model import Limits, Load, Planned, Progress, Target
from kvstudy.client.open_loop import poisson_arrivals
from kvstudy.client.phase import PhaseResult, run_phase
from kvstudy.commands.parser import Parser
from kvstudy.commands.terminal import note, out_json
from kvstudy.metrics.audit import audit_client, audit_load, audit_requests, valid
from kvstudy.metrics.per_cell import count_columns, latency_columns, throughput_columns
from kvstudy.metrics.per_request import complete
from kvstudy.workload.generate import generate
from kvstudy.workload.tokens import HubTokenizer

_EPILOG = """examples:
  kvstudy load --url http://127.0.0.1:8000 --model m --tokenizer DIR --requests 128 \\
      --input-tokens 2048 --output-tokens 256 --concurrency 32 --out out
  kvstudy load ... --rate 4 --concurrency 64        Poisson arrivals, 4 per second
the server's key, if it wants one, is read from KVSTUDY_API_KEY"""


def parser() -> Parser:
    """The command line."""
    made = Parser(
        prog="kvstudy load",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    made.add_argument("--url", required=True)
    made.add_argument("--model", required=True)
    made.add_argument("--tokenizer", required=True, type=Path, help="folder with tokenizer.json")
    for name in ("requests", "input-tokens", "output-tokens"):
        made.add_argument(f"--{name}", required=True, type=_positive)
    made.add_argument("--concurrency", type=_positive, help="closed-loop lanes")
    made.add_argument("--rate", type=_rate, help="requests per second, Poisson; opens the loop")
    made.add_argument("--seed", type=int, default=0)
    made.add_argument("--out", required=True, type=Path)
    made.add_argument("--json", action="store_true", help="the default; kept for uniformity")
    return made


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text}")
    return value


def _rate(text: str) -> float:
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number above 0, got {text}")
    return value


def main(argv: list[str]) -> int:
    """Generate, send, write, print; exit 2 when a request failed or the client was too slow."""
    args = parser().parse_args(argv)
    if args.concurrency is None and args.rate is None:
        raise UsageError("kvstudy load: give --concurrency N, or --rate R for an open loop")
    tokenizer = HubTokenizer(args.tokenizer)
    planned = _planned(args, tokenizer)
    clock = StudyClock()
    load = Load(None if args.rate is not None else args.concurrency)
    target = Target(args.url.rstrip("/"), args.model, os.environ.get("KVSTUDY_API_KEY"))
    result = asyncio.run(
        run_phase(target, planned, load, Limits(), clock, on_progress=_show(len(planned)))
    )
    requests, summary = _evaluate(args, result, tokenizer)
    tables.write(args.out / "requests.parquet", requests, tables.LOAD_REQUESTS)
    tables.write(args.out / "outputs.parquet", result.texts, tables.OUTPUTS)
    write_json(args.out / "summary.json", summary)
    out_json(summary)
    return EXIT_OK if summary["valid"] else EXIT_INVALID


def _planned(args: argparse.Namespace, tokenizer: HubTokenizer) -> list[Planned]:
    spec = {
        "name": "load",
        "seed": args.seed,
        "requests": args.requests,
        "input_tokens": args.input_tokens,
        "output_tokens": args.output_tokens,
        "output_cap_tokens": args.output_tokens,
        "warmup": None,
    }
    arrivals: list[float | None] = [None] * args.requests
    if args.rate is not None:
        arrivals = list(poisson_arrivals(args.requests, args.rate, args.seed))
    return [
        Planned(
            request_id=row["request_id"],
            prompt=row["prompt_token_ids"],
            input_tokens=row["input_tokens"],
            output_tokens=row["output_tokens"],
            output_cap_tokens=row["output_cap_tokens"],
            arrival_s=arrival,
        )
        for row, arrival in zip(generate(spec, tokenizer), arrivals, strict=True)
    ]


def _show(total: int) -> Any:
    def show(now: Progress) -> None:
        note(f"{now.finished}/{total} requests, {now.in_flight} in flight, {now.failed} failed")

    return show


def _evaluate(
    args: argparse.Namespace, result: PhaseResult, tokenizer: HubTokenizer
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    counts = dict(
        zip(
            (text["request_id"] for text in result.texts),
            tokenizer.count([text["text"] for text in result.texts]),
            strict=True,
        )
    )
    requests = [complete(row, {}, counts.get(row["request_id"])) for row in result.rows]
    lanes = args.concurrency if args.rate is None else 0
    audit = asdict(result.audit)
    codes = audit_requests(requests, args.requests, prefix_reuse=True) + audit_client(audit)
    if lanes:
        codes += audit_load(requests, lanes)
    summary = {
        "valid": valid(codes),
        "reasons": codes,
        **count_columns(requests, args.requests),
        **throughput_columns(requests, lanes, {}),
        **latency_columns(requests),
        "audit": audit,
    }
    return requests, summary

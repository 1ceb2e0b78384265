"""`kvstudy advise`: what KV pressure will do to a load, which policy to use, what to watch."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from kvstudy.base.errors import UsageError
from kvstudy.base.units import BYTES_PER_GIB, s_to_ns
from kvstudy.commands.parser import Parser
from kvstudy.commands.terminal import out, out_json, table
from kvstudy.explain import roofline
from kvstudy.explain.advise import Constants, Question, advise
from kvstudy.explain.loads import FORMS, Load, drawn_load, read_trace
from kvstudy.explain.model_card import BYTES, ModelCard, read_card
from kvstudy.explain.scenario import Scenario
from kvstudy.explain.versions import POLICIES
from kvstudy.sim.model import Policy
from kvstudy.sim.spec import parse
from kvstudy.sim.timing import PUBLISHED_FIT, StepTime

_EPILOG = """examples:
  kvstudy advise --pool-tokens 368640 --version 1.2.1 --input-tokens 16384 --output-tokens 512
  kvstudy advise --model DIR --gpu H200 --version 1.3.0rc22 --input-tokens 2048 \\
      --output-tokens uniform:128:2048 --cap 8192 --concurrency 64 --max-batch-size 256
  kvstudy advise --pool-tokens 400000 --version 1.2.1 --trace requests.csv --json"""

_MISS = 0.03
"""Largest miss of the published fit on the rows it was fitted to (docs/calibrate.md)."""


def main(argv: list[str]) -> int:
    """Ask the model, print the answer."""
    args = _parser().parse_args(argv)
    document = advise(question_of(args))
    if args.json:
        out_json(document)
    else:
        _print(document)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = Parser(
        prog="kvstudy advise",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    place = parser.add_argument_group("model and memory")
    place.add_argument("--model", type=Path, help="folder with config.json, or that file")
    place.add_argument("--kv-bytes-per-token", type=int, help="instead of --model")
    place.add_argument("--kv-dtype", default="auto", help=f"auto, {', '.join(BYTES)}")
    place.add_argument("--gpu", help=f"one of {', '.join(gpu.name for gpu in roofline.GPUS)}")
    place.add_argument("--tp", type=int, default=1)
    place.add_argument("--free-fraction", type=float, default=0.9)
    place.add_argument("--pool-tokens", type=int, help="the KV pool, as the server's log prints it")
    place.add_argument("--pool-gib", type=float, help="the pool in GiB; needs the bytes per token")
    place.add_argument("--constants", type=Path, help="output of kvstudy calibrate --json")
    engine = parser.add_argument_group("engine")
    engine.add_argument("--engine", choices=list(POLICIES), default="trtllm")
    engine.add_argument("--version", required=True)
    engine.add_argument("--policy", type=str.upper, help="what you use now")
    engine.add_argument("--block-tokens", type=int, default=32)
    engine.add_argument("--max-batch-size", type=int, default=64)
    engine.add_argument("--max-num-tokens", type=int, default=8192)
    engine.add_argument("--no-chunked-prefill", action="store_true")
    load = parser.add_argument_group("load")
    load.add_argument("--input-tokens", help=FORMS)
    load.add_argument("--output-tokens", help=f"true lengths: {FORMS}")
    load.add_argument("--cap", type=int, help="max_tokens sent; default: the longest output")
    load.add_argument("--concurrency", type=int, help="closed-loop lanes; default 32")
    load.add_argument("--requests", type=int, help="default: 4 per lane")
    load.add_argument("--trace", type=Path, help=".csv or .jsonl with input_tokens, output_tokens")
    load.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="for machines")
    return parser


def question_of(args: argparse.Namespace) -> Question:
    """The question the flags ask; UsageError or SpecError where they make none."""
    for name in ("tp", "concurrency", "requests", "cap", "pool_tokens", "kv_bytes_per_token"):
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(
                f"--{name.replace('_', '-')}: expected a whole number >= 1, got {value}"
            )
    if not 0 < args.free_fraction <= 1:
        raise UsageError(f"--free-fraction: expected a number in (0, 1], got {args.free_fraction}")
    card = None if args.model is None else read_card(args.model, args.kv_dtype)
    pool, pool_words = _pool(args, card)
    return Question(
        adapter=args.engine,
        version=args.version,
        scenario=_scenario(args, _load(args), pool),
        constants=_constants(args, card),
        pool_words=pool_words,
        policy=_policy(args),
    )


def _pool(args: argparse.Namespace, card: ModelCard | None) -> tuple[int, str]:
    """Tokens of the pool and where the number is from."""
    if args.pool_tokens is not None:
        return args.pool_tokens, "given"
    per_token = card.kv_bytes_per_token if card is not None else args.kv_bytes_per_token
    if args.pool_gib is not None:
        if per_token is None:
            raise UsageError("--pool-gib: needs --model or --kv-bytes-per-token")
        if not 0 < args.pool_gib < 1e6:
            raise UsageError(f"--pool-gib: expected a number above 0, got {args.pool_gib}")
        return int(args.pool_gib * BYTES_PER_GIB // per_token), "given in GiB"
    if card is None or args.gpu is None:
        raise UsageError("give --pool-tokens, or --pool-gib, or --model with --gpu")
    gpu = roofline.gpu_named(args.gpu)
    tokens = roofline.pool_tokens(card, gpu, args.tp, args.free_fraction)
    return tokens, f"estimated from model and GPU ({gpu.source})"


def _load(args: argparse.Namespace) -> Load:
    if args.trace is not None:
        if args.input_tokens or args.output_tokens or args.requests or args.cap:
            raise UsageError("--trace: the file has the lengths; drop the other length flags")
        load = read_trace(args.trace)
        return load if args.concurrency is None else Load(load.requests)
    if args.input_tokens is None or args.output_tokens is None:
        raise UsageError("give --input-tokens and --output-tokens, or --trace")
    count = args.requests or 4 * (args.concurrency or 32)
    flags = ("--input-tokens", "--output-tokens")
    return drawn_load(args.input_tokens, args.output_tokens, args.cap, count, args.seed, flags)


def _scenario(args: argparse.Namespace, load: Load, pool_tokens: int) -> Scenario:
    """The scenario, checked by the simulator's own strict reader."""
    policy = POLICIES[args.engine][0]
    names = ("input_tokens", "output_tokens", "output_cap_tokens")
    document: dict[str, Any] = {
        "policy": policy.value,
        "pool_tokens": pool_tokens,
        "block_tokens": args.block_tokens,
        "max_batch_size": args.max_batch_size,
        "max_num_tokens": args.max_num_tokens,
        "chunked_prefill": not args.no_chunked_prefill,
        "concurrency": args.concurrency or 32,
        "requests": [dict(zip(names, request, strict=True)) for request in load.requests],
    }
    if load.arrivals_s is not None:
        document["arrivals"] = {"trace_s": load.arrivals_s}
    spec = parse(document)
    arrivals = None if load.arrivals_s is None else tuple(map(s_to_ns, load.arrivals_s))
    return Scenario(
        spec.engine, tuple(spec.requests), spec.concurrency, spec.admission_lag_steps, arrivals
    )


def _constants(args: argparse.Namespace, card: ModelCard | None) -> Constants:
    """From a calibration, else a roofline, else the published fit; each says how sure it is."""
    if args.constants is not None:
        return _calibrated(args.constants)
    if card is not None and args.gpu is not None:
        gpu = roofline.gpu_named(args.gpu)
        best, low, high = (
            roofline.step_time(card, gpu, args.tp, efficiency)
            for efficiency in (roofline.TYPICAL, roofline.PESSIMISTIC, roofline.OPTIMISTIC)
        )
        words = f"a roofline of {card.name} on {args.tp} x {gpu.name}, uncalibrated"
        return Constants(best, (low, high), "uncalibrated", words)
    others = [_scaled(PUBLISHED_FIT, 1 - _MISS), _scaled(PUBLISHED_FIT, 1 + _MISS)]
    words = (
        "fitted to published rows of Llama-3.3-70B FP8 on one H200; for another model or GPU take "
        "ratios only, or give --model and --gpu, or --constants"
    )
    return Constants(PUBLISHED_FIT, others, "fitted", words)


def _scaled(constants: StepTime, factor: float) -> StepTime:
    return replace(constants, **{name: v * factor for name, v in asdict(constants).items()})


def _calibrated(path: Path) -> Constants:
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        best = StepTime(**document["step_time"])
        others = [StepTime(**entry) for entry in document["extremes"]]
    except (OSError, UnicodeDecodeError, ValueError, KeyError, TypeError) as error:
        raise UsageError(
            f"--constants: {path} is not the output of kvstudy calibrate --json ({error!r})"
        ) from None
    return Constants(best, others, "fitted", f"fitted by kvstudy calibrate ({path.name})")


def _policy(args: argparse.Namespace) -> Policy | None:
    if args.policy is None:
        return None
    known = [policy.name for policy in POLICIES[args.engine]]
    if args.policy not in known:
        raise UsageError(f"--policy: expected one of {', '.join(known)}, got {args.policy}")
    return Policy[args.policy]


def _print(document: dict[str, Any]) -> None:
    load, pool = document["load"], document["pool"]
    lanes = f"{load['concurrency']} lanes" if load["concurrency"] else "an open loop"
    out(
        f"Load: {load['requests']:,} requests, {load['input_tokens_mean']:,.0f} in, "
        f"{load['output_tokens_mean']:,.0f} out (cap {load['output_cap_tokens_max']:,}), {lanes}"
    )
    per = pool["blocks_per_request"]
    demand = pool["oversubscription"]
    out(
        f"Pool: {pool['tokens']:,} tokens = {pool['blocks']:,} blocks ({pool['from']}); a request "
        f"takes {per['prompt']} for its prompt, {per['full']} with its cap"
        + (f"; demand {demand:.2f} x pool" if demand else "")
    )
    out("")
    rows = [*document["policies"]]
    if document["if_pauses_only_recompute"]:
        rows.append(document["if_pauses_only_recompute"])
    head = ["policy", "pause", "fit", "held", "tok/s", "range", "TTFT p50 s", "TPOT p50 ms"]
    table([*head, "TPOT p99 ms", "e2e p99 s", "pauses"], [_line(row) for row in rows])
    out("")
    setting, cost = document["setting"], document["pause_cost"]
    out(f"Use: {setting['use'] or 'no choice'}, because {setting['why']}.")
    if setting.get("agrees") is False:
        out(f"You use {setting['asked_for']} now.")
    out(
        f"A pause in {document['engine']} {document['version']} ({cost['basis']}): {cost['words']}."
    )
    for text in (setting["yaml"], document["watch"]["settings"], document["watch"]["look"]):
        for line in text.rstrip().splitlines():
            out(f"    {line}")
    for sign in document["watch"]["signs"][:3]:
        out(f"Watch {sign['name']} ({sign['nature']}): {sign['meaning']}.")
    for line in document["not_known"]:
        out(f"Not known: {line}.")


def _line(row: dict[str, Any]) -> list[str]:
    if row["stuck"]:
        name, pause, fit = row["policy"], row["pause"], str(row["residents_by_arithmetic"])
        return [name, pause, fit, "stuck", *[""] * 7]
    speed = row["output_tok_per_s"]
    return [
        row["policy"],
        row["pause"],
        str(row["residents_by_arithmetic"]),
        str(row["residents_max"]),
        f"{speed['value']:,.1f}",
        f"{speed['low']:,.0f} to {speed['high']:,.0f}",
        _shown(row["ttft_p50_ms"], 1e-3),
        _shown(row["tpot_p50_ms"]),
        _shown(row["tpot_p99_ms"]),
        _shown(row["e2e_p99_s"]),
        f"{row['pauses']:,}",
    ]


def _shown(number: dict[str, float | None], factor: float = 1.0) -> str:
    value = number["value"]
    return "-" if value is None else f"{value * factor:,.1f}"

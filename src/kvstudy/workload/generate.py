"""A workload's fixed request set: exact lengths, no shared beginnings, same bytes everywhere."""

from __future__ import annotations

from typing import Any

from kvstudy.base.digest import sha256_json, sha256_token_ids
from kvstudy.base.errors import DataError
from kvstudy.workload.lengths import draw, rng_for, submission_order
from kvstudy.workload.tokens import Tokenizer, plain_token_ids

PHASES = ("warmup", "measured")
_PREFIX_TOKENS = 4


def generate(spec: dict[str, Any], tokenizer: Tokenizer) -> list[dict[str, Any]]:
    """Rows of `tables.WORKLOAD` for one workload slice: warm-up first, then measured.

    Every prompt has exactly its planned number of ids, re-tokenises from its text to the same
    ids, and differs from every other within its first four tokens, so that no two share a KV
    block whatever the block size. Raises DataError if the tokenizer breaks that.
    """
    plain = plain_token_ids(tokenizer)
    seed, name = spec["seed"], spec["name"]
    rows: list[dict[str, Any]] = []
    prefixes: set[tuple[int, ...]] = set()
    for phase in PHASES:
        count = _count(spec, phase)
        inputs = draw(spec["input_tokens"], count, rng_for(seed, "input", name, phase))
        outputs = draw(spec["output_tokens"], count, rng_for(seed, "output", name, phase))
        for index in range(count):
            rng = rng_for(seed, "prompt", name, phase, index)
            ids = _prompt(plain, inputs[index], prefixes, rng)
            rows.append(_row(spec, phase, index, ids, outputs[index], tokenizer))
    return rows


def _count(spec: dict[str, Any], phase: str) -> int:
    if phase == "measured":
        return int(spec["requests"])
    return int(spec["warmup"]["requests"]) if spec["warmup"] else 0


def _prompt(plain: list[int], length: int, prefixes: set[tuple[int, ...]], rng: Any) -> list[int]:
    while True:
        ids: list[int] = rng.choices(plain, k=length)
        prefix = tuple(ids[:_PREFIX_TOKENS])
        if prefix not in prefixes:
            prefixes.add(prefix)
            return ids
        if length < _PREFIX_TOKENS and len(prefixes) >= len(plain) ** length:
            raise DataError(f"prompts of {length} tokens cannot all differ; make them longer")


def _row(
    spec: dict[str, Any],
    phase: str,
    index: int,
    ids: list[int],
    output_tokens: int,
    tokenizer: Tokenizer,
) -> dict[str, Any]:
    text = tokenizer.decode(ids)
    request_id = f"{spec['name']}-{'w' if phase == 'warmup' else 'm'}{index:05d}"
    if tokenizer.encode(text) != ids:
        raise DataError(f"{request_id}: the prompt's text does not re-tokenise to its ids")
    return {
        "request_id": request_id,
        "phase": phase,
        "index": index,
        "input_tokens": len(ids),
        "output_tokens": output_tokens,
        "output_cap_tokens": spec["output_cap_tokens"],
        "arrival_s": None,
        "prompt_token_ids": ids,
        "prompt_text": text,
        "prompt_sha256": sha256_token_ids(ids),
    }


def manifest(
    spec: dict[str, Any], rows: list[dict[str, Any]], tokenizer_sha256: str, repeats: int = 3
) -> dict[str, Any]:
    """What fixes the set, what it holds, and a digest per request and for the whole.

    `order_sha256` shows the submission orders of the first repeats.
    """
    requests = {
        row["request_id"]: {
            "input_tokens": row["input_tokens"],
            "output_tokens": row["output_tokens"],
            "output_cap_tokens": row["output_cap_tokens"],
            "prompt_sha256": row["prompt_sha256"],
        }
        for row in rows
    }
    measured = sum(row["phase"] == "measured" for row in rows)
    return {
        "spec": spec,
        "tokenizer_sha256": tokenizer_sha256,
        "requests": requests,
        "set_sha256": sha256_json(requests),
        "order_sha256": {
            str(repeat): sha256_json(submission_order(spec["seed"], spec["name"], repeat, measured))
            for repeat in range(1, repeats + 1)
        },
    }

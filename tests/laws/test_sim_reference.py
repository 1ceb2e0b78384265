"""The engine against the simplest possible reading of the scheduler contract.

`naive` is written from the rules alone: lists, loops, floats, one step at a time, nothing shared
with the package. Counts must agree exactly, times to a few float roundings.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvstudy.base.errors import LivelockError
from kvstudy.sim.replay import simulate, simulate_rows

SEEDED = settings(max_examples=2500, derandomize=True, deadline=None, database=None)
UNPRINTED = ("wall_s", "requests", "within_prompt")


class StuckError(Exception):
    """Nothing can ever be scheduled again."""


def naive(spec: dict[str, Any]) -> dict[str, Any]:  # noqa: C901, PLR0912, PLR0915  one page
    """Closed loop under guaranteed_no_evict or max_utilization, FCFS chunks, all pause modes."""
    block: int = spec["block_tokens"]
    total: int = spec["pool_tokens"] // block
    seats, budget = spec["max_batch_size"], spec["max_num_tokens"]
    greedy, pause = spec["policy"] == "max_utilization", spec["pause"]
    cut = pause["truncate_to_tokens"] if isinstance(pause, dict) else 10**9
    cost = spec["step_time"]

    def blocks(tokens: int) -> int:
        return math.ceil(tokens / block)

    everyone = [
        {
            "in": r["input_tokens"],
            "out": r["output_tokens"],
            "cap": r["output_cap_tokens"],
            "context": r["input_tokens"],  # tokens to compute before it generates
            "done": 0,  # of them
            "made": 0,  # tokens made since then, hidden ones included
            "unseen": 0,  # hidden tokens still to make
            "sent": [],  # times of streamed tokens
            "held": 0,
        }
        for r in spec["requests"]
    ]
    unsent = list(everyone)
    active: list[Any] = []
    late: list[Any] = []
    now, step = 0.0, 0
    seen = {
        "pauses": 0,
        "recomputed": 0,
        "prefilled": 0,
        "hidden": 0,
        "peak": 0,
        "residents": 0,
        "within_prompt": 0,
    }

    def free() -> int:
        held: int = sum(r["held"] for r in everyone)
        return total - held

    def generates(r: Any) -> bool:
        return bool(r["made"] > 0)

    def started(r: Any) -> bool:
        return bool(r["done"] > 0)

    def kv(r: Any) -> int:
        return int(r["context"] + r["made"] - 1)

    def reserve(r: Any) -> int:
        return blocks(r["in"] + r["cap"]) - int(r["held"])

    def stop(r: Any) -> None:
        tokens = r["in"] + len(r["sent"])
        seen["within_prompt"] += not generates(r)
        r["context"], r["done"], r["made"] = min(cut, tokens), 0, 0
        r["unseen"] = tokens - r["context"]
        seen["pauses"] += 1
        seen["recomputed"] += r["context"]
        if pause != "never_release":
            r["held"] = 0

    def choose_reserving() -> list[Any]:
        chosen = [r for r in active if started(r)]
        left = free() - sum(reserve(r) for r in chosen)
        for r in active:
            if started(r):
                continue
            if len(chosen) >= seats or reserve(r) > left:
                break
            left -= reserve(r)
            chosen.append(r)
        return [r for r in active if any(r is one for one in chosen)]

    def choose_greedy() -> list[Any]:
        end, at, claimed = len(active), 0, 0
        chosen: list[Any] = []
        while at < end:
            r = active[at]
            if generates(r):
                need = blocks(kv(r) + 1) - r["held"]
            elif started(r):
                need = 0
            else:
                need = max(0, blocks(r["context"]) - r["held"])
            if len(chosen) < seats and claimed + need <= free():
                claimed += need
                chosen.append(r)
                at += 1
                continue
            victims = [i for i in range(at, end) if started(active[i])]
            if not victims:
                break
            end = victims[-1]
            stop(active[end])
        return chosen

    def submit() -> None:
        r = unsent.pop(0)
        r["submitted"] = now
        late.append((step + 1 + spec["admission_lag_steps"], r))

    for r in unsent[: spec["concurrency"]]:
        r["submitted"] = 0.0
        active.append(r)
    del unsent[: spec["concurrency"]]
    while active or late:
        active += [r for due, r in late if due <= step + 1]
        late = [(due, r) for due, r in late if due > step + 1]
        pauses = seen["pauses"]
        chosen = choose_greedy() if greedy else choose_reserving()
        generating = [r for r in chosen if generates(r)][:budget]
        left = budget - len(generating)
        chunks = []
        for r in chosen:
            if generates(r):
                continue
            rest = r["context"] - r["done"]
            if rest > left and not spec["chunked_prefill"]:
                break
            size = rest if rest <= left else left // block * block
            left -= size
            if size:
                chunks.append((r, size))
        if not generating and not chunks:
            if seen["pauses"] > pauses:
                continue
            if not late:
                raise StuckError
            active += [r for _, r in late]
            late = []
            continue
        step += 1
        for r in generating:
            r["held"] = max(r["held"], blocks(kv(r) + 1))
        for r, _ in chunks:
            r["held"] = max(r["held"], blocks(r["context"]))
        seen["peak"] = max(seen["peak"], total - free())
        seen["residents"] = max(seen["residents"], sum(r["held"] > 0 for r in everyone))
        now += cost["fixed_s"] + cost["per_generation_s"] * len(generating)
        now += cost["per_generation_context_token_s"] * sum(kv(r) for r in generating)
        for r, size in chunks:
            now += cost["per_context_token_s"] * size
            now += cost["per_context_attention_s"] * size * (r["done"] + size / 2)
            r["done"] += size
            seen["prefilled"] += size
        makers = generating + [r for r, _ in chunks if r["done"] == r["context"]]
        for r in makers:
            r["made"] += 1
            if r["unseen"]:
                r["unseen"] -= 1
                seen["hidden"] += 1
            else:
                r["sent"].append(now)
        for r in [r for r in active if len(r["sent"]) == r["out"]]:
            r["held"] = 0
            active = [other for other in active if other is not r]
            if unsent:
                submit()
    return {**seen, "iterations": step, "wall_s": now, "requests": everyone}


def drawn(seed: int) -> dict[str, Any]:
    """A spec drawn evenly from small sizes with a tight pool, so that a third of them pause."""
    rng = random.Random(seed)
    block = rng.randint(1, 6)
    requests = []
    for _ in range(rng.randint(2, 12)):
        output = rng.randint(1, 30)
        cap = output + rng.choice([0, 0, 1, 5, 20])
        entry = {"input_tokens": rng.randint(1, 30), "output_tokens": output}
        requests.append({**entry, "output_cap_tokens": cap})
    largest = max(-(-(r["input_tokens"] + r["output_cap_tokens"]) // block) for r in requests)
    chunked = rng.random() < 0.75
    pauses = ["recompute", {"truncate_to_tokens": rng.randint(1, 40)}, "never_release"]
    return {
        "policy": rng.choice(["max_utilization"] * 3 + ["guaranteed_no_evict"]),
        "pause": rng.choice(pauses),
        "pool_tokens": (largest + rng.randint(0, 12)) * block + rng.randint(0, block - 1),
        "block_tokens": block,
        "max_batch_size": rng.choice([1, 2, 3, 8, 64]),
        "max_num_tokens": rng.randint(block, 40) if chunked else rng.randint(30, 90),
        "chunked_prefill": chunked,
        "concurrency": rng.randint(1, 8),
        "admission_lag_steps": rng.randint(0, 4),
        "requests": requests,
        "step_time": {
            "fixed_s": 0.01,
            "per_generation_s": 0.001,
            "per_generation_context_token_s": 3e-4,
            "per_context_token_s": 2e-3,
            "per_context_attention_s": 1e-4,
        },
    }


SEEDS = st.integers(0, 2**63)


@given(SEEDS)
@SEEDED
def test_the_engine_agrees_with_the_naive_reading(seed: int) -> None:
    """Law 12: same counts, same times, same refusals."""
    check(drawn(seed))


def check(spec: dict[str, Any]) -> None:
    try:
        expected = naive(spec)
    except StuckError:
        with pytest.raises(LivelockError):
            simulate(spec)
        return
    out = simulate(spec)
    assert {
        "iterations": out["iterations"],
        "pauses": out["pauses"],
        "recomputed": out["recomputed_tokens"],
        "prefilled": out["prefilled_tokens"],
        "hidden": out["hidden_tokens"],
        "peak": out["peak_blocks"],
        "residents": out["residents_max"],
    } == {key: value for key, value in expected.items() if key not in UNPRINTED}
    assert out["wall_s"] == pytest.approx(expected["wall_s"], rel=1e-6)
    for row, request in zip(simulate_rows(spec), expected["requests"], strict=True):
        for name, time_s in (
            ("submitted_ns", request["submitted"]),
            ("first_token_ns", request["sent"][0]),
            ("last_token_ns", request["sent"][-1]),
        ):
            assert row[name] / 1e9 == pytest.approx(time_s, rel=1e-6, abs=1e-6)


def test_the_specs_reach_what_they_are_for() -> None:
    """Many of the drawn specs pause, hide tokens, pause within a prompt, or get stuck."""
    reached = Counter[str]()
    for seed in range(400):
        try:
            out = naive(drawn(seed))
        except StuckError:
            reached["stuck"] += 1
            continue
        reached.update(name for name in ("pauses", "hidden", "within_prompt") if out[name])
    assert reached["pauses"] >= 80
    assert reached["hidden"] >= 25
    assert reached["within_prompt"] >= 10
    assert reached["stuck"] >= 20

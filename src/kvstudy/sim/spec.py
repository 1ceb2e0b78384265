"""The simulation spec: a JSON object, parsed once and strictly into frozen types.

Keys (all counts are whole numbers; defaults in brackets):

    policy                guaranteed_no_evict | max_utilization | static_batch | vllm_recompute
                          | sglang_retract
    pause                 "recompute" | {"truncate_to_tokens": n} | "never_release" ["recompute"]
    pool_tokens           size of the KV pool; a part of a block is not used
    block_tokens          [32]       max_batch_size  [64]       max_num_tokens  [8192]
    chunked_prefill       [true]     chunk_policy    "fcfs" | "equal_progress" ["fcfs"]
    chunk_unit_tokens     [block_tokens]
    concurrency           lanes of the closed loop; not used if `arrivals` is given
    admission_lag_steps   [2]
    arrivals              {"poisson_per_s": r} | {"constant_per_s": r} | {"trace_s": [t, ...]}
    requests              one of, or a list of, {input_tokens, output_tokens,
                          output_cap_tokens [output_tokens], count [1]}, in submission order
    step_time             {fixed_s, per_generation_s, per_generation_context_token_s,
                          per_context_token_s, per_context_attention_s}; a term that is not given
                          is not in the model [kvstudy.sim.timing.PUBLISHED_FIT]
    seed                  of Poisson arrivals [0]
    vllm, sglang          knobs: see VllmOptions and SglangOptions in kvstudy.sim.model

Every problem is a SpecError that names the key, what was expected and the value.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, TypeVar

from kvstudy.base.errors import SpecError
from kvstudy.base.units import s_to_ns
from kvstudy.sim import load
from kvstudy.sim.fields import Fields
from kvstudy.sim.model import (
    ChunkPolicy,
    EngineSpec,
    Pause,
    Policy,
    SglangOptions,
    VllmOptions,
)
from kvstudy.sim.request import blocks_of
from kvstudy.sim.timing import PUBLISHED_FIT, StepTime

_MAX_REQUESTS = 5_000_000
_MAX_TOKENS = 1 << 40
_ENGINE_KEYS = (
    "policy",
    "pause",
    "pool_tokens",
    "block_tokens",
    "max_batch_size",
    "max_num_tokens",
    "chunked_prefill",
    "chunk_policy",
    "chunk_unit_tokens",
    "step_time",
    "vllm",
    "sglang",
)
_LOAD_KEYS = ("concurrency", "admission_lag_steps", "arrivals", "requests", "seed")
_RECOMPUTE_ONLY = (Policy.VLLM_RECOMPUTE, Policy.SGLANG_RETRACT)

O = TypeVar("O", VllmOptions, SglangOptions)  # noqa: E741


@dataclass(frozen=True, slots=True)
class RequestShape:
    """Lengths of one request, in tokens: prompt, true output, and the cap the client sends."""

    input_tokens: int
    output_tokens: int
    output_cap_tokens: int


@dataclass(frozen=True, slots=True)
class SimSpec:
    """One run: an engine, the requests in submission order, and when they are submitted.

    `arrivals_ns` is None in a closed loop of `concurrency` lanes.
    """

    engine: EngineSpec
    requests: Sequence[RequestShape]
    concurrency: int
    admission_lag_steps: int
    arrivals_ns: Sequence[int] | None
    seed: int


def parse(document: object) -> SimSpec:
    """The whole spec; SpecError for the first thing that is wrong."""
    keys = Fields.of(document, "", (*_ENGINE_KEYS, *_LOAD_KEYS))
    engine = _engine(keys)
    requests = _requests(keys.required("requests"))
    _check_fit(engine, requests)
    seed = keys.whole("seed", default=0)
    arrivals_ns = _arrivals(keys.get("arrivals"), len(requests), seed)
    open_loop = arrivals_ns is not None
    return SimSpec(
        engine=engine,
        requests=requests,
        concurrency=keys.whole("concurrency", low=1, default=1 if open_loop else None),
        admission_lag_steps=keys.whole("admission_lag_steps", default=2),
        arrivals_ns=arrivals_ns,
        seed=seed,
    )


def parse_engine(document: object) -> EngineSpec:
    """An engine alone, from the spec's engine keys (`policy` ... `sglang`, see the module)."""
    return _engine(Fields.of(document, "", _ENGINE_KEYS))


def _engine(keys: Fields) -> EngineSpec:
    policy = keys.choice("policy", Policy)
    block_tokens = keys.whole("block_tokens", low=1, default=32)
    pause = _pause(keys.get("pause", "recompute"))
    if policy in _RECOMPUTE_ONLY and pause != Pause():
        raise keys.error("pause", f'"recompute", the only way of {policy.value}')
    engine = EngineSpec(
        policy=policy,
        pool_blocks=keys.whole("pool_tokens", low=1) // block_tokens,
        pause=pause,
        block_tokens=block_tokens,
        max_batch_size=keys.whole("max_batch_size", low=1, default=64),
        max_num_tokens=keys.whole("max_num_tokens", low=1, default=8192),
        chunked_prefill=keys.flag("chunked_prefill", default=True),
        chunk_policy=keys.choice("chunk_policy", ChunkPolicy, default=ChunkPolicy.FCFS),
        chunk_unit_tokens=keys.whole("chunk_unit_tokens", low=1, default=block_tokens),
        step_time=_step_time(keys.get("step_time")),
        vllm=_options(keys.get("vllm", {}), "vllm", VllmOptions()),
        sglang=_options(keys.get("sglang", {}), "sglang", SglangOptions()),
    )
    if engine.usable_blocks < 1:
        raise keys.error("pool_tokens", f"at least one block of {block_tokens} tokens")
    return engine


def _pause(value: object) -> Pause:
    if value == "recompute":
        return Pause()
    if value == "never_release":
        return Pause(never_release=True)
    if isinstance(value, Mapping):
        keys = Fields.of(value, "pause", ("truncate_to_tokens",))
        return Pause(truncate_to_tokens=keys.whole("truncate_to_tokens", low=1))
    raise SpecError(
        'pause: expected "recompute", "never_release" or {"truncate_to_tokens": n}, '
        f"got {value!r}"
    )


def _step_time(value: object) -> StepTime:
    if value is None:
        return PUBLISHED_FIT
    names = [field.name for field in fields(StepTime)]
    keys = Fields.of(value, "step_time", names)
    return StepTime(**{name: keys.number(name, high=3600.0, default=0.0) for name in names})


def _options(value: object, path: str, defaults: O) -> O:
    """The knobs of one policy; a flag stays a flag, a count a count, the rest numbers."""
    names = [field.name for field in fields(defaults)]
    keys = Fields.of(value, path, names)
    given: dict[str, Any] = {}
    for name in names:
        default = getattr(defaults, name)
        if isinstance(default, bool):
            given[name] = keys.flag(name, default=default)
        elif isinstance(default, int):
            given[name] = keys.whole(name, low=1, default=default)
        else:
            given[name] = keys.number(name, high=100.0, default=default)
    return type(defaults)(**given)


def _requests(value: object) -> list[RequestShape]:
    entries = [value] if isinstance(value, Mapping) else value
    if not isinstance(entries, list) or not entries:
        raise SpecError(f"requests: expected a list of at least one request, got {value!r}")
    shapes: list[RequestShape] = []
    for index, entry in enumerate(entries):
        path = "requests" if isinstance(value, Mapping) else f"requests[{index}]"
        names = ("count", "input_tokens", "output_tokens", "output_cap_tokens")
        keys = Fields.of(entry, path, names)
        output_tokens = keys.whole("output_tokens", low=1, high=_MAX_TOKENS)
        cap = keys.whole("output_cap_tokens", low=1, high=_MAX_TOKENS, default=output_tokens)
        if cap < output_tokens:
            raise keys.error("output_cap_tokens", f"at least output_tokens ({output_tokens})")
        left = _MAX_REQUESTS - len(shapes)
        count = keys.whole("count", low=1, high=left, default=1)
        input_tokens = keys.whole("input_tokens", low=1, high=_MAX_TOKENS)
        shapes += [RequestShape(input_tokens, output_tokens, cap)] * count
    return shapes


def _check_fit(engine: EngineSpec, requests: Sequence[RequestShape]) -> None:
    """Each request must fit alone: its prompt and cap into the pool, its prompt into a step."""
    for shape in dict.fromkeys(requests):
        need = blocks_of(shape.input_tokens + shape.output_cap_tokens, engine.block_tokens)
        if need > engine.usable_blocks:
            raise SpecError(
                f"pool_tokens: the pool has {engine.usable_blocks} usable blocks of "
                f"{engine.block_tokens} tokens, but one request ({shape.input_tokens} in, cap "
                f"{shape.output_cap_tokens}) needs {need}"
            )
        whole_only = not engine.chunked_prefill and engine.policy is not Policy.SGLANG_RETRACT
        if whole_only and shape.input_tokens > engine.max_num_tokens:
            raise SpecError(
                f"max_num_tokens: expected at least {shape.input_tokens}, the longest prompt, "
                f"as chunked_prefill is false; got {engine.max_num_tokens}"
            )


def _arrivals(value: object, count: int, seed: int) -> list[int] | None:
    if value is None:
        return None
    names = ("poisson_per_s", "constant_per_s", "trace_s")
    keys = Fields.of(value, "arrivals", names)
    if len(keys.given) != 1:
        raise SpecError(f"arrivals: expected exactly one of {', '.join(names)}, got {value!r}")
    if "poisson_per_s" in keys.given:
        return load.poisson_arrivals_ns(count, keys.number("poisson_per_s", low=1e-9), seed)
    if "constant_per_s" in keys.given:
        return load.constant_arrivals_ns(count, keys.number("constant_per_s", low=1e-9))
    return [s_to_ns(time_s) for time_s in _trace(keys.required("trace_s"), count)]


def _trace(value: object, count: int) -> list[float]:
    """Arrival times in seconds: one per request, none missing, none before its predecessor."""
    if not isinstance(value, list) or len(value) != count:
        got = f"{len(value)} times" if isinstance(value, list) else repr(value)
        raise SpecError(f"arrivals.trace_s: expected {count} times, one per request, got {got}")
    entries = Fields("arrivals", {f"trace_s[{i}]": time for i, time in enumerate(value)})
    times_s = [entries.number(name, high=1e9) for name in entries.given]
    broken = load.first_disorder(times_s)
    if broken is not None:
        raise entries.error(f"trace_s[{broken}]", f"at least {times_s[broken - 1]}")
    return times_s

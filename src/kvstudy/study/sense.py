"""Does a well-formed configuration make sense? References, cycles, lengths against limits."""

from __future__ import annotations

import difflib
from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any

from pydantic import ValidationError

from kvstudy.base.units import ceil_div
from kvstudy.study.model import Arm, Config, Length, Server, Uniform, Workload


class SenseError(ValueError):
    """A reference cannot be followed; the message is a complete problem line."""


def problems_of(config: Config) -> list[str]:
    """Every problem of a well-formed configuration, as complete lines."""
    problems: list[str] = []
    for name in config.arms:
        try:
            resolve_arm(config.arms, name)
        except SenseError as error:
            problems.append(str(error))
    problems += _arm_engines(config)
    for name, workload in config.workloads.items():
        problems += _workload(config, name, workload)
    problems += _contrasts(config)
    for name, engine in config.engines.items():
        if engine.image is not None and engine.command:
            problems.append(f"engines.{name}: give image or command, not both")
        if engine.image is None and not engine.command and config.backend == "measured":
            problems.append(f"engines.{name}: a measured engine needs an image or a command")
    if not problems:
        problems += _duplicate_cells(config)
    return problems


def resolve_arm(arms: Mapping[str, Arm], name: str) -> Arm:
    """The arm with everything it extends merged in; `extends` is None in the result.

    Raises SenseError for a missing or cyclic `extends`.
    """
    chain = [name]
    while (parent := arms[chain[-1]].extends) is not None:
        if parent not in arms:
            raise SenseError(
                f"arms.{chain[-1]}.extends: no arm named {parent!r}{did_you_mean(parent, arms)}"
            )
        if parent in chain:
            loop = " -> ".join([*chain, parent])
            raise SenseError(f"arms.{name}.extends: goes in a circle ({loop})")
        chain.append(parent)
    engines: list[str] | None = None
    options: dict[str, Any] = {}
    for link in reversed(chain):
        arm = arms[link]
        engines = arm.engines if arm.engines is not None else engines
        options = merge_options(options, arm.options)
    return Arm(engines=engines, options=options)


def merge_options(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Lay one option tree over another, mappings key by key."""
    merged = dict(base)
    for key, value in over.items():
        old = merged.get(key)
        both = isinstance(old, Mapping) and isinstance(value, Mapping)
        merged[key] = merge_options(old, value) if both else value  # type: ignore[arg-type]
    return merged


def resolve_server(server: Server, workload: Workload) -> Server:
    """The server settings with a workload's overrides laid over them.

    Raises pydantic's ValidationError for a wrong override.
    """
    return Server.model_validate(merge_options(server.model_dump(), workload.server))


def longest(length: Length) -> int:
    """The largest value a length can take, in tokens."""
    return length.uniform[1] if isinstance(length, Uniform) else length


def output_cap(workload: Workload) -> int:
    """max_tokens of a workload's requests, in tokens."""
    return workload.output_cap_tokens or longest(workload.output_tokens)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing when no known name is close."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""


def _arm_engines(config: Config) -> list[str]:
    return [
        f"arms.{arm_name}.engines[{index}]: no engine named {engine!r}"
        f"{did_you_mean(engine, config.engines)}"
        for arm_name, arm in config.arms.items()
        for index, engine in enumerate(arm.engines or [])
        if engine not in config.engines
    ]


def _workload(config: Config, name: str, workload: Workload) -> list[str]:
    at = f"workloads.{name}"
    problems = [
        f"{at}.{key}[{index}]: no {kind} named {wanted!r}{did_you_mean(wanted, known)}"
        for key, kind, names, known in (
            ("arms", "arm", workload.arms, list(config.arms)),
            ("engines", "engine", workload.engines, list(config.engines)),
        )
        for index, wanted in enumerate(names or [])
        if wanted not in known
    ]
    for key, length in (("input", workload.input_tokens), ("output", workload.output_tokens)):
        if isinstance(length, Uniform) and length.uniform[0] > length.uniform[1]:
            problems.append(f"{at}.{key}_tokens.uniform: low end above high end, {length.uniform}")
    problems += [
        f"{at}.concurrency: {level} stands twice"
        for level, count in Counter(workload.concurrency).items()
        if count > 1
    ]
    if longest(workload.output_tokens) > output_cap(workload):
        problems.append(
            f"{at}.output_cap_tokens: {workload.output_cap_tokens} is below the longest output, "
            f"{longest(workload.output_tokens)}"
        )
    try:
        server = resolve_server(config.server, workload)
    except ValidationError as error:
        return problems + [
            f"{at}.server.{'.'.join(map(str, e['loc']))}: {e['msg']}, got {e.get('input')!r}"
            for e in error.errors(include_url=False)
        ]
    return problems + _fits(at, workload, server)


def _fits(at: str, workload: Workload, server: Server) -> list[str]:
    longest_tokens = longest(workload.input_tokens) + output_cap(workload)
    pool = server.kv_pool
    problems = []
    if longest_tokens > server.max_seq_len:
        problems.append(
            f"{at}: input + output cap is {longest_tokens} tokens, more than "
            f"server.max_seq_len {server.max_seq_len}; shorten it or raise max_seq_len"
        )
    need = ceil_div(longest_tokens, pool.block_tokens)
    have = pool.tokens // pool.block_tokens
    if need > have:
        problems.append(
            f"{at}: one request needs {need} blocks of {pool.block_tokens} tokens, the pool "
            f"server.kv_pool.tokens has {have}; it could never run"
        )
    if not server.chunked_prefill and longest(workload.input_tokens) > server.max_num_tokens:
        problems.append(
            f"{at}: prompts of {longest(workload.input_tokens)} tokens exceed "
            f"server.max_num_tokens {server.max_num_tokens} and chunked_prefill is off"
        )
    return problems


def _contrasts(config: Config) -> list[str]:
    problems = []
    for index, contrast in enumerate(config.contrasts):
        known = config.arms if contrast.within == "engine" else config.engines
        kind = "arm" if contrast.within == "engine" else "engine"
        for key in ("baseline", "treatment"):
            name = getattr(contrast, key)
            if name not in known:
                problems.append(
                    f"contrasts[{index}].{key}: no {kind} named {name!r}{did_you_mean(name, known)}"
                )
    return problems


def _duplicate_cells(config: Config) -> list[str]:
    from kvstudy.study.plan import Study  # noqa: PLC0415 - plan builds on this module

    counts = Counter(cell.id for cell in Study(config).cells)
    return [
        f"cells: two cells would be called {cell!r}; rename an engine or an arm"
        for cell, count in counts.items()
        if count > 1
    ]

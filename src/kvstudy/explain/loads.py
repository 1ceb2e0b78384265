"""A user's workload as requests: lengths as numbers or distributions, or a trace file."""

from __future__ import annotations

import csv
import json
import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from kvstudy.base.digest import sha256_text
from kvstudy.base.errors import UsageError

FORMS = "N, uniform:LOW:HIGH, exponential:MEAN or lognormal:MEDIAN:SIGMA"
TRACE_COLUMNS = ("input_tokens", "output_tokens", "output_cap_tokens", "arrival_s")
_MOST_TOKENS = 1 << 24

Rng = np.random.Generator


@dataclass(frozen=True)
class Load:
    """Requests as (input, output, cap) in submission order; `arrivals_s` None: a closed loop."""

    requests: list[tuple[int, int, int]]
    arrivals_s: list[float] | None = None


def drawn_load(
    inputs: str, outputs: str, cap: int | None, count: int, seed: int, flags: tuple[str, str]
) -> Load:
    """`count` requests; without a cap it is the longest output drawn."""
    prompts = draw(inputs, count, seed, flags[0])
    lengths = draw(outputs, count, seed, flags[1])
    longest = max(lengths)
    if cap is not None and cap < longest:
        if ":" not in outputs or outputs.startswith("uniform"):
            raise UsageError(f"--cap: expected at least the longest output, {longest}; got {cap}")
        lengths = [min(length, cap) for length in lengths]
    limit = cap if cap is not None else longest
    return Load([(p, length, limit) for p, length in zip(prompts, lengths, strict=True)])


def draw(text: str, count: int, seed: int, flag: str) -> list[int]:
    """Lengths in tokens from a number or a distribution; the flag names the generator."""
    name, *numbers = text.split(":")
    if not numbers:
        return [_whole(text, flag)] * count
    rng = np.random.Generator(np.random.PCG64([seed, int(sha256_text(flag)[:15], 16)]))
    values = [_number(number, text, flag) for number in numbers]
    makers: Mapping[str, tuple[int, Callable[[Rng], Any]]] = {
        "uniform": (2, lambda r: r.integers(int(values[0]), int(values[1]) + 1, count)),
        "exponential": (1, lambda r: r.exponential(values[0], count)),
        "lognormal": (2, lambda r: r.lognormal(math.log(values[0]), values[1], count)),
    }
    if name not in makers or makers[name][0] != len(values) or values[0] < 1:
        raise UsageError(f"{flag}: expected {FORMS}, got {text!r}")
    if name == "uniform" and values[1] < values[0]:
        raise UsageError(f"{flag}: expected LOW <= HIGH, got {text!r}")
    found = makers[name][1](rng)
    return [max(1, min(_MOST_TOKENS, round(float(value)))) for value in found]


def _whole(text: str, flag: str) -> int:
    if not text.isascii() or not text.isdecimal() or not 1 <= int(text) <= _MOST_TOKENS:
        raise UsageError(f"{flag}: expected {FORMS}, got {text!r}")
    return int(text)


def _number(number: str, text: str, flag: str) -> float:
    try:
        value = float(number)
    except ValueError:
        value = math.nan
    if not math.isfinite(value) or not 0 <= value <= _MOST_TOKENS:
        raise UsageError(f"{flag}: expected {FORMS}, got {text!r}")
    return value


def read_trace(path: Path) -> Load:
    """Requests of a CSV or JSON-lines file; a hole, a bad number or disorder is a UsageError."""
    requests, arrivals = [], []
    for line, row in _rows(path):
        at = f"{path}:{line}"
        unknown = sorted(set(row) - set(TRACE_COLUMNS))
        if unknown:
            known = ", ".join(TRACE_COLUMNS)
            raise UsageError(f"{at}: unknown column {unknown[0]!r}; expected {known}")
        prompt, output = (_count(row, name, at) for name in TRACE_COLUMNS[:2])
        cap = output if _absent(row, "output_cap_tokens") else _count(row, "output_cap_tokens", at)
        if cap < output:
            raise UsageError(f"{at}: output_cap_tokens {cap} is below output_tokens {output}")
        requests.append((prompt, output, cap))
        if not _absent(row, "arrival_s"):
            arrivals.append(_time(row["arrival_s"], at))
    if not requests:
        raise UsageError(f"{path}: no request in the trace")
    if arrivals and len(arrivals) != len(requests):
        missing = len(requests) - len(arrivals)
        raise UsageError(f"{path}: arrival_s is missing in {missing} of {len(requests)} requests")
    for index, (before, after) in enumerate(pairwise(arrivals)):
        if after < before:
            raise UsageError(f"{path}: arrival_s of request {index + 2} is before the one before")
    return Load(requests, arrivals or None)


def _rows(path: Path) -> Iterator[tuple[int, Mapping[str, Any]]]:
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read ({error})") from None
    if path.suffix == ".csv":
        reader = csv.DictReader(text.splitlines())
        for row in reader:
            if None in row or None in row.values():
                raise UsageError(f"{path}:{reader.line_num}: expected as many fields as the head")
            yield reader.line_num, row
        return
    for line, content in enumerate(text.splitlines(), start=1):
        if not content.strip():
            continue
        try:
            row = json.loads(content)
        except json.JSONDecodeError as error:
            raise UsageError(f"{path}:{line}: not valid JSON ({error})") from None
        if not isinstance(row, Mapping):
            raise UsageError(f"{path}:{line}: expected an object")
        yield line, row


def _absent(row: Mapping[str, Any], name: str) -> bool:
    return row.get(name) in (None, "")


def _count(row: Mapping[str, Any], name: str, at: str) -> int:
    value = row.get(name)
    if isinstance(value, str) and value.strip().isdecimal():
        value = int(value)
    if isinstance(value, bool) or not isinstance(value, int) or not 1 <= value <= _MOST_TOKENS:
        raise UsageError(f"{at}: {name}: expected a whole number >= 1, got {value!r}")
    return value


def _time(value: Any, at: str) -> float:
    try:
        time_s = float(value)
    except (TypeError, ValueError):
        time_s = math.nan
    if not math.isfinite(time_s) or not 0 <= time_s <= 1e9 or isinstance(value, bool):
        raise UsageError(f"{at}: arrival_s: expected seconds >= 0, got {value!r}")
    return time_s

"""Command lines from mappings: defaults first, an arm's options on top, one renderer per habit."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """`base` overlaid by `over`, mapping by mapping; None in `over` takes a key away."""
    result = dict(base)
    for key, value in over.items():
        before = result.get(key)
        if value is None:
            result.pop(key, None)
        elif isinstance(before, Mapping) and isinstance(value, Mapping):
            result[key] = merged(before, value)
        else:
            result[key] = value
    return result


def words(options: Mapping[str, Any], *, negated: bool) -> tuple[str, ...]:
    """Options as `--kebab-case value` words, in the mapping's order.

    True is the bare flag; False is `--no-…` where the engine has such flags (`negated`), else
    nothing. Lists repeat their values after the flag, mappings become JSON.
    """
    result: list[str] = []
    for key, value in options.items():
        name = key.replace("_", "-")
        if value is True:
            result.append(f"--{name}")
        elif value is False:
            result += [f"--no-{name}"] if negated else []
        elif isinstance(value, list | tuple):
            result += [f"--{name}", *map(text, value)]
        else:
            result += [f"--{name}", text(value)]
    return tuple(result)


def text(value: Any) -> str:
    """One value as one word."""
    if isinstance(value, Mapping):
        return json.dumps(value, sort_keys=True, separators=(",", ":"))
    return str(value)


def underscored(options: Mapping[str, Any]) -> dict[str, Any]:
    """Options with one spelling of their names, so that an arm's options meet the defaults."""
    return {key.removeprefix("--").replace("-", "_"): value for key, value in options.items()}


def fraction(value: float) -> str:
    """A share with at least two decimals: 0.9 is `0.90`, 0.875 stays `0.875`."""
    whole, _, decimals = repr(float(value)).partition(".")
    return f"{whole}.{decimals.ljust(2, '0')}" if decimals.isdecimal() else repr(value)

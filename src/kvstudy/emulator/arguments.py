"""The command line: what all dialects share, and how an emulation is described."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from typing import Any, NoReturn

from kvstudy.base.errors import ConfigError, UsageError
from kvstudy.emulator.settings import Dialect, Emulation
from kvstudy.sim.model import Pause
from kvstudy.sim.timing import PUBLISHED_FIT, StepTime


class Parser(argparse.ArgumentParser):
    """An argument parser that raises UsageError instead of ending the process."""

    def __init__(self, prog: str) -> None:
        super().__init__(prog=prog, allow_abbrev=False)

    def error(self, message: str) -> NoReturn:
        """Refuse the command line."""
        raise UsageError(f"{self.prog}: {message}")


def add_emulator_options(parser: Parser) -> None:
    """The options that no real engine has."""
    group = parser.add_argument_group("emulator")
    group.add_argument("--dialect", choices=[str(d) for d in Dialect], default=str(Dialect.TRTLLM))
    group.add_argument("--time-scale", type=positive_float, default=1.0)
    group.add_argument("--workload", type=Path)
    group.add_argument("--emulate", type=json_object, default={})
    group.add_argument("--faults", type=json_object, default={}, help=argparse.SUPPRESS)


def names(text: str) -> tuple[str, ...]:
    """Names separated by white space."""
    return tuple(text.split())


def positive_int(text: str) -> int:
    """A whole number >= 1."""
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"expected a whole number >= 1, got {text}")
    return value


def positive_float(text: str) -> float:
    """A finite number > 0."""
    value = float(text)
    if not 0 < value < float("inf"):
        raise argparse.ArgumentTypeError(f"expected a number > 0, got {text}")
    return value


def fraction(text: str) -> float:
    """A number in (0, 1]."""
    value = float(text)
    if not 0 < value <= 1:
        raise argparse.ArgumentTypeError(f"expected a number in (0, 1], got {text}")
    return value


def port(text: str) -> int:
    """A TCP port; 0 lets the system choose."""
    value = int(text)
    if not 0 <= value < 1 << 16:
        raise argparse.ArgumentTypeError(f"expected a port, got {text}")
    return value


def json_object(text: str) -> dict[str, Any]:
    """A JSON object."""
    try:
        value = json.loads(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"not JSON ({error})") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError("expected a JSON object")
    return value


def emulation(known: argparse.Namespace) -> Emulation:
    """The emulation that `--emulate`, `--time-scale`, `--workload` and `--faults` describe.

    Raises ConfigError with every problem at once.
    """
    problems: list[str] = []
    given: dict[str, Any] = dict(known.emulate)
    taken: dict[str, Any] = {}
    for name, check in _EMULATE.items():
        if name in given:
            try:
                taken[name] = check(given.pop(name))
            except (TypeError, ValueError) as error:
                problems.append(f"{name}: {error}")
    problems += [f"{name}: unknown key, expected one of {sorted(_EMULATE)}" for name in given]
    if problems:
        raise ConfigError(problems, source="--emulate")
    return Emulation(
        **taken,
        time_scale=known.time_scale,
        workload=known.workload,
        faults=known.faults,
    )


def _text(value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise ValueError(f"expected text, got {value!r}")
    return value


def _seconds(value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e6:
        raise ValueError(f"expected seconds >= 0, got {value!r}")
    return float(value)


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 0:
        raise ValueError(f"expected a whole number >= 0, got {value!r}")
    return value


def _pause(value: Any) -> Pause:
    if value == "recompute":
        return Pause()
    if value == "never_release":
        return Pause(never_release=True)
    if isinstance(value, dict) and value.keys() == {"truncate_to_tokens"}:
        tokens = _count(value["truncate_to_tokens"])
        if tokens:
            return Pause(truncate_to_tokens=tokens)
    raise ValueError(
        'expected "recompute", "never_release" or {"truncate_to_tokens": n >= 1}, '
        f"got {json.dumps(value)}"
    )


def _step_time(value: Any) -> StepTime:
    names = [field.name for field in fields(StepTime)]
    if not isinstance(value, dict) or not value.keys() <= set(names):
        raise ValueError(f"expected an object with keys of {names}, got {json.dumps(value)}")
    whole = {name: getattr(PUBLISHED_FIT, name) for name in names} | value
    return StepTime(**{name: _seconds(whole[name]) for name in names})


_EMULATE: dict[str, Callable[[Any], Any]] = {
    "version": _text,
    "pause": _pause,
    "step_time": _step_time,
    "admission_lag_steps": _count,
    "api_key_env": _text,
    "grace_s": _seconds,
    "opening_s": _seconds,
    "gather_s": _seconds,
}

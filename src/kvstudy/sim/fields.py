"""Reading one JSON object strictly: unknown keys, wrong types and impossible numbers are errors."""

from __future__ import annotations

import difflib
import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from typing import Any, TypeVar

from kvstudy.base.errors import SpecError

E = TypeVar("E", bound=StrEnum)


class Fields:
    """The keys of one object of a spec; `path` is where it stands ("" for the whole spec)."""

    def __init__(self, path: str, given: Mapping[str, Any]) -> None:
        self.path = path
        self.given = given

    @classmethod
    def of(cls, value: object, path: str, known: Sequence[str]) -> Fields:
        """The object's keys, all of which must be `known`."""
        if not isinstance(value, Mapping):
            raise SpecError(f"{path or 'spec'}: expected an object, got {_shown(value)}")
        keys = cls(path, value)
        for key in value:
            if key not in known:
                close = difflib.get_close_matches(str(key), known, n=1)
                hint = f"; did you mean {close[0]}?" if close else ""
                raise SpecError(f"{keys.name(str(key))}: unknown key{hint}")
        return keys

    def name(self, key: str) -> str:
        """The dotted path of a key."""
        return f"{self.path}.{key}" if self.path else key

    def error(self, key: str, expected: str) -> SpecError:
        """The error for the value of `key`."""
        return SpecError(
            f"{self.name(key)}: expected {expected}, got {_shown(self.given.get(key))}"
        )

    def get(self, key: str, default: object = None) -> object:
        """The value as it stands, or the default."""
        return self.given.get(key, default)

    def required(self, key: str) -> object:
        """The value as it stands; SpecError if there is none."""
        if key not in self.given:
            raise SpecError(f"{self.name(key)}: missing")
        return self.given[key]

    def whole(
        self, key: str, *, low: int = 0, high: int = 1 << 62, default: int | None = None
    ) -> int:
        """A whole number in [low, high]; required if there is no default."""
        if key not in self.given and default is not None:
            return default
        value = self.required(key)
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            limit = f" and <= {high}" if high < 1 << 62 else ""
            raise self.error(key, f"a whole number >= {low}{limit}")
        return value

    def number(
        self, key: str, *, low: float = 0.0, high: float = 1e12, default: float | None = None
    ) -> float:
        """A finite number in [low, high]; required if there is no default."""
        if key not in self.given and default is not None:
            return default
        value = self.required(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.error(key, f"a number >= {low:g}")
        if not math.isfinite(value) or not low <= value <= high:
            raise self.error(key, f"a finite number >= {low:g} and <= {high:g}")
        return float(value)

    def flag(self, key: str, *, default: bool) -> bool:
        """A true or false."""
        value = self.given.get(key, default)
        if not isinstance(value, bool):
            raise self.error(key, "true or false")
        return value

    def choice(self, key: str, options: type[E], *, default: E | None = None) -> E:
        """One of the values of an enumeration; required if there is no default."""
        if key not in self.given and default is not None:
            return default
        value = self.required(key)
        for option in options:
            if value == option.value:
                return option
        raise self.error(key, f"one of {', '.join(option.value for option in options)}")


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}..."

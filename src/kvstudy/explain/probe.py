"""What the probe of an image says about the cut of a pause (`max_input_len` of PyExecutor)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

UNLIMITED_TOKENS = 1 << 24
"""A default at or above this cuts no prompt of any model."""


@dataclass(frozen=True, slots=True)
class CutProbe:
    """The default of the executor's `max_input_len`, and whether a caller may pass another one."""

    default_tokens: int
    may_be_overridden: bool

    @property
    def words(self) -> str:
        """The finding in words."""
        value = (
            "no limit" if self.default_tokens >= UNLIMITED_TOKENS else f"{self.default_tokens:,}"
        )
        rest = (
            "a caller may pass another value"
            if self.may_be_overridden
            else "no caller passes another value"
        )
        return f"the probe found the default {value}, and {rest}"


def cut_probe(document: Mapping[str, Any] | None) -> CutProbe | None:
    """The probe's finding; None where it was not run, or did not find the parameter."""
    facts = (document or {}).get("facts") or {}
    executor = ((facts.get("engines") or {}).get("tensorrt_llm") or {}).get("executor") or {}
    default = executor.get("max_input_len_default")
    if isinstance(default, bool) or not isinstance(default, int) or default < 1:
        return None
    overridden = any(
        call.get("passes_max_input_len") is not None or call.get("may_pass_more")
        for call in executor.get("calls") or ()
    )
    return CutProbe(default, overridden)

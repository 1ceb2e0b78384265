"""TensorRT-LLM's `print_iter_log: true` lines: a second source beside /metrics.

The lines have no field for pauses. Recomputation shows in them as context tokens beyond the sum
of the prompts.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from kvstudy.telemetry.numbers import ms_as_ns

Row = dict[str, Any]

_MOST_LINE = 4096
_ITER = re.compile(r"\biter = (\d{1,18})\b", re.ASCII)
_FIELDS = {
    "active": re.compile(r"\bcurrank_total_requests = (\d{1,9})/\d{1,9}", re.ASCII),
    "scheduled": re.compile(r"\bnum_scheduled_requests: (\d{1,9})\b", re.ASCII),
    "context_requests": re.compile(r"'num_ctx_requests': (\d{1,9})\b", re.ASCII),
    "context_tokens": re.compile(r"'num_ctx_tokens': (\d{1,12})\b", re.ASCII),
    "generation_tokens": re.compile(r"'num_generation_tokens': (\d{1,12})\b", re.ASCII),
}
_HOST_STEP = re.compile(r"\bhost_step_time = (\d{1,12}(?:\.\d{1,12})?)ms", re.ASCII)
_TIMESTAMP = re.compile(
    r"\btimestamp = (\d{4}-\d{2}-\d{2} \d{2}:\d{2}:\d{2}(?:\.\d{1,6})?)", re.ASCII
)


@dataclass(frozen=True, slots=True)
class IterLine:
    """One line; None where it does not state a value. `timestamp` has whole seconds."""

    iter: int
    timestamp: str | None
    active_requests: int | None
    scheduled_requests: int | None
    context_requests: int | None
    context_tokens: int | None
    generation_tokens: int | None
    host_step_ns: int | None

    def row(self, t_ns: int) -> Row:
        """The line as a row of `base.tables.CELL_ITERATIONS`; the line states no blocks."""
        return {
            "t_ns": t_ns,
            "iter": self.iter,
            "scheduled_requests": self.scheduled_requests,
            "context_requests": self.context_requests,
            "generation_requests": self.generation_tokens,
            "paused_requests": None,
            "context_tokens": self.context_tokens,
            "active_requests": self.active_requests,
            "queued_requests": None,
            "used_blocks": None,
            "free_blocks": None,
            "max_blocks": None,
            "iter_latency_ns": self.host_step_ns,
        }


def parse(log: str) -> list[IterLine]:
    """All iteration lines of a log, in order; every other line is passed over."""
    return list(_lines(log))


def _lines(log: str) -> Iterator[IterLine]:
    for line in log.splitlines():
        if len(line) > _MOST_LINE or "host_step_time" not in line:
            continue
        number = _ITER.search(line)
        if number is None:
            continue
        found = {name: _count(pattern, line) for name, pattern in _FIELDS.items()}
        step, moment = _HOST_STEP.search(line), _TIMESTAMP.search(line)
        yield IterLine(
            iter=int(number[1]),
            timestamp=moment[1] if moment else None,
            active_requests=found["active"],
            scheduled_requests=found["scheduled"],
            context_requests=found["context_requests"],
            context_tokens=found["context_tokens"],
            generation_tokens=found["generation_tokens"],
            host_step_ns=ms_as_ns(float(step[1])) if step else None,
        )


def _count(pattern: re.Pattern[str], line: str) -> int | None:
    found = pattern.search(line)
    return int(found[1]) if found else None


_SUMMARY = re.compile(
    r"\[Summary\] Capacity scheduler allows (\d{1,9}) requests?, pauses (\d{1,9}) requests?"
)


def debug_pauses(log: str) -> int | None:
    """Pauses by the capacity scheduler's debug summary; None where the log has none.

    Needs `TLLM_LOG_LEVEL=debug`: independent of the version, but verbose.
    """
    found = _SUMMARY.findall(log)
    return sum(int(pauses) for _, pauses in found) if found else None

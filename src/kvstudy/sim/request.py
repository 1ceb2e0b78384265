"""One request inside the engine, and the part of it that a scheduler may see."""

from __future__ import annotations

from enum import Enum
from typing import Protocol

from kvstudy.base.units import ceil_div


class State(Enum):
    """The four states of a request."""

    WAITING = "waiting"
    RUNNING = "running"
    PAUSED = "paused"
    FINISHED = "finished"


class Schedulable(Protocol):
    """What a scheduler may look at. The true output length is not here (law 5)."""

    input_tokens: int
    output_cap_tokens: int
    context_tokens: int
    computed_tokens: int
    kv_tokens: int
    held_blocks: int
    streamed: int
    is_started: bool
    is_generating: bool


class SimRequest:
    """A request and all that has happened to it; counts are tokens, times ns of study time.

    `context_tokens` is what must be computed before it generates: the prompt at first, after a
    pause what the pause mode says. `computed_tokens` of them are done. `is_started` from its first
    chunk until it is paused or ends; `is_generating` once its context is computed, from when on
    `kv_tokens` is the number of tokens whose KV is held (context + generated - 1).
    `hidden_left` tokens are to be decoded, without being streamed, before the next streamed one.
    """

    __slots__ = (
        "computed_tokens",
        "context_tokens",
        "ended_ns",
        "first_token_ns",
        "held_blocks",
        "hidden_left",
        "hidden_tokens",
        "input_tokens",
        "is_cancelled",
        "is_generating",
        "is_started",
        "kv_tokens",
        "last_token_ns",
        "max_gap_ns",
        "output_cap_tokens",
        "output_tokens",
        "pauses",
        "recomputed_tokens",
        "request_id",
        "state",
        "streamed",
        "submitted_ns",
    )

    def __init__(
        self,
        request_id: str,
        input_tokens: int,
        output_tokens: int,
        output_cap_tokens: int,
        submitted_ns: int,
    ) -> None:
        self.request_id = request_id
        self.input_tokens = input_tokens
        self.output_tokens = output_tokens
        self.output_cap_tokens = output_cap_tokens
        self.submitted_ns = submitted_ns
        self.state = State.WAITING
        self.context_tokens = input_tokens
        self.computed_tokens = 0
        self.kv_tokens = 0
        self.held_blocks = 0
        self.hidden_left = 0
        self.streamed = 0
        self.is_started = False
        self.is_generating = False
        self.is_cancelled = False
        self.first_token_ns: int | None = None
        self.last_token_ns: int | None = None
        self.ended_ns: int | None = None
        self.max_gap_ns: int | None = None
        self.pauses = 0
        self.recomputed_tokens = 0
        self.hidden_tokens = 0

    @property
    def ttft_ns(self) -> int | None:
        """First streamed token - submission; None before there is one."""
        return None if self.first_token_ns is None else self.first_token_ns - self.submitted_ns

    @property
    def e2e_ns(self) -> int | None:
        """Last streamed token - submission; None until the request ends."""
        if self.state is not State.FINISHED or self.last_token_ns is None:
            return None
        return self.last_token_ns - self.submitted_ns

    @property
    def tpot_ns(self) -> float | None:
        """(Last - first streamed token) / (n - 1); None below two tokens."""
        if self.streamed < 2 or self.first_token_ns is None or self.last_token_ns is None:
            return None
        return (self.last_token_ns - self.first_token_ns) / (self.streamed - 1)

    def __repr__(self) -> str:
        return (
            f"SimRequest({self.request_id}: {self.state.value}, "
            f"context {self.computed_tokens}/{self.context_tokens}, kv {self.kv_tokens}, "
            f"streamed {self.streamed}/cap {self.output_cap_tokens}, {self.held_blocks} blocks)"
        )


def blocks_of(tokens: int, block_tokens: int) -> int:
    """Blocks that hold `tokens` tokens."""
    return ceil_div(tokens, block_tokens)

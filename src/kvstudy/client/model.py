"""What the client is told and what it gives back: plain values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Target:
    """The server and how it is asked.

    `promises_done`: the server ends every stream with `data: [DONE]`, so one without it is
    truncated. `extra_body` is merged over the request body.
    """

    base_url: str
    model: str
    api_key: str | None = field(default=None, repr=False)
    include_usage: bool = True
    promises_done: bool = True
    extra_body: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Planned:
    """One request to send. `arrival_s` is study time after the start; None in a closed loop."""

    request_id: str
    prompt: list[int] | str
    input_tokens: int
    output_tokens: int
    output_cap_tokens: int
    arrival_s: float | None = None


@dataclass(frozen=True, slots=True)
class Load:
    """Closed loop with `concurrency` lanes, or, when it is None, open loop by arrival times."""

    concurrency: int | None


@dataclass(frozen=True, slots=True)
class Limits:
    """When the client gives up. All but the stall threshold are wall time.

    `no_progress_s` bounds the silence of one stream, `max_duration_s` the whole phase.
    `close_after_planned` closes a stream when it has brought as many choice events (with text or
    without) as tokens were planned; such a request is ok, with finish_reason `client_close`.
    """

    connect_s: float = 30
    no_progress_s: float = 1800
    max_duration_s: float | None = None
    stall_threshold_ms: float = 1000
    close_after_planned: bool = False


@dataclass(frozen=True, slots=True)
class Progress:
    """How far a phase is.

    `chunks` counts events as they arrive, the last usage and [DONE] frames included, and `failed`
    what can be told without reading the streams: a show for people, the rows are exact.
    """

    sent: int
    finished: int
    failed: int
    chunks: int
    in_flight: int


@dataclass(frozen=True, slots=True)
class Audit:
    """What the client knows about its own influence on the figures; all of it wall time.

    Loop lag is how late a timer of the event loop ran; the poller's own rounding adds up to 1 ms.
    `clock_jumps` counts times the loop stood still for over two seconds or the machine slept.
    `mean_in_flight` is over the window from the first send to the last end.
    """

    loop_lag_p50_ms: float
    loop_lag_p99_ms: float
    loop_lag_max_ms: float
    cpu_share: float
    gc_pauses: int
    gc_pause_max_ms: float
    clock_jumps: int
    mean_in_flight: float
    max_in_flight: int
    chunks: int
    reads: int
    wall_s: float
    chunk_rate_per_s: float

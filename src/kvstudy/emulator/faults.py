"""Faults that tests ask for with `--faults JSON`: pure decisions, no side effect.

For tests of what stands around a server; no study sets it. Keys, all optional:

exit_at_start: n            end with exit code n before anything is served
never_ready: true           /health answers 503 and completions are refused with 503 for ever
die_at_request: k           the process is killed when completion k comes
die_after_requests: k       the process is killed when k completions have ended
hang_at_request: k, hang_after_chunks: n      completion k stops after n chunks and stays open
http_error_at_request: k, http_status: s      completion k is answered with HTTP status s
no_done_at_request: k       completion k ends without [DONE]
garbage_at_request: k       completion k carries a frame that is not JSON
short_at_request: k, short_by: n              completion k ends n tokens early, as "stop"
model: name                 another model is listed and echoed
version: text               another version is reported
policy: NAME                the policy is not taken: NAME runs, and is logged
pool_tokens: n              the pool has n tokens, and says so
ignore_sigterm: true        SIGTERM changes nothing
orphan: true                a child process is started that outlives the server
metrics: missing | empty | slow | non_json | huge | lying

Completions are counted from 1. With a workload file only its requests count, and
`phase: name` counts those of one phase.
"""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from kvstudy.base.errors import ConfigError

METRICS = ("missing", "empty", "slow", "non_json", "huge", "lying")
SLOW_S = 30.0
_GARBAGE = b'data: {"id": "cmpl-\xff\xfe not JSON'
_FRAME_END = b"\n\n"
HUGE_RECORDS = 200_000


@dataclass(frozen=True, slots=True)
class Faults:
    """What is to go wrong; nothing by default."""

    exit_at_start: int | None = None
    never_ready: bool = False
    die_at_request: int | None = None
    die_after_requests: int | None = None
    hang_at_request: int | None = None
    hang_after_chunks: int = 1
    http_error_at_request: int | None = None
    http_status: int = 500
    no_done_at_request: int | None = None
    garbage_at_request: int | None = None
    short_at_request: int | None = None
    short_by: int = 1
    model: str | None = None
    version: str | None = None
    policy: str | None = None
    pool_tokens: int | None = None
    ignore_sigterm: bool = False
    orphan: bool = False
    metrics: str | None = None
    phase: str | None = None

    def output_tokens(self, number: int, planned: int) -> int:
        """How many tokens completion `number` really gives."""
        return max(1, planned - self.short_by) if number == self.short_at_request else planned

    def status(self, number: int) -> int | None:
        """The HTTP error that completion `number` is answered with; None for an answer."""
        if self.never_ready:
            return 503
        return self.http_status if number == self.http_error_at_request else None

    def kills_at(self, number: int) -> bool:
        """Whether the process dies when completion `number` comes."""
        return number == self.die_at_request

    def kills_after(self, ended: int) -> bool:
        """Whether the process dies now that `ended` completions have ended."""
        return self.die_after_requests is not None and ended >= self.die_after_requests

    def spoils(self, number: int) -> bool:
        """Whether the stream of completion `number` is not an honest one."""
        return number > 0 and number in (
            self.hang_at_request,
            self.no_done_at_request,
            self.garbage_at_request,
        )

    def with_garbage(self, number: int, sent: int, frames: bytes) -> bytes:
        """`frames`, after the first of completion `number` one that is not JSON."""
        if number != self.garbage_at_request or sent:
            return frames
        first, end, rest = frames.partition(_FRAME_END)
        return first + end + _GARBAGE + end + rest

    def cuts_end(self, number: int) -> bool:
        """Whether the connection is closed instead of [DONE]."""
        return number == self.no_done_at_request

    def before_hang(self, number: int, sent: int, frames: bytes) -> tuple[bytes, bool]:
        """What completion `number` sends of `frames` after `sent` chunks, and if it hangs then."""
        if number != self.hang_at_request:
            return frames, False
        each = [frame + _FRAME_END for frame in frames.split(_FRAME_END)[:-1]]
        left = max(0, self.hang_after_chunks - sent)
        return b"".join(each[:left]), len(each) > left


def read(given: dict[str, Any]) -> Faults:
    """The faults of a JSON object. ConfigError for a key or value that does not exist."""
    known = {field.name: field.default for field in fields(Faults)}
    problems = [f"{name}: unknown fault" for name in given if name not in known]
    texts = ("model", "version", "policy", "metrics", "phase")
    for name, value in given.items():
        if name not in known:
            continue
        kind: type = str if name in texts else bool if known[name] is False else int
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            problems.append(f"{name}: expected {kind.__name__}, got {value!r}")
    if given.get("metrics") not in (None, *METRICS):
        problems.append(f"metrics: expected one of {METRICS}")
    if problems:
        raise ConfigError(problems, source="--faults")
    return Faults(**given)

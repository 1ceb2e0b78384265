"""How long an allocation may take: its job's time limit, in closed form and in microseconds.

Not a prediction (`kvstudy plan` simulates those): prompts and steps are counted as if the pool were
always full and nothing ever paused, and a margin covers what that leaves out.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from kvstudy.study.model import Length, StepTime, Workload
from kvstudy.study.sense import output_cap, resolve_server

if TYPE_CHECKING:
    from kvstudy.study.plan import Cell, Study

START_S = 300.0
"""Assumed time from launch to ready of a 70B server."""
MARGIN = 2.0
"""What is asked for over what is expected: pauses, slower storage, a slower GPU."""
FIRST_LOAD_S = 1200.0
"""Asked for once per job: the first load of a model over a cold shared file system."""


def allocation_minutes(study: Study, allocation: str, attempt: int = 1) -> int:
    """Time limit of an allocation's job; a job that ran into it gets more the next time."""
    seconds = sum(cell_seconds(study, cell) for cell in study.allocations[allocation])
    return attempt * math.ceil((FIRST_LOAD_S + MARGIN * seconds) / 60)


def cell_seconds(study: Study, cell: Cell) -> float:
    """Expected start, warm-up and measured phase of one cell."""
    workload = study.config.workloads[cell.workload]
    server = resolve_server(study.config.server, workload)
    resident = server.kv_pool.tokens // max(1, _mean(workload.input_tokens) + output_cap(workload))
    most = max(1, min(server.max_batch_size, int(resident)))
    time = study.config.emulator.step_time
    seconds = START_S + _phase_s(workload, time, workload.requests, min(cell.concurrency, most))
    if workload.warmup is not None:
        lanes = min(workload.warmup.concurrency, most)
        seconds += _phase_s(workload, time, workload.warmup.requests, lanes)
    return seconds


def _phase_s(workload: Workload, time: StepTime, requests: int, lanes: int) -> float:
    prompt, answer = _mean(workload.input_tokens), _mean(workload.output_tokens)
    held = prompt + answer / 2
    prefill_s = prompt * (time.per_context_token_s + time.per_context_attention_s * prompt / 2)
    step_s = time.fixed_s + lanes * (
        time.per_generation_s + time.per_generation_context_token_s * held
    )
    return requests * (prefill_s + step_s * answer / lanes)


def _mean(length: Length) -> float:
    return float(length) if isinstance(length, int) else sum(length.uniform) / 2

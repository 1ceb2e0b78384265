"""Virtual time: drive an engine with a load, no clock and no socket, as fast as the CPU allows."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kvstudy.sim.engine import Engine, Step
from kvstudy.sim.load import AdmissionLag
from kvstudy.sim.request import SimRequest
from kvstudy.sim.result import Result, iteration_row
from kvstudy.sim.spec import RequestShape, SimSpec, parse

_UNBOUNDED_STEPS = 1 << 20

Observer = Callable[[Step], None]


def simulate(spec: object) -> dict[str, Any]:
    """Run a JSON spec; the output object of `kvstudy simulate`.

    Raises SpecError for a wrong spec and LivelockError where a run can never end.
    """
    return run(parse(spec)).summary()


def simulate_rows(spec: object) -> list[dict[str, Any]]:
    """Run a JSON spec; one row per request, in submission order. Errors as `simulate`."""
    return run(parse(spec)).request_rows()


def simulate_steps(spec: object) -> list[dict[str, Any]]:
    """Run a JSON spec; one row per step. Errors as `simulate`."""
    parsed = parse(spec)
    rows: list[dict[str, Any]] = []
    blocks = parsed.engine.usable_blocks
    run(parsed, observe=lambda step: rows.append(iteration_row(step, blocks)))
    return rows


def run(spec: SimSpec, *, observe: Observer | None = None, fast: bool = True) -> Result:
    """Run a parsed spec to its end.

    `observe` sees every step, which then are run one by one; `fast` allows runs of decode steps in
    closed form otherwise. Both ways give the same bytes (law 10).
    """
    fast = fast and observe is None
    if spec.arrivals_ns is None:
        return _closed_loop(spec, observe, fast)
    return _open_loop(spec, spec.arrivals_ns, observe, fast)


def _request(order: int, shape: RequestShape, submitted_ns: int) -> SimRequest:
    return SimRequest(
        f"r{order}", shape.input_tokens, shape.output_tokens, shape.output_cap_tokens, submitted_ns
    )


def _closed_loop(spec: SimSpec, observe: Observer | None, fast: bool) -> Result:
    """N lanes; each submits the next request of the list when its last one ends (rules 1 and 6)."""
    engine = Engine(spec.engine)
    lag: AdmissionLag[SimRequest] = AdmissionLag(spec.admission_lag_steps)
    requests: list[SimRequest] = []
    lanes: list[int | None] = []
    lane_of: dict[str, int] = {}

    def submit(lane: int, submitted_ns: int) -> SimRequest:
        order = len(requests)
        request = _request(order, spec.requests[order], submitted_ns)
        requests.append(request)
        lanes.append(lane)
        lane_of[request.request_id] = lane
        return request

    for lane in range(min(spec.concurrency, len(spec.requests))):
        engine.join(submit(lane, 0))
    while engine.has_work or len(lag):
        for request in lag.take_due(engine.iteration + 1):
            engine.join(request)
        due_step = lag.next_due_step
        limit = _UNBOUNDED_STEPS if due_step is None else due_step - engine.iteration - 1
        if fast and engine.fast_forward(limit):
            continue
        step = engine.try_step()
        if step is None:
            if not len(lag):
                raise engine.livelock()
            for request in lag.take_all():
                engine.join(request)
            continue
        for ended in step.finished:
            lane = lane_of.pop(ended.request_id)
            if len(requests) < len(spec.requests):
                lag.ended(step.index, submit(lane, step.end_ns))
        if observe is not None:
            observe(step)
    return Result(engine, requests, lanes)


def _open_loop(
    spec: SimSpec, arrivals_ns: Sequence[int], observe: Observer | None, fast: bool
) -> Result:
    """Requests join the first step that starts at or after their arrival, whatever the answers."""
    engine = Engine(spec.engine)
    requests = [
        _request(order, shape, arrival_ns)
        for order, (shape, arrival_ns) in enumerate(zip(spec.requests, arrivals_ns, strict=True))
    ]
    joined = 0
    while engine.has_work or joined < len(requests):
        while joined < len(requests) and arrivals_ns[joined] <= engine.now_ns:
            engine.join(requests[joined])
            joined += 1
        next_ns = arrivals_ns[joined] if joined < len(requests) else None
        if fast and engine.fast_forward(_UNBOUNDED_STEPS, next_ns):
            continue
        step = engine.try_step()
        if step is None:
            if next_ns is None:
                raise engine.livelock()
            engine.idle_until(next_ns)
        elif observe is not None:
            observe(step)
    return Result(engine, requests, [None] * len(requests))

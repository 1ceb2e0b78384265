"""The engine: one step = plan, pause, take blocks, advance, finish.

The replay in virtual time and the emulator's HTTP server both drive it through `join`, `cancel`,
`idle_until`, `step` / `try_step`; only the replay uses `fast_forward`.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from kvstudy.base.errors import LivelockError
from kvstudy.sim.kv_pool import KvPool
from kvstudy.sim.model import EngineSpec, Policy
from kvstudy.sim.policy import SCHEDULERS, Chunk, Plan, Situation
from kvstudy.sim.request import SimRequest, State, blocks_of

_SHOWN_IN_LIVELOCK = 8


@dataclass(slots=True)
class Step:
    """What one step did; blocks are those held and free while it ran, before ended ones return.

    `emitted`: requests that streamed one token at `end_ns`: those that were generating, then those
    whose prompt is now computed, each in list order. `finished`: those of
    them that ended. `paused`: those paused before it ran (events, not a gauge). `scheduled`:
    requests that ran: `context_requests` + `generation_requests`. `active_requests`: the list's
    length in this step; `waiting_requests`: those of it that hold no place (never started, paused).
    """

    index: int
    start_ns: int
    end_ns: int
    emitted: list[SimRequest]
    finished: list[SimRequest] = field(default_factory=list)
    paused: list[SimRequest] = field(default_factory=list)
    context_requests: int = 0
    generation_requests: int = 0
    context_tokens: int = 0
    active_requests: int = 0
    waiting_requests: int = 0
    used_blocks: int = 0
    free_blocks: int = 0

    @property
    def scheduled(self) -> int:
        """Requests that ran in this step."""
        return self.context_requests + self.generation_requests


@dataclass(slots=True)
class Counters:
    """Totals of a run, in requests, tokens and events."""

    pauses: int = 0
    recomputed_tokens: int = 0
    prefilled_tokens: int = 0
    hidden_tokens: int = 0
    residents_max: int = 0


class Engine:
    """A simulated engine: the active list in arrival order, a block pool, a clock, a policy."""

    def __init__(self, spec: EngineSpec) -> None:
        self.spec = spec
        self.now_ns = 0
        self.iteration = 0
        self.pool = KvPool(spec.usable_blocks)
        self.active: list[SimRequest] = []
        self.counters = Counters()
        self._scheduler = SCHEDULERS[spec.policy]
        self._started = 0
        self._residents = 0
        self._new_token_ratio = spec.sglang.initial_ratio

    @property
    def has_work(self) -> bool:
        """Whether any request is active."""
        return bool(self.active)

    def join(self, request: SimRequest) -> None:
        """Append a request to the active list; it takes part from the next step on."""
        self.active.append(request)

    def cancel(self, request: SimRequest) -> None:
        """Take a request off the list because its client went away; its blocks come back.

        ValueError if it is not active.
        """
        self.active.remove(request)
        request.is_cancelled = True
        self._end(request)

    def idle_until(self, ns: int) -> None:
        """Move the clock forward while nothing runs; a time in the past changes nothing."""
        self.now_ns = max(self.now_ns, ns)

    def step(self) -> Step:
        """Run one step. LivelockError, with the state, if nothing can be scheduled."""
        step = self.try_step()
        if step is None:
            raise self.livelock()
        return step

    def try_step(self) -> Step | None:
        """Run one step; None, with no time passed, if nothing can be scheduled as things are."""
        paused: list[SimRequest] = []
        while True:
            plan = self._plan()
            self._pause(plan)
            paused += plan.paused
            if plan.generation or plan.chunks:
                return self._run(plan, paused)
            if not plan.paused:
                return None

    def livelock(self) -> LivelockError:
        """The error for a state in which nothing can ever be scheduled again."""
        shown = [repr(r) for r in self.active[:_SHOWN_IN_LIVELOCK]]
        more = len(self.active) - len(shown)
        return LivelockError(
            f"{self.spec.policy.value}: nothing can be scheduled after step {self.iteration} "
            f"(t = {self.now_ns} ns, {self.pool}, {len(self.active)} active): "
            + "; ".join(shown)
            + (f"; and {more} more" if more else "")
            + ". Enlarge pool_tokens or max_num_tokens, or use another policy or pause."
        )

    def fast_forward(self, max_steps: int, until_ns: int | None = None) -> int:
        """Run up to `max_steps` steps that only generate and end no request, in closed form.

        Only steps that start before `until_ns` are run. Returns how many were run, 0 where the
        next step is not of that kind. State and times equal those of single steps, to the bit.
        """
        if self.spec.policy is Policy.SGLANG_RETRACT or max_steps < 2:
            return 0
        plan = self._plan()
        if not plan.is_steady or not plan.generation:
            return 0
        running = plan.generation
        left = min(r.hidden_left + r.output_tokens - r.streamed for r in running)
        steps = self._steps_that_fit(running, min(max_steps, left - 1))
        kv_tokens = sum(r.kv_tokens for r in running)
        if steps < 2:
            return 0
        lengths = self.spec.step_time.decode_run_ns(len(running), kv_tokens, steps)
        ends = lengths.cumsum() + self.now_ns
        if until_ns is not None:
            steps = int((ends - lengths).searchsorted(until_ns))
        if not len(lengths) or steps == 0:
            return 0
        ends_ns, longest_ns = ends[:steps].tolist(), int(lengths[steps - 1])
        for request in running:
            self._grow(request, request.kv_tokens + steps)
            self._generate_run(request, ends_ns, longest_ns)
        self.iteration += steps
        self.now_ns = ends_ns[-1]
        return steps

    # --- one step -----------------------------------------------------------------------------

    def _plan(self) -> Plan[SimRequest]:
        situation = Situation(self.pool.free_blocks, self._started, self._new_token_ratio)
        return self._scheduler(self.active, self.spec, situation)

    def _pause(self, plan: Plan[SimRequest]) -> None:
        """Rule 5: back to the start of its context, blocks back at once unless never released."""
        if plan.new_token_ratio is not None:
            self._new_token_ratio = plan.new_token_ratio
        for request in plan.paused:
            total_tokens = request.input_tokens + request.streamed
            request.context_tokens = self.spec.pause.context_tokens(total_tokens)
            request.hidden_left = total_tokens - request.context_tokens
            request.computed_tokens = request.kv_tokens = 0
            request.is_started = request.is_generating = False
            request.state = State.PAUSED
            request.pauses += 1
            request.recomputed_tokens += request.context_tokens
            self.counters.pauses += 1
            self.counters.recomputed_tokens += request.context_tokens
            self._started -= 1
            if not self.spec.pause.never_release:
                self._release(request)
        if plan.requeue_paused:
            for request in plan.paused:
                self.active.remove(request)
                self.active.append(request)

    def _run(self, plan: Plan[SimRequest], paused: list[SimRequest]) -> Step:
        kv_tokens = context_tokens = attention_twice = 0
        for request in plan.generation:
            kv_tokens += request.kv_tokens
            self._grow(request, request.kv_tokens + 1)
        for chunk in plan.chunks:
            context_tokens += chunk.tokens
            attention_twice += chunk.tokens * (2 * chunk.request.computed_tokens + chunk.tokens)
            self._start(chunk)
        start_ns = self.now_ns
        self.now_ns += self.spec.step_time.step_ns(
            len(plan.generation),
            kv_tokens,
            context_tokens=context_tokens,
            attention_twice=attention_twice,
        )
        self.iteration += 1
        self.counters.prefilled_tokens += context_tokens
        self.counters.residents_max = max(self.counters.residents_max, self._residents)
        step = Step(
            index=self.iteration,
            start_ns=start_ns,
            end_ns=self.now_ns,
            emitted=self._advance(plan),
            paused=paused,
            context_requests=len(plan.chunks),
            generation_requests=len(plan.generation),
            context_tokens=context_tokens,
            active_requests=len(self.active),
            waiting_requests=len(self.active) - self._started,
            used_blocks=self.pool.held_blocks,
            free_blocks=self.pool.free_blocks,
        )
        self._finish(step)
        return step

    def _start(self, chunk: Chunk[SimRequest]) -> None:
        request = chunk.request
        if not request.is_started:
            request.is_started = True
            request.state = State.RUNNING
            self._started += 1
        self._hold(request, chunk.hold_blocks)

    def _advance(self, plan: Plan[SimRequest]) -> list[SimRequest]:
        """Rule 4: each generating request, and each prompt that is now computed, makes a token."""
        makers = list(plan.generation)
        for request in makers:
            request.kv_tokens += 1
        for chunk in plan.chunks:
            request = chunk.request
            request.computed_tokens += chunk.tokens
            if request.computed_tokens == request.context_tokens:
                request.is_generating = True
                request.kv_tokens = request.context_tokens
                makers.append(request)
        emitted = []
        for request in makers:
            if request.hidden_left:
                request.hidden_left -= 1
                request.hidden_tokens += 1
                self.counters.hidden_tokens += 1
            else:
                _stream(request, self.now_ns)
                emitted.append(request)
        return emitted

    def _finish(self, step: Step) -> None:
        step.finished = [r for r in step.emitted if r.streamed == r.output_tokens]
        for request in step.finished:
            self._end(request)
            self.active.remove(request)

    # --- blocks -------------------------------------------------------------------------------

    def _hold(self, request: SimRequest, blocks: int) -> None:
        more = blocks - request.held_blocks
        if more > 0:
            self._residents += request.held_blocks == 0
            self.pool.take(more)
            request.held_blocks = blocks

    def _grow(self, request: SimRequest, kv_tokens: int) -> None:
        block_tokens = self.spec.block_tokens
        if kv_tokens > request.held_blocks * block_tokens:
            self._hold(request, blocks_of(kv_tokens, block_tokens))

    def _release(self, request: SimRequest) -> None:
        self._residents -= request.held_blocks > 0
        self.pool.give_back(request.held_blocks)
        request.held_blocks = 0

    def _end(self, request: SimRequest) -> None:
        self._release(request)
        self._started -= request.is_started
        request.is_started = request.is_generating = False
        request.state = State.FINISHED
        request.ended_ns = self.now_ns

    # --- the fast path ------------------------------------------------------------------------

    def _steps_that_fit(self, running: list[SimRequest], steps: int) -> int:
        """The most steps, up to `steps`, for whose growth there are free blocks (bisection)."""
        low, high = 0, steps
        while low < high:
            middle = high if low == 0 and high == steps else (low + high + 1) // 2
            if self._growth(running, middle) <= self.pool.free_blocks:
                low = middle
            else:
                high = middle - 1
        return low

    def _growth(self, running: list[SimRequest], steps: int) -> int:
        block_tokens = self.spec.block_tokens
        return sum(
            max(0, blocks_of(r.kv_tokens + steps, block_tokens) - r.held_blocks) for r in running
        )

    def _generate_run(self, request: SimRequest, ends_ns: list[int], longest_ns: int) -> None:
        """One token per entry of `ends_ns`, the hidden ones first.

        Step lengths never fall in such a run, so its last step is the longest gap.
        """
        steps = len(ends_ns)
        request.kv_tokens += steps
        hidden = min(request.hidden_left, steps)
        request.hidden_left -= hidden
        request.hidden_tokens += hidden
        self.counters.hidden_tokens += hidden
        if hidden == steps:
            return
        _stream(request, ends_ns[hidden])
        more = steps - hidden - 1
        if more:
            request.streamed += more
            request.last_token_ns = ends_ns[-1]
            request.max_gap_ns = max(request.max_gap_ns or 0, longest_ns)


def _stream(request: SimRequest, now_ns: int) -> None:
    """One token leaves the engine."""
    request.streamed += 1
    last_ns = request.last_token_ns
    if last_ns is None:
        request.first_token_ns = now_ns
    else:
        gap_ns = now_ns - last_ns
        if request.max_gap_ns is None or gap_ns > request.max_gap_ns:
            request.max_gap_ns = gap_ns
    request.last_token_ns = now_ns

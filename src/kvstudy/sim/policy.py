"""The policies: the only place where one engine's scheduling differs from another's.

Each is a pure function from (the active list, the spec, the situation) to a plan for one step.
None can see a true output length: `Schedulable` does not have it. Blocks are taken and given back
by the engine, which does what the plan says and does not ask which policy made it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Generic, TypeVar

from kvstudy.sim import chunking
from kvstudy.sim.model import EngineSpec, Policy, SglangOptions
from kvstudy.sim.request import Schedulable, SimRequest, blocks_of

R = TypeVar("R", bound=Schedulable)


@dataclass(frozen=True, slots=True)
class Situation:
    """What a policy knows beside the list.

    `started`: how many requests of the list are started. `new_token_ratio`: SGLang's only.
    """

    free_blocks: int
    started: int
    new_token_ratio: float = 1.0


@dataclass(frozen=True, slots=True)
class Chunk(Generic[R]):
    """`tokens` of the context of `request` run in this step; it then holds `hold_blocks`."""

    request: R
    tokens: int
    hold_blocks: int


@dataclass(slots=True)
class Plan(Generic[R]):
    """One step: who generates a token, which chunks run, who is paused before that.

    `is_steady`: the next steps get the same plan for as long as no request ends or joins and the
    free blocks cover the growth of those that generate (the ground of the fast path).
    """

    generation: list[R]
    chunks: list[Chunk[R]] = field(default_factory=list)
    paused: list[R] = field(default_factory=list)
    is_steady: bool = False
    requeue_paused: bool = False
    new_token_ratio: float | None = None


# --- TensorRT-LLM -----------------------------------------------------------------------------


def completion_need(request: Schedulable, block_tokens: int) -> int:
    """Blocks still to come until the cap: blocks(input + cap) - held.

    Source: TensorRT-LLM `kvCacheManager.cpp`, getRemainingBlocksToCompletion (beam width 1).
    """
    full = blocks_of(request.input_tokens + request.output_cap_tokens, block_tokens)
    return full - request.held_blocks


def step_need(request: Schedulable, block_tokens: int) -> int:
    """Blocks for the next step only.

    First chunk: the whole context, without a token of reserve; later chunks: none; generation:
    blocks(kv + 1) - held. Source: TensorRT-LLM `kvCacheManager.cpp`, getNeededBlocksOneStep.
    """
    if request.is_generating:
        return blocks_of(request.kv_tokens + 1, block_tokens) - request.held_blocks
    if request.is_started:
        return 0
    return max(0, blocks_of(request.context_tokens, block_tokens) - request.held_blocks)


def guaranteed_no_evict(queue: Sequence[R], spec: EngineSpec, now: Situation) -> Plan[R]:
    """Reserve to the cap: started requests always run, then waiting ones in order while they fit.

    The first waiting request whose `completion_need` does not fit ends the walk (no skipping), so
    nothing is ever paused. Source: TensorRT-LLM `capacityScheduler.cpp`,
    GuaranteedNoEvictScheduler.
    """
    block_tokens = spec.block_tokens
    left = now.free_blocks
    for request in _started(queue, now.started):
        left -= completion_need(request, block_tokens)
    seats = spec.max_batch_size - now.started
    seen, admitting = 0, True
    scheduled: list[R] = []
    for request in queue:
        if request.is_started:
            seen += 1
            scheduled.append(request)
        elif admitting:
            need = completion_need(request, block_tokens)
            admitting = seats > 0 and need <= left
            if admitting:
                seats -= 1
                left -= need
                scheduled.append(request)
        if not admitting and seen == now.started:
            break
    return _micro_batch(scheduled, spec, now)


def static_batch(queue: Sequence[R], spec: EngineSpec, now: Situation) -> Plan[R]:
    """As `guaranteed_no_evict`, but prompts are considered only while nothing generates.

    Prompts that have begun count as prompts here. Source: TensorRT-LLM `capacityScheduler.cpp`,
    GuaranteedNoEvictScheduler with StaticBatchScheduling.
    """
    generating = [r for r in _started(queue, now.started) if r.is_generating]
    if generating:
        plan = _micro_batch(generating, spec, now)
        plan.is_steady = len(plan.generation) == len(generating)
        return plan
    left = now.free_blocks
    scheduled: list[R] = []
    for request in queue:
        need = completion_need(request, spec.block_tokens)
        if need > left or len(scheduled) == spec.max_batch_size:
            break
        left -= need
        scheduled.append(request)
    return _micro_batch(scheduled, spec, now)


def max_utilization(queue: Sequence[R], spec: EngineSpec, now: Situation) -> Plan[R]:
    """Admit whatever fits this step; make room by pausing the youngest started requests.

    Walk in order. A request fits if the batch has a seat and the blocks claimed in this step plus
    its `step_need` are free, those of the paused included. If not, the last started request in
    [this one ... end of the list) is paused, the list is cut there and the request is tried
    again; with no such request the walk ends. Source: TensorRT-LLM `capacityScheduler.cpp`,
    MaxUtilizationScheduler.
    """
    block_tokens, seats = spec.block_tokens, spec.max_batch_size
    free, started_ahead, index, end = now.free_blocks, now.started, 0, len(queue)
    scheduled: list[R] = []
    paused: list[R] = []
    while index < end:
        request = queue[index]
        need = step_need(request, block_tokens)
        if need <= free and seats > 0:
            free -= need
            seats -= 1
            scheduled.append(request)
            started_ahead -= request.is_started
            index += 1
            continue
        if started_ahead == 0:
            break
        end = _last_started(queue, index, end)
        victim = queue[end]
        started_ahead -= 1
        paused.append(victim)
        free += _released_blocks(victim, spec)
    return _micro_batch(scheduled, spec, now, paused)


def _started(queue: Sequence[R], count: int) -> Iterable[R]:
    """The `count` started requests of the list, in order; stops looking after the last."""
    for request in queue:
        if count == 0:
            return
        if request.is_started:
            count -= 1
            yield request


def _last_started(queue: Sequence[Schedulable], begin: int, end: int) -> int:
    """Index of the last started request in [begin, end); there is one."""
    return next(i for i in range(end - 1, begin - 1, -1) if queue[i].is_started)


def _released_blocks(victim: Schedulable, spec: EngineSpec) -> int:
    return 0 if spec.pause.never_release else victim.held_blocks


def _micro_batch(
    scheduled: Sequence[R], spec: EngineSpec, now: Situation, paused: list[R] | None = None
) -> Plan[R]:
    """Share the token budget: one per generating request first, then prompts in list order.

    Source: TensorRT-LLM `microBatchScheduler.cpp`.
    """
    generation = [r for r in scheduled if r.is_generating][: spec.max_num_tokens]
    prompts = [r for r in scheduled if not r.is_generating]
    if not prompts:
        steady = not paused and len(generation) == now.started
        return Plan(generation, paused=paused or [], is_steady=steady)
    tokens = chunking.share(
        [r.context_tokens - r.computed_tokens for r in prompts],
        spec.max_num_tokens - len(generation),
        chunked=spec.chunked_prefill,
        policy=spec.chunk_policy,
        unit_tokens=spec.chunk_unit,
    )
    chunks = [
        Chunk(r, n, max(r.held_blocks, blocks_of(r.context_tokens, spec.block_tokens)))
        for r, n in zip(prompts, tokens, strict=True)
        if n > 0
    ]
    return Plan(generation, chunks, paused or [])


# --- vLLM -------------------------------------------------------------------------------------


def vllm_recompute(queue: Sequence[R], spec: EngineSpec, now: Situation) -> Plan[R]:
    """Admit optimistically; when a running request cannot grow, preempt the last running one.

    Running requests go first, in order, each with one token or what the budget leaves of its
    prompt; blocks are taken per chunk. A preempted request keeps its place at the front of the
    waiting ones and is computed again whole. A step that preempts admits nobody.
    Source: vLLM `vllm/v1/core/sched/scheduler.py`, Scheduler.schedule (FCFS).
    """
    running = list(_started(queue, now.started))
    plan: Plan[R] = Plan([])
    free, budget = now.free_blocks, spec.max_num_tokens
    index = 0
    while index < len(running) and budget > 0:
        request = running[index]
        tokens, hold = _vllm_grant(request, budget, spec.block_tokens)
        need = max(0, hold - request.held_blocks)
        while need > free and len(running) > index:
            victim = running.pop()
            plan.paused.append(victim)
            free += victim.held_blocks
        if len(running) == index:
            break
        free -= need
        budget -= tokens
        index += 1
        if request.is_generating:
            plan.generation.append(request)
        else:
            plan.chunks.append(Chunk(request, tokens, hold))
    if not plan.paused:
        waiting = (r for r in queue if not r.is_started)
        plan.chunks += _vllm_admissions(
            waiting, spec, free, budget, spec.max_batch_size - len(running)
        )
        plan.is_steady = not plan.chunks and len(plan.generation) == now.started
    return plan


def _vllm_grant(request: Schedulable, budget: int, block_tokens: int) -> tuple[int, int]:
    """Tokens of this step for a running request, and the blocks that it holds with them."""
    if request.is_generating:
        return 1, blocks_of(request.kv_tokens + 1, block_tokens)
    tokens = min(budget, request.context_tokens - request.computed_tokens)
    return tokens, blocks_of(request.computed_tokens + tokens, block_tokens)


def _vllm_admissions(
    waiting: Iterable[R], spec: EngineSpec, free: int, budget: int, seats: int
) -> list[Chunk[R]]:
    """Waiting requests in order, until a seat, the budget or the room for one is missing."""
    watermark_blocks = int(spec.vllm.watermark * spec.usable_blocks)
    admitted: list[Chunk[R]] = []
    for request in waiting:
        whole = request.context_tokens
        if budget <= 0 or seats <= 0 or (whole > budget and not spec.chunked_prefill):
            break
        tokens = min(whole, budget)
        hold = blocks_of(tokens, spec.block_tokens)
        room = blocks_of(whole, spec.block_tokens) if spec.vllm.reserve_full_isl else hold
        if room > free - watermark_blocks:
            break
        admitted.append(Chunk(request, tokens, hold))
        free -= hold
        budget -= tokens
        seats -= 1
    return admitted


# --- SGLang -----------------------------------------------------------------------------------


def sglang_retract(queue: Sequence[R], spec: EngineSpec, now: Situation) -> Plan[R]:
    """Admit against an estimate of what running requests will still grow; retract if it was low.

    A step with prompts to run is a prompt step (generation waits unless `mixed_chunk`); else all
    running requests generate, after a retraction where their growth does not fit. Retracted ones
    go to the end of the list and are computed again whole.
    Source: SGLang `managers/scheduler.py` get_next_batch_to_run, `schedule_policy.py` PrefillAdder
    and `schedule_batch.py` retract_decode. Whole contexts are held from their first chunk on.
    """
    running = list(_started(queue, now.started))
    generating = [r for r in running if r.is_generating]
    chunks = _sglang_prompts(queue, generating, spec, now)
    if chunks and not spec.sglang.mixed_chunk:
        return Plan([], chunks)
    taken = sum(c.hold_blocks - c.request.held_blocks for c in chunks)
    if chunks and taken + _growth(generating, spec.block_tokens) <= now.free_blocks:
        return Plan(generating, chunks)
    if not generating:
        return Plan([], chunks)
    return _sglang_decode(generating, spec, now)


def _growth(generating: Iterable[Schedulable], block_tokens: int) -> int:
    return sum(step_need(r, block_tokens) for r in generating)


def _tokens_ahead(request: Schedulable, options: SglangOptions) -> int:
    """Tokens a request is expected to grow by, at most: min(left to its cap, clip)."""
    return min(request.output_cap_tokens - request.streamed, options.clip_tokens)


def _sglang_prompts(
    queue: Sequence[R], generating: Sequence[R], spec: EngineSpec, now: Situation
) -> list[Chunk[R]]:
    """The prompt that is under way, then waiting ones while context + growth + a page fit."""
    options, page = spec.sglang, spec.block_tokens
    reserved = sum(_tokens_ahead(r, options) for r in generating) * now.new_token_ratio
    room_tokens = now.free_blocks * page - reserved
    budget = spec.max_num_tokens if spec.chunked_prefill else options.max_prefill_tokens
    budget -= len(generating) if options.mixed_chunk else 0
    seats = spec.max_batch_size - len(generating)
    under_way = [r for r in _started(queue, now.started) if not r.is_generating]
    chunks: list[Chunk[R]] = []
    for request in chain(under_way, (r for r in queue if not r.is_started)):
        left = request.context_tokens - request.computed_tokens
        tokens = _sglang_chunk(left, budget, spec, is_first=not chunks)
        if tokens <= 0 or seats <= 0:
            break
        hold = blocks_of(request.context_tokens, page)
        new_tokens = (hold - request.held_blocks) * page
        if not request.is_started:
            if request.context_tokens + _tokens_ahead(request, options) + page >= room_tokens:
                break
            if hold > now.free_blocks - sum(c.hold_blocks - c.request.held_blocks for c in chunks):
                break
        chunks.append(Chunk(request, tokens, hold))
        budget -= tokens
        seats -= 1
        room_tokens -= new_tokens + _tokens_ahead(request, options)
    return chunks


def _sglang_chunk(left: int, budget: int, spec: EngineSpec, *, is_first: bool) -> int:
    """Tokens of one prompt in this step; 0 ends the batch."""
    if left <= budget:
        return left
    if spec.chunked_prefill:
        return budget // spec.chunk_unit * spec.chunk_unit
    return left if is_first else 0


def _sglang_decode(generating: Sequence[R], spec: EngineSpec, now: Situation) -> Plan[R]:
    """One token for all; retract fewest-output, then longest-input, first until that fits."""
    options = spec.sglang
    if _growth(generating, spec.block_tokens) <= now.free_blocks:
        ratio = max(options.min_ratio, now.new_token_ratio - options.decay_per_step)
        return Plan(list(generating), new_token_ratio=ratio)
    keep = sorted(generating, key=lambda r: (r.streamed, -r.input_tokens), reverse=True)
    free = now.free_blocks
    retracted: list[R] = []
    while keep and _growth(keep, spec.block_tokens) > free:
        retracted.append(keep.pop())
        free += retracted[-1].held_blocks
    ahead = sum(r.streamed for r in keep) + options.retract_decode_steps * len(keep)
    ratio = min(1.0, ahead / (sum(r.output_cap_tokens for r in keep) + 1))
    kept = {id(r) for r in keep}
    generation = [r for r in generating if id(r) in kept]
    return Plan(generation, paused=retracted, requeue_paused=True, new_token_ratio=ratio)


Scheduler = Callable[[Sequence[SimRequest], EngineSpec, Situation], Plan[SimRequest]]

SCHEDULERS: dict[Policy, Scheduler] = {
    Policy.GUARANTEED_NO_EVICT: guaranteed_no_evict,
    Policy.MAX_UTILIZATION: max_utilization,
    Policy.STATIC_BATCH: static_batch,
    Policy.VLLM_RECOMPUTE: vllm_recompute,
    Policy.SGLANG_RETRACT: sglang_retract,
}

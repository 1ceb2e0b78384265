"""The micro-batch: how the token budget of a step is shared between prompts.

Source: TensorRT-LLM `microBatchScheduler.cpp`, setCtxRequestsChunkSize for
FIRST_COME_FIRST_SERVED and EQUAL_PROGRESS.
"""

from __future__ import annotations

from collections.abc import Sequence

from kvstudy.sim.model import ChunkPolicy


def whole_prompts(remaining: Sequence[int], budget_tokens: int) -> list[int]:
    """Without chunked prefill: whole prompts in order; the first that does not fit ends the loop.

    Returns one token count per prompt; 0 means that it waits.
    """
    chunks = [0] * len(remaining)
    for index, tokens in enumerate(remaining):
        if tokens > budget_tokens:
            break
        chunks[index] = tokens
        budget_tokens -= tokens
    return chunks


def first_come_first_served(
    remaining: Sequence[int], budget_tokens: int, unit_tokens: int
) -> list[int]:
    """Each prompt in order takes what is left of the budget.

    A chunk that does not finish its prompt is rounded down to a multiple of `unit_tokens`; what
    the rounding leaves goes to the next prompt. Returns one count per prompt; 0 waits.
    """
    chunks = []
    for tokens in remaining:
        chunk = tokens
        if chunk > budget_tokens:
            chunk = budget_tokens // unit_tokens * unit_tokens
        chunks.append(chunk)
        budget_tokens -= chunk
    return chunks


def equal_progress(remaining: Sequence[int], budget_tokens: int, unit_tokens: int) -> list[int]:
    """Round after round, each prompt in order gets one more unit while the budget holds it.

    A prompt that would pass the budget is skipped for that round. Returns one count per prompt.
    """
    chunks = [0] * len(remaining)
    progress = True
    while progress and budget_tokens > 0:
        progress = False
        for index, tokens in enumerate(remaining):
            more = min(unit_tokens, tokens - chunks[index])
            if 0 < more <= budget_tokens:
                chunks[index] += more
                budget_tokens -= more
                progress = True
    return chunks


def share(
    remaining: Sequence[int],
    budget_tokens: int,
    *,
    chunked: bool,
    policy: ChunkPolicy,
    unit_tokens: int,
) -> list[int]:
    """Token counts per prompt for this step, by the engine's settings."""
    if not chunked:
        return whole_prompts(remaining, budget_tokens)
    if sum(remaining) <= budget_tokens:
        return list(remaining)
    if policy is ChunkPolicy.EQUAL_PROGRESS:
        return equal_progress(remaining, budget_tokens, unit_tokens)
    return first_come_first_served(remaining, budget_tokens, unit_tokens)

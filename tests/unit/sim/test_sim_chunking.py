"""The share of a step's token budget, by hand."""

from __future__ import annotations

from kvstudy.sim.chunking import (
    equal_progress,
    first_come_first_served,
    share,
    whole_prompts,
)
from kvstudy.sim.model import ChunkPolicy


def test_a_cut_chunk_is_rounded_down_to_the_unit() -> None:
    """8192 - 21 = 8171 tokens are left; 8171 // 32 * 32 = 8160."""
    assert first_come_first_served([16384, 16384], 8171, 32) == [8160, 0]


def test_a_chunk_that_ends_its_prompt_is_not_rounded() -> None:
    """64 tokens end the first prompt; 8107 are left for the second, rounded to 8096."""
    assert first_come_first_served([64, 16384], 8171, 32) == [64, 8096]


def test_what_rounding_leaves_goes_to_the_next_prompt() -> None:
    """20 tokens of budget: the first gets 20 // 32 * 32 = 0 and waits, the second needs just 15."""
    assert first_come_first_served([100, 15, 10], 20, 32) == [0, 15, 0]


def test_without_chunking_the_first_misfit_ends_the_loop() -> None:
    """The third would fit, but stands behind one that does not."""
    assert whole_prompts([60, 50, 30], 100) == [60, 0, 0]


def test_equal_progress_goes_round_by_units() -> None:
    """Budget 100, unit 32: 32 + 32 + 5 in the first round leave 31, less than a unit."""
    assert equal_progress([100, 100, 5], 100, 32) == [32, 32, 5]


def test_equal_progress_skips_only_those_that_would_pass_the_budget() -> None:
    """Budget 80: 32 + 32 leave 16; the first takes its last 8, the second would need 32 more."""
    assert equal_progress([40, 100], 80, 32) == [40, 32]
    assert equal_progress([100, 40], 80, 32) == [32, 40]


def test_everything_runs_whole_where_it_fits() -> None:
    """No rounding where the budget holds all prompts."""
    for policy in ChunkPolicy:
        assert share([33, 7], 40, chunked=True, policy=policy, unit_tokens=32) == [33, 7]


def test_share_follows_the_setting() -> None:
    """Same prompts, three settings."""
    remaining, budget = [100, 100], 150
    fcfs = share(remaining, budget, chunked=True, policy=ChunkPolicy.FCFS, unit_tokens=32)
    equal = share(
        remaining, budget, chunked=True, policy=ChunkPolicy.EQUAL_PROGRESS, unit_tokens=32
    )
    whole = share(remaining, budget, chunked=False, policy=ChunkPolicy.FCFS, unit_tokens=32)
    assert fcfs == [100, 32]  # 50 left, rounded down to 32
    assert equal == [64, 64]  # two rounds of 32 each; 22 left, less than a unit
    assert whole == [100, 0]

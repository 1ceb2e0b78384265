"""What a pause costs, version by version, and how sure that is."""

from __future__ import annotations

from dataclasses import dataclass

from kvstudy.serve.versions import Release, release
from kvstudy.sim.model import Pause, Policy

ASSUMED_CUT_TOKENS = 1024
"""The cut that fits the published rows of 1.2.1 best; docs/decisions/0002-pause-length.md."""


@dataclass(frozen=True, slots=True)
class PauseCost:
    """One entry of the version table: from `since` on, until the engine's next entry."""

    adapter: str
    since: Release
    versions: str
    pause: Pause
    basis: str
    words: str


TABLE = (
    PauseCost(
        "trtllm",
        (0, 0, 0, 0),
        "before 1.3.0rc2",
        Pause(truncate_to_tokens=ASSUMED_CUT_TOKENS),
        "assumed",
        "a pause is assumed to cut the request to its first tokens and to decode the rest in "
        "silence (hypothesis H1); it explains the published 1.2.1 numbers and has not been "
        "confirmed in the image: rule probe_engine decides it",
    ),
    PauseCost(
        "trtllm",
        (1, 3, 0, 2),
        "1.3.0rc2 and later candidates",
        Pause(),
        "inferred",
        "a pause computes prompt and generated tokens again (the default that cut them was raised "
        "in January 2026); published numbers of 1.3.0rc22 agree",
    ),
    PauseCost(
        "trtllm",
        (1, 4, 0, 0),
        "1.4.0rc0 and later",
        Pause(),
        "not modelled",
        "the default KV-cache manager is another one (V2), which may move KV to host memory; "
        "what is said here holds with use_kv_cache_manager_v2: false",
    ),
    PauseCost(
        "vllm",
        (0, 0, 0, 0),
        "V1 engine",
        Pause(),
        "documented",
        "a preempted request is computed again from its first token",
    ),
    PauseCost(
        "sglang",
        (0, 0, 0, 0),
        "0.5",
        Pause(),
        "documented",
        "a retracted request is computed again and goes to the end of the queue",
    ),
)

POLICIES = {
    "trtllm": (Policy.GUARANTEED_NO_EVICT, Policy.MAX_UTILIZATION),
    "vllm": (Policy.VLLM_RECOMPUTE,),
    "sglang": (Policy.SGLANG_RETRACT,),
}
"""The policies an engine offers, its default first."""


def pause_cost(adapter: str, version: str) -> PauseCost:
    """The last entry of an engine that is not newer than the version."""
    own = [entry for entry in TABLE if entry.adapter == adapter]
    fitting = [entry for entry in own if entry.since <= release(version)]
    return (fitting or own)[-1]

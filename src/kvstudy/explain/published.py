"""Claims of published files as plain numbers with a spread, and a study's own requests."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from kvstudy.explain.evidence import PublishedValue
from kvstudy.sim.spec import RequestShape
from kvstudy.stats.claims import Claim, read_published
from kvstudy.workload.lengths import draw, rng_for, submission_order


def published_values(paths: Sequence[Path]) -> list[PublishedValue]:
    """Every claim that states a metric of an arm, or its ratio to another arm's."""
    claims = [claim for file in read_published(paths) for claim in file.claims]
    return [value for claim in claims if (value := published_value(claim)) is not None]


def published_value(claim: Claim) -> PublishedValue | None:
    """One claim; None for one that is no mean over repeats, or no metric of an arm."""
    compute, of, over = claim.compute, claim.compute.of, claim.compute.over
    if compute.op not in ("value", "ratio") or of.repeat is not None or claim.tolerance is None:
        return None
    if over is not None and (over.engine != of.engine or over.metric != of.metric):
        return None
    if of.engine is None or of.workload is None or of.concurrency is None or of.arm is None:
        return None
    if of.metric is None or claim.value <= 0 or compute.scale != 1:
        return None
    limit = claim.tolerance
    share = limit.relative or limit.noise or (limit.absolute or 0.0) / claim.value
    return PublishedValue(
        engine=of.engine,
        workload=of.workload,
        concurrency=of.concurrency,
        arm=of.arm,
        metric=of.metric,
        value=claim.value,
        spread=share + claim.step / 2 / claim.value,
        over_arm=None if over is None else over.arm,
    )


def lengths_of(workload: Mapping[str, Any], repeat: int) -> list[RequestShape]:
    """The study's own requests, in the order in which one repeat submits them."""
    name, seed, count = workload["name"], workload["seed"], workload["requests"]
    inputs, outputs = (
        draw(workload[f"{side}_tokens"], count, rng_for(seed, side, name, "measured"))
        for side in ("input", "output")
    )
    cap = workload["output_cap_tokens"]
    order = submission_order(seed, name, repeat, count)
    return [RequestShape(inputs[i], outputs[i], cap) for i in order]

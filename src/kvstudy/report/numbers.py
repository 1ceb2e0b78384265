"""Tables to the page: every number and sentence the templates show, by name."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvstudy.report import (
    claim_tables,
    effect_tables,
    issue_tables,
    provenance,
    version_tables,
    wording,
)
from kvstudy.report.inputs import Inputs
from kvstudy.report.page import Page, Table
from kvstudy.report.text import listing, plural
from kvstudy.report.why import why_of
from kvstudy.stats.bootstrap import DRAWS
from kvstudy.stats.verdict import sentence


def page_of(inputs: Inputs) -> Page:
    """The whole page."""
    issue = issue_tables.issue_tables(inputs)
    claims = claim_tables.claim_tables(inputs)
    return Page(
        title=inputs.config["title"] or inputs.config["study"],
        subtitle=_subtitle(inputs),
        backend=inputs.backend,
        banner=wording.banner(inputs),
        facts=facts(inputs),
        badges=claim_tables.badges(inputs),
        verdict_sentence=sentence(inputs.verdicts),
        answers=wording.answers(inputs),
        issue_tables=issue,
        repeats=effect_tables.repeat_tables(inputs),
        counting=effect_tables.counting_tables(inputs),
        effects=effect_tables.contrast_tables(inputs),
        versions=version_tables.version_tables(inputs),
        server_side=effect_tables.server_tables(inputs),
        claims=[*claims, *claim_tables.key_tables(inputs)],
        why=why_of(inputs.hypotheses, inputs.regimes),
        environment=[*provenance.environment_tables(inputs), *provenance.run_table(inputs)],
        audit=[*provenance.audit_tables(inputs), *provenance.resolved_tables(inputs)],
        audit_sentences=provenance.audit_sentences(inputs),
        launches=provenance.launches(inputs),
        method=provenance.method_tables(inputs),
        method_notes=method_notes(inputs),
        figures=inputs.figures,
        numbers=named([*issue, *claims]),
    )


def named(tables: Sequence[Table]) -> dict[str, str]:
    """`<claim>.<source>` to the text of the number on the page."""
    return {
        f"{part.claim}.{part.source}": part.text
        for table in tables
        for row in table.rows
        for cell in row
        for part in cell.parts
        if part.claim and part.source
    }


def _subtitle(inputs: Inputs) -> str:
    config = inputs.config
    engines = listing([f"{name}" for name in config["engines"]])
    arms = listing([inputs.arm(arm) for arm in config["arms"]])
    return f"{arms} on {engines}, {config['model']['repo']}"


def facts(inputs: Inputs) -> list[tuple[str, str]]:
    """The summary box: what was run, on what."""
    config = inputs.config
    pool = config["server"]["kv_pool"]
    run = inputs.data.select(inputs.backend)
    done = [row for row in run if "not_run" not in row["reasons"]]
    valid = [row for row in done if row["valid"]]
    requests = sum(int(row["completed"] or 0) for row in done)
    gpus = sorted({r["gpu"]["name"] for r in inputs.runs.values() if r.get("gpu")})
    nodes = sorted({r["host"]["node"] for r in inputs.runs.values() if r.get("host")})
    return [
        ("Study", str(config["study"])),
        ("Numbers", f"{inputs.backend}, with a prediction beside every cell"),
        ("Cells", f"{len(done)} of {len(run)} ran, {len(valid)} valid; {requests:,} requests"),
        ("Workloads", "; ".join(_workload(n, w) for n, w in config["workloads"].items())),
        (
            "KV pool",
            f"{pool['tokens']:,} tokens of {pool['dtype']}, {pool['block_tokens']} a block",
        ),
        ("GPU", listing(gpus) if gpus else "none: " + _no_gpu(inputs)),
        ("Host", listing(nodes) if nodes else "not recorded"),
        ("When", _when(inputs)),
    ]


def _no_gpu(inputs: Inputs) -> str:
    return "the engine was emulated" if inputs.backend == "emulated" else "no cell has run on one"


def _workload(name: str, workload: dict[str, Any]) -> str:
    lanes = "/".join(str(n) for n in workload["concurrency"])
    output = _length(workload["output_tokens"])
    return (
        f"{name}: {workload['requests']:,} requests, {_length(workload['input_tokens'])} in, "
        f"{output} out, concurrency {lanes}, {plural(workload['repeats'], 'repeat')}"
    )


def _length(length: Any) -> str:
    if isinstance(length, dict):
        low, high = length["uniform"]
        return f"{low:,} to {high:,}"
    return f"{length:,}"


def _when(inputs: Inputs) -> str:
    starts = sorted(str(r["started_at"]) for r in inputs.runs.values() if r.get("started_at"))
    if not starts:
        return "not recorded"
    return starts[0] if starts[0] == starts[-1] else f"{starts[0]} to {starts[-1]}"


def method_notes(inputs: Inputs) -> list[str]:
    """How the numbers are made, in sentences."""
    slo = {key: value for key, value in inputs.config["slo"].items() if value is not None}
    bounds = listing([f"{key.replace('_', ' ')} {value:,g}" for key, value in slo.items()])
    notes = [
        "Percentiles are linear interpolations between order statistics, over completed requests.",
        "A cell's value is its own; a mean is over the repeats of a cell; nothing is pooled.",
        f"Intervals are 95 % percentile intervals of {DRAWS:,} hierarchical bootstrap draws "
        "(repeats, then requests within a repeat), seeded by the study. Both sides of a paired "
        "contrast draw the same repeats. With one repeat no interval exists.",
        "Requests run in a closed loop: a lane sends its next request when its last one ended, so "
        "queueing behind busy lanes is not in any latency, and TTFT of two arms is comparable "
        "only together with throughput.",
        "The re-tokenised count is the published definition and stands first; chunks, the planned "
        "count and the server's usage stand beside it.",
    ]
    early = [
        name
        for name, workload in inputs.config["workloads"].items()
        if workload["output_cap_tokens"] not in (None, workload["output_tokens"])
    ]
    if early and inputs.backend == "measured":
        notes.append(
            f"The answers of {listing(early)} end before their cap: the client closes each stream "
            "at its planned length, which approximates an engine that stops by itself."
        )
    if bounds:
        notes.append(f"Goodput counts completed requests that meet every bound: {bounds}.")
    if inputs.backend == "emulated" or "predicted" in inputs.data.sources:
        notes.append(
            "Models share one scheduler core and one step-time formula; they have no variance of "
            "their own, no text effects, and the pause cost that the configuration assumes."
        )
    return notes

"""What ran where: environment, resolved configuration, audit of contrasts, launch commands."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvstudy.base.digest import canonical_json
from kvstudy.base.reasons import INVALID, WARNING
from kvstudy.metrics.cards import CARDS
from kvstudy.report.inputs import Inputs
from kvstudy.report.page import Code, Head, Table, entry
from kvstudy.report.text import listing
from kvstudy.stats.audit import Finding, flags, flatten

_RUN_KEYS = ("started_at", "ending", "time_scale", "attempt", "commit", "dirty", "spec_digest")


def environment_tables(inputs: Inputs) -> list[Table]:
    """One column per engine: versions, hosts, GPUs, pins; values that differ are all listed."""
    by_engine: dict[str, list[Mapping[str, Any]]] = {}
    for run in inputs.runs.values():
        by_engine.setdefault(run["engine"], []).append(run)
    if not by_engine:
        return []
    flat = {engine: [flatten(_facts(run)) for run in runs] for engine, runs in by_engine.items()}
    keys = list(dict.fromkeys(k for runs in flat.values() for run in runs for k in run))
    rows = []
    for key in keys:
        cells = [_distinct([run.get(key) for run in flat[engine]]) for engine in by_engine]
        if any(cells):
            rows.append([entry(key.replace("_", " ")), *(entry(cell or "none") for cell in cells)])
    heads = [Head("item", numeric=False), *(Head(e, numeric=False) for e in by_engine)]
    return [
        Table(
            id="environment",
            title="Software, hosts, GPUs and pins",
            heads=heads,
            rows=rows,
            provenance=f"recorded by the run, {inputs.backend}",
        )
    ]


def _facts(run: Mapping[str, Any]) -> dict[str, Any]:
    parts = ("versions", "host", "gpu", "pins")
    facts: dict[str, Any] = {part: run[part] for part in parts if run.get(part)}
    return facts | {key: run[key] for key in ("commit", "dirty", "time_scale") if key in run}


def _distinct(values: list[Any]) -> str:
    found = dict.fromkeys(_shown(value) for value in values if value is not None)
    return ", ".join(found)


def run_table(inputs: Inputs) -> list[Table]:
    """One row per cell that ran: when, how it ended, which attempt."""
    heads = [Head("cell", numeric=False)]
    heads += [Head(key.replace("_", " "), numeric=False) for key in _RUN_KEYS]
    rows = [
        [entry(cell_id), *(entry(_shown(run.get(key))) for key in _RUN_KEYS)]
        for cell_id, run in inputs.runs.items()
    ]
    if not rows:
        return []
    return [Table("runs", "Cells that ran", heads, rows, f"recorded by the run, {inputs.backend}")]


def _shown(value: Any) -> str:
    """A recorded value in words: yes and no, five digits."""
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.5g}" if isinstance(value, float) else str(value)


def resolved_tables(inputs: Inputs) -> list[Table]:
    """What each arm's servers said they resolved, beside each other."""
    columns: dict[tuple[str, str, str], list[Mapping[str, Any]]] = {}
    for cell_id, run in inputs.runs.items():
        workload = cell_id.partition(".")[0]
        columns.setdefault((run["engine"], run["arm"], workload), []).append(run)
    tables = []
    for engine in dict.fromkeys(engine for engine, _, _ in columns):
        sides = {k: v for k, v in columns.items() if k[0] == engine}
        flat = {k: [_resolved(run) for run in runs] for k, runs in sides.items()}
        keys = list(dict.fromkeys(key for runs in flat.values() for run in runs for key in run))
        heads = [Head("setting", numeric=False)]
        heads += [
            Head(f"{workload}, {inputs.arm(arm)}", numeric=False) for _, arm, workload in sides
        ]
        rows = []
        for key in keys:
            cells = [
                _distinct([run.get(key) for run in runs]) or "not said" for runs in flat.values()
            ]
            kind = "differ" if len(set(cells)) > 1 else ""
            rows.append([entry(key), *(entry(cell, kind=kind) for cell in cells)])
        if rows:
            tables.append(
                Table(
                    id=f"resolved-{engine}",
                    title=f"{engine}: what the servers resolved",
                    heads=heads,
                    rows=rows,
                    provenance=f"as the servers said, {inputs.backend}",
                )
            )
    return tables


def _resolved(run: Mapping[str, Any]) -> dict[str, Any]:
    resolved = {k: v for k, v in (run.get("resolved") or {}).items() if k != "excerpts"}
    return flatten(resolved)


def audit_tables(inputs: Inputs) -> list[Table]:
    """Differences between the two sides of each contrast, and declared-against-resolved."""
    heads = [
        Head(label, numeric=False)
        for label in ("contrast", "workload", "on", "where", "setting", "baseline", "treatment")
    ]
    heads.append(Head("declared", numeric=False))
    rows = [
        [
            entry(f"{inputs.arm(f.treatment)} vs {inputs.arm(f.baseline)}"),
            entry(f"{f.workload} c{f.concurrency}"),
            entry(inputs.arm(f.within)),
            entry(d.place),
            entry(d.key),
            entry(d.baseline),
            entry(d.treatment),
            entry("yes" if d.declared else "NO", kind="" if d.declared else "invalid"),
        ]
        for f in inputs.findings
        for d in f.differences
    ]
    tables = [
        Table(
            id="audit",
            title="Differences between the sides of each contrast",
            heads=heads,
            rows=rows,
            provenance=f"as given to and said by the servers, {inputs.backend}",
        )
    ]
    return [table for table in [*tables, *_mismatches(inputs)] if table.rows]


def _mismatches(inputs: Inputs) -> list[Table]:
    heads = [Head("cell", numeric=False), Head("declared but resolved otherwise", numeric=False)]
    rows = [
        [entry(cell_id), entry(str(line), kind="invalid")]
        for cell_id, run in inputs.runs.items()
        for line in run.get("mismatches") or []
    ]
    return [Table("mismatches", "Declared against resolved", heads, rows, inputs.backend)]


def audit_sentences(inputs: Inputs) -> list[str]:
    """Whether every contrast is fair, in words."""
    if not inputs.findings:
        return ["No contrast of cells that ran could be audited."]
    unfair = [finding for finding in inputs.findings if not finding.fair]
    unknown = [finding for finding in inputs.findings if not finding.known]
    sentences = [_unfair_sentence(inputs, finding) for finding in unfair]
    if not unfair:
        sentences.append("The sides of every contrast differ only in what the contrast declares.")
    if unknown:
        names = listing(sorted({f"{f.workload} on {f.within}" for f in unknown}))
        sentences.append(f"Not every cell left a record to audit: {names}.")
    if not any(run.get("mismatches") for run in inputs.runs.values()):
        sentences.append("Every server resolved what was declared, as far as it said.")
    return sentences


def _unfair_sentence(inputs: Inputs, finding: Finding) -> str:
    keys = listing(sorted({difference.key for difference in finding.undeclared}))
    return (
        f"INVALID: {inputs.arm(finding.treatment)} vs {inputs.arm(finding.baseline)} on "
        f"{finding.within}, {finding.workload}: the sides also differ in {keys}."
    )


def launches(inputs: Inputs) -> list[Code]:
    """Each distinct launch once: command, files, and what the first such server said."""
    shown: dict[str, Code] = {}
    workloads: dict[str, dict[str, None]] = {}
    for cell_id, run in inputs.runs.items():
        argv = [str(word) for word in run.get("argv") or []]
        given = run.get("files") or {}
        key = canonical_json([run["engine"], run["arm"], flags(argv), given])
        workloads.setdefault(key, {})[cell_id.partition(".")[0]] = None
        if key in shown:
            continue
        lines = [shlex.join(argv)]
        for name, text in given.items():
            lines += ["", f"# {name}", text.rstrip("\n")]
        said = (run.get("resolved") or {}).get("excerpts") or []
        title = f"{run['engine']}, {inputs.arm(run['arm'])}"
        shown[key] = Code(title, "\n".join(lines), "sh", "\n".join(str(line) for line in said))
    return [
        replace(code, title=f"{code.title}: {listing(list(workloads[key]))}")
        for key, code in shown.items()
    ]


def method_tables(_inputs: Inputs) -> list[Table]:
    """Metric cards and reason codes."""
    labels = ("metric", "unit", "formula", "undefined when", "note")
    cards = Table(
        "metrics",
        "Metrics",
        [Head(label, numeric=False) for label in labels],
        [
            [entry(f"{c.title} ({c.name})"), entry(c.unit), entry(c.formula),
             entry(c.undefined_when), entry(c.note)]
            for c in CARDS
        ],
        "definitions",
    )  # fmt: skip
    reasons = Table(
        "reasons",
        "Reason codes",
        [Head(label, numeric=False) for label in ("code", "takes the verdict", "meaning")],
        [[entry(c), entry("yes"), entry(m)] for c, m in INVALID.items()]
        + [[entry(c), entry("no"), entry(m)] for c, m in WARNING.items()],
        "definitions",
    )
    return [cards, reasons]

"""The published tables in their own layout: published row, run's row, prediction's row."""

from __future__ import annotations

from statistics import fmean

from kvstudy.report.inputs import Inputs
from kvstudy.report.page import Entry, Head, Part, Table, entry
from kvstudy.report.text import DASH, number, with_unit
from kvstudy.stats.claims import Claim, Column, Layout
from kvstudy.stats.data import Row, finite, metric

MARKS = {
    "reproduced": ("\N{CHECK MARK}", "agree"),
    "model_agrees": ("\N{CHECK MARK}", "agree"),
    "not_reproduced": ("\N{NOT EQUAL TO}", "differ"),
    "model_differs": ("\N{NOT EQUAL TO}", "differ"),
    "invalid": ("!", "invalid"),
}
_UNITS = {"delta_percent": "%", "ratio": "x"}


def issue_tables(inputs: Inputs) -> list[Table]:
    """One table per layout and engine that has cells for it."""
    tables = []
    for engine in inputs.config["engines"]:
        for layout in inputs.layouts:
            if any(_cells(inputs, layout, engine, arm) for arm in layout.arms):
                tables.append(_table(inputs, layout, engine))
    return tables


def _cells(inputs: Inputs, layout: Layout, engine: str, arm: str, source: str = "") -> list[Row]:
    sources = [source] if source else inputs.run_sources
    return [
        row
        for name in sources
        for row in inputs.data.select(
            name,
            workload=layout.workload,
            concurrency=layout.concurrency,
            engine=engine,
            arm=arm,
        )
    ]


def _table(inputs: Inputs, layout: Layout, engine: str) -> Table:
    heads = [Head("policy", numeric=False), Head("numbers", numeric=False)]
    heads += [Head(column.head) for column in layout.columns]
    rows = []
    for arm, words in layout.arms.items():
        for source in ("published", *inputs.run_sources):
            line = [
                _entry(inputs, layout, engine, arm, column, source) for column in layout.columns
            ]
            rows.append([entry(words), entry(_row_name(inputs, source), kind=source), *line])
    repeats = {row["repeat"] for arm in layout.arms for row in _cells(inputs, layout, engine, arm)}
    return Table(
        id=f"issue-{layout.id}-{engine}",
        title=f"{engine}: {layout.title}",
        heads=heads,
        rows=rows,
        provenance=f"published; {inputs.provenance(inputs.run_sources)}",
        notes=[_note(len(repeats)), *_invalid_notes(inputs, layout, engine)],
    )


def _row_name(inputs: Inputs, source: str) -> str:
    return f"this run, {source}" if source == inputs.backend else source


def _note(repeats: int) -> str:
    mean = "One repeat per cell." if repeats == 1 else f"Mean of {repeats} repeats per cell."
    return (
        f"{mean} {DASH}: not published, or not defined. "
        "\N{CHECK MARK} within the claim's tolerance, \N{NOT EQUAL TO} outside, ! cell not valid."
    )


def _invalid_notes(inputs: Inputs, layout: Layout, engine: str) -> list[str]:
    return [
        f"{row['cell_id']} ({row['source']}) is not valid: {', '.join(row['reasons'])}."
        for arm in layout.arms
        for row in _cells(inputs, layout, engine, arm)
        if not row["valid"]
    ]


def claim_for(
    inputs: Inputs, layout: Layout, engine: str, arm: str, column: Column, op: str
) -> Claim | None:
    """The published number of a table cell, or of what stands beside it."""
    for claim in _nearest_first(inputs, layout):
        of, over = claim.compute.of, claim.compute.over
        if (
            claim.compute.op == op
            and of.repeat in (None, "mean")
            and (of.workload, of.concurrency) == (layout.workload, layout.concurrency)
            and (of.engine, of.arm, of.metric) == (engine, arm, column.metric)
            and (over is None or (over.engine, over.arm) == (engine, layout.baseline))
        ):
            return claim
    return None


def _nearest_first(inputs: Inputs, layout: Layout) -> list[Claim]:
    """Claims of the layout's own file before those of other files."""
    files = sorted(inputs.published, key=lambda file: layout not in file.layouts)
    return [claim for file in files for claim in file.claims]


def _entry(
    inputs: Inputs, layout: Layout, engine: str, arm: str, column: Column, source: str
) -> Entry:
    parts = [_part(inputs, layout, engine, arm, column, source, "value")]
    if column.beside is not None and arm != layout.baseline:
        parts.append(_part(inputs, layout, engine, arm, column, source, column.beside))
    shown = [part for part in parts if part.value is not None]
    return Entry(tuple(shown)) if shown else entry(DASH)


def _part(
    inputs: Inputs,
    layout: Layout,
    engine: str,
    arm: str,
    column: Column,
    source: str,
    op: str,
) -> Part:
    claim = claim_for(inputs, layout, engine, arm, column, op)
    if source == "published":
        value = claim.value if claim else None
    else:
        value = _value(inputs, layout, engine, arm, column, source, op)
    unit = _UNITS.get(op, "")
    if op == "value":
        text = number(value, claim.step if claim else column.step)
    else:
        text = f"({with_unit(value, unit, claim.step if claim else column.beside_step)})"
    verdict = inputs.verdict_of.get((claim.id, source)) if claim else None
    mark, kind = MARKS.get(verdict["verdict"], ("", "")) if verdict else ("", "")
    note = f"{verdict['verdict'].replace('_', ' ')} ({verdict['basis']})" if verdict else ""
    return Part(f"{text} {mark}".strip(), value, claim.id if claim else None, source, kind, note)


def _value(
    inputs: Inputs,
    layout: Layout,
    engine: str,
    arm: str,
    column: Column,
    source: str,
    op: str,
) -> float | None:
    value = _mean(_cells(inputs, layout, engine, arm, source), column.metric)
    if op == "value" or value is None:
        return value
    base = _mean(_cells(inputs, layout, engine, layout.baseline, source), column.metric)
    if not base:
        return None
    return 100 * (value / base - 1) if op == "delta_percent" else value / base


def _mean(rows: list[Row], column: str) -> float | None:
    values = finite(metric(row, column) for row in rows)
    return fmean(values) if values else None

"""One column per engine version kept so far: the same cells side by side."""

from __future__ import annotations

from statistics import fmean

from kvstudy.report.inputs import Inputs
from kvstudy.report.page import Entry, Head, Table, entry
from kvstudy.report.text import number, significant
from kvstudy.stats.data import finite, metric

_SHOWN = {
    "output_tok_per_s": ("output throughput", "tok/s"),
    "ttft_p50_ms": ("TTFT p50", "ms"),
    "tpot_p50_ms": ("TPOT p50", "ms"),
    "tpot_p99_ms": ("TPOT p99", "ms"),
    "e2e_p99_s": ("e2e p99", "s"),
    "pauses": ("pauses", ""),
}


def version_tables(inputs: Inputs) -> list[Table]:
    """Per source: workload, arm and metric down, engines across, the change beside it."""
    engines = [
        name
        for name in inputs.config["engines"]
        if any(row["engine"] == name for row in inputs.data.cells)
    ]
    if len(engines) < 2:
        return []
    return [_table(inputs, source, engines) for source in inputs.run_sources]


def _table(inputs: Inputs, source: str, engines: list[str]) -> Table:
    heads = [Head(label, numeric=False) for label in ("workload", "policy", "metric", "unit")]
    heads += [Head(engine) for engine in engines]
    heads += [Head(f"{engine} against {engines[0]}", "%") for engine in engines[1:]]
    rows = []
    keys = dict.fromkeys(
        (row["workload"], row["concurrency"], row["arm"]) for row in inputs.data.select(source)
    )
    for workload, concurrency, arm in keys:
        for column, (words, unit) in _SHOWN.items():
            values = [
                _mean(inputs, source, column, workload, concurrency, engine, arm)
                for engine in engines
            ]
            if sum(value is not None for value in values) < 2:
                continue
            line = [
                entry(f"{workload} c{concurrency}"),
                entry(inputs.arm(arm)),
                entry(words),
                entry(unit),
                *(entry(number(v, significant(v, 5)), v) for v in values),
            ]
            rows.append(line + [_change(values[0], value) for value in values[1:]])
    return Table(
        id=f"versions-{source}",
        title=f"Across versions, {source}",
        heads=heads,
        rows=rows,
        provenance=inputs.provenance([source]),
        notes=["Versions run in different allocations, so these comparisons are unpaired."],
    )


def _mean(
    inputs: Inputs,
    source: str,
    column: str,
    workload: str,
    concurrency: int,
    engine: str,
    arm: str,
) -> float | None:
    rows = inputs.data.select(
        source, workload=workload, concurrency=concurrency, engine=engine, arm=arm
    )
    values = finite(metric(row, column) for row in rows if row["valid"])
    return fmean(values) if values else None


def _change(first: float | None, value: float | None) -> Entry:
    if not first or value is None:
        return entry(number(None))
    delta = 100 * (value / first - 1)
    return entry(number(delta, 0.1, signed=True), delta)

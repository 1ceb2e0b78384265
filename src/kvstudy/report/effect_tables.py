"""Tables of effects: contrasts with intervals, repeats, A/A, counting, versions, server side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from statistics import fmean

from kvstudy.report import wording
from kvstudy.report.inputs import Inputs
from kvstudy.report.page import Entry, Head, Table, entry
from kvstudy.report.text import DASH, number, significant
from kvstudy.stats.contrast import AA
from kvstudy.stats.data import Row, finite, metric

FEW_SAMPLES = 20
_SHOWN = {
    "output_tok_per_s": "output throughput",
    "ttft_p50_ms": "TTFT p50",
    "tpot_p50_ms": "TPOT p50",
    "tpot_p99_ms": "TPOT p99",
    "e2e_p50_s": "e2e p50",
    "e2e_p99_s": "e2e p99",
    "goodput_req_per_s": "goodput",
}
_COUNTED = {
    "output_tok_per_s": "re-tokenised",
    "output_tok_per_s_nominal": "nominal",
    "output_tok_per_s_chunks": "content chunks",
    "output_tok_per_s_usage": "server's usage",
    "output_tok_per_s_steady": "steady state (chunks)",
}


def contrast_tables(inputs: Inputs) -> list[Table]:
    """Every declared contrast: values, ratio, interval, noise."""
    tables = []
    for source in inputs.run_sources:
        rows = [
            row
            for row in inputs.contrasts
            if row["source"] == source and row["contrast"] != AA and row["metric"] in _SHOWN
        ]
        if rows:
            tables.append(_contrast_table(inputs, source, rows))
    return tables


def _contrast_table(inputs: Inputs, source: str, rows: Sequence[Row]) -> Table:
    words = ("contrast", "workload", "on", "metric")
    heads = [Head(label, numeric=False) for label in words]
    heads += [Head("baseline"), Head("treatment"), Head("unit", numeric=False), Head("ratio")]
    heads += [Head("95 % interval", numeric=False), Head("noise ratio"), Head("effect over noise")]
    heads += [Head("remark", numeric=False)]
    body = []
    for row in rows:
        steps = [significant(row[f"{side}_value"]) for side in ("baseline", "treatment")]
        body.append(
            [
                entry(f"{inputs.arm(row['treatment'])} vs {inputs.arm(row['baseline'])}"),
                entry(f"{row['workload']} c{row['concurrency']}"),
                entry(inputs.arm(row["within"])),
                entry(_SHOWN[row["metric"]]),
                entry(number(row["baseline_value"], steps[0]), row["baseline_value"]),
                entry(number(row["treatment_value"], steps[1]), row["treatment_value"]),
                entry(row["unit"]),
                entry(number(row["ratio"], 0.001), row["ratio"]),
                entry(_interval(row)),
                entry(number(row["noise_ratio"], 0.001), row["noise_ratio"]),
                entry(number(row["noise_factor"], 0.1), row["noise_factor"]),
                entry(row["remark"] or ""),
            ]
        )
    return Table(
        id=f"contrasts-{source}",
        title=f"Contrasts, {source}",
        heads=heads,
        rows=body,
        provenance=inputs.provenance([source]),
        notes=[
            "Ratio: treatment over baseline, of the means over repeats. Interval: hierarchical "
            "bootstrap over repeats and requests. Noise ratio: the largest ratio between two "
            "repeats of either side; effect over noise compares both on a log scale."
        ],
    )


def _interval(row: Row) -> str:
    if row["ratio_low"] is None:
        return "none"
    return f"{number(row['ratio_low'], 0.001)} to {number(row['ratio_high'], 0.001)}"


def repeat_tables(inputs: Inputs) -> list[Table]:
    """Per-repeat values beside their mean, and repeats against each other."""
    return [table for table in (_repeats(inputs), _aa(inputs)) if table.rows]


def _repeats(inputs: Inputs) -> Table:
    metrics = ("output_tok_per_s", "ttft_p50_ms", "tpot_p50_ms", "tpot_p99_ms", "e2e_p99_s")
    labels = ("cell", "numbers", "repeat")
    units = {"output_tok_per_s": "tok/s", "e2e_p99_s": "s"}
    heads = [Head(label, numeric=False) for label in labels]
    heads += [Head(_SHOWN[m], units.get(m, "ms")) for m in metrics] + [Head("n", "requests")]
    rows: list[list[Entry]] = []
    for source in inputs.run_sources:
        for cells in _groups(inputs.data.select(source)):
            first = cells[0]
            name = f"{first['workload']} c{first['concurrency']} {first['engine']} {first['arm']}"
            for row in cells:
                values = [_cell_value(inputs, row, m) for m in metrics]
                count = row["completed"]
                rows.append(
                    [
                        entry(name),
                        entry(source, kind=source),
                        entry(str(row["repeat"])),
                        *values,
                        entry(number(count), count),
                    ]
                )
            if len(cells) > 1:
                rows.append(_mean_row(name, source, cells, metrics))
    return Table(
        id="repeats",
        title="Every repeat beside the mean",
        heads=heads,
        rows=rows,
        provenance=inputs.provenance(inputs.run_sources),
        notes=[
            f"Percentiles by linear interpolation. Below {FEW_SAMPLES} requests the maximum "
            "stands beside p99.",
            *_one_repeat_note(inputs),
        ],
        filter_column=1,
    )


def _one_repeat_note(inputs: Inputs) -> list[str]:
    single = [c[0] for c in _groups(inputs.data.select(inputs.backend)) if len(c) == 1]
    if not single:
        return []
    names = ", ".join(sorted({f"{r['workload']} {r['engine']} {r['arm']}" for r in single}))
    return [f"One repeat only, so no interval and no noise floor: {names}."]


def _groups(rows: Iterable[Row]) -> list[list[Row]]:
    groups: dict[tuple[str, int, str, str], list[Row]] = {}
    for row in rows:
        key = (row["workload"], row["concurrency"], row["engine"], row["arm"])
        groups.setdefault(key, []).append(row)
    return [sorted(cells, key=lambda row: row["repeat"]) for cells in groups.values()]


def _cell_value(inputs: Inputs, row: Row, column: str) -> Entry:
    value = metric(row, column)
    text = number(value, significant(value, 5))
    if "_p99_" in column and value is not None and (row["completed"] or 0) < FEW_SAMPLES:
        largest = metric(row, column.replace("_p99_", "_max_"))
        text += f" (max {number(largest, significant(largest, 5))})"
    if not row["valid"]:
        text += " !"
    claim = _per_repeat_claim(inputs, row, column)
    return entry(text, value, claim=claim, source=row["source"])


def _per_repeat_claim(inputs: Inputs, row: Row, column: str) -> str | None:
    for claim in inputs.claims.values():
        of = claim.compute.of
        if claim.compute.op == "value" and (
            of.workload,
            of.concurrency,
            of.engine,
            of.arm,
            of.metric,
            of.repeat,
        ) == tuple(
            row[k] if k else column
            for k in ("workload", "concurrency", "engine", "arm", "", "repeat")
        ):
            return claim.id
    return None


def _mean_row(name: str, source: str, cells: list[Row], metrics: Sequence[str]) -> list[Entry]:
    line = [entry(name), entry(source, kind=source), entry("mean")]
    for column in metrics:
        values = finite(metric(row, column) for row in cells)
        mean = fmean(values) if values else None
        line.append(entry(number(mean, significant(mean, 5)), mean, kind="mean"))
    return [*line, entry("")]


def _aa(inputs: Inputs) -> Table:
    wanted = ("output_tok_per_s", "ttft_p50_ms", "tpot_p99_ms", "e2e_p99_s")
    found: dict[tuple[str, str, str], dict[str, Row]] = {}
    for row in wording.aa_rows(inputs):
        key = (f"{row['workload']} c{row['concurrency']}", row["within"],
               f"{row['treatment']} over {row['baseline']}")  # fmt: skip
        found.setdefault(key, {})[row["metric"]] = row
    heads = [Head(label, numeric=False) for label in ("workload", "engine", "repeats")]
    heads += [Head(f"{_SHOWN[m]} ratio") for m in wanted]
    rows = []
    for key, by_metric in found.items():
        ratios = [by_metric[m]["ratio"] if m in by_metric else None for m in wanted]
        rows.append([*map(entry, key), *(entry(number(r, 0.0001), r) for r in ratios)])
    return Table(
        id="aa",
        title="A/A: the same arm against itself",
        heads=heads,
        rows=rows,
        provenance=inputs.provenance([inputs.backend]),
        notes=["What no effect looks like: one repeat of an arm over the repeat before it."],
    )


def counting_tables(inputs: Inputs) -> list[Table]:
    """Throughput under each way of counting tokens, with the policies' change under each."""
    tables = [_counting(inputs, source) for source in inputs.run_sources]
    return [table for table in tables if table.rows][:1] + _endings(inputs)


def _counting(inputs: Inputs, source: str) -> Table:
    heads = [Head(label, numeric=False) for label in ("workload", "engine", "counted as")]
    heads += [Head("baseline", "tok/s"), Head("treatment", "tok/s"), Head("change", "%")]
    rows, notes = [], []
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for column in _COUNTED:
        for row in wording.main_contrast(inputs, column, source):
            key = (row["workload"], row["concurrency"], row["within"])
            groups.setdefault(key, []).append(row)
    for (workload, concurrency, engine), found in groups.items():
        for row in found:
            delta = None if row["ratio"] is None else 100 * (row["ratio"] - 1)
            rows.append(
                [
                    entry(f"{workload} c{concurrency}"),
                    entry(engine),
                    entry(_COUNTED[row["metric"]]),
                    *(
                        entry(number(row[f"{s}_value"], 0.1), row[f"{s}_value"])
                        for s in ("baseline", "treatment")
                    ),
                    entry(number(delta, 0.1, signed=True), delta),
                ]
            )
        whole = [row for row in found if not row["metric"].endswith("_steady")]
        steady = [row for row in found if row["metric"].endswith("_steady")]
        sentences = [wording.counting_sentence(whole), *wording.steady_sentences(whole, steady)]
        notes.append(f"{workload} on {engine}: {' '.join(sentences)}")
    return Table(
        id=f"counting-{source}",
        title=f"Token-counting sensitivity, {source}",
        heads=heads,
        rows=rows,
        provenance=inputs.provenance([source]),
        notes=notes,
    )


def _endings(inputs: Inputs) -> list[Table]:
    columns = {
        "requests": "requests planned",
        "completed": "completed",
        "failed": "failed",
        "early_ended": "ended early",
        "retokenized_short": "re-tokenised short",
        "output_tokens": "re-tokenised tokens",
        "output_chunks": "chunks",
        "usage_tokens": "usage tokens",
    }
    heads = [Head("cell", numeric=False), *(Head(label) for label in columns.values())]
    rows = []
    for row in inputs.data.select(inputs.backend):
        values = [metric(row, column) for column in columns]
        rows.append([entry(row["cell_id"]), *(entry(number(v), v) for v in values)])
    if not rows:
        return []
    return [
        Table(
            id="endings",
            title="How streams ended",
            heads=heads,
            rows=rows,
            provenance=inputs.provenance([inputs.backend]),
            notes=[
                "Ended early: completed with fewer chunks than planned. Re-tokenised short: all "
                f"chunks came, but the text encodes to fewer tokens. {DASH}: not known."
            ],
        )
    ]


def server_tables(inputs: Inputs) -> list[Table]:
    """What the servers said they did, and how well the client held its load."""
    server = {
        "iterations": "iterations",
        "pauses": "pauses",
        "recomputed_tokens": "recomputed tokens",
        "hidden_tokens": "hidden tokens",
        "residents_max": "most residents",
        "peak_blocks": "peak blocks",
        "pool_blocks": "pool blocks",
        "stalls": "stalls",
        "max_gap_ms": "longest gap (ms)",
    }
    client = {
        "mean_in_flight": "mean in flight",
        "telemetry_coverage": "telemetry coverage",
        "loop_lag_p99_ms": "loop lag p99 (ms)",
        "client_cpu_share": "client CPU share",
        "client_load_share": "load / ceiling",
        "time_scale": "time scale",
        "gpu_seconds_allocated": "GPU-seconds allocated",
        "gpu_seconds_measuring": "GPU-seconds in window",
    }
    first = _columns(inputs, "server", "Server side", server, inputs.run_sources)
    second = _columns(inputs, "harness", "Harness self-audit", client, [inputs.backend])
    return [table for table in (first, second) if table.rows]


def _columns(
    inputs: Inputs, name: str, title: str, columns: dict[str, str], sources: Sequence[str]
) -> Table:
    heads = [Head("cell", numeric=False), Head("numbers", numeric=False)]
    heads += [Head(label) for label in columns.values()]
    heads += [Head("reasons", numeric=False)] if name == "harness" else []
    rows = []
    for source in sources:
        for row in inputs.data.select(source):
            values = [metric(row, column) for column in columns]
            line = [entry(row["cell_id"]), entry(source, kind=source)]
            line += [entry(number(v, significant(v) if v and v % 1 else 1.0), v) for v in values]
            if name == "harness":
                line.append(entry(", ".join(row["reasons"])))
            rows.append(line)
    return Table(
        id=name,
        title=title,
        heads=heads,
        rows=rows,
        provenance=inputs.provenance(list(sources)),
        notes=[f"{DASH}: not measured, never zero."],
    )

"""Figures of latencies: distributions, TPOT by order, repeats, prediction against observation."""

from __future__ import annotations

from collections.abc import Sequence
from statistics import fmean
from typing import Any

import numpy as np

from kvstudy.base.units import NS_PER_MS, NS_PER_S
from kvstudy.metrics.percentile import percentile
from kvstudy.report.frames import CellRows, Frames
from kvstudy.report.page import Figure
from kvstudy.report.plot import (
    INK,
    SERIES,
    SOFT,
    Drawing,
    dots,
    drawing,
    finish,
    legend,
    plain_log_ticks,
    style,
    thin,
)
from kvstudy.report.text import listing, number, significant
from kvstudy.stats.data import Reals, Row, finite, metric

_PANELS = (
    ("ttft_ns", "TTFT", "s", NS_PER_S),
    ("tpot_ns", "TPOT", "ms", NS_PER_MS),
    ("e2e_ns", "End to end", "s", NS_PER_S),
)
_COMPARED = {
    "output_tok_per_s": "output throughput",
    "ttft_p50_ms": "TTFT p50",
    "tpot_p50_ms": "TPOT p50",
    "tpot_p99_ms": "TPOT p99",
    "e2e_p99_s": "e2e p99",
}


def slug(*parts: object) -> str:
    """A file and element name."""
    text = "-".join(str(part) for part in parts)
    return "".join(c if c.isalnum() else "-" for c in text).lower()


def pooled(cells: Sequence[CellRows], column: str) -> Reals:
    """Sorted values of all repeats."""
    values = np.concatenate([cell.value(column) for cell in cells]) if cells else np.empty(0)
    return np.sort(values[~np.isnan(values)])


def ecdf(frames: Frames, workload: str, concurrency: int, engine: str, arms: list[str]) -> Figure:
    """Empirical distributions of TTFT, TPOT and e2e per arm; the prediction dashed."""
    with style():
        made = drawing(
            slug("ecdf", workload, f"c{concurrency}", engine), "latency", 1, 3, height=3.3
        )
        seen: list[str] = []
        for slot, arm in enumerate(arms):
            for source in frames.sources:
                rows = frames.rows(
                    source, workload=workload, concurrency=concurrency, engine=engine, arm=arm
                )
                cells = [frames.cell(row) for row in rows]
                if cells:
                    _ecdf_lines(made, frames, cells, arm, slot, source)
                    if source == frames.backend:
                        seen.append(_ecdf_words(cells, frames.arm(arm)))
        for axes, (_, words, unit, _) in zip(made.axes, _PANELS, strict=True):
            axes.set_title(words)
            axes.set_xlabel(unit)
            axes.set_ylim(0, 1.02)
            _log_if_wide(axes)
        made.axes[0].set_ylabel("share of requests")
        legend(made, _arm_legend(frames, arms))
        return finish(
            made,
            title=f"Latency distributions, {workload} on {engine}",
            caption=(
                "Share of requests at or below each latency, all repeats together. "
                f"{_lines(frames)} A wide axis is logarithmic."
            ),
            alternative=" ".join(seen) or "No request is known.",
        )


def _ecdf_lines(
    made: Drawing,
    frames: Frames,
    cells: Sequence[CellRows],
    arm: str,
    slot: int,
    source: str,
) -> None:
    own = source == frames.backend
    for axes, (column, words, unit, per) in zip(made.axes, _PANELS, strict=True):
        values = pooled(cells, column) / per
        if not len(values):
            continue
        at = thin(len(values), 100)
        share = (at + 1) / len(values)
        axes.plot(
            values[at],
            share,
            color=SERIES[slot],
            linestyle="-" if own else ":",
            linewidth=(1.5 if slot else 3.0) if own else 1.2,
            gid=made.gid(arm, frames.arm(arm), slot),
        )
        made.add({"metric": words, "unit": unit, "arm": arm, "source": source,
                  "value": values[at], "share": share})  # fmt: skip


def _ecdf_words(cells: Sequence[CellRows], arm: str) -> str:
    parts = []
    for column, words, unit, per in _PANELS:
        values = list(pooled(cells, column) / per)
        p50, p99 = percentile(values, 50), percentile(values, 99)
        steps = significant(p50), significant(p99)
        parts.append(
            f"{words} p50 {number(p50, steps[0])} {unit}, p99 {number(p99, steps[1])} {unit}"
        )
    return f"{arm}: {'; '.join(parts)}."


def _log_if_wide(axes: Any) -> None:
    low, high = axes.dataLim.x0, axes.dataLim.x1
    if low > 0 and high > 8 * low:
        axes.set_xscale("log")
        plain_log_ticks(axes.xaxis, *axes.get_xlim())


def _arm_legend(frames: Frames, arms: Sequence[str]) -> dict[str, dict[str, Any]]:
    labels: dict[str, dict[str, Any]] = {
        frames.arm(arm): {"color": SERIES[slot], "linewidth": 2.5} for slot, arm in enumerate(arms)
    }
    if len(frames.sources) > 1:
        labels["predicted"] = {"color": SOFT, "linestyle": ":"}
    return labels


def _lines(frames: Frames) -> str:
    if len(frames.sources) < 2:
        return f"All lines are {listing(frames.sources)}."
    return f"Solid: {frames.backend}, dotted: predicted."


def tpot_by_order(
    frames: Frames, workload: str, concurrency: int, engine: str, arms: list[str]
) -> Figure:
    """TPOT of each request against its place in the submission order, first repeat."""
    with style():
        name = slug("tpot-order", workload, f"c{concurrency}", engine)
        made = drawing(name, "latency", 1, height=2.9)
        axes = made.axes[0]
        words = []
        for slot, arm in enumerate(arms):
            rows = frames.rows(
                frames.backend, workload=workload, concurrency=concurrency, engine=engine, arm=arm
            )
            if not rows:
                continue
            cell = frames.cell(rows[0])
            order, tpot = cell.value("submit_order"), cell.value("tpot_ns") / NS_PER_MS
            axes.plot(
                *dots(order, tpot), color=SERIES[slot], linewidth=4.5 if slot == 0 else 3.5,
                solid_capstyle="round", gid=made.gid(arm, frames.arm(arm), slot),
            )  # fmt: skip
            made.add({"arm": arm, "submit_order": order, "tpot_ms": tpot})
            words.append(_order_words(frames.arm(arm), tpot))
        axes.set_xlabel("submission order")
        axes.set_ylabel("TPOT (ms)")
        if axes.dataLim.y0 > 0 and axes.dataLim.y1 > 4 * axes.dataLim.y0:
            axes.set_yscale("log")
            plain_log_ticks(axes.yaxis, *axes.get_ylim())
        legend(
            made, {frames.arm(a): {"color": SERIES[i], "linewidth": 4} for i, a in enumerate(arms)}
        )
        return finish(
            made,
            title=f"TPOT against submission order, {workload} on {engine}",
            caption=f"One dot per request, repeat 1, {frames.backend}.",
            alternative=" ".join(words) or "No request is known.",
        )


def _order_words(arm: str, tpot: Reals) -> str:
    known = tpot[~np.isnan(tpot)]
    if not len(known):
        return f"{arm}: no TPOT is defined."
    middle = float(np.median(known))
    slow, most = int((known > 2 * middle).sum()), float(known.max())
    return (
        f"{arm}: median {number(middle, significant(middle))} ms; {slow} of {len(known)} requests "
        f"above twice the median; largest {number(most, significant(most))} ms."
    )


def dumbbells(frames: Frames) -> Figure | None:
    """Repeats of every cell around their mean, in percent."""
    metrics = [m for m in _COMPARED if m != "tpot_p50_ms"]
    groups = [(label, rows) for label, rows in _by_cell(frames, frames.backend) if len(rows) > 1]
    if not groups:
        return None
    with style():
        made = drawing("repeats", "effects", 1, len(metrics), height=1.3 + 0.26 * len(groups),
                       sharey=True)  # fmt: skip
        widest = 0.0
        for axes, column in zip(made.axes, metrics, strict=True):
            for height, (label, rows) in enumerate(groups):
                values = finite(metric(row, column) for row in rows)
                if len(values) < 2 or not fmean(values):
                    continue
                shares = [100 * (value / fmean(values) - 1) for value in values]
                widest = max(widest, *map(abs, shares))
                axes.plot([min(shares), max(shares)], [height] * 2, color=SOFT, linewidth=1)
                axes.plot(shares, [height] * len(shares), "o", color=SERIES[0], markersize=4)
                made.add({"cell": label, "metric": column, "repeat": [r["repeat"] for r in rows],
                          "percent_from_mean": shares})  # fmt: skip
            axes.set_title(_COMPARED[column])
            axes.set_xlabel("% from mean")
            axes.axvline(0, color=SOFT, linewidth=0.8)
        for axes in made.axes:
            axes.set_xlim(-1.15 * max(widest, 0.01), 1.15 * max(widest, 0.01))
        made.axes[0].set_yticks(range(len(groups)), [label for label, _ in groups])
        made.axes[0].invert_yaxis()
        return finish(
            made,
            title="Repeats around their mean",
            caption=f"Each dot is one repeat, {frames.backend}; the bar joins repeats of a cell.",
            alternative=f"The repeat farthest from its mean is {number(widest, 0.01)} % away.",
        )


def _by_cell(frames: Frames, source: str) -> list[tuple[str, list[Row]]]:
    groups: dict[str, list[Row]] = {}
    for row in frames.rows(source):
        label = f"{row['workload']} {row['engine']} {row['arm']}"
        groups.setdefault(label, []).append(row)
    return list(groups.items())


def predicted_against_observed(frames: Frames) -> Figure | None:
    """How far the run and the published numbers are from the prediction, cell by cell."""
    predicted = {
        (label, column): _mean(rows, column)
        for label, rows in _by_cell(frames, "predicted")
        for column in _COMPARED
    }
    labels = list(dict.fromkeys(label for label, _ in predicted))
    points = [(*p, frames.backend) for p in _observed(frames)] + [
        (*p, "published") for p in _published(frames)
    ]
    points = [p for p in points if predicted.get((p[0], p[1]))]
    if not points:
        return None
    with style():
        made = drawing("predicted-observed", "tables", 1, height=1.4 + 0.34 * len(labels))
        axes = made.axes[0]
        widest = 0.0
        for slot, column in enumerate(_COMPARED):
            for source, face in ((frames.backend, SERIES[slot]), ("published", "none")):
                chosen = [p for p in points if p[1] == column and p[3] == source]
                if not chosen or (source == "predicted"):
                    continue
                shares = [100 * (p[2] / float(predicted[p[0], column] or 1) - 1) for p in chosen]
                heights = [labels.index(p[0]) + 0.14 * (slot - 2) for p in chosen]
                widest = max(widest, *map(abs, shares))
                axes.plot(
                    shares, heights, "o" if source != "published" else "D", color=SERIES[slot],
                    markerfacecolor=face, markersize=5, linestyle="none",
                    gid=made.gid(column, _COMPARED[column], slot),
                )  # fmt: skip
                made.add({"cell": [p[0] for p in chosen], "metric": column, "source": source,
                          "value": [p[2] for p in chosen],
                          "predicted": [predicted[p[0], column] for p in chosen],
                          "percent_from_prediction": shares})  # fmt: skip
        axes.axvline(0, color=INK, linewidth=0.9)
        axes.set_yticks(range(len(labels)), labels)
        axes.set_ylim(len(labels) - 0.5, -0.5)
        axes.set_xlabel("% from the prediction")
        legend(made, _metric_legend())
        return finish(
            made,
            title="Prediction against the run and the published numbers",
            caption=f"Filled: this run ({frames.backend}). Hollow: published. 0 is the prediction.",
            alternative=f"The farthest number is {number(widest, 0.1)} % from its prediction.",
        )


def _metric_legend() -> dict[str, dict[str, Any]]:
    labels: dict[str, dict[str, Any]] = {
        words: {"color": SERIES[slot], "marker": "o", "linestyle": "none"}
        for slot, words in enumerate(_COMPARED.values())
    }
    labels["published"] = {
        "color": SOFT, "marker": "D", "markerfacecolor": "none", "linestyle": "none",
    }  # fmt: skip
    return labels


def _mean(rows: Sequence[Row], column: str) -> float | None:
    values = finite(metric(row, column) for row in rows)
    return fmean(values) if values else None


def _observed(frames: Frames) -> list[tuple[str, str, float]]:
    if frames.backend == "predicted":
        return []
    found = []
    for label, rows in _by_cell(frames, frames.backend):
        for column in _COMPARED:
            value = _mean(rows, column)
            if value is not None:
                found.append((label, column, value))
    return found


def _published(frames: Frames) -> list[tuple[str, str, float]]:
    """Published values of plain cell means."""
    return [
        (f"{of.workload} {of.engine} {of.arm}", str(of.metric), claim.value)
        for file in frames.published
        for claim in file.claims
        for of in (claim.compute.of,)
        if claim.compute.op == "value" and of.repeat in (None, "mean") and of.metric in _COMPARED
    ]

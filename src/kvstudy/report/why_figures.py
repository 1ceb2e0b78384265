"""Figures of the chapter "Why": hypotheses over the cut, the regime map, the cliff."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

from kvstudy.report.page import Figure
from kvstudy.report.plot import (
    DASHES,
    INK,
    SERIES,
    SOFT,
    Drawing,
    drawing,
    finish,
    legend,
    style,
)
from kvstudy.report.text import listing, number
from kvstudy.report.why_regimes import pause_sentence

Row = Mapping[str, Any]

_PANELS = {
    "throughput_ratio": "throughput",
    "ttft_p50_ratio": "TTFT p50",
    "tpot_p99_ratio": "TPOT p99",
    "e2e_p99_ratio": "e2e p99",
}
_H1, _H2, _H0 = SERIES[0], SERIES[2], SOFT
_SEEN = (SERIES[1], SERIES[3], SERIES[4], SERIES[5])


def figure_hypotheses(rows: Sequence[Row]) -> Figure | None:
    """Each ratio over the cut of H1, with H2, H0 and what was seen as levels."""
    first = [row for row in rows if row["engine"] == rows[0]["engine"]] if rows else []
    scan = sorted(
        (row for row in first if row["family"] == "H1" and row["throughput_ratio"]),
        key=lambda row: row["truncate_to_tokens"],
    )
    if not scan:
        return None
    seen = [row for row in rows if row["kind"] in ("published", "measured")]
    with style():
        made = drawing("hypotheses", "why", 1, len(_PANELS), height=3.4)
        for axes, (column, words) in zip(made.axes, _PANELS.items(), strict=True):
            _hypothesis_panel(made, axes, column, (scan, first, seen))
            axes.set_title(words)
            axes.set_xlabel("cut (tokens)")
        made.axes[0].set_ylabel("MAX_UTILIZATION / baseline")
        legend(made, _hypothesis_legend(seen))
        return finish(
            made,
            title="What each hypothesis predicts, and what was seen",
            caption=(
                "Ratio of the greedy over the reserving policy. Line: a pause that cuts the "
                "request to so many tokens (H1); bar: what the fitted rows leave open about the "
                "constants. Levels: no cut (H2), no effect (H0). Bands: published or measured, "
                "with the stated spread. H3 has no value: the run never ends."
            ),
            alternative=_hypothesis_words(scan, seen),
        )


def _hypothesis_panel(
    made: Drawing, axes: Axes, column: str, parts: tuple[Sequence[Row], ...]
) -> None:
    scan, first, seen = parts
    cuts = [row["truncate_to_tokens"] for row in scan]
    values = [row[column] for row in scan]
    spread = column.replace("_ratio", "_spread")
    widths = [row[column] * (row[spread] or 0.0) for row in scan]
    axes.errorbar(cuts, values, yerr=widths, color=_H1, marker="o", markersize=4, capsize=2)
    made.add({"hypothesis": "H1", "cut_tokens": cuts, "ratio": column, "value": values})
    for name, colour, dash in (("H2", _H2, DASHES[1]), ("H0", _H0, DASHES[2])):
        row = next((r for r in first if r["hypothesis"] == name), None)
        if row is not None and row[column]:
            axes.axhline(row[column], color=colour, linestyle=dash)
            made.add({"hypothesis": [name], "ratio": column, "value": row[column]})
    for index, row in enumerate(seen):
        if row[column]:
            _band(made, axes, row, column, index)
    axes.set_xscale("log", base=2)
    shown = [cut for cut in cuts if math.log2(cut).is_integer()]
    axes.set_xticks(shown, [f"{cut:,}" for cut in shown], fontsize=8)
    axes.minorticks_off()
    if column in ("tpot_p99_ratio", "e2e_p99_ratio"):
        axes.set_yscale("log")
        low, high = axes.get_ylim()
        ticks = [tick for tick in (1, 2, 4, 8, 16, 32) if low <= tick <= high]
        axes.set_yticks(ticks, [str(tick) for tick in ticks])
        axes.minorticks_off()


def _band(made: Drawing, axes: Axes, row: Row, column: str, index: int) -> None:
    colour = _SEEN[index % len(_SEEN)]
    spread = row[column.replace("_ratio", "_spread")] or 0.0
    low, high = row[column] * math.exp(-spread), row[column] * math.exp(spread)
    axes.axhspan(low, high, color=colour, alpha=0.25, linewidth=0)
    axes.axhline(row[column], color=colour, linewidth=1.2)
    made.add(
        {
            "hypothesis": [f"{row['engine']} {row['kind']}"],
            "ratio": column,
            "value": row[column],
            "low": low,
            "high": high,
        }
    )


def _hypothesis_legend(seen: Sequence[Row]) -> dict[str, dict[str, Any]]:
    marks: dict[str, dict[str, Any]] = {
        "H1, cut": {"color": _H1, "marker": "o"},
        "H2, no cut": {"color": _H2, "linestyle": DASHES[1]},
        "H0, no effect": {"color": _H0, "linestyle": DASHES[2]},
    }
    for index, row in enumerate(seen):
        marks[f"{row['engine']}, {row['kind']}"] = {"color": _SEEN[index % len(_SEEN)]}
    return marks


def _hypothesis_words(scan: Sequence[Row], seen: Sequence[Row]) -> str:
    predicted = [
        f"{number(row['truncate_to_tokens'])}: {number(row['throughput_ratio'], 0.001)}"
        for row in scan
    ]
    observed = [
        f"{row['engine']} {row['kind']} {number(row['throughput_ratio'], 0.001)}"
        for row in seen
        if row["throughput_ratio"]
    ]
    said = f"Throughput ratio by cut: {'; '.join(predicted)}."
    return said + (f" Seen: {listing(observed)}." if observed else "")


def figure_regimes(rows: Sequence[Row]) -> Figure | None:
    """Gain and tail cost over the pool, one column per concurrency, two rows per workload."""
    own = [row for row in rows if row["part"] == "map" and row["throughput_ratio"] is not None]
    if not own:
        return None
    workloads = list(dict.fromkeys(row["workload"] for row in own))
    lanes = sorted({row["concurrency"] for row in own})
    spreads = list(dict.fromkeys(row["spread"] for row in own))
    with style():
        made = drawing(
            "regimes", "why", 2 * len(workloads), len(lanes),
            height=1.0 + 3.2 * len(workloads), sharex=True, sharey="row",
        )  # fmt: skip
        for index, axes in enumerate(made.axes):
            line, column = divmod(index, len(lanes))
            workload, metric = workloads[line // 2], ("throughput", "tpot_p99")[line % 2]
            mine = [
                row
                for row in own
                if row["workload"] == workload and row["concurrency"] == lanes[column]
            ]
            _regime_panel(made, axes, (mine, spreads), metric)
            if line % 2 == 0:
                axes.set_title(f"{workload}, {lanes[column]} lanes")
            if column == 0:
                axes.set_ylabel("throughput" if metric == "throughput" else "TPOT p99")
        for axes in made.axes[-len(lanes) :]:
            axes.set_xlabel("pool / demand")
        legend(made, _regime_legend(spreads))
        return finish(
            made,
            title="When the greedy policy wins",
            caption=(
                "Ratio of MAX_UTILIZATION over GUARANTEED_NO_EVICT, over the pool as a share of "
                "what all lanes want with their caps; a pause recomputes. Lines: how far below "
                "their cap true outputs end. Above 1 in the throughput rows is a gain; above 1 in "
                "the TPOT rows is its price."
            ),
            alternative=_regime_words(own, workloads),
        )


def _regime_panel(
    made: Drawing, axes: Axes, parts: tuple[Sequence[Row], Sequence[str]], metric: str
) -> None:
    rows, spreads = parts
    column = f"{metric}_ratio"
    axes.axhline(1, color=INK, linewidth=0.9)
    for slot, spread in enumerate(spreads):
        line = sorted((r for r in rows if r["spread"] == spread), key=lambda r: r["pool_ratio"])
        pools = [row["pool_ratio"] for row in line]
        values = [row[column] for row in line]
        axes.plot(
            pools, values, color=SERIES[slot % len(SERIES)], linestyle=DASHES[slot % len(DASHES)],
            marker=".", gid=made.gid(f"s{slot}", spread, slot),
        )  # fmt: skip
        for row in line:
            made.add(
                {
                    "workload": [row["workload"]],
                    "concurrency": row["concurrency"],
                    "outputs": spread,
                    "pool_ratio": row["pool_ratio"],
                    "ratio": column,
                    "value": row[column],
                    "pauses": row["pauses"],
                }
            )


def _regime_legend(spreads: Sequence[str]) -> dict[str, dict[str, Any]]:
    return {
        spread: {
            "color": SERIES[slot % len(SERIES)],
            "linestyle": DASHES[slot % len(DASHES)],
        }
        for slot, spread in enumerate(spreads)
    }


def _regime_words(rows: Sequence[Row], workloads: Sequence[str]) -> str:
    parts = []
    for workload in workloads:
        ratios = [row["throughput_ratio"] for row in rows if row["workload"] == workload]
        low, high = number(min(ratios), 0.01), number(max(ratios), 0.01)
        parts.append(f"{workload}: throughput ratio from {low} to {high}")
    return f"{'; '.join(parts)}."


def figure_cliff(rows: Sequence[Row]) -> Figure | None:
    """Throughput and pauses block by block around the workload's pool."""
    own = [row for row in rows if row["part"] == "cliff" and row["throughput_ratio"] is not None]
    if not own:
        return None
    modes = list(dict.fromkeys(row["pause"] for row in own))
    with style():
        made = drawing("cliff", "why", 2, height=4.4, sharex=True)
        for slot, mode in enumerate(modes):
            line = sorted((r for r in own if r["pause"] == mode), key=lambda r: r["pool_blocks"])
            pools = [row["pool_blocks"] for row in line]
            for axes, column in zip(made.axes, ("throughput_ratio", "pauses"), strict=True):
                values = [row[column] for row in line]
                axes.plot(
                    pools, values, color=SERIES[slot], linestyle=DASHES[slot], marker=".",
                    markersize=3, gid=made.gid(f"m{slot}", pause_sentence(mode), slot),
                )  # fmt: skip
                made.add({"pause": mode, "pool_blocks": pools, "what": column, "value": values})
        for edge in _edges(own):
            for axes in made.axes:
                axes.axvline(edge, color=SOFT, linewidth=1.0, zorder=0)
        made.axes[0].axhline(1, color=INK, linewidth=0.9)
        made.axes[0].set_ylabel("throughput ratio")
        made.axes[1].set_ylabel("pauses")
        made.axes[1].set_xlabel("KV pool (blocks)")
        made.axes[1].xaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        marks = {m: {"color": SERIES[i], "linestyle": DASHES[i]} for i, m in enumerate(modes)}
        legend(made, {pause_sentence(mode): mark for mode, mark in marks.items()})
        return finish(
            made,
            title=f"The cliff around {own[0]['workload']}'s pool",
            caption=(
                "MAX_UTILIZATION over GUARANTEED_NO_EVICT while the pool moves block by block. "
                "Vertical lines: one resident more fits with its prompt, and with its cap."
            ),
            alternative=_cliff_words(own, modes),
        )


def _edges(rows: Sequence[Row]) -> tuple[int, int]:
    least = min(rows, key=lambda row: row["pool_blocks"])
    more = least["residents_reserving"] + 1
    return more * least["input_blocks"], more * least["full_blocks"]


def _cliff_words(rows: Sequence[Row], modes: Sequence[str]) -> str:
    parts = []
    for mode in modes:
        ratios = [row["throughput_ratio"] for row in rows if row["pause"] == mode]
        low, high = number(min(ratios), 0.001), number(max(ratios), 0.001)
        parts.append(f"{pause_sentence(mode)}: throughput ratio from {low} to {high}")
    return f"{'; '.join(parts)}."

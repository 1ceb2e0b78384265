"""Figure of effects: every contrast's ratio with its interval and the noise it stands in."""

from __future__ import annotations

from typing import Any

from matplotlib.axes import Axes

from kvstudy.report.frames import Frames
from kvstudy.report.page import Figure
from kvstudy.report.plot import GRID, INK, SERIES, SOFT, Drawing, drawing, finish, legend, style
from kvstudy.report.text import number
from kvstudy.stats.contrast import AA
from kvstudy.stats.data import Row

_PANELS = {
    "output_tok_per_s": "output throughput",
    "tpot_p99_ms": "TPOT p99",
    "e2e_p99_s": "e2e p99",
}


def forest(frames: Frames) -> Figure | None:
    """Ratios of treatment over baseline, one row per contrast, one panel per metric."""
    rows = [r for r in frames.contrasts if r["contrast"] != AA and r["ratio"] is not None]
    labels = list(dict.fromkeys(_label(frames, row) for row in rows))
    if not labels:
        return None
    with style():
        made = drawing("effects", "effects", 1, 3, height=1.6 + 0.3 * len(labels), sharey=True)
        for axes, (column, words) in zip(made.axes, _PANELS.items(), strict=True):
            for row in rows:
                if row["metric"] == column:
                    _mark(made, axes, frames, row, labels.index(_label(frames, row)))
            axes.set_title(words)
            axes.set_xscale("log")
            axes.set_xlabel("treatment / baseline")
            axes.axvline(1, color=INK, linewidth=0.9)
            _ticks(axes)
        made.axes[0].set_yticks(range(len(labels)), labels)
        made.axes[0].set_ylim(len(labels) - 0.5, -0.5)
        legend(made, _legend(frames))
        return finish(
            made,
            title="Effects with their intervals",
            caption=(
                "Ratio of means over repeats, on a log axis. Bar: 95 % interval, where two "
                "repeats exist. Band: the largest ratio seen between two repeats of either side."
            ),
            alternative=_words(frames, rows),
        )


def _label(frames: Frames, row: Row) -> str:
    what = f"{frames.arm(row['treatment'])} vs {frames.arm(row['baseline'])}"
    short = what.replace("MAX_UTILIZATION", "MU").replace("GUARANTEED_NO_EVICT", "GNE")
    within = frames.arm(row["within"]).replace("MAX_UTILIZATION", "MU")
    return f"{row['workload']}: {short}, {within.replace('GUARANTEED_NO_EVICT', 'GNE')}"


def _mark(made: Drawing, axes: Axes, frames: Frames, row: Row, height: int) -> None:
    own = row["source"] == frames.backend
    colour = SERIES[0] if own else SERIES[1]
    place = height - 0.14 if own else height + 0.16
    if own and row["noise_ratio"] is not None and row["noise_ratio"] > 1:
        band = [1 / row["noise_ratio"], row["noise_ratio"]]
        axes.plot(band, [place] * 2, color=GRID, linewidth=9, solid_capstyle="butt", zorder=1)
    if row["ratio_low"] is not None:
        axes.plot([row["ratio_low"], row["ratio_high"]], [place] * 2, color=colour, linewidth=2)
    axes.plot(
        [row["ratio"]], [place], "o" if own else "D", color=colour, markersize=5 if own else 4,
        gid=made.gid(row["source"], row["source"], 0 if own else 1),
    )  # fmt: skip
    keys = ("contrast", "source", "workload", "concurrency", "within", "metric", "ratio",
            "ratio_low", "ratio_high", "noise_ratio")  # fmt: skip
    made.add({key: [row[key]] for key in keys})


def _ticks(axes: Axes) -> None:
    low, high = axes.get_xlim()
    low, high = min(low, 0.9), max(high, 1.1)
    axes.set_xlim(low, high)
    steps = (0.05, 0.1, 0.2, 0.5, 0.75, 1, 1.25, 1.5, 2, 5, 10, 20, 50)
    ticks = [step for step in steps if low <= step <= high]
    if high / low > 8:
        ticks = [step for step in ticks if step not in (0.75, 1.25, 1.5)]
    axes.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    axes.minorticks_off()


def _legend(frames: Frames) -> dict[str, dict[str, Any]]:
    marks: dict[str, dict[str, Any]] = {}
    if frames.backend != "predicted":
        marks[frames.backend] = {"color": SERIES[0], "marker": "o"}
    marks["predicted"] = {"color": SERIES[1], "marker": "D", "linestyle": "none"}
    marks["repeat-to-repeat"] = {"color": SOFT, "linewidth": 6, "alpha": 0.4}
    return marks


def _words(frames: Frames, rows: list[Row]) -> str:
    found = [r for r in rows if r["source"] == frames.backend and r["metric"] == "output_tok_per_s"]
    parts = [f"{_label(frames, row)}: {number(row['ratio'], 0.001)}" for row in found]
    return "Ratio of output throughput. " + "; ".join(parts) + "."

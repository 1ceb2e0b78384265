"""Figures over time: each request's life, the KV pool, running and waiting, tokens per second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import StrMethodFormatter

from kvstudy.base.units import NS_PER_MS, NS_PER_S
from kvstudy.report.frames import CellRows, Frames
from kvstudy.report.latency_figures import slug
from kvstudy.report.page import Figure
from kvstudy.report.plot import (
    DASHES,
    GRID,
    SERIES,
    SOFT,
    Drawing,
    broken,
    dots,
    drawing,
    finish,
    legend,
    style,
    thin,
)
from kvstudy.report.text import number, plural
from kvstudy.stats.data import Reals

PHASES = {
    "waiting": (SOFT, "waiting for blocks"),
    "prefill": (SERIES[4], "prefill"),
    "decode": (SERIES[0], "decode"),
    "stalled": (SERIES[1], "stalled"),
}
_SECONDS_STALLED, _SHARE_STALLED = 1.0, 0.01
_BUCKETS = 180
_LANES_SHOWN = 160


def timeline(
    frames: Frames, workload: str, concurrency: int, engine: str, arms: list[str]
) -> Figure | None:
    """Every request's life in the first repeat, one panel per arm."""
    cells = _first_cells(frames, workload, concurrency, engine, arms)
    if not cells:
        return None
    with style():
        name = slug("timeline", workload, f"c{concurrency}", engine)
        made = drawing(name, "server", len(cells), height=0.5 + 2.5 * len(cells), sharex=True)
        words = []
        for axes, (arm, cell) in zip(made.axes, cells, strict=True):
            phases = phases_of(cell)
            shown = thin(len(cell.requests), _LANES_SHOWN)
            _bars(made, axes, arm, phases, shown)
            axes.set_title(frames.arm(arm))
            axes.set_ylabel("submission order")
            axes.set_ylim(len(cell.requests), -1)
            words.append(_timeline_words(frames.arm(arm), phases))
        made.axes[-1].set_xlabel("seconds since the first request")
        legend(made, {w: {"color": c, "linewidth": 5} for c, w in PHASES.values()})
        return finish(
            made,
            title=f"Life of each request, {workload} on {engine}",
            caption=(
                f"One bar per request, repeat 1, {frames.backend}. Prefill starts where the steps "
                "before the first chunk computed as many prompt tokens as the prompt has; without "
                "iteration records it counts as waiting. Stalled: a gap between chunks "
                f"above {number(_SECONDS_STALLED)} s and 1 % of the run, so that other requests' "
                "prefill does not count."
            ),
            alternative=" ".join(words),
        )


def _first_cells(
    frames: Frames, workload: str, concurrency: int, engine: str, arms: Sequence[str]
) -> list[tuple[str, CellRows]]:
    """The first repeat of each arm, from the run, else from the prediction."""
    found = []
    for arm in arms:
        keys = {"workload": workload, "concurrency": concurrency, "engine": engine, "arm": arm}
        rows = frames.rows(frames.backend, **keys)
        if rows:
            cell = frames.cell(rows[0])
            if len(cell.requests):
                found.append((arm, cell))
    return found


def phases_of(cell: CellRows) -> dict[str, tuple[Reals, Reals, Reals]]:
    """Phase to (start s, end s, submission order) of its segments."""
    order = cell.value("submit_order")
    send, first, last = (cell.times(f"{n}_ns") for n in ("send", "first_chunk", "last_chunk"))
    prefill = prefill_starts(cell, first)
    prefill = np.clip(np.where(np.isnan(prefill), first, prefill), send, first)
    stalls = _stalls(cell, order)
    return {
        "waiting": (send, prefill, order),
        "prefill": (prefill, first, order),
        "decode": (first, last, order),
        "stalled": stalls,
    }


def prefill_starts(cell: CellRows, first: Reals) -> Reals:
    """Start of the steps that computed a request's prompt; NaN without iteration records.

    Walks back from the first chunk until the steps' context tokens add up to the prompt: right
    for a scheduler that computes prompts in order.
    """
    tokens = cell.steps("context_tokens")
    if not len(tokens) or np.isnan(tokens).any():
        return np.full(len(first), np.nan)
    ends = cell.step_times
    latency = np.nan_to_num(cell.steps("iter_latency_ns")) / NS_PER_S
    done = np.cumsum(tokens)
    at = np.searchsorted(ends, first + NS_PER_MS / NS_PER_S, side="right") - 1
    before = done[np.clip(at, 0, None)] - cell.value("planned_input_tokens")
    start = np.clip(np.searchsorted(done, before, side="right"), 0, len(ends) - 1)
    return np.asarray(ends[start] - latency[start])


def _stalls(cell: CellRows, order: Reals) -> tuple[Reals, Reals, Reals]:
    starts, ends, places = [], [], []
    limit = max(_SECONDS_STALLED, _SHARE_STALLED * float(cell.row["wall_s"] or 0))
    for place, chunks in zip(order, cell.chunk_times, strict=True):
        gaps = np.flatnonzero(np.diff(chunks) > limit)
        starts += list(chunks[gaps])
        ends += list(chunks[gaps + 1])
        places += [place] * len(gaps)
    return np.asarray(starts), np.asarray(ends), np.asarray(places)


def _bars(
    made: Drawing,
    axes: Axes,
    arm: str,
    phases: dict[str, tuple[Reals, Reals, Reals]],
    shown: np.ndarray,
) -> None:
    width = max(1.0, min(3.0, 170 / max(len(shown), 1)))
    for phase, (starts, ends, order) in phases.items():
        keep = np.isin(order, shown) & (ends > starts)
        if not keep.any():
            continue
        colour = PHASES[phase][0]
        axes.plot(
            *broken(starts[keep], ends[keep], order[keep]),
            color=colour, linewidth=width, solid_capstyle="butt",
        )  # fmt: skip
    axes.grid(visible=False)
    keep = np.isin(phases["decode"][2], shown)
    made.add({"arm": arm, "submit_order": phases["decode"][2][keep],
              "send_s": phases["waiting"][0][keep], "prefill_s": phases["prefill"][0][keep],
              "first_chunk_s": phases["decode"][0][keep],
              "last_chunk_s": phases["decode"][1][keep]})  # fmt: skip
    starts, ends, order = phases["stalled"]
    made.add({"arm": arm, "submit_order": order, "stall_start_s": starts, "stall_end_s": ends})


def _timeline_words(arm: str, phases: dict[str, tuple[Reals, Reals, Reals]]) -> str:
    starts, ends, order = phases["stalled"]
    if not len(starts):
        return f"{arm}: no request stalls."
    longest = float((ends - starts).max())
    return (
        f"{arm}: {plural(len(set(order)), 'request')} stalled, "
        f"the longest for {number(longest, 0.1)} s."
    )


def over_time(
    frames: Frames, workload: str, concurrency: int, engine: str, arms: list[str]
) -> Figure | None:
    """KV blocks and pauses, running and waiting, tokens per second: three panels, one time."""
    cells = _first_cells(frames, workload, concurrency, engine, arms)
    if not cells:
        return None
    with style():
        name = slug("server", workload, f"c{concurrency}", engine)
        made = drawing(name, "server", 3, height=6.2, sharex=True)
        blocks, running, rate = made.axes
        words = []
        for slot, (arm, cell) in enumerate(cells):
            ids = (made, arm, frames.arm(arm), slot)
            words.append(_pool_panel(blocks, cell, ids))
            _residents_panel(running, cell, ids)
            _rate_panel(rate, cell, ids)
        blocks.set_title("KV blocks held; dots are pauses, the grey line is the pool")
        running.set_title("requests running (solid) and waiting (dotted)")
        rate.set_title("output chunks per second, as the client received them")
        rate.set_xlabel("seconds since the first request")
        for axes in made.axes:
            axes.set_ylim(bottom=0)
            axes.yaxis.set_major_formatter(StrMethodFormatter("{x:,.0f}"))
        legend(made, {frames.arm(a): {"color": SERIES[i], "linewidth": 3}
                      for i, (a, _) in enumerate(cells)})  # fmt: skip
        return finish(
            made,
            title=f"Server over time, {workload} on {engine}",
            caption=(
                f"Repeat 1, {frames.backend}. Blocks and requests are from the server's iteration "
                "records: largest value in each of at most "
                f"{_BUCKETS} spans. Running: scheduled in the step."
            ),
            alternative=" ".join(words),
        )


Ids = tuple[Drawing, str, str, int]


def _pool_panel(axes: Axes, cell: CellRows, ids: Ids) -> str:
    made, arm, name, slot = ids
    used, pool = cell.steps("used_blocks"), cell.steps("max_blocks")
    if not len(used) or np.isnan(used).all():
        return f"{name}: blocks are not measured."
    t, held = bucketed(cell.step_times, used)
    axes.plot(t, held, color=SERIES[slot], linestyle=DASHES[slot], gid=made.gid(arm, name, slot))
    made.add({"arm": arm, "series": "used_blocks", "t_s": t, "value": held})
    if not np.isnan(pool).all() and not slot:
        axes.axhline(float(np.nanmax(pool)), color=SOFT, linewidth=1)
    paused = np.nan_to_num(cell.steps("paused_requests"))
    at = np.flatnonzero(paused > 0)
    shown = at[thin(len(at), 200)] if len(at) else at
    if len(at):
        axes.plot(
            *dots(cell.step_times[shown], used[shown]), color=SERIES[slot], linewidth=7,
            solid_capstyle="round", gid=made.gid(arm, name, slot),
        )  # fmt: skip
        made.add({"arm": arm, "series": "pauses", "t_s": cell.step_times[shown],
                  "value": paused[shown]})  # fmt: skip
    total = plural(int(paused.sum()), "pause")
    return f"{name}: at most {number(float(np.nanmax(used)))} blocks held, {total}."


def _residents_panel(axes: Axes, cell: CellRows, ids: Ids) -> None:
    made, arm, name, slot = ids
    scheduled = cell.steps("scheduled_requests")
    active, queued = cell.steps("active_requests"), cell.steps("queued_requests")
    series: dict[str, tuple[Reals, Any]] = {
        "running": (scheduled, "-"),
        "waiting": (active - scheduled + np.nan_to_num(queued), ":"),
    }
    for series_name, (values, line) in series.items():
        if len(values) and not np.isnan(values).all():
            t, shown = bucketed(cell.step_times, values)
            axes.plot(t, shown, color=SERIES[slot], linestyle=line, linewidth=1.3,
                      gid=made.gid(arm, name, slot))  # fmt: skip
            made.add({"arm": arm, "series": series_name, "t_s": t, "value": shown})


def _rate_panel(axes: Axes, cell: CellRows, ids: Ids) -> None:
    made, arm, name, slot = ids
    times = np.concatenate(cell.chunk_times) if cell.chunk_times else np.empty(0)
    if not len(times):
        return
    edges = np.linspace(0, float(times.max()), 121)
    counts, _ = np.histogram(times, edges)
    rates = counts / np.diff(edges)
    middle = (edges[:-1] + edges[1:]) / 2
    axes.plot(middle, rates, color=SERIES[slot], linestyle=DASHES[slot], linewidth=1.2,
              gid=made.gid(arm, name, slot))  # fmt: skip
    made.add({"arm": arm, "series": "chunks_per_s", "t_s": middle, "value": rates})


def bucketed(times: Reals, values: Reals) -> tuple[Reals, Reals]:
    """The largest value in each of at most `_BUCKETS` spans, at the time it stood."""
    keep = ~np.isnan(values)
    times, values = times[keep], values[keep]
    if len(times) <= _BUCKETS:
        return times, values
    edges = np.linspace(times[0], times[-1], _BUCKETS + 1)
    bucket = np.clip(np.searchsorted(edges, times, side="right") - 1, 0, _BUCKETS - 1)
    order = np.lexsort((values, bucket))
    last = np.flatnonzero(np.diff(bucket[order], append=_BUCKETS))
    at = np.sort(order[last])
    return times[at], values[at]


__all__ = ["GRID", "bucketed", "over_time", "phases_of", "prefill_starts", "timeline"]

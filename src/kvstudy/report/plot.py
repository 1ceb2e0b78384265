"""How every figure is drawn: style, colour-blind safe colours, deterministic small SVG.

Colours are written as CSS variables with a fallback, so that the page's theme decides and the
file alone still looks right.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from io import StringIO
from typing import Any, cast

import matplotlib as mpl
import numpy as np
import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure as Canvas
from matplotlib.lines import Line2D
from matplotlib.ticker import FixedLocator, FuncFormatter, NullLocator

from kvstudy.report import page
from kvstudy.report.text import csv_line

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito: told apart with every common colour blindness."""
DASHES: tuple[Any, ...] = ("-", (0, (5, 2)), (0, (1, 1.5)), (0, (6, 2, 1, 2)), "-", "-")
INK, GRID, SOFT = "#010203", "#dcdddf", "#8a8b8d"
MAX_POINTS = 600

_VARIABLES = {colour: f"var(--s{i}, {colour})" for i, colour in enumerate(SERIES)} | {
    INK: "var(--ink, #1b1f24)",
    GRID: "var(--grid, #dcdddf)",
    SOFT: "var(--soft, #6b7078)",
}
_STYLE: dict[str, Any] = {
    "svg.fonttype": "none",
    "path.simplify": False,
    "font.size": 9.0,
    "axes.titlesize": 9.5,
    "axes.titlelocation": "left",
    "axes.titleweight": "bold",
    "axes.edgecolor": SOFT,
    "axes.labelcolor": INK,
    "axes.titlecolor": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.unicode_minus": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "xtick.color": SOFT,
    "ytick.color": SOFT,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
    "figure.facecolor": "none",
    "axes.facecolor": "none",
    "savefig.facecolor": "none",
    "lines.linewidth": 1.6,
}


@dataclass
class Drawing:
    """A figure in the making: its canvas, its data, and what may be switched off."""

    name: str
    canvas: Canvas
    axes: list[Axes]
    section: str
    data: list[pd.DataFrame] = field(default_factory=list)
    toggles: dict[str, page.Toggle] = field(default_factory=dict)
    _count: int = 0

    def gid(self, key: str, words: str, slot: int) -> str:
        """SVG id of an artist that belongs to a switchable part."""
        self.toggles.setdefault(key, page.Toggle(key, words, slot))
        self._count += 1
        return f"toggle:{key}:{self._count}"

    def add(self, columns: Mapping[str, Any]) -> None:
        """Data as drawn; scalars are repeated."""
        self.data.append(pd.DataFrame(dict(columns)))


def style() -> Any:
    """Context in which figures are made and saved."""
    return mpl.rc_context(cast(Any, _STYLE))


def drawing(
    name: str, section: str, rows: int, columns: int = 1, *, height: float, **grid: Any
) -> Drawing:
    """An empty figure, 9 inches wide."""
    canvas = Canvas(figsize=(9.0, height), layout="constrained")
    axes = canvas.subplots(rows, columns, squeeze=False, **grid)
    return Drawing(name, canvas, list(np.ravel(axes)), section)


def finish(made: Drawing, *, title: str, caption: str, alternative: str) -> page.Figure:
    """The drawing as SVG with its data as CSV."""
    with mpl.rc_context({"svg.hashsalt": made.name}):
        buffer = StringIO()
        made.canvas.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None})
    return page.Figure(
        name=made.name,
        title=title,
        caption=caption,
        alternative=alternative,
        svg=tidy(buffer.getvalue(), made.name, title),
        csv=csv_of(made.data).encode(),
        section=made.section,
        toggles=list(made.toggles.values()) if len(made.toggles) > 1 else [],
        axes=json.dumps([_axes(made.canvas, axes) for axes in made.axes], sort_keys=True),
    )


def csv_of(frames: Sequence[pd.DataFrame]) -> str:
    """Frames below each other as CSV, formulas disarmed."""
    if not frames:
        return ""
    whole = pd.concat(frames, ignore_index=True)
    lines = [csv_line(whole.columns)]
    for row in whole.itertuples(index=False):
        lines.append(csv_line(_short(value) for value in row))
    return "".join(lines)


def _short(value: Any) -> object:
    if isinstance(value, float | np.floating):
        return None if np.isnan(value) else float(f"{value:.5g}")
    return value.item() if isinstance(value, np.generic) else value


def _axes(canvas: Canvas, axes: Axes) -> dict[str, Any]:
    """Where an axes lies in the SVG and what its pixels mean, for the page's read-out."""
    box = axes.get_window_extent()
    scale, height = 72 / canvas.dpi, canvas.get_figheight() * 72
    corners = [box.x0 * scale, height - box.y1 * scale, box.x1 * scale, height - box.y0 * scale]
    return {
        "box": [round(float(corner), 1) for corner in corners],
        "x": [float(f"{limit:.6g}") for limit in axes.get_xlim()],
        "y": [float(f"{limit:.6g}") for limit in axes.get_ylim()],
        "log": [axes.get_xscale() == "log", axes.get_yscale() == "log"],
        "words": [axes.get_xlabel(), axes.get_ylabel()],
        "labelled": [_words(axes.get_xticklabels()), _words(axes.get_yticklabels())],
    }


def _words(labels: Sequence[Any]) -> bool:
    """Whether tick labels are words, so that a position has no number to read out."""
    return any(label.get_text() and not re.search(r"\d", label.get_text()) for label in labels)


def tidy(svg: str, name: str, title: str) -> str:
    """Inline-ready SVG: ids of its own, two decimals, theme colours, no metadata."""
    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>\s*", "", svg, flags=re.S)
    svg = re.sub(r"<!--.*?-->\s*", "", svg, flags=re.S)
    svg = re.sub(r'id="toggle:([^":]+):(\d+)"', r'id="t\2" data-toggle="\1"', svg)
    svg = re.sub(r'<g id="(?!t\d+")[^"]*"', "<g", svg)
    svg = re.sub(r'(?<=[ <])id="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", svg)
    svg = re.sub(r'href="#([^"]+)"', rf'href="#{name}-\1"', svg)
    svg = re.sub(r"font-family: [^;\"]+", "font-family: system-ui, sans-serif", svg)
    svg = re.sub(r"(font: [^;\"]*?\d+px) [^;\"]+", r"\1 system-ui, sans-serif", svg)
    svg = re.sub(r' d="([^"]*)"', _short_path, svg)
    svg = re.sub(r"(?<=[\"( ])(-?\d+\.\d{3,})(?=[\") ])", lambda m: f"{float(m[1]):.2f}", svg)
    svg = re.sub(r"\n\s+", "\n", svg)
    for colour, variable in _VARIABLES.items():
        svg = svg.replace(colour, variable)
    label = title.replace("&", "&amp;").replace("<", "&lt;").replace('"', "&quot;")
    svg = re.sub(r'<svg [^>]*viewBox="([^"]+)"[^>]*>', _opening(label), svg, count=1)
    return svg.strip() + "\n"


def _opening(label: str) -> str:
    return (
        rf'<svg xmlns="http://www.w3.org/2000/svg" '
        rf'xmlns:xlink="http://www.w3.org/1999/xlink" viewBox="\1" role="img" '
        rf'aria-label="{label.replace(chr(92), "")}">'
    )


def _short_path(match: re.Match[str]) -> str:
    """Path data with one decimal, on one line."""
    numbers = re.sub(r"-?\d+\.\d+", lambda m: f"{float(m.group(0)):.1f}", match.group(1))
    return f' d="{" ".join(numbers.split())}"'


def thin(count: int, limit: int = MAX_POINTS) -> np.ndarray:
    """Positions of at most `limit` evenly spaced points, both ends kept."""
    if count <= limit:
        return np.arange(count)
    return np.unique(np.linspace(0, count - 1, limit).round().astype(int))


def broken(starts: Any, ends: Any, heights: Any) -> tuple[np.ndarray, np.ndarray]:
    """Horizontal segments as one line with gaps: one short SVG path for any number of them."""
    gaps = np.full(len(starts), np.nan)
    x = np.column_stack([starts, ends, gaps]).ravel()
    y = np.column_stack([heights, heights, gaps]).ravel()
    return x, y


def dots(x: Any, y: Any) -> tuple[np.ndarray, np.ndarray]:
    """Points as segments of no length: with round caps, dots in one short SVG path."""
    return broken(x, x, y)


def plain_log_ticks(axis: Any, low: float, high: float) -> None:
    """Ticks at 1, 2 and 5 times powers of ten, written out, no minor ones."""
    powers = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [m * 10.0**p for p in powers for m in (1, 2, 5)]
    inside = [tick for tick in ticks if low <= tick <= high]
    if len(inside) > 6:
        inside = [tick for tick in inside if f"{tick:.0e}".startswith("1")] or inside
    axis.set_major_locator(FixedLocator(inside))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.10g}"))
    axis.set_minor_locator(NullLocator())


def legend(made: Drawing, labels: Mapping[str, Mapping[str, Any]], **place: Any) -> None:
    """One legend above all axes: label -> line properties."""
    lines = [Line2D([], [], **properties) for properties in labels.values()]
    made.canvas.legend(
        lines, list(labels), loc="outside upper left", ncols=min(4, len(labels)), **place
    )

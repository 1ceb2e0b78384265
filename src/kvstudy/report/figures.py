"""All figures of the report, in the order of the page. Each is a function of tables."""

from __future__ import annotations

from dataclasses import replace

from kvstudy.report import effect_figures, latency_figures, server_figures
from kvstudy.report.frames import Frames
from kvstudy.report.page import Figure

_PER_GROUP = (
    latency_figures.ecdf,
    latency_figures.tpot_by_order,
    server_figures.timeline,
    server_figures.over_time,
)
_WHOLE = (
    latency_figures.predicted_against_observed,
    effect_figures.forest,
    latency_figures.dumbbells,
)


def draw_all(frames: Frames) -> list[Figure]:
    """Every figure for which there is data; those of later workloads fold on the page."""
    drawn = [draw(frames) for draw in _WHOLE]
    groups = list(frames.groups())
    for group in groups:
        first = group[0] == groups[0][0]
        found = [draw(frames, *group) for draw in _PER_GROUP]
        drawn += [figure and replace(figure, folded=not first) for figure in found]
    return [figure for figure in drawn if figure is not None]

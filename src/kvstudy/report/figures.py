"""All figures of the report, in the order of the page. Each is a function of tables."""

from __future__ import annotations

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
    """Every figure for which there is data."""
    drawn = [draw(frames) for draw in _WHOLE]
    drawn += [draw(frames, *group) for group in frames.groups() for draw in _PER_GROUP]
    return [figure for figure in drawn if figure is not None]

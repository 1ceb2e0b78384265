"""The chapter "Why": rival hypotheses and the regime map, when their tables were delivered."""

from __future__ import annotations

from collections.abc import Sequence

from kvstudy.report.inputs import Inputs
from kvstudy.report.page import Entry, Head, Table, entry
from kvstudy.report.text import DASH, number, significant
from kvstudy.stats.data import Row

_NUMERIC = (int, float)


def why_tables(inputs: Inputs) -> list[Table]:
    """One plain table per optional input; none where nothing was delivered."""
    found = []
    if inputs.hypotheses:
        found.append(_plain("hypotheses", "Rival hypotheses", inputs.hypotheses))
    if inputs.regimes:
        found.append(_plain("regimes", "Regime map", inputs.regimes))
    return found


def _plain(name: str, title: str, rows: Sequence[Row]) -> Table:
    columns = list(rows[0])
    numeric = {
        column: all(isinstance(row[column], _NUMERIC) for row in rows if row[column] is not None)
        for column in columns
    }
    heads = [Head(column.replace("_", " "), numeric=numeric[column]) for column in columns]
    body = [[_cell(row[column]) for column in columns] for row in rows]
    return Table(name, title, heads, body, "predicted: scheduler model in virtual time")


def _cell(value: object) -> Entry:
    if value is None:
        return entry(DASH)
    if isinstance(value, _NUMERIC) and not isinstance(value, bool):
        return entry(number(value, significant(value)), float(value))
    if isinstance(value, list):
        return entry(", ".join(str(item) for item in value))
    return entry(value)

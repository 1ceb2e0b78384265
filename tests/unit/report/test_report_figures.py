"""Figures: what is drawn is what the tables say, the same bytes every time."""

from __future__ import annotations

import csv
import json
import re
from io import StringIO

import numpy as np
import pyarrow as pa
import pytest
from synthetic import iterations_of, request, small_study

from kvstudy.base import tables
from kvstudy.base.errors import DataError
from kvstudy.report import plot
from kvstudy.report.drawn import read_figures
from kvstudy.report.figures import draw_all
from kvstudy.report.frames import CellRows, Frames
from kvstudy.report.server_figures import bucketed, phases_of


def arrow(rows: list[dict], table: tables.Table) -> pa.Table:
    schema = pa.schema([pa.field(c.name, c.type) for c in table.columns])
    return pa.Table.from_pylist(rows, schema=schema)


def frames(source: str = "measured") -> Frames:
    study = small_study(source)
    return Frames(
        cells=study.cells,
        requests=arrow(study.requests, tables.REQUESTS),
        iterations=arrow(study.iterations, tables.ITERATIONS),
        contrasts=[],
        published=[],
    )


@pytest.fixture(scope="module")
def drawn() -> dict:
    return {figure.name: figure for figure in draw_all(frames())}


def rows_of(figure) -> list[dict[str, str]]:
    return list(csv.DictReader(StringIO(figure.csv.decode())))


def test_the_same_tables_give_the_same_bytes(drawn) -> None:
    again = {figure.name: figure for figure in draw_all(frames())}
    assert drawn == again


def test_svg_is_ready_to_stand_in_the_page(drawn) -> None:
    for name, figure in drawn.items():
        svg = figure.svg
        assert svg.startswith("<svg ")
        assert 'role="img"' in svg
        assert "<metadata" not in svg
        assert "#010203" not in svg.replace("var(--ink, #1b1f24)", "")
        assert all(i.startswith(name) for i in re.findall(r'(?<=[ <])id="([^"]+)"', svg))
        ids = set(re.findall(r'(?<=[ <])id="([^"]+)"', svg))
        assert set(re.findall(r'(?:href="#|url\(#)([^")]+)', svg)) <= ids
        assert "DejaVu" not in svg


def test_every_figure_has_words_and_data(drawn) -> None:
    for figure in drawn.values():
        assert figure.title
        assert figure.caption
        assert figure.alternative.endswith(".")
        assert len(rows_of(figure)) > 1
        for axes in json.loads(figure.axes):
            left, top, right, bottom = axes["box"]
            assert left < right
            assert top < bottom


def test_the_distribution_ends_at_one_and_holds_the_requests_values(drawn) -> None:
    rows = rows_of(drawn["ecdf-w-c-c32-trtllm-1-2-1"])
    ttft = [r for r in rows if (r["metric"], r["arm"], r["source"]) == ("TTFT", "gne", "measured")]
    assert {float(r["value"]) for r in ttft} == {2.0}
    assert float(ttft[-1]["share"]) == 1.0


def test_tpot_by_order_is_one_dot_per_request(drawn) -> None:
    rows = rows_of(drawn["tpot-order-w-c-c32-trtllm-1-2-1"])
    mu = {int(float(r["submit_order"])): float(r["tpot_ms"]) for r in rows if r["arm"] == "mu"}
    assert mu == {0: 200.0, 1: 200.0, 2: 200.0, 3: 900.0}


def cell_rows(requests: list[dict], steps: list[dict], wall_s: float = 10.0) -> CellRows:
    keys = {c.name for c in tables.REQUESTS.columns}
    whole = [{**dict.fromkeys(keys), **r} for r in requests]
    steps = [{"cell_id": "c", "source": "measured", **s} for s in steps]
    return CellRows(
        {"window_start_ns": 0, "wall_s": wall_s},
        arrow(whole, tables.REQUESTS),
        arrow(steps, tables.ITERATIONS),
    )


def test_phases_by_hand() -> None:
    """Steps of 1 s compute 10 prompt tokens each; a prompt of 20 done at 4 s began at 2 s."""
    one = request(0, send_s=0.0, ttft_s=4.0, gaps_s=[0.5, 3.0, 0.5], planned_input_tokens=20)
    steps = iterations_of(10.0, steps=10, context_tokens=10, iter_latency_ns=10**9)

    phases = phases_of(cell_rows([one], steps))

    assert [float(x[0]) for x in phases["waiting"]] == [0.0, 2.0, 0.0]
    assert [float(x[0]) for x in phases["prefill"][:2]] == [2.0, 4.0]
    assert [float(x[0]) for x in phases["decode"][:2]] == [4.0, 8.0]
    assert [float(x[0]) for x in phases["stalled"][:2]] == [4.5, 7.5]


def test_without_records_prefill_is_not_invented() -> None:
    one = request(0, send_s=0.0, ttft_s=4.0, gaps_s=[0.5])
    phases = phases_of(cell_rows([one], []))
    assert phases["prefill"][0][0] == phases["prefill"][1][0] == 4.0
    assert not len(phases["stalled"][0])


def test_a_bucket_keeps_its_largest_value() -> None:
    times = np.arange(10_000.0)
    values = np.zeros(10_000)
    values[4321] = 7.0
    t, kept = bucketed(times, values)
    assert len(t) <= 200
    assert kept.max() == 7.0
    assert t[kept.argmax()] == 4321.0


def test_long_series_are_thinned_and_keep_their_ends() -> None:
    at = plot.thin(10_000)
    assert len(at) <= plot.MAX_POINTS
    assert (at[0], at[-1]) == (0, 9999)
    assert plot.thin(3).tolist() == [0, 1, 2]


def test_a_figure_that_lost_its_file_is_named(tmp_path) -> None:
    row = {"name": "x", "title": "t", "caption": "c", "alternative": "a", "section": "s",
           "axes": "[]", "folded": False, "toggles": []}  # fmt: skip
    (tmp_path / "manifest.json").write_text(json.dumps({"figures": [row]}))
    with pytest.raises(DataError, match=r"x\.svg"):
        read_figures(tmp_path)


def test_a_study_without_iterations_still_draws() -> None:
    bare = frames()
    bare = Frames(bare.cells, bare.requests, bare.iterations.slice(0, 0), [], [])
    names = [figure.name for figure in draw_all(bare)]
    assert "server-w-c-c32-trtllm-1-2-1" in names

"""Chapter, figures and reply: every number from the tables, words that follow the numbers."""

from __future__ import annotations

import copy
import re
from pathlib import Path
from typing import Any

import pytest
from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kvstudy.base import tables
from kvstudy.explain.tables import HYPOTHESES, REGIMES
from kvstudy.report.answer import answer_of, render
from kvstudy.report.page import Figure
from kvstudy.report.why import percent, why_of
from kvstudy.report.why_figures import figure_cliff, figure_hypotheses, figure_regimes
from kvstudy.steps import write_answer

Rows = list[dict[str, Any]]
TEMPLATES = Path(__file__).resolve().parents[3] / "report" / "templates"


def text_of(hypotheses: Rows, regimes: Rows, cells: Rows = (), verdicts: Rows = ()) -> str:  # type: ignore[assignment]
    return render(answer_of(hypotheses, regimes, cells, verdicts), TEMPLATES).replace("\\_", "_")


def published_as(rows: Rows, engine: str, **values: float | None) -> Rows:
    changed = copy.deepcopy(rows)
    for row in changed:
        if row["engine"] == engine and row["kind"] == "published":
            row.update(values)
    return changed


def test_the_words_of_the_two_versions_differ(hypothesis_rows: Rows, regime_rows: Rows) -> None:
    why = why_of(hypothesis_rows, regime_rows)
    old, new = why.expected
    assert "The rules alone do not give that." in old
    assert "That is what the rules give." in new
    assert "H1, a pause that cuts" in why.ranking[0]
    assert "does not tell where the cut is" in why.ranking[0]
    assert "differs by version" in why.ranking[-1]
    assert "not been read in the image" in why.mind[-1]


def test_words_follow_the_numbers(hypothesis_rows: Rows) -> None:
    """The same code says yes where 1.2.1 behaves as the rules give, and nothing without numbers."""
    fine = published_as(hypothesis_rows, "trtllm-1.2.1", throughput_ratio=0.99, tpot_p99_ratio=None)
    assert "That is what the rules give." in why_of(fine, []).expected[0]
    assert "do not use the policy there" not in text_of(fine, [])
    silent = [row for row in hypothesis_rows if row["kind"] == "hypothesis"]
    none = [row | {"rank": None, "weight": None, "against": None} for row in silent]
    why = why_of(none, [])
    assert "Nothing was measured or published" in why.expected[0]
    assert "not ranked" in why.ranking[0]
    assert why.mind == []
    assert "Not answered: nothing was measured or published" in text_of(none, [])


def test_undecided_evidence_is_called_undecided(hypothesis_rows: Rows) -> None:
    even = copy.deepcopy(hypothesis_rows)
    for row in even:
        if row["hypothesis"] in ("H0", "H2"):
            row["weight"] = 0.5
        elif row["weight"] is not None:
            row["weight"] = 0.0
    sentence = why_of(even, []).ranking[0]
    assert "The evidence does not decide between them." in sentence


def test_the_boundary_and_the_cliff_in_words(regime_rows: Rows) -> None:
    said = " ".join(why_of([], regime_rows).regimes)
    assert "loses at 11,288 to 11,608" in said
    assert "wins at 11,609 to 11,615 (+2.3 %, without a pause)" in said
    assert "11,264 blocks (22 x 512)" in said
    assert "11,616 (22 x 528)" in said
    assert f"All {len(regime_rows)} simulated points obey these block counts." in said
    wrong = [row | {"arithmetic_holds": False} for row in regime_rows]
    assert "the explanation is wrong" in " ".join(why_of([], wrong).regimes)


def test_a_map_without_wins_or_losses_is_said_so(regime_rows: Rows) -> None:
    equal = [row | {"regime": "equal", "throughput_ratio": 1.0} for row in regime_rows]
    said = " ".join(why_of([], equal).regimes)
    assert "equals in" in said
    assert "wins" not in said.replace("where MAX_UTILIZATION wins", "")
    assert "Not in any of the" in text_of([], equal)
    stuck = [
        row | dict.fromkeys(("throughput_ratio", "tpot_p99_ratio", "pauses"))
        | {"regime": "stuck", "residents_treatment": None}
        for row in regime_rows
    ]  # fmt: skip
    assert "gets stuck at" in " ".join(why_of([], stuck).regimes)


def test_nothing_gives_an_empty_chapter() -> None:
    assert why_of([], []).is_empty
    assert [f([]) for f in (figure_hypotheses, figure_regimes, figure_cliff)] == [None] * 3


def test_shares_are_never_rounded_to_certainty() -> None:
    assert [percent(s) for s in (0.0, 0.004, 0.29, 0.995, 1.0)] == [
        "below 1 %", "below 1 %", "29 %", "above 99 %", "above 99 %",
    ]  # fmt: skip


@pytest.mark.parametrize("draw", [figure_hypotheses, figure_regimes, figure_cliff])
def test_figures_carry_their_data_and_come_out_the_same(
    draw: Any, hypothesis_rows: Rows, regime_rows: Rows
) -> None:
    rows = hypothesis_rows if draw is figure_hypotheses else regime_rows
    figure = draw(rows)
    assert isinstance(figure, Figure)
    assert figure.section == "why"
    assert figure == draw(rows)
    assert len(figure.csv.splitlines()) > 5
    assert figure.alternative
    assert len(figure.svg) < 400_000


def test_the_html_partial_renders(hypothesis_rows: Rows, regime_rows: Rows) -> None:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES), autoescape=True, undefined=StrictUndefined
    )
    environment.filters["svg"] = str
    why = why_of(hypothesis_rows, regime_rows)
    page = environment.get_template("why.html.j2").render(why=why)
    for table in (*why.hypotheses_tables, *why.decider_tables, *why.regime_tables):
        assert f'{table.id}"' in page
    assert environment.get_template("why.html.j2").render(why=why_of([], [])).strip() == ""


def test_the_markdown_partial_renders(hypothesis_rows: Rows, regime_rows: Rows) -> None:
    environment = Environment(
        loader=FileSystemLoader(TEMPLATES),
        autoescape=False,  # noqa: S701 - Markdown has its own escaping
        undefined=StrictUndefined,
    )
    environment.globals["table"] = lambda table: table.title
    why = why_of(hypothesis_rows, regime_rows)
    page = environment.get_template("why.md.j2").render(why=why)
    assert all(table.title in page for table in why.regime_tables)
    assert why.expected[0] in page


def cell(**values: Any) -> dict[str, Any]:
    base = {
        "source": "predicted", "basis": "held_out", "engine": "trtllm-1.3.0rc22", "valid": True,
        "workload": "W-D", "concurrency": 64, "pauses": 0,
    }  # fmt: skip
    return dict.fromkeys(tables.CELLS.names) | base | values


def test_the_reply_says_what_is_measured(hypothesis_rows: Rows, regime_rows: Rows) -> None:
    cells = [cell(arm="gne", output_tok_per_s=100.0), cell(arm="mu", output_tok_per_s=125.0)]
    verdicts = [{"source": "predicted", "verdict": "model_agrees"}] * 3
    said = text_of(hypothesis_rows, regime_rows, cells, verdicts)
    assert "Nothing in this reply was measured by its authors" in said
    assert "W-D at concurrency 64 on trtllm-1.3.0rc22, predicted: throughput 25.0 % higher" in said
    assert "3 model_agrees" in said
    measured = [cell(source="measured", basis="measured", arm="gne", output_tok_per_s=1.0)]
    assert "1 cell measured on trtllm-1.3.0rc22" in text_of(hypothesis_rows, [], measured)


def test_the_reply_holds_guides_and_a_warning(hypothesis_rows: Rows, regime_rows: Rows) -> None:
    said = text_of(hypothesis_rows, regime_rows)
    assert said.count("enable_iter_perf_stats: true") >= 3
    assert "numPausedRequests" in said
    assert "In 1.2.1 a pause was seen to cost far more" in said
    assert "In 1.3.0rc22 a pause" not in said
    assert "Use it where the prompt is a small part of a request" in said


def test_numbers_of_the_reply_are_the_tables(hypothesis_rows: Rows, regime_rows: Rows) -> None:
    """Doubling every predicted count changes the reply: no count is written in the code."""
    changed = copy.deepcopy(hypothesis_rows)
    for row in changed:
        if row["pauses"] is not None:
            row["pauses"] *= 7
    said = text_of(changed, regime_rows)
    assert "give 35 pauses" in said
    assert "give 5 pauses" not in said


def test_foreign_text_is_inert(hypothesis_rows: Rows) -> None:
    evil = copy.deepcopy(hypothesis_rows)
    for row in evil:
        row["engine"] = "<script>alert(1)</script>|[x](http://evil)"
    said = text_of(evil, [])
    assert "<script>" not in said
    assert not re.search(r"(?<!\\)\[x", said)


def test_the_step_writes_the_reply(
    tmp_path: Path, hypothesis_rows: Rows, regime_rows: Rows
) -> None:
    tables.write(tmp_path / "h.parquet", hypothesis_rows, HYPOTHESES)
    tables.write(tmp_path / "r.parquet", regime_rows, REGIMES)
    tables.write(tmp_path / "c.parquet", [], tables.CELLS)
    tables.write(tmp_path / "v.parquet", [], tables.VERDICTS)
    files = {"hypotheses": "h", "regimes": "r", "cells": "c", "verdicts": "v"}
    argv = [w for n, f in files.items() for w in (f"--{n}", str(tmp_path / f"{f}.parquet"))]
    out = tmp_path / "answer.md"
    write_answer.main([*argv, "--templates", str(TEMPLATES), "--out", str(out)])
    assert out.read_text(encoding="utf-8").startswith("# Reply: ")

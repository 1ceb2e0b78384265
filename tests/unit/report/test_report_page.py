"""The rendered page and its Markdown: numbers, safety, stability."""

from __future__ import annotations

import copy
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from synthetic import ROOT, Tables, small_study

from kvstudy.report.render import HTML_LIMIT, MARKDOWN_LIMIT

Render = Callable[[Tables], "object"]


class Numbers(HTMLParser):
    """Every number of the page that carries its claim: (claim, source) -> values."""

    def __init__(self) -> None:
        super().__init__()
        self.found: dict[tuple[str, str], set[float]] = {}
        self.tags: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Note the tag, and its number if it has one."""
        own = dict(attrs)
        self.tags.append((tag, own))
        claim, source, value = (own.get(f"data-{k}") for k in ("claim", "source", "value"))
        if claim and source and value:
            self.found.setdefault((claim, source), set()).add(float(value))


def parsed(html: str) -> Numbers:
    reader = Numbers()
    reader.feed(html)
    return reader


def test_the_numbers_on_the_page_are_those_of_the_verdicts(measured) -> None:
    found = parsed(measured.html).found
    rows = pq.read_table(measured.folder / "verdicts.parquet").to_pylist()
    checked = 0
    for row in rows:
        if row["observed"] is not None:
            (value,) = found[(row["claim_id"], row["source"])]
            assert value == pytest.approx(row["observed"], rel=1e-7)
            checked += 1
        assert found[(row["claim_id"], "published")] == {row["published"]}
    assert checked > 20


def test_hand_computed_numbers_of_the_small_study(measured) -> None:
    """GNE: 20 tokens in 5.4 s and 5.404 s; MU: 20 tokens in 7.6 s and 7.606 s."""
    found = parsed(measured.html).found
    (gne,) = found[("wc.gne.throughput", "measured")]
    (mu,) = found[("wc.mu.throughput", "measured")]
    (delta,) = found[("wc.delta.throughput", "measured")]
    assert gne == pytest.approx((20 / 5.4 + 20 / 5.404) / 2, rel=1e-7)
    assert mu == pytest.approx((20 / 7.6 + 20 / 7.606) / 2, rel=1e-7)
    assert delta == pytest.approx(100 * (mu / gne - 1), rel=1e-6)
    assert found[("wc.gne.ttft_p50", "measured")] == {2000.0}


def test_the_published_row_stands_above_the_runs_and_the_predictions(measured) -> None:
    start = measured.markdown.index("trtllm-1.2.1: W-C")
    table = measured.markdown[start:].split("\n\n")[1].splitlines()
    names = [line.split(" | ")[1] for line in table[2:]]
    assert names == ["published", "this run, measured", "predicted"] * 2
    assert "1,110.7 (9.1\u00d7)" in table[5]


def test_every_table_says_what_its_numbers_are(measured, emulated) -> None:
    for page, word in ((measured, "measured"), (emulated, "emulated")):
        heads = re.findall(r'<p class="provenance">([^<]+)</p>', page.html)
        assert len(heads) == len(re.findall(r'<div class="table"', page.html))
        assert sum(word in head for head in heads) > 5


def test_an_emulated_page_never_says_reproduced(emulated) -> None:
    rows = pq.read_table(emulated.folder / "verdicts.parquet").to_pylist()
    assert {row["verdict"] for row in rows} <= {"model_agrees", "model_differs", "not_modelled"}
    badges = re.findall(r'<li class="badge[^>]*><b>\d+</b> ([^<]+)</li>', emulated.html)
    assert badges
    assert not any("reproduced" in badge for badge in badges)
    assert "cannot reproduce a measurement" in emulated.html


def test_no_network_no_foreign_script_and_small_enough(measured) -> None:
    page = parsed(measured.html)
    for tag, attributes in page.tags:
        assert not (tag in ("script", "img", "iframe") and attributes.get("src"))
        href = attributes.get("href") or attributes.get("xlink:href") or ""
        assert href.startswith(("#", "data:")) or not href, href
    assert sum(tag == "script" for tag, _ in page.tags) == 1
    assert "default-src 'none'" in measured.html
    assert len(measured.html.encode()) < HTML_LIMIT
    assert len(measured.markdown) < MARKDOWN_LIMIT


def test_ids_are_unique_and_links_lead_somewhere(measured) -> None:
    page = parsed(measured.html)
    ids = [a["id"] for _, a in page.tags if a.get("id")]
    assert len(ids) == len(set(ids))
    targets = {(a.get("href") or "")[1:] for t, a in page.tags if t == "a"}
    inside = {target for target in targets if not target.startswith("ata:")}
    assert inside <= set(ids)


def test_the_same_inputs_give_the_same_bytes(measured, render_changed) -> None:
    again = render_changed(small_study("measured"))
    assert again.markdown == measured.markdown


HOSTILE = "<img src=x onerror=alert(1)> @nvidia `x` | y \x1b[31m"


def hostile_study() -> Tables:
    study = small_study("measured")
    run = study.runs["W-C.c32.trtllm-1.2.1.mu.r1"]
    run["host"]["cpu"] = HOSTILE
    run["mismatches"] = [HOSTILE]
    run["argv"].append(HOSTILE + "</code></pre><script>alert(2)</script>")
    run["resolved"]["excerpts"] = ["```\n<b>"]
    return study


def test_foreign_text_is_inert_in_html_and_markdown(render_changed) -> None:
    page = render_changed(hostile_study())
    tags = parsed(page.html).tags
    assert not any("onerror" in attributes for _, attributes in tags)
    assert sum(tag == "script" for tag, _ in tags) == 1
    assert "\x1b" not in page.html
    assert "\x1b" not in page.markdown
    outside = re.sub(r"(?ms)^(`{3,})\w*\n.*?^\1$", "", page.markdown)
    assert "<img" not in outside
    assert "@nvidia" not in outside


def test_an_undeclared_difference_makes_the_contrast_invalid_and_says_so(render_changed) -> None:
    study = small_study("measured")
    for run in study.runs.values():
        if run["arm"] == "mu":
            run["resolved"]["pool_tokens"] = 403680
    page = render_changed(study)
    assert "INVALID: MAX_UTILIZATION vs GUARANTEED_NO_EVICT on trtllm-1.2.1, W-C" in page.html
    rows = pq.read_table(page.folder / "verdicts.parquet").to_pylist()
    found = {r["claim_id"]: r["verdict"] for r in rows if r["source"] == "measured"}
    assert found["wc.delta.throughput"] == "invalid"
    assert found["wc.gne.throughput"] == "not_reproduced"


def test_an_invalid_cell_is_shown_and_marked(render_changed) -> None:
    study = small_study("measured")
    for cell in study.cells:
        if cell["cell_id"].endswith("mu.r2") and cell["source"] == "measured":
            cell |= {"valid": False, "reasons": ["server_died"]}
    page = render_changed(study)
    assert "W-C.c32.trtllm-1.2.1.mu.r2 (measured) is not valid: server_died." in page.html


def test_with_few_requests_the_maximum_stands_beside_p99(measured) -> None:
    assert re.search(r"\(max [\d,.]+\)", measured.markdown)


def test_one_repeat_says_that_no_interval_exists(render_changed) -> None:
    study = small_study("measured")
    once = copy.copy(study)
    once.cells = [c for c in study.cells if c["repeat"] == 1]
    once.requests = [r for r in study.requests if r["repeat"] == 1]
    once.runs = {k: v for k, v in study.runs.items() if k.endswith("r1")}
    page = render_changed(once)
    assert "One repeat only, so no interval and no noise floor" in page.html


def test_a_study_without_a_run_shows_its_predictions_only(render_changed) -> None:
    study = small_study("measured")
    study.cells = [c for c in study.cells if c["source"] == "predicted"]
    study.requests = [r for r in study.requests if r["source"] == "predicted"]
    study.runs = {}
    page = render_changed(study)
    assert "Nothing has been measured yet" in page.html
    assert "No contrast of cells that ran could be audited." in page.html


def test_templates_hold_no_arithmetic() -> None:
    for path in (ROOT / "report/templates").glob("*.j2"):
        for expression in re.findall(r"{[{%](.*?)[%}]}", path.read_text(), flags=re.S):
            code = re.sub(r"\"[^\"]*\"|'[^']*'", "", expression)
            assert "round" not in code, path
            assert not re.search(r"[*/%]|\s-\s|\|\s*sum", code.replace("**", "")), (path, code)


def test_every_template_is_plain_utf8_without_closing_tags_in_assets() -> None:
    for name in ("page.css", "page.js"):
        assert "</" not in Path(ROOT / "report/templates" / name).read_text(encoding="utf-8")

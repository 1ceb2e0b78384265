"""Numbers on paper, and foreign text made inert."""

from __future__ import annotations

import pytest
from markdown_it import MarkdownIt

from kvstudy.report.text import (
    Safe,
    clean,
    csv_line,
    decimals,
    fenced,
    listing,
    markdown,
    number,
    plural,
    significant,
    with_unit,
)

HOSTILE = [
    "a|b",
    "<script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "`code` ``more``",
    "[link](javascript:alert(1))",
    "![image](https://evil.example/x.png)",
    "**bold** _under_ ~~gone~~ # head",
    "&lt;b&gt; &amp;",
    "back\\slash",
    "two\nlines | of text",
]


@pytest.mark.parametrize("text", HOSTILE)
def test_hostile_text_in_a_markdown_table_shows_as_itself(text: str) -> None:
    """A second parser (markdown-it) reads one cell with one plain text."""
    page = f"| head | second |\n| --- | --- |\n| {markdown(text)} | end |\n"
    tokens = MarkdownIt("commonmark").enable("table").parse(page)
    cells = [token for token in tokens if token.type == "inline"]
    assert len(cells) == 4
    children = cells[2].children or []
    assert {child.type for child in children} <= {"text", "text_special"}
    shown = "".join(child.content for child in children).replace("\u200b", "")
    assert shown == clean(text)
    assert cells[3].content == "end"


def test_mentions_and_references_do_not_fire() -> None:
    assert "@\u200bnvidia" in markdown("ask @nvidia")
    assert "#\u200b123" in markdown("see #123")
    assert "GH-\u200b7" in markdown("GH-7")


def test_safe_text_is_not_escaped_twice() -> None:
    once = markdown("a_b")
    assert isinstance(once, Safe)
    assert markdown(once) == once


def test_terminal_escapes_and_direction_changes_are_removed() -> None:
    assert clean("\x1b[31mred\x1b[0m \x1b]0;title\x07end\x00\u202e") == "red end"
    assert clean("one\r\ntwo\tthree", keep_lines=True) == "one\ntwo three"
    assert clean("one\ntwo") == "one two"


def test_a_code_block_cannot_be_closed_from_inside() -> None:
    block = fenced("a\n```\n<b>\n````")
    assert block.startswith("`````\n")
    assert block.endswith("\n`````")


@pytest.mark.parametrize("text", ["=1+1", "+1", "-1", "@SUM(A1)"])
def test_csv_formulas_are_disarmed(text: str) -> None:
    assert csv_line([text]) == f"'{text}\n"


def test_csv_quotes_and_numbers_and_nulls() -> None:
    assert csv_line(["a,b", 'say "x"', -1.5, None, float("nan"), True, 3]) == (
        '"a,b","say ""x""",-1.5,,,true,3\n'
    )


@pytest.mark.parametrize(
    ("value", "step", "signed", "text"),
    [
        (35774.4, 1.0, False, "35,774"),
        (-40.62, 0.1, True, "\u221240.6"),
        (0.24, 0.01, True, "+0.24"),
        (-0.04, 0.1, True, "0.0"),
        (44.49, 0.01, False, "44.49"),
        (None, 0.1, False, "\u2013"),
        (float("nan"), 0.1, False, "\u2013"),
    ],
)
def test_numbers_are_grouped_signed_and_rounded(value, step, signed, text) -> None:
    assert number(value, step, signed=signed) == text


def test_units_follow_their_number() -> None:
    assert with_unit(9.1, "x", 0.1) == "9.1\u00d7"
    assert with_unit(-40.6, "%", 0.1) == "\u221240.6\u202f%"
    assert with_unit(None, "ms") == "\u2013"
    assert with_unit(65536, "tokens") == "65,536\u202ftokens"


def test_significant_digits() -> None:
    assert decimals(significant(122.345, 4)) == 1
    assert decimals(significant(0.0123456, 3)) == 4
    assert significant(123456.0) == 1.0
    assert significant(None) == 1.0


def test_lists_and_plurals_in_words() -> None:
    assert listing([]) == ""
    assert listing(["a"]) == "a"
    assert listing(["a", "b", "c"]) == "a, b and c"
    assert plural(1, "cell") == "1 cell"
    assert plural(1200, "cell") == "1,200 cells"

"""Page and templates to HTML and Markdown. Both escape everything that is not their own."""

from __future__ import annotations

from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup, escape

from kvstudy.base.errors import DataError
from kvstudy.report.page import Page, markdown_table
from kvstudy.report.text import clean, fenced, markdown

MARKDOWN_LIMIT = 60_000
HTML_LIMIT = 3_000_000
_LEAST_NEEDED = (
    "Definitions",
    "Inside the server",
    "Repeats",
    "Resolved configuration and its audit",
    "Across versions",
    "Effects and noise",
    "Launch commands",
    "Why",
    "Environment",
)
"""Folds of the Markdown, in the order in which they give way to its limit."""


def html(page: Page, templates: Path) -> str:
    """The self-contained page."""
    environment = Environment(
        loader=FileSystemLoader(templates),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_html_text,
    )
    environment.globals["css"] = Markup(_asset(templates / "page.css"))  # noqa: S704 - our file
    environment.globals["script"] = Markup(_asset(templates / "page.js"))  # noqa: S704 - our file
    environment.filters["svg"] = Markup  # our own drawing, text escaped by matplotlib
    environment.filters["code"] = _code
    return environment.get_template("index.html.j2").render(page=page) + "\n"


def _html_text(value: object) -> object:
    if isinstance(value, str) and not hasattr(value, "__html__"):
        return clean(value)
    return value


def _code(value: object) -> Markup:
    return escape(clean(value, keep_lines=True))


def _asset(path: Path) -> str:
    text = path.read_text(encoding="utf-8")
    if "</s" in text.lower():
        raise DataError(f"{path}: must not hold a closing tag; it is inlined")
    return text


def markdown_report(page: Page, templates: Path) -> str:
    """The same numbers as GitHub-flavoured Markdown, below the limit of an issue's comment."""
    environment = Environment(
        loader=FileSystemLoader(templates),
        autoescape=False,  # noqa: S701 - `finalize` escapes for Markdown instead
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=markdown,
    )
    environment.globals["table"] = markdown_table
    environment.globals["fenced"] = fenced
    template = environment.get_template("report.md.j2")
    for count in range(len(_LEAST_NEEDED) + 1):
        text = template.render(page=page, left_out=_LEAST_NEEDED[:count]).strip() + "\n"
        if len(text) < MARKDOWN_LIMIT:
            return text
    raise DataError(f"report.md: {len(text):,} characters, the limit is {MARKDOWN_LIMIT:,}")

"""What the page is made of: tables of parts, figures, sections. No numbers are computed here."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kvstudy.report.text import Safe, csv_line, markdown

if TYPE_CHECKING:
    from kvstudy.report.why import Why


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a table cell: text, and what number it is."""

    text: str
    value: float | None = None
    claim: str | None = None
    source: str | None = None
    kind: str = ""
    note: str = ""

    @property
    def exact(self) -> str:
        """The number to eight significant digits, as the page carries it beside its text."""
        return "" if self.value is None else f"{self.value:.8g}"


@dataclass(frozen=True, slots=True)
class Entry:
    """One table cell."""

    parts: tuple[Part, ...]

    @property
    def text(self) -> str:
        """All parts as plain text."""
        return " ".join(part.text for part in self.parts if part.text)

    @property
    def value(self) -> float | None:
        """The number the cell sorts by."""
        return next((part.value for part in self.parts if part.value is not None), None)

    @property
    def kind(self) -> str:
        """Class of a cell made of one part."""
        return self.parts[0].kind if len(self.parts) == 1 else ""


def entry(text: object = "", value: float | None = None, **rest: str | None) -> Entry:
    """A cell with one part."""
    given = {key: text or "" for key, text in rest.items() if key in ("kind", "note")}
    return Entry((Part(str(text), value, rest.get("claim"), rest.get("source"), **given),))


@dataclass(frozen=True, slots=True)
class Head:
    """One column head."""

    label: str
    unit: str = ""
    numeric: bool = True


@dataclass(frozen=True, slots=True)
class Table:
    """A table with what its numbers are said in its head."""

    id: str
    title: str
    heads: Sequence[Head]
    rows: Sequence[Sequence[Entry]]
    provenance: str = ""
    notes: Sequence[str] = ()
    filter_column: int | None = None
    short_columns: Sequence[int] | None = None

    @property
    def csv(self) -> str:
        """The table's data: full precision where a cell is a number."""
        names = [f"{h.label} [{h.unit}]" if h.unit else h.label for h in self.heads]
        lines = [csv_line(names)]
        for row in self.rows:
            lines.append(csv_line(e.text if e.value is None else e.value for e in row))
        return "".join(lines)

    @property
    def csv_uri(self) -> str:
        """The CSV as a data: address."""
        return data_uri(self.csv.encode(), "text/csv")

    @property
    def filters(self) -> list[str]:
        """Distinct texts of the column that the reader may filter by."""
        if self.filter_column is None:
            return []
        return sorted({row[self.filter_column].text for row in self.rows})


@dataclass(frozen=True, slots=True)
class Toggle:
    """A part of a figure that can be switched off: key in the SVG, words, colour slot."""

    key: str
    words: str
    slot: int


@dataclass(frozen=True, slots=True)
class Figure:
    """A drawn figure: inline SVG, its words and its data."""

    name: str
    title: str
    caption: str
    alternative: str
    svg: str
    csv: bytes
    section: str
    toggles: Sequence[Toggle] = ()
    axes: str = "[]"
    folded: bool = False

    @property
    def csv_uri(self) -> str:
        """The data as a data: address."""
        return data_uri(self.csv, "text/csv")


@dataclass(frozen=True, slots=True)
class Code:
    """Foreign text shown verbatim; `said` is what came back, shown where there is room."""

    title: str
    text: str
    language: str = ""
    said: str = ""


@dataclass(frozen=True, slots=True)
class Answer:
    """One of the issue's questions, answered from this run's numbers."""

    question: str
    sentences: Sequence[str]


@dataclass(frozen=True, slots=True)
class Badge:
    """A count with a word."""

    count: int
    word: str
    kind: str
    meaning: str = ""


@dataclass(frozen=True)
class Page:
    """Everything the templates show, by name."""

    title: str
    subtitle: str
    backend: str
    banner: str
    facts: Sequence[tuple[str, str]]
    badges: Sequence[tuple[str, Sequence[Badge]]]
    verdict_sentence: str
    answers: Sequence[Answer]
    issue_tables: Sequence[Table]
    repeats: Sequence[Table]
    counting: Sequence[Table]
    effects: Sequence[Table]
    versions: Sequence[Table]
    server_side: Sequence[Table]
    claims: Sequence[Table]
    why: Why
    environment: Sequence[Table]
    audit: Sequence[Table]
    audit_sentences: Sequence[str]
    launches: Sequence[Code]
    method: Sequence[Table]
    method_notes: Sequence[str]
    figures: Sequence[Figure] = ()
    numbers: dict[str, str] = field(default_factory=dict)

    def figures_of(self, section: str) -> list[Figure]:
        """Figures that belong to one section."""
        return [figure for figure in self.figures if figure.section == section]


def data_uri(content: bytes, kind: str) -> str:
    """Bytes as a data: address."""
    return f"data:{kind};charset=utf-8;base64,{base64.b64encode(content).decode()}"


def markdown_table(table: Table) -> Safe:
    """A GitHub-flavoured pipe table of the columns that fit there, every cell escaped."""
    shown = table.short_columns or range(len(table.heads))
    heads = [table.heads[i] for i in shown]
    names = [f"{h.label} ({h.unit})" if h.unit else h.label for h in heads]
    lines = [
        _line(markdown(name) for name in names),
        _line(Safe("---:" if head.numeric else "---") for head in heads),
    ]
    lines += [_line(markdown(row[i].text) for i in shown) for row in table.rows]
    return Safe("\n".join(lines))


def _line(cells: Iterable[str]) -> str:
    return f"| {' | '.join(cells)} |"

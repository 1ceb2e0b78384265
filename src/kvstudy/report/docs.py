"""Documents that are printed from the code: metric cards, tables, reasons, the config schema.

`make docs` writes them; a test holds them to the code.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

from kvstudy.base import reasons, tables
from kvstudy.base.files import write_text
from kvstudy.metrics.cards import CARDS
from kvstudy.study.model import Config

_PRINTED = "<!-- Printed by `make docs`; edit the code, not this file. -->"


def metrics_page() -> str:
    """docs/metrics.md."""
    lines = [
        "# How we measure",
        "",
        _PRINTED,
        "",
        "All times are the client's, on one monotonic clock per cell, in study time.",
        "Percentiles are by linear interpolation between order statistics, over the requests of "
        "one cell; the mean of the repeats stands beside them.",
        "An undefined value is null, never zero.",
    ]
    for card in CARDS:
        lines += [
            "",
            f"## {card.title}",
            "",
            f"`{card.name}`, in {card.unit}: {card.formula}.",
            f"Undefined when {card.undefined_when}.",
        ]
        if card.note:
            lines += [card.note]
    return "\n".join(lines) + "\n"


def tables_page() -> str:
    """docs/tables.md."""
    lines = ["# Tables", "", _PRINTED, "", f"Schema version {tables.VERSION}, in each file."]
    for table in tables.ALL:
        lines += [
            "",
            f"## {table.name}",
            "",
            table.purpose,
            "",
            "| column | type | unit | meaning | null means |",
            "|---|---|---|---|---|",
        ]
        for column in table.columns:
            kind = str(column.type).replace("<", "&lt;")
            null = column.null_means or "never null"
            lines.append(
                f"| `{column.name}` | {kind} | {column.unit} | {column.meaning} | {null} |"
            )
    return "\n".join(lines) + "\n"


def reasons_page() -> str:
    """docs/reasons.md."""
    lines = [
        "# Reason codes",
        "",
        _PRINTED,
        "",
        "A code stands in `check.json`, `cells.parquet` and the report.",
    ]
    for title, codes in (
        ("Invalid: the cell carries no verdict", reasons.INVALID),
        ("Warnings: the cell stays valid", reasons.WARNING),
    ):
        lines += ["", f"## {title}", "", "| code | meaning |", "|---|---|"]
        lines += [f"| `{code}` | {meaning} |" for code, meaning in codes.items()]
    return "\n".join(lines) + "\n"


def schema_text() -> str:
    """docs/config.schema.json: for editors that complete and check YAML."""
    schema = Config.model_json_schema()
    schema["$schema"] = "https://json-schema.org/draft/2020-12/schema"
    schema["title"] = "kvstudy config.yaml"
    return json.dumps(schema, indent=2) + "\n"


PAGES = {
    "metrics.md": metrics_page,
    "tables.md": tables_page,
    "reasons.md": reasons_page,
    "config.schema.json": schema_text,
}


def main(folder: Path) -> None:
    """Write every page into a folder."""
    for name, make in PAGES.items():
        write_text(folder / name, make())


if __name__ == "__main__":
    main(Path(sys.argv[1]))

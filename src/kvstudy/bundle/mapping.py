"""How a foreign file of raw results maps to this project's request columns.

`docs/publish.md` explains each key with examples; `ready` holds the mappings that come with
kvstudy. A field is a dotted path into a row, or several to try in turn.
"""

from __future__ import annotations

import difflib
import re
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from kvstudy.base.errors import ConfigError, UsageError
from kvstudy.bundle.ready import READY

Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,79}$")]
Count = Annotated[int, Field(ge=0)]
Unit = Literal["ns", "us", "ms", "s"]
_CELL_ID = re.compile(
    r"(?P<workload>[^.]+)\.c(?P<concurrency>\d+)\.(?P<engine>.+)\.(?P<arm>[^.]+)\.r(?P<repeat>\d+)"
)


class Strict(BaseModel):
    """Unknown keys and coercions are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Where(Strict):
    """Where a value stands in a row; the first field that is there counts."""

    field: Text | Annotated[list[Text], Field(min_length=1)]

    @property
    def paths(self) -> list[str]:
        """The fields to try, in order."""
        return [self.field] if isinstance(self.field, str) else self.field


class Time(Where):
    """A time or a length of time, or a list of them."""

    unit: Unit


class Rows(Strict):
    """How rows stand in a file."""

    layout: Literal["objects", "lines", "columns"] = Field(
        description="objects: a JSON list of objects; lines: one object a line; "
        "columns: one JSON list for each field, side by side"
    )
    at: str = Field(default="", description="dotted path to the rows; empty: the document")
    keep: dict[str, str | bool | int] = Field(
        default={}, description="rows to keep: field and the value it must have, if it is there"
    )


class Columns(Strict):
    """Our columns, each from a field. What is left out is null, or follows from the others."""

    request_id: Where | None = None
    send_ns: Time | None = Field(default=None, description="when the request was sent")
    first_chunk_ns: Time | None = Field(default=None, description="receipt of the first chunk")
    last_chunk_ns: Time | None = Field(default=None, description="receipt of the last chunk")
    end_ns: Time | None = Field(default=None, description="end of the response")
    chunk_ns: Time | None = Field(default=None, description="receipt of every chunk, a list")
    ttft_ns: Time | None = Field(default=None, description="first chunk - send")
    e2e_ns: Time | None = Field(default=None, description="last chunk - send")
    gaps_ns: Time | None = Field(default=None, description="times between chunks, a list")
    chunk_count: Where | None = None
    empty_chunk_count: Where | None = None
    planned_input_tokens: Where | None = None
    planned_output_tokens: Where | None = None
    output_cap_tokens: Where | None = None
    server_input_tokens: Where | None = None
    cached_tokens: Where | None = None
    usage_tokens: Where | None = None
    retokenized_tokens: Where | None = None
    finish_reason: Where | None = None
    http_status: Where | None = None
    error: Where | None = Field(default=None, description="empty or null: the request was ok")
    cancelled: Where | None = Field(default=None, description="true: the request was cancelled")
    success: Where | None = Field(default=None, description="false: the request failed")
    text: Where | None = Field(default=None, description="the generated text, to be counted")


class Fixed(Strict):
    """Values that the files do not say but the user knows, for every request of a cell."""

    planned_input_tokens: Count | None = None
    planned_output_tokens: Count | None = None
    output_cap_tokens: Count | None = None


class ForeignCell(Strict):
    """One file of raw results and the cell it belongs to."""

    file: Text
    workload: Name
    concurrency: Annotated[int, Field(ge=1)]
    engine: Name
    engine_version: Text | None = None
    arm: Name
    repeat: Annotated[int, Field(ge=1)]
    allocation: Name | None = Field(default=None, description="cells that shared a GPU and job")
    values: Fixed = Fixed()

    @property
    def cell_id(self) -> str:
        """The id under which the cell stands in the tables."""
        at = f"{self.workload}.c{self.concurrency}"
        return f"{at}.{self.engine}.{self.arm}.r{self.repeat}"


class Mapping(Strict):
    """A mapping file."""

    use: Text | None = Field(default=None, description="a ready mapping to start from")
    study: Text = "foreign"
    source: Literal["measured", "emulated"] = "measured"
    rows: Rows
    columns: Columns
    window_s: Where | None = Field(
        default=None, description="length of the run in s, where no send times are known"
    )
    values: Fixed = Fixed()
    published: list[Text] = Field(default=[], description="files of published numbers")
    cells: list[ForeignCell] = []


def read_mapping(text: str) -> tuple[Mapping, Path]:
    """A ready mapping by name, or a mapping file; and the folder that its paths start from."""
    if text in READY:
        return parse_mapping(yaml.safe_load(READY[text]), source=text), Path()
    path = Path(text)
    if not path.is_file():
        close = difflib.get_close_matches(text, READY, n=1)
        hint = f"did you mean {close[0]!r}?" if close else f"ready ones: {', '.join(READY)}"
        raise UsageError(f"--map {text}: neither a file nor a ready mapping; {hint}")
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([f"not valid YAML: {error}"], source=text) from error
    return parse_mapping(document, source=text), path.parent


def parse_mapping(document: Any, *, source: str) -> Mapping:
    """Check a mapping, laid over the ready one that it names; ConfigError with every problem."""
    if not isinstance(document, dict):
        raise ConfigError(["expected a mapping of keys to values"], source=source)
    base: dict[str, Any] = {}
    if "use" in document:
        if document["use"] not in READY:
            close = difflib.get_close_matches(str(document["use"]), READY, n=1)
            hint = f"did you mean {close[0]!r}?" if close else f"one of {', '.join(READY)}"
            raise ConfigError([f"use: no ready mapping {document['use']!r}; {hint}"], source=source)
        base = yaml.safe_load(READY[document["use"]])
    merged = {**base, **document}
    for key in ("columns", "values", "rows"):
        if key in base and isinstance(document.get(key), dict):
            merged[key] = {**base[key], **document[key]}
    try:
        return Mapping.model_validate(merged)
    except ValidationError as error:
        lines = [
            f"{'.'.join(map(str, detail['loc']))}: {detail['msg']}"
            for detail in error.errors(include_url=False)
        ]
        raise ConfigError(lines, source=source) from None


def cell_of(argument: str) -> ForeignCell:
    """`FILE=CELL_ID` of the command line."""
    file, _, cell_id = argument.rpartition("=")
    found = _CELL_ID.fullmatch(cell_id)
    if not file or found is None:
        raise UsageError(
            f"--cell {argument!r}: expected FILE=WORKLOAD.cCONCURRENCY.ENGINE.ARM.rREPEAT, "
            "such as raw/gne-1.json=W-C.c32.trtllm-1.2.1.gne.r1"
        )
    parts: dict[str, Any] = found.groupdict()
    numbers = {key: int(parts[key]) for key in ("concurrency", "repeat")}
    try:
        return ForeignCell.model_validate({"file": file, **parts, **numbers})
    except ValidationError as error:
        lines = [f"{d['loc'][0]}: {d['msg']}" for d in error.errors(include_url=False)]
        raise ConfigError(lines, source=f"--cell {argument}") from None

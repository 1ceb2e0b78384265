"""Published numbers as claims: the strict types of a `report/published/*.yaml` file.

A claim says what was published, where it stands, how the same number is computed from this
study's tables, and how far a repetition may be off. `docs/published.md` explains each key.

Selectors pick cells; `repeat` says what to do with the repeats that match:

    {workload: W-C, concurrency: 32, engine: trtllm-1.2.1, arm: mu,
     metric: tpot_p99_ms, repeat: mean}         (repeat: mean, min, max, or a number)

Operations:

    value            the metric of `of`, times `scale`
    ratio            value(of) / value(over); `over` takes what it does not name from `of`
    delta_percent    100 x (ratio - 1)
    sum              the metric summed over the repeats
    spread           largest minus smallest of the repeats
    max_repeat_diff  largest (max - min) / mean of the repeats, in percent, over all cells matched
    count            request rows that meet every condition of `where`
    demand           concurrency x longest (prompt + output cap), in tokens; with
                     `pool_block_tokens`, over the pool the server says it has
    none             cannot be computed from one study; `because` says why
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Literal

import yaml
from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from kvstudy.base import tables
from kvstudy.base.errors import ConfigError

Text = Annotated[str, StringConstraints(min_length=1, strip_whitespace=True)]
ClaimId = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9_.-]{0,79}$")]
Real = Annotated[float, Field(allow_inf_nan=False)]
Share = Annotated[float, Field(ge=0, allow_inf_nan=False)]

_NUMERIC = {
    column.name
    for column in tables.CELLS.columns
    if str(column.type) in ("int64", "double") and column.name not in ("concurrency", "repeat")
}
_REQUEST_COLUMNS = {
    column.name
    for column in tables.REQUESTS.columns
    if str(column.type) in ("int64", "double") and column.name not in ("concurrency", "repeat")
}


class Strict(BaseModel):
    """Unknown keys, coercions and later changes are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Selector(Strict):
    """Which cells, and what to do with their repeats. A key left out takes the file's default."""

    workload: Text | None = None
    concurrency: Annotated[int, Field(ge=1)] | None = None
    engine: Text | None = None
    arm: Text | None = None
    metric: Text | None = Field(default=None, description="numeric column of cells")
    repeat: Literal["mean", "min", "max"] | Annotated[int, Field(ge=1)] | None = None

    def over(self, base: Selector) -> Selector:
        """The selector with what it leaves out taken from `base`."""
        own = self.model_dump(exclude_none=True)
        return Selector.model_validate({**base.model_dump(exclude_none=True), **own})


class Bounds(Strict):
    """A condition on one column of requests."""

    equals: Real | int | None = None
    below: Real | int | None = None
    at_least: Real | int | None = None


class Compute(Strict):
    """One expression over cells and requests."""

    op: Literal[
        "value",
        "ratio",
        "delta_percent",
        "sum",
        "spread",
        "max_repeat_diff",
        "count",
        "demand",
        "none",
    ]
    of: Selector = Selector()
    over: Selector | None = None
    scale: Real = 1.0
    where: dict[str, Bounds] = {}
    pool_block_tokens: Annotated[int, Field(ge=1)] | None = None
    because: Text | None = None


class Tolerance(Strict):
    """How far a repetition may be off: exactly one of the three, and why.

    Half of the claim's last printed digit (`step`) is always added: the published number says no
    more than that.
    """

    absolute: Share | None = Field(default=None, description="in the claim's unit")
    relative: Share | None = Field(default=None, description="of the published value")
    noise: Share | None = Field(
        default=None, description="this run's repeat-to-repeat difference, at least this share"
    )
    reason: Text


class Claim(Strict):
    """One published number."""

    id: ClaimId
    group: Text
    label: Text
    value: Real
    unit: str = ""
    step: Annotated[float, Field(gt=0)] = Field(description="size of the last printed digit")
    where: Text = Field(description="where the number stands in the source")
    compute: Compute
    holds: Literal["equal", "at_most", "at_least"] = "equal"
    tolerance: Tolerance | None = None
    not_modelled: Text | None = Field(
        default=None, description="why no model can show it; then only a measured run is judged"
    )


class Column(Strict):
    """One column of a table in the source's own layout."""

    head: Text
    metric: Text
    step: Annotated[float, Field(gt=0)]
    beside: Literal["delta_percent", "ratio"] | None = None
    beside_step: Annotated[float, Field(gt=0)] = 0.1


class Layout(Strict):
    """A table in the source's own layout: one row per arm."""

    id: ClaimId
    title: Text
    workload: Text
    concurrency: Annotated[int, Field(ge=1)]
    baseline: Text
    arms: dict[str, Text] = Field(description="arm -> how the source names it")
    columns: Annotated[list[Column], Field(min_length=1)]


class Published(Strict):
    """A file of claims."""

    study: Text
    title: Text
    url: str = ""
    retrieved: str = ""
    defaults: Selector = Selector()
    layouts: list[Layout] = []
    claims: Annotated[list[Claim], Field(min_length=1)]


def parse_published(document: Any, *, source: str) -> Published:
    """Check one document; raises ConfigError with every problem found."""
    try:
        published = Published.model_validate(document)
    except ValidationError as error:
        lines = [_line(detail) for detail in error.errors(include_url=False)]
        raise ConfigError(lines, source=source) from None
    filled = published.model_copy(
        update={"claims": [_filled(claim, published.defaults) for claim in published.claims]}
    )
    problems = [*_claim_problems(filled.claims), *_layout_problems(filled.layouts)]
    if problems:
        raise ConfigError(problems, source=source)
    return filled


def read_published(paths: Sequence[Path]) -> list[Published]:
    """Read and check files of claims; ids are unique over all of them."""
    files = []
    seen: dict[str, Path] = {}
    for path in paths:
        files.append(parse_published(_load(path), source=str(path)))
        for index, claim in enumerate(files[-1].claims):
            if claim.id in seen and seen[claim.id] != path:
                line = f"claims[{index}].id: {claim.id!r} also stands in {seen[claim.id]}"
                raise ConfigError([line], source=str(path))
            seen[claim.id] = path
    return files


def _load(path: Path) -> Any:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ConfigError(["no such file"], source=str(path)) from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ConfigError([f"not valid YAML: {error}"], source=str(path)) from error
    return document if document is not None else {}


def _filled(claim: Claim, defaults: Selector) -> Claim:
    of = claim.compute.of.over(defaults)
    over = claim.compute.over.over(of) if claim.compute.over is not None else None
    compute = claim.compute.model_copy(update={"of": of, "over": over})
    return claim.model_copy(update={"compute": compute})


def _claim_problems(claims: Sequence[Claim]) -> list[str]:
    problems = []
    seen: set[str] = set()
    for index, claim in enumerate(claims):
        at = f"claims[{index}]"
        if claim.id in seen:
            problems.append(f"{at}.id: {claim.id!r} stands twice; ids are unique")
        seen.add(claim.id)
        problems += _compute_problems(claim.compute, f"{at}.compute")
        problems += _tolerance_problems(claim, at)
    return problems


def _compute_problems(compute: Compute, at: str) -> list[str]:
    op = compute.op
    problems = []
    if op in ("ratio", "delta_percent") and compute.over is None:
        problems.append(f"{at}.over: required for op {op}, but missing")
    if op not in ("ratio", "delta_percent") and compute.over is not None:
        problems.append(f"{at}.over: op {op} has no second side")
    if op == "none" and compute.because is None:
        problems.append(f"{at}.because: required for op none, but missing")
    if op == "count" and not compute.where:
        problems.append(f"{at}.where: required for op count, but missing")
    if op == "demand" and compute.of.concurrency is None:
        problems.append(f"{at}.of.concurrency: required for op demand, but missing")
    for column in compute.where:
        if column not in _REQUEST_COLUMNS:
            problems.append(f"{at}.where.{column}: expected a numeric column of requests")
    if op not in ("count", "demand", "none"):
        for name, side in (("of", compute.of), ("over", compute.over)):
            if side is not None and side.metric not in _NUMERIC:
                problems.append(
                    f"{at}.{name}.metric: expected a numeric column of cells, got {side.metric!r}"
                )
    return problems


def _tolerance_problems(claim: Claim, at: str) -> list[str]:
    tolerance = claim.tolerance
    if tolerance is None:
        if claim.compute.op == "none":
            return []
        return [f"{at}.tolerance: required, but missing"]
    given = [v for v in (tolerance.absolute, tolerance.relative, tolerance.noise) if v is not None]
    if len(given) != 1:
        return [f"{at}.tolerance: expected exactly one of absolute, relative, noise"]
    return []


def _layout_problems(layouts: Sequence[Layout]) -> list[str]:
    problems = []
    for index, layout in enumerate(layouts):
        at = f"layouts[{index}]"
        if layout.baseline not in layout.arms:
            problems.append(f"{at}.baseline: expected one of {list(layout.arms)}")
        for place, column in enumerate(layout.columns):
            if column.metric not in _NUMERIC:
                problems.append(
                    f"{at}.columns[{place}].metric: expected a numeric column of cells, "
                    f"got {column.metric!r}"
                )
    return problems


def _line(detail: Any) -> str:
    """One pydantic problem as `dotted.path: expectation, got value`."""
    path = ""
    for part in detail["loc"]:
        if isinstance(part, int):
            path += f"[{part}]"
        elif not (part.startswith(("constrained-", "literal[")) or part in ("int", "float", "str")):
            path += f".{part}" if path else part
    kind = detail["type"]
    if kind == "extra_forbidden":
        return f"{path}: unknown key"
    if kind == "missing":
        return f"{path}: required, but missing"
    value = detail.get("input")
    shown = repr(value) if not isinstance(value, dict | list) else f"a {type(value).__name__}"
    message = str(detail["msg"]).replace("Input should be", "expected")
    return f"{path or 'document'}: {message}, got {shown}"

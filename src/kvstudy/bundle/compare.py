"""Two sets of results side by side: what differs in their making, then what differs in numbers."""

from __future__ import annotations

import difflib
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from kvstudy.base.errors import UsageError
from kvstudy.bundle.sides import Results
from kvstudy.stats.audit import flatten
from kvstudy.stats.contrast import MEASURES, Pair, Side, contrast_rows
from kvstudy.stats.data import REQUEST_COLUMNS, Data, Row, data_of

MAIN_METRICS = (
    "output_tok_per_s",
    "ttft_p50_ms",
    "tpot_p50_ms",
    "tpot_p99_ms",
    "e2e_p99_s",
)
METRICS = tuple(measure.column for measure in MEASURES)
_GROUP = ("workload", "concurrency", "engine", "arm")
_LENGTHS = ("planned_input_tokens", "planned_output_tokens", "output_cap_tokens")


@dataclass(frozen=True, slots=True)
class Change:
    """A key whose value is not the same on both sides."""

    key: str
    left: str
    right: str


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that `kvstudy compare` says."""

    config: list[Change]
    environment: list[Change]
    cells: list[str]
    only_left: list[str]
    only_right: list[str]
    rows: list[Row]
    remarks: list[str]

    @property
    def equal(self) -> bool:
        """Whether every compared number is the same on both sides."""
        same = all(row["baseline_value"] == row["treatment_value"] for row in self.rows)
        return same and bool(self.rows)


def compare(
    left: Results,
    right: Results,
    *,
    metrics: Sequence[str] = MAIN_METRICS,
    workloads: Sequence[str] = (),
    predicted: bool = False,
) -> Comparison:
    """Compare the cells that both sides have.

    Raises UsageError `workload_differs` when cells of the same name ran other requests, and one
    that lists the cells when there is none in common.
    """
    _check_names(workloads, left, right)
    sides = [_groups(side, predicted, workloads) for side in (left, right)]
    common = [key for key in sides[0] if key in sides[1]]
    if not common:
        shown = [", ".join(map(_named, side)) or "no cell" for side in sides]
        raise UsageError(
            f"no cell in common: {left.name} has {shown[0]}; {right.name} has {shown[1]}"
        )
    remarks = _check_workloads(left, right, common)
    rows, unknown = _differences(left, right, [(sides[0][key], sides[1][key]) for key in common])
    remarks += unknown
    return Comparison(
        config=changes(flatten(left.config), flatten(right.config)),
        environment=changes(environment(left), environment(right)),
        cells=[_named(key) for key in common],
        only_left=[_named(key) for key in sides[0] if key not in sides[1]],
        only_right=[_named(key) for key in sides[1] if key not in sides[0]],
        rows=[row for row in rows if row["metric"] in metrics],
        remarks=remarks,
    )


def _check_names(workloads: Sequence[str], left: Results, right: Results) -> None:
    known = sorted({name for s in (left, right) for name in s.cells["workload"].to_pylist()})
    for name in workloads:
        if name not in known:
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; here are {', '.join(known)}"
            raise UsageError(f"--workload {name}: neither side has it{hint}")


def changes(left: Mapping[str, Any], right: Mapping[str, Any]) -> list[Change]:
    """Keys of two flat mappings whose values differ."""
    return [
        Change(key, _shown(left, key), _shown(right, key))
        for key in sorted(left.keys() | right.keys())
        if left.get(key) != right.get(key)
    ]


def environment(side: Results) -> dict[str, Any]:
    """Hosts, GPUs, versions, pins and commits of a side: per key every value its cells have."""
    found: dict[str, set[str]] = {}
    for run in side.runs.values():
        kept = {key: run.get(key) for key in ("host", "gpu", "versions", "pins", "commit", "dirty")}
        kept["versions"] = {**(kept["versions"] or {})}
        kept["versions"][f"engine of {run['engine']}"] = kept["versions"].pop("engine", None)
        for key, value in flatten(kept).items():
            found.setdefault(key, set()).add(_text(value))
    flat: dict[str, Any] = {key: ", ".join(sorted(values)) for key, values in found.items()}
    return {**flat, "lock": side.lock.get("digest")}


def _shown(values: Mapping[str, Any], key: str) -> str:
    return _text(values[key]) if key in values else "not said"


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, sort_keys=True)


Key = tuple[Any, ...]


def _groups(side: Results, predicted: bool, workloads: Sequence[str]) -> dict[Key, list[Row]]:
    """Cells by workload, concurrency, engine and arm; those that were not run are absent."""
    groups: dict[Key, list[Row]] = {}
    for row in side.cells.to_pylist():
        wanted = (row["source"] == "predicted") == predicted
        if wanted and "not_run" not in row["reasons"]:
            if workloads and row["workload"] not in workloads:
                continue
            groups.setdefault(tuple(row[name] for name in _GROUP), []).append(row)
    return groups


def _named(key: Key) -> str:
    workload, concurrency, engine, arm = key
    return f"{workload}.c{concurrency}.{engine}.{arm}"


# ---- the same requests? ----------------------------------------------------------------------


def _check_workloads(left: Results, right: Results, keys: Iterable[Key]) -> list[str]:
    """Refuse cells that were sent other requests; remarks where only lengths could be compared."""
    problems, remarks = [], []
    for workload in dict.fromkeys(str(key[0]) for key in keys):
        sides = left.workloads.get(workload), right.workloads.get(workload)
        if sides[0] is not None and sides[1] is not None:
            why = _prompts_differ(sides[0], sides[1])
        else:
            why = _lengths_differ(left, right, workload)
            remarks.append(
                f"{workload}: a side does not say its prompts; compared by count and lengths only"
            )
        if why:
            problems.append(f"{workload}: {why}")
    if problems:
        raise UsageError(
            "workload_differs: cells of the same name were sent other requests, so their numbers "
            f"cannot be compared. {'; '.join(problems)}. --workload NAME compares the others"
        )
    return remarks


def _prompts_differ(left: Mapping[str, Any], right: Mapping[str, Any]) -> str | None:
    if len(left) != len(right):
        return f"{len(left)} requests against {len(right)}"
    names = ("prompt_sha256", "input_tokens", "output_tokens", "output_cap_tokens")
    for name in names[1:]:
        values = [sorted(entry[name] for entry in side.values()) for side in (left, right)]
        if values[0] != values[1]:
            return f"{name} {_span(values[0])} against {_span(values[1])}"
    sets = [
        Counter(tuple(e[name] for name in names) for e in side.values()) for side in (left, right)
    ]
    other = (sets[0] - sets[1]).total()
    if other:
        return f"{other} of {len(left)} prompts differ"
    return None


def _lengths_differ(left: Results, right: Results, workload: str) -> str | None:
    """Why request counts or planned lengths of one cell each differ; unknown lengths agree."""
    values = []
    for side in (left, right):
        table = side.requests(["workload", "cell_id", "source", *_LENGTHS])
        table = table.filter(pc.equal(table["workload"], workload))
        first = table.slice(0, 1).to_pylist()[0]
        same = pc.and_(
            pc.equal(table["cell_id"], first["cell_id"]), pc.equal(table["source"], first["source"])
        )
        values.append(table.filter(same))
    if values[0].num_rows != values[1].num_rows:
        return f"{values[0].num_rows} requests against {values[1].num_rows}"
    for name in _LENGTHS:
        columns = [table[name].to_pylist() for table in values]
        if any(None in column for column in columns):
            continue
        if sorted(columns[0]) != sorted(columns[1]):
            return f"{name} {_span(columns[0])} against {_span(columns[1])}"
    return None


def _span(values: Sequence[int]) -> str:
    low, high = min(values), max(values)
    return str(low) if low == high else f"{low} to {high}"


# ---- the numbers -----------------------------------------------------------------------------


def _differences(
    left: Results, right: Results, matched: Sequence[tuple[list[Row], list[Row]]]
) -> tuple[list[Row], list[str]]:
    """Contrast rows, right over left, and remarks; cells of both sides stand in one view."""
    data = _merged(left, right)
    remarks, pairs = [], []
    for baseline, treatment in matched:
        rows = [_marked(baseline, "A"), _marked(treatment, "B")]
        first = rows[0][0]
        sources = {row["source"] for side in rows for row in side}
        if len(sources) > 1:
            remarks.append(
                f"{_named(tuple(first[name] for name in _GROUP))}: "
                f"{' against '.join(sorted(sources))} numbers"
            )
        within = f"{first['engine']} {first['arm']}"
        sides = Side("A", rows[0]), Side("B", rows[1])
        # The source only names the comparison here: both sides carry their own.
        pairs.append(
            Pair("B vs A", first["source"], first["workload"], first["concurrency"], within, *sides)
        )
    seed = int(left.config.get("seed", 0))
    return contrast_rows(pairs, data, seed=seed), list(dict.fromkeys(remarks))


def _marked(rows: Iterable[Row], mark: str) -> list[Row]:
    """Cells under names that cannot collide with the other side's."""
    return [
        {**row, "cell_id": f"{mark}/{row['cell_id']}", "allocation": f"{mark}/{row['allocation']}"}
        for row in rows
    ]


def _merged(left: Results, right: Results) -> Data:
    requests: dict[tuple[str, str], dict[str, np.ndarray]] = {}
    for mark, side in (("A", left), ("B", right)):
        data = data_of(pa.table({}), side.requests(REQUEST_COLUMNS))
        requests |= {
            (source, f"{mark}/{cell_id}"): columns
            for (source, cell_id), columns in data.requests.items()
        }
    return Data([], requests)

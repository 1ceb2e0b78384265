"""Every published number with its verdict, basis, distance and tolerance."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kvstudy.report.inputs import Inputs
from kvstudy.report.page import Badge, Entry, Head, Table, entry
from kvstudy.report.text import DASH, number, significant, with_unit
from kvstudy.stats.data import Row

MEANING = {
    "reproduced": "measured, and within the claim's tolerance",
    "not_reproduced": "measured, and outside the claim's tolerance",
    "not_measured": "this run has no measurement for it",
    "invalid": "measured, but the cells may not carry a verdict",
    "model_agrees": "the model's number is within the claim's tolerance",
    "model_differs": "the model's number is outside the claim's tolerance",
    "not_modelled": "the model cannot show it",
}
BASIS = {
    "measured": "a real engine was measured",
    "fitted": "the model's constants were set with this number's cells",
    "held_out": "predicted by a model that did not see these cells",
    "assumed": "the effect follows from an assumption in the configuration",
}
_KINDS = {
    "reproduced": "agree",
    "model_agrees": "agree",
    "not_reproduced": "differ",
    "model_differs": "differ",
    "invalid": "invalid",
}


def words(code: str) -> str:
    """A verdict or basis code in words."""
    return code.replace("_", " ")


def badges(inputs: Inputs) -> list[tuple[str, list[Badge]]]:
    """Verdict counts per source, in a fixed order."""
    groups = []
    for source in inputs.run_sources:
        counts = Counter(row["verdict"] for row in inputs.verdicts if row["source"] == source)
        found = [
            Badge(counts[code], words(code), _KINDS.get(code, "none"), meaning)
            for code, meaning in MEANING.items()
            if counts[code]
        ]
        if found:
            groups.append((source, found))
    return groups


def claim_tables(inputs: Inputs) -> list[Table]:
    """One table per published file."""
    tables = []
    for file in inputs.published:
        ids = [claim.id for claim in file.claims]
        rows = [_row(inputs, claim_id) for claim_id in ids]
        tables.append(
            Table(
                id=f"claims-{file.study}",
                title=file.title,
                heads=_heads(inputs),
                rows=rows,
                provenance=f"published; {inputs.provenance(inputs.run_sources)}",
                notes=[
                    "Distance is (run - published) / |published|, for percentages run - published. "
                    "Allowed is the claim's tolerance plus half of its last printed digit.",
                    *([f"Source: {file.url}"] if file.url else []),
                ],
                filter_column=5,
                short_columns=range(1, 10),
            )
        )
    return tables


def _heads(inputs: Inputs) -> list[Head]:
    run = inputs.backend
    return [
        Head("from", numeric=False),
        Head("published number", numeric=False),
        Head("published"),
        Head(f"run, {run}"),
        Head("distance"),
        Head("verdict", numeric=False),
        Head("basis", numeric=False),
        Head("predicted"),
        Head("prediction's verdict", numeric=False),
        Head("allowed"),
        Head("why this tolerance", numeric=False),
        Head("remark", numeric=False),
        Head("where published", numeric=False),
    ]


def _row(inputs: Inputs, claim_id: str) -> list[Entry]:
    claim = inputs.claims[claim_id]
    run = inputs.verdict_of.get((claim_id, inputs.backend))
    model = inputs.verdict_of.get((claim_id, "predicted"))
    remarks = list(dict.fromkeys(r["why"] for r in (run, model) if r and r["why"]))
    allowed = next((r["tolerance"] for r in (run, model) if r is not None), None)
    reason = claim.tolerance.reason if claim.tolerance else "no test"
    return [
        entry(claim.group),
        entry(claim.label, claim=claim_id),
        _value(claim.value, claim.step, claim.unit, claim_id, "published"),
        _observed(run, claim.step, claim_id),
        _distance(run),
        _verdict(run),
        _basis(run),
        _observed(model, claim.step, claim_id),
        _verdict(model),
        entry(_plain(allowed, claim.unit), allowed),
        entry(reason),
        entry("; ".join(remarks)),
        entry(claim.where),
    ]


def _distance(row: Row | None) -> Entry:
    """In percent of the published value; for a percentage, in points."""
    if row is None or row["distance"] is None:
        return entry(DASH)
    if row["unit"] == "%":
        points = row["observed"] - row["published"]
        return entry(f"{number(points, 0.1, signed=True)} points", points)
    return entry(with_unit(100 * row["distance"], "%", 0.1), 100 * row["distance"])


def _plain(value: float | None, unit: str) -> str:
    if value is None:
        return DASH
    text = number(value, significant(value, 2))
    return f"\N{PLUS-MINUS SIGN}{text}{f' {unit}' if unit else ''}"


def _value(value: float | None, step: float, unit: str, claim_id: str, source: str) -> Entry:
    return entry(with_unit(value, unit, step), value, claim=claim_id, source=source)


def _observed(row: Row | None, step: float, claim_id: str) -> Entry:
    if row is None:
        return entry(DASH)
    return _value(row["observed"], step, row["unit"], claim_id, row["source"])


def _verdict(row: Row | None) -> Entry:
    if row is None:
        return entry(DASH)
    verdict = str(row["verdict"])
    return entry(words(verdict), kind=_KINDS.get(verdict, "none"), note=MEANING[verdict])


def _basis(row: Row | None) -> Entry:
    if row is None or row["observed"] is None:
        return entry(DASH)
    return entry(words(row["basis"]), note=BASIS[row["basis"]])


def key_tables(_inputs: Inputs) -> Sequence[Table]:
    """What the words mean."""
    heads = [Head("word", numeric=False), Head("meaning", numeric=False)]
    rows = [[entry(words(k)), entry(v)] for k, v in (MEANING | BASIS).items()]
    return [Table("words", "Verdicts and bases", heads, rows, "definitions")]

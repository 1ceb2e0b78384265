"""The chapter "Why": hypotheses and regimes as named numbers, sentences and tables.

Every sentence is true for whatever numbers come out; the templates compute nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvstudy.report.page import Entry, Head, Table, entry
from kvstudy.report.text import DASH, listing, number, plural
from kvstudy.report.why_regimes import cliff_table, map_table, regime_numbers, regime_sentences
from kvstudy.report.wording import change, times

Row = Mapping[str, Any]

LIKELY = 0.05
DECIDED = 0.9
"""Hypotheses below 5 % are not named; above 90 % a family is called decided by the evidence."""

FAMILIES = {
    "H0": "no effect",
    "H1": "a pause that cuts the request and decodes the rest in silence",
    "H2": "ordinary recomputation",
    "H3": "blocks that are never released",
}
_RATIOS = {
    "throughput_ratio": ("throughput", 0.001),
    "ttft_p50_ratio": ("TTFT p50", 0.01),
    "tpot_p50_ratio": ("TPOT p50", 0.01),
    "tpot_p99_ratio": ("TPOT p99", 0.01),
    "e2e_p99_ratio": ("e2e p99", 0.01),
}
_COUNTS = {
    "pauses": "pauses",
    "recomputed_tokens": "recomputed",
    "hidden_tokens": "hidden",
}


@dataclass(frozen=True)
class Why:
    """What the partial templates show, by name."""

    expected: Sequence[str] = ()
    ranking: Sequence[str] = ()
    mind: Sequence[str] = ()
    regimes: Sequence[str] = ()
    hypotheses_tables: Sequence[Table] = ()
    decider_tables: Sequence[Table] = ()
    regime_tables: Sequence[Table] = ()
    numbers: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """Whether there is nothing to say."""
        return not (self.hypotheses_tables or self.regime_tables)


def why_of(hypotheses: Sequence[Row], regimes: Sequence[Row]) -> Why:
    """The chapter from its two tables; either may be empty."""
    engines = list(dict.fromkeys(row["engine"] for row in hypotheses))
    own = {engine: [r for r in hypotheses if r["engine"] == engine] for engine in engines}
    return Why(
        expected=[expected_sentence(rows) for rows in own.values()],
        ranking=[*(ranking_sentence(rows) for rows in own.values()), *versions_sentence(own)],
        mind=mind_sentences(own),
        regimes=regime_sentences(regimes),
        hypotheses_tables=[hypotheses_table(engine, rows) for engine, rows in own.items()],
        decider_tables=[decider_table(engine, rows) for engine, rows in _decided_by(own).items()],
        regime_tables=[*map_table(regimes), *cliff_table(regimes)],
        numbers={**hypothesis_numbers(own), **regime_numbers(regimes)},
    )


def of_kind(rows: Sequence[Row], *kinds: str) -> Row | None:
    """The first row of the first kind that is there."""
    for kind in kinds:
        for row in rows:
            if row["kind"] == kind:
                return row
    return None


def of_hypothesis(rows: Sequence[Row], name: str) -> Row | None:
    """The row of a hypothesis."""
    return next((row for row in rows if row["hypothesis"] == name), None)


def ranked(rows: Sequence[Row]) -> list[Row]:
    """Scored hypotheses, the most likely first."""
    scored = [row for row in rows if row["rank"] is not None]
    return sorted(scored, key=lambda row: row["rank"])


def family_weights(rows: Sequence[Row]) -> dict[str, float]:
    """Family to its share, the largest first; empty without a score."""
    weights: dict[str, float] = {}
    for row in ranked(rows):
        weights[row["family"]] = weights.get(row["family"], 0.0) + row["weight"]
    return dict(sorted(weights.items(), key=lambda item: -item[1]))


def engine_words(row: Row) -> str:
    """How an engine is named in a sentence."""
    return f"{row['engine']} ({row['workload']}, concurrency {row['concurrency']})"


def expected_sentence(rows: Sequence[Row]) -> str:
    """Whether what was seen is what ordinary recomputation gives."""
    plain, seen = of_hypothesis(rows, "H2"), of_kind(rows, "measured", "published")
    head = engine_words(rows[0])
    if plain is None or plain["throughput_ratio"] is None:
        return f"{head}: ordinary recomputation was not simulated."
    pauses = plural(plain["pauses"], "pause")
    said = (
        f"{head}: if a pause recomputes its request, the scheduling rules give {pauses} and a "
        f"throughput {change(plain['throughput_ratio'])}, with {times(plain['tpot_p99_ratio'])} "
        "the TPOT p99"
    )
    if seen is None or seen["throughput_ratio"] is None:
        return f"{said}. Nothing was measured or published to hold against it."
    fits = is_expected(plain, seen)
    return (
        f"{said}; {seen['kind']}: {change(seen['throughput_ratio'])}"
        + (f" and {times(seen['tpot_p99_ratio'])}" if seen["tpot_p99_ratio"] is not None else "")
        + (". That is what the rules give." if fits else ". The rules alone do not give that.")
    )


def is_expected(predicted: Row, seen: Row) -> bool:
    """Whether throughput is within twice the evidence's spread, and 2 % of model error."""
    allowed = 2 * ((seen["throughput_spread"] or 0.0) + 0.02)
    return bool(abs(seen["throughput_ratio"] / predicted["throughput_ratio"] - 1) <= allowed)


def ranking_sentence(rows: Sequence[Row]) -> str:
    """The most likely hypotheses of one engine, and how far the evidence decides."""
    order = ranked(rows)
    head = engine_words(rows[0])
    if not order:
        return f"{head}: not ranked, as nothing was measured or published for it."
    families = family_weights(rows)
    first, share = next(iter(families.items()))
    members = [r for r in order if r["family"] == first and r["weight"] >= LIKELY]
    said = (
        f"{head}, against {order[0]['evidence']} numbers: {first}, {FAMILIES[first]}, has "
        f"{percent(share)} of the weight of the {len(families)} listed"
    )
    if len(members) > 1:
        said += f" ({listing([_member(row) for row in members])})"
    rest = [f"{name} {percent(weight)}" for name, weight in families.items() if name != first]
    said += f"; {listing(rest)}." if rest else "."
    if share < DECIDED:
        said += " The evidence does not decide between them."
    elif len(members) > 1:
        said += " It does not tell where the cut is: that is for the probe."
    return said


def _member(row: Row) -> str:
    cut = row["truncate_to_tokens"]
    where = f"a cut at {number(cut)}" if cut else row["hypothesis"]
    return f"{where} {percent(row['weight'])}"


def percent(share: float) -> str:
    """A share as `42 %`; the ends are not rounded to certainty."""
    if share < 0.01:
        return "below 1 %"
    return "above 99 %" if share > 0.99 else f"{number(100 * share)} %"


def versions_sentence(own: Mapping[str, Sequence[Row]]) -> list[str]:
    """Whether engines differ in their most likely hypothesis."""
    best = {
        engine: next(iter(families))
        for engine, rows in own.items()
        if (families := family_weights(rows))
    }
    if len(best) < 2:
        return []
    if len(set(best.values())) == 1:
        return [f"The same family is most likely for {listing(list(best))}."]
    parts = [f"{FAMILIES[family]} on {engine}" for engine, family in best.items()]
    return [f"What a pause does differs by version: {listing(parts)} is most likely."]


def mind_sentences(own: Mapping[str, Sequence[Row]]) -> list[str]:
    """Rows that are ruled out, and whether the images' probes have been read."""
    against: dict[tuple[str, str], list[str]] = {}
    unread = []
    for engine, rows in own.items():
        for row in rows:
            if row["against"]:
                against.setdefault((row["hypothesis"], row["against"]), []).append(engine)
        order = ranked(rows)
        if order and "no probe" in (order[0]["assumptions"] or ""):
            unread.append(engine)
    sentences = [
        f"Against {name} on {listing(engines)}: {reason}."
        for (name, reason), engines in against.items()
    ]
    if any(ranked(rows) for rows in own.values()):
        sentences.append(
            "The weights compare these hypotheses with each other; a cause that is not listed "
            "has none, however likely."
        )
    if unread:
        sentences.append(
            f"The default of max_input_len has not been read in the image of {listing(unread)}; "
            "the rule probe_engine does that without a GPU and decides between the cuts."
        )
    return sentences


def hypotheses_table(engine: str, rows: Sequence[Row]) -> Table:
    """Hypotheses side by side, with what was published and run."""
    heads = [
        Head("row", numeric=False),
        Head("weight", "%"),
        *(Head(label) for label, _ in _RATIOS.values()),
        *(Head(label) for label in _COUNTS.values()),
        Head("gap", "s"),
    ]
    observed = [row for row in rows if row["kind"] != "hypothesis"]
    order = [row for row in rows if row["kind"] == "hypothesis"]
    notes = [
        "Throughput, TTFT, TPOT and e2e are ratios of the two arms. Recomputed and hidden are "
        "tokens; gap is the longest between two chunks of one request."
    ]
    notes += dict.fromkeys(row["assumptions"] for row in order if row["assumptions"])
    notes += [
        f"{row['hypothesis']}: {row['outcome_words']}." for row in order if row["outcome_words"]
    ]
    first = rows[0]
    return Table(
        id=f"hypotheses-{engine}",
        title=(
            f"Rival hypotheses, {first['treatment']} over {first['baseline']}, "
            f"{engine_words(first)}"
        ),
        heads=heads,
        rows=[_hypothesis_line(row) for row in [*observed, *order]],
        provenance="hypotheses: predicted, scheduler model in virtual time; other rows as named",
        notes=notes,
    )


def short_label(row: Row) -> str:
    """A row's name in few words; the long label is beside it."""
    if row["hypothesis"] is None:
        return str(row["kind"])
    cut = row["truncate_to_tokens"]
    words = {"H0": "no effect", "H1": f"cut at {number(cut)}", "H2": "no cut", "H3": "not released"}
    return f"{row['family']}, {words[row['family']]}"


def _hypothesis_line(row: Row) -> list[Entry]:
    weight = row["weight"]
    return [
        entry(short_label(row), note=row["label"]),
        entry(DASH if weight is None else number(100 * weight, 0.1), weight),
        *(_number(row[name], step) for name, (_, step) in _RATIOS.items()),
        *(_number(row[name], 1.0) for name in _COUNTS),
        _number(row["max_gap_s"], 0.1),
    ]


def _number(value: float | None, step: float) -> Entry:
    return entry(number(value, step), None if value is None else float(value))


def _decided_by(own: Mapping[str, Sequence[Row]]) -> dict[str, Sequence[Row]]:
    """One engine per workload and load: deciders depend on the load, not on the engine."""
    seen: dict[tuple[str, int], str] = {}
    for engine, rows in own.items():
        seen.setdefault((rows[0]["workload"], rows[0]["concurrency"]), engine)
    return {engine: own[engine] for engine in seen.values()}


def decider_table(engine: str, rows: Sequence[Row]) -> Table:
    """Each counter or probe, and what each family's most likely member expects of it."""
    members: dict[str, Row] = {}
    hypotheses = [row for row in rows if row["kind"] == "hypothesis"]
    for row in [*ranked(rows), *hypotheses]:
        members.setdefault(row["family"], row)
    columns = [members[family] for family in FAMILIES if family in members]
    heads = [Head(h, numeric=False) for h in ("counter or probe", "where it is read")]
    heads += [Head(row["hypothesis"], numeric=False) for row in columns]
    lines = []
    for index, decider in enumerate(columns[0]["deciders"]):
        expected = [entry(row["deciders"][index]["expected"]) for row in columns]
        lines.append([entry(decider["counter"]), entry(decider["where"]), *expected])
    return Table(
        id=f"deciders-{engine}",
        title=f"What would change our mind: {rows[0]['workload']}",
        heads=heads,
        rows=lines,
        provenance="predicted: scheduler model in virtual time",
    )


def hypothesis_numbers(own: Mapping[str, Sequence[Row]]) -> dict[str, str]:
    """`<engine>.<row>.<column>` to the formatted number."""
    found = {}
    for engine, rows in own.items():
        for row in rows:
            name = f"{engine}.{row['hypothesis'] or row['kind']}"
            for column, (_, step) in _RATIOS.items():
                found[f"{name}.{column}"] = number(row[column], step)
            for column in _COUNTS:
                found[f"{name}.{column}"] = number(row[column])
            if row["weight"] is not None:
                found[f"{name}.weight"] = percent(row["weight"])
    return found

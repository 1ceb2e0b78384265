"""The regime map in words and tables: where the greedy policy wins, and where the cliff stands."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from statistics import median
from typing import Any

from kvstudy.report.page import Head, Table, entry
from kvstudy.report.text import DASH, listing, number, plural

Row = Mapping[str, Any]

WINNER = "MAX_UTILIZATION"


@dataclass(frozen=True)
class Stretch:
    """Neighbouring pools of the cliff scan with one regime."""

    regime: str
    rows: Sequence[Row]

    @property
    def pools(self) -> str:
        """First and last scanned pool."""
        first, last = self.rows[0]["pool_blocks"], self.rows[-1]["pool_blocks"]
        return number(first) if first == last else f"{number(first)} to {number(last)}"

    @property
    def change(self) -> str:
        """Throughput over the stretch, as a range of changes."""
        return change_range([row["throughput_ratio"] for row in self.rows])

    @property
    def pauses(self) -> tuple[int, int]:
        """Fewest and most pauses."""
        counts = [row["pauses"] or 0 for row in self.rows]
        return min(counts), max(counts)


def part(regimes: Sequence[Row], name: str) -> list[Row]:
    """Rows of the map or of the cliff."""
    return [row for row in regimes if row["part"] == name]


def change_range(ratios: Sequence[float | None]) -> str:
    """Ratios as a range of changes in percent, or one change."""
    known = [100 * (ratio - 1) for ratio in ratios if ratio is not None]
    if not known:
        return DASH
    low, high = (number(value, 0.1, signed=True) for value in (min(known), max(known)))
    return f"{low} %" if low == high else f"{low} to {high} %"


def stretches(cliff: Sequence[Row]) -> list[Stretch]:
    """The scan of one pause mode, cut where the regime changes."""
    ordered = sorted(cliff, key=lambda row: row["pool_blocks"])
    return [Stretch(name, list(rows)) for name, rows in groupby(ordered, lambda r: r["regime"])]


def by_pause(cliff: Sequence[Row]) -> dict[str, list[Row]]:
    """The cliff's rows per pause mode."""
    found: dict[str, list[Row]] = {}
    for row in cliff:
        found.setdefault(row["pause"], []).append(row)
    return found


def regime_sentences(regimes: Sequence[Row]) -> list[str]:
    """The boundary, what was won and lost on either side, and the cliff."""
    rows, cliff = part(regimes, "map"), part(regimes, "cliff")
    sentences = []
    if rows:
        sentences += [boundary_sentence(rows), *shape_sentences(rows)]
    sentences += cliff_sentences(cliff)
    sentences += check_sentence(regimes)
    return sentences


def boundary_sentence(rows: Sequence[Row]) -> str:
    """The boundary in one sentence, with the arithmetic it was checked against."""
    alike = [r for r in rows if r["residents_reserving"] == r["residents_greedy"]]
    equal = [r for r in alike if r["regime"] == "equal"]
    others = [r for r in rows if r["residents_reserving"] != r["residents_greedy"]]
    said = (
        f"{WINNER} can differ from GUARANTEED_NO_EVICT only where min(lanes, pool // blocks of "
        "prompt and cap) is below min(lanes, pool // blocks of the prompt): "
        f"{len(equal)} of {plural(len(alike), 'point')} on the other side ran alike"
    )
    won = [gain for r in others if r["regime"] == "wins" and (gain := _gain(r)) is not None]
    lost = [gain for r in others if r["regime"] == "loses" and (gain := _gain(r)) is not None]
    if won and lost:
        said += (
            f"; beyond it, it wins where the residents it gains outweigh the prompts it computes "
            f"again: {number(100 * median(won))} % more residents at the median of "
            f"{plural(len(won), 'win')}, {number(100 * median(lost))} % at that of "
            f"{plural(len(lost), 'loss', 'losses')}"
        )
    elif won or lost:
        word = "wins" if won else "loses"
        count = len(won or lost)
        said += f"; beyond it, it {word} in {count} of {plural(len(others), 'point')}"
    return said + "."


def _gain(row: Row) -> float | None:
    """Share of residents gained; None where the run got stuck."""
    if row["residents_treatment"] is None:
        return None
    return float(row["residents_treatment"] / row["residents_baseline"] - 1)


def shape_sentences(rows: Sequence[Row]) -> list[str]:
    """Per workload shape: how often it wins and loses, by how much, at what tail cost."""
    sentences = []
    for workload in dict.fromkeys(row["workload"] for row in rows):
        own = [row for row in rows if row["workload"] == workload]
        counts = {word: [row for row in own if row["regime"] == word] for word in ("wins", "loses")}
        parts = []
        for word, found in counts.items():
            if found:
                tails = [r["tpot_p99_ratio"] for r in found if r["tpot_p99_ratio"]]
                tail = f", TPOT p99 {range_of(tails)} times" if tails else ""
                shown = change_range([r["throughput_ratio"] for r in found])
                parts.append(f"{word} in {len(found)} ({shown} throughput{tail})")
        equal = len(own) - sum(len(found) for found in counts.values())
        parts.append(f"equals in {equal}")
        sentences.append(
            f"Shaped like {workload} ({plural(len(own), 'point')}): {WINNER} {listing(parts)}."
        )
    return sentences


def range_of(values: Sequence[float]) -> str:
    """`1.0 to 2.4`, or one number."""
    low, high = number(min(values), 0.1), number(max(values), 0.1)
    return low if low == high else f"{low} to {high}"


def cliff_sentences(cliff: Sequence[Row]) -> list[str]:
    """Per pause mode, the stretches of pools in order, and why the edges are where they are."""
    sentences = []
    for pause, rows in by_pause(cliff).items():
        parts = []
        for stretch in stretches(rows):
            if stretch.regime == "equal":
                parts.append(f"runs alike at {stretch.pools}")
            else:
                word = {"wins": "wins", "loses": "loses", "stuck": "gets stuck"}[stretch.regime]
                paused = "without a pause" if stretch.pauses[1] == 0 else _paused(stretch)
                parts.append(f"{word} at {stretch.pools} ({stretch.change}, {paused})")
        sentences.append(
            f"Pools around {rows[0]['workload']}'s, in blocks, if {pause_sentence(pause)}: "
            f"{WINNER} {listing(parts)}."
        )
    if cliff:
        sentences.append(edge_sentence(cliff))
    return sentences


def pause_sentence(pause: str) -> str:
    """A pause mode as the regimes table writes it, in words."""
    if pause.startswith("truncate_to_tokens: "):
        return f"a pause cuts to {number(int(pause.partition(': ')[2]))} tokens"
    return {"recompute": "a pause recomputes", "never_release": "a pause releases nothing"}[pause]


def _paused(stretch: Stretch) -> str:
    low, high = stretch.pauses
    return plural(low, "pause") if low == high else f"{low} to {high} pauses"


def edge_sentence(cliff: Sequence[Row]) -> str:
    """The two edges from block counts: prompts of one more resident fit before its cap does."""
    row = min(cliff, key=lambda r: r["pool_blocks"])
    more = int(row["residents_reserving"]) + 1
    prompt, full = row["input_blocks"], row["full_blocks"]
    return (
        f"One resident more, {more}, fits with its prompt from {number(more * prompt)} blocks "
        f"({more} x {prompt}) and with its cap reserved from {number(more * full)} ({more} x "
        f"{full}): only between the two can the policies differ."
    )


def check_sentence(regimes: Sequence[Row]) -> list[str]:
    """Whether every simulated point obeys the arithmetic of residents."""
    if not regimes:
        return []
    wrong = [row for row in regimes if not row["arithmetic_holds"]]
    points = plural(len(regimes), "simulated point")
    if not wrong:
        return [f"All {points} obey these block counts."]
    return [f"{len(wrong)} of {points} do not obey these block counts: the explanation is wrong."]


def map_table(regimes: Sequence[Row]) -> list[Table]:
    """The map summed up: one row per shape, spread of outputs and concurrency."""
    groups: dict[tuple[str, str, int], list[Row]] = {}
    for row in part(regimes, "map"):
        groups.setdefault((row["workload"], row["spread"], row["concurrency"]), []).append(row)
    if not groups:
        return []
    texts = [Head("workload", numeric=False), Head("true outputs", numeric=False)]
    heads = [*texts, *map(Head, ("lanes", "pools", "wins", "loses", "best at pool / demand"))]
    heads += [Head("best", "%"), Head("worst", "%"), Head("TPOT p99, worst", "ratio")]
    return [
        Table(
            id="regimes",
            title="Regime map: MAX_UTILIZATION over GUARANTEED_NO_EVICT",
            heads=heads,
            rows=[_map_line(key, rows) for key, rows in groups.items()],
            provenance="predicted: scheduler model in virtual time, a pause recomputes",
        )
    ]


def _map_line(key: tuple[str, str, int], rows: Sequence[Row]) -> list[Any]:
    workload, spread, lanes = key
    ended = [row for row in rows if row["throughput_ratio"] is not None]
    best = max(ended, key=lambda r: r["throughput_ratio"], default=None)
    worst = min(ended, key=lambda r: r["throughput_ratio"], default=None)
    tails = [row["tpot_p99_ratio"] for row in ended if row["tpot_p99_ratio"] is not None]
    wins, loses = (sum(row["regime"] == word for row in rows) for word in ("wins", "loses"))
    counts = [entry(number(n), float(n)) for n in (lanes, len(rows), wins, loses)]
    place = best["pool_ratio"] if best else None
    tail = max(tails, default=None)
    return [
        entry(workload),
        entry(spread),
        *counts,
        entry(number(place, 0.01), place),
        *(_percent(row) for row in (best, worst)),
        entry(number(tail, 0.01), tail),
    ]


def _percent(row: Row | None) -> Any:
    if row is None:
        return entry(DASH)
    value = 100 * (row["throughput_ratio"] - 1)
    return entry(number(value, 0.1, signed=True), value)


def cliff_table(regimes: Sequence[Row]) -> list[Table]:
    """The cliff's stretches, per pause mode."""
    cliff = part(regimes, "cliff")
    if not cliff:
        return []
    words = ("a pause", "pool", "MAX_UTILIZATION", "throughput", "pauses", "residents")
    lines = []
    for pause, rows in by_pause(cliff).items():
        for stretch in stretches(rows):
            low, high = stretch.pauses
            held = [r["residents_treatment"] for r in stretch.rows if r["residents_treatment"]]
            base = {r["residents_baseline"] for r in stretch.rows}
            residents = f"{range_of_counts(held)} against {range_of_counts(sorted(base))}"
            shown = [
                pause_sentence(pause),
                f"{stretch.pools} blocks",
                stretch.regime,
                stretch.change,
            ]
            shown += [str(low) if low == high else f"{low} to {high}", residents]
            lines.append([entry(text) for text in shown])
    return [
        Table(
            id="cliff",
            title=f"The cliff around {cliff[0]['workload']}'s pool",
            heads=[Head(word, numeric=False) for word in words],
            rows=lines,
            provenance="predicted: scheduler model in virtual time",
        )
    ]


def range_of_counts(counts: Sequence[int]) -> str:
    """`21`, `21 to 25`, or a dash."""
    if not counts:
        return DASH
    low, high = min(counts), max(counts)
    return str(low) if low == high else f"{low} to {high}"


def regime_numbers(regimes: Sequence[Row]) -> dict[str, str]:
    """Named numbers of the map and the cliff."""
    found = {}
    for row_part in ("map", "cliff"):
        rows = part(regimes, row_part)
        for word in ("wins", "loses", "equal", "stuck"):
            found[f"{row_part}.{word}"] = number(sum(row["regime"] == word for row in rows))
    wins = [r for r in part(regimes, "map") if r["regime"] == "wins"]
    best = max(wins, key=lambda r: r["throughput_ratio"], default=None)
    if best is not None:
        found["map.best"] = f"{number(100 * (best['throughput_ratio'] - 1), 0.1, signed=True)} %"
        found["map.best.workload"] = best["workload"]
        found["map.best.pool_ratio"] = number(best["pool_ratio"], 0.01)
    return found

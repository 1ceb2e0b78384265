"""Sentences that are true for whatever numbers come out."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from kvstudy.report.inputs import Inputs
from kvstudy.report.page import Answer
from kvstudy.report.text import TIMES, listing, number, plural
from kvstudy.stats.contrast import AA
from kvstudy.stats.data import Row

_EQUAL = 0.0005
"""Below this share two values print alike at one decimal of a percent."""
LOSS = 0.1
"""A loss of throughput that is worth calling a cliff."""
NOTEWORTHY = 0.01
"""Without a noise floor, a smaller change is not called a gain."""

_CLAIM = {
    "measured": "measured",
    "emulated": "emulated by a scheduler model",
    "predicted": "predicted by a scheduler model",
}


def change(ratio: float | None, noise_ratio: float | None = None) -> str:
    """A ratio as `40.8 % lower`, `equal`, or `0.1 % higher, within repeat-to-repeat noise`."""
    if ratio is None:
        return "not known"
    share = ratio - 1
    if abs(share) < _EQUAL:
        return "equal"
    word = "higher" if share > 0 else "lower"
    text = f"{number(100 * abs(share), 0.1)} % {word}"
    if noise_ratio is not None and within_noise(ratio, noise_ratio):
        text += ", within repeat-to-repeat noise"
    return text


def within_noise(ratio: float, noise_ratio: float) -> bool:
    """Whether an effect is no larger than the largest repeat-to-repeat ratio."""
    return abs(math.log(ratio)) <= math.log(max(noise_ratio, 1.0))


def times(ratio: float | None) -> str:
    """A ratio as `9.1x` or `1.15x`: two significant digits at least."""
    if ratio is None:
        return "not known"
    return number(ratio, 0.01 if ratio < 2 else 0.1) + TIMES


def noise_sentence(row: Row) -> str:
    """How the effect stands against repeats, in one sentence."""
    factor, noise = row["noise_factor"], row["noise_ratio"]
    if row["ratio"] is None:
        return "No ratio exists."
    if row["source"] == "predicted":
        return "A prediction has no repeat-to-repeat noise."
    if noise is None:
        return "With one repeat, no interval and no noise floor exist."
    if factor is None:
        return "The repeats do not differ at all."
    if factor < 1:
        return "Not larger than the largest repeat-to-repeat difference seen."
    return (
        f"Larger than any repeat-to-repeat difference seen, by a factor of "
        f"{number(factor, 1.0 if factor >= 10 else 0.1)}."
    )


def banner(inputs: Inputs) -> str:
    """What kind of numbers the page shows, in one sentence."""
    if inputs.backend == "measured":
        engines = sorted({r["engine"] for r in inputs.data.select("measured") if _ran(r)})
        if not engines:
            return "Nothing has been measured yet: every number below is predicted by a model."
        return (
            f"Measured on real engines ({listing(engines)}). "
            "Predictions stand beside it and are marked."
        )
    return (
        "Emulated: no GPU, no model and no engine ran. A scheduler model answered over HTTP, so "
        "these numbers show what the scheduling rules give and cannot reproduce a measurement."
    )


def _ran(row: Row) -> bool:
    return "not_run" not in row["reasons"]


def answers(inputs: Inputs) -> list[Answer]:
    """The issue's three questions."""
    return [
        Answer("Is this magnitude expected?", magnitude(inputs)),
        Answer("When does MAX_UTILIZATION win?", where_it_wins(inputs)),
        Answer("How does one observe pauses and recomputation?", observing(inputs)),
    ]


def main_contrast(inputs: Inputs, metric_name: str, source: str) -> list[Row]:
    """Rows of the first declared within-engine contrast, one per workload and engine."""
    declared = [c for c in inputs.config["contrasts"] if c["within"] == "engine"]
    if not declared:
        return []
    name = f"{declared[0]['treatment']} vs {declared[0]['baseline']}"
    return [
        row
        for row in inputs.contrasts
        if row["contrast"] == name and row["metric"] == metric_name and row["source"] == source
    ]


def magnitude(inputs: Inputs) -> list[str]:
    """The effect's size by engine and workload, largest first, then what it rests on."""
    source = _best_source(inputs)
    rows = [r for r in main_contrast(inputs, "output_tok_per_s", source) if r["ratio"] is not None]
    if not rows:
        return ["This study has no valid pair of policies to compare."]
    rows.sort(key=lambda row: -abs(math.log(row["ratio"])))
    treatment, baseline = inputs.arm(rows[0]["treatment"]), inputs.arm(rows[0]["baseline"])
    sentences = [_lead(rows, modelled=source != "measured")]
    sentences += [
        f"{words} on {listing(engines)}: {effect}."
        for (words, effect), engines in _alike(inputs, rows, source).items()
    ]
    sentences[1] = f"{treatment} against {baseline}, {_CLAIM[source]}: {sentences[1]}"
    if source != "measured":
        sentences.append(_assumptions(inputs, source))
    return sentences


def _lead(rows: Sequence[Row], *, modelled: bool) -> str:
    """Whether the largest loss is a matter of the engine's version."""
    worst = min(rows, key=lambda row: float(row["ratio"]))
    place = f"{worst['workload']} at concurrency {worst['concurrency']}"
    if worst["ratio"] > 1 - LOSS:
        return f"No loss of throughput above {number(100 * LOSS)} % is seen in this study."
    others = [
        row
        for row in rows
        if (row["workload"], row["concurrency"]) == (worst["workload"], worst["concurrency"])
        and row["within"] != worst["within"]
    ]
    spared = [row["within"] for row in others if row["ratio"] > 1 - LOSS / 2]
    if spared and len(spared) == len(others):
        start = "In the model, it" if modelled else "It"
        return (
            f"{start} is a matter of the version: on {place}, {worst['within']} loses "
            f"{number(100 * (1 - worst['ratio']), 0.1)} % and {listing(spared)} does not."
        )
    if others:
        return f"On {place}, more than one version loses throughput."
    return f"On {place}, {worst['within']} loses throughput; no other version is here to compare."


def _alike(inputs: Inputs, rows: Sequence[Row], source: str) -> dict[tuple[str, str], list[str]]:
    """Workload and effect in words to the engines for which both read the same."""
    found: dict[tuple[str, str], list[str]] = {}
    for row in rows:
        key = (
            f"{row['workload']} at concurrency {row['concurrency']}",
            _effect(inputs, row, source),
        )
        found.setdefault(key, []).append(row["within"])
    order = list(inputs.config["engines"])
    return {key: sorted(engines, key=order.index) for key, engines in found.items()}


def _effect(inputs: Inputs, row: Row, source: str) -> str:
    noise = row["noise_ratio"] if source != "predicted" else None
    parts = [f"throughput {change(row['ratio'], noise)}"]
    for name, words in (("tpot_p99_ms", "TPOT p99"), ("e2e_p99_s", "e2e p99")):
        other = _beside(inputs, row, name)
        if other is not None:
            parts.append(f"{words} {times(other)}")
    return ", ".join(parts)


def _beside(inputs: Inputs, row: Row, metric_name: str) -> float | None:
    """The ratio of another metric in the same contrast."""
    keys = {k: row[k] for k in ("contrast", "workload", "concurrency", "within")}
    found = inputs.contrast(metric_name, row["source"], **keys)
    return None if found is None else found["ratio"]


def _best_source(inputs: Inputs) -> str:
    ratios = [r for r in main_contrast(inputs, "output_tok_per_s", inputs.backend) if r["ratio"]]
    return inputs.backend if ratios else "predicted"


def _assumptions(inputs: Inputs, source: str) -> str:
    assumed = sorted({r["engine"] for r in inputs.data.select(source) if r["basis"] == "assumed"})
    if not assumed:
        return "No pause cost was assumed beyond ordinary recomputation; nothing here is measured."
    return (
        f"The size of the effect on {listing(assumed)} follows from an assumed cost of a pause in "
        "the configuration; nothing here is measured, so it supports the explanation and does "
        "not prove it."
    )


def where_it_wins(inputs: Inputs) -> list[str]:
    """Cells in which the treatment's throughput is higher beyond noise, with the tail's price."""
    source = _best_source(inputs)
    rows = [r for r in main_contrast(inputs, "output_tok_per_s", source) if r["ratio"] is not None]
    if not rows:
        return ["This study has no valid pair of policies to compare."]
    treatment = inputs.arm(rows[0]["treatment"])
    wins = [row for row in rows if _gain(row)]
    if not wins:
        return [
            f"In none of the {plural(len(rows), 'pair')} {_CLAIM[source]} does {treatment} win."
        ]
    return [_win_sentence(inputs, row, source) for row in wins]


def _gain(row: Row) -> bool:
    noise = row["noise_ratio"]
    if noise is None or noise <= 1:
        return bool(row["ratio"] > 1 + NOTEWORTHY)
    return bool(row["ratio"] > 1 + _EQUAL and not within_noise(row["ratio"], noise))


def _win_sentence(inputs: Inputs, row: Row, source: str) -> str:
    tail = _beside(inputs, row, "tpot_p99_ms")
    price = f", at {times(tail)} the TPOT p99" if tail else ""
    return (
        f"{row['workload']} at concurrency {row['concurrency']} on {row['within']}, "
        f"{_CLAIM[source]}: throughput is {change(row['ratio'])}{price}. {noise_sentence(row)}"
    )


def observing(inputs: Inputs) -> list[str]:
    """What this run saw through the engine's own iteration records."""
    source = inputs.backend
    seen = [r for r in inputs.data.select(source) if r["pauses"] is not None]
    if not seen:
        return [
            "No iteration records were read in this run, so pauses are not measured here; the "
            "guide docs/observing-kv-pressure.md says which options make them appear."
        ]
    groups: dict[str, list[int]] = {}
    for row in seen:
        if row["pauses"]:
            name = f"{row['workload']} under {inputs.arm(row['arm'])} on {row['engine']}"
            groups.setdefault(name, []).append(int(row["pauses"]))
    counted = "; ".join(
        f"{name}: {listing([f'{n:,}' for n in counts])}" for name, counts in groups.items()
    )
    sentences = [
        f"The iteration records of {plural(len(seen), 'cell')} were read completely; "
        + (f"pauses by repeat: {counted}." if counted else "no pause was seen in any of them.")
    ]
    baseline = _baseline_pauses(inputs, seen)
    if baseline is not None:
        sentences.append(baseline)
    return sentences


def _baseline_pauses(inputs: Inputs, seen: Sequence[Row]) -> str | None:
    names = {c["baseline"] for c in inputs.config["contrasts"] if c["within"] == "engine"}
    rows = [row for row in seen if row["arm"] in names]
    if not rows:
        return None
    arms = listing(sorted({inputs.arm(row["arm"]) for row in rows}))
    total = sum(int(row["pauses"]) for row in rows)
    if total:
        return f"{arms} paused {plural(total, 'time')}, which a reserving policy never should."
    return f"{arms} never paused, as a policy that reserves must not: the counter can be trusted."


def counting_sentence(rows: Iterable[Row]) -> str:
    """Whether the conclusion depends on how tokens are counted."""
    ratios = [row["ratio"] for row in rows if row["ratio"] is not None]
    if len(ratios) < 2:
        return "Only one way of counting tokens is available."
    points = 100 * (max(ratios) - min(ratios))
    signs = {(ratio > 1 + _EQUAL) - (ratio < 1 - _EQUAL) for ratio in ratios}
    agrees = "they agree on the direction" if len(signs) == 1 else "they disagree on the direction"
    return f"The ways of counting differ by {number(points, 0.1)} points at most; {agrees}."


def steady_sentences(whole: Sequence[Row], steady: Sequence[Row]) -> list[str]:
    """Whether the effect of the whole run is also there while every lane is busy."""
    points = [
        100 * (rows[0]["ratio"] - 1)
        for rows in (whole, steady)
        if rows and rows[0]["ratio"] is not None
    ]
    if len(points) < 2:
        return []
    shown = [f"{number(p, 0.1, signed=True)} %" for p in points]
    text = f"Whole run {shown[0]}, while every lane is busy {shown[1]}"
    if abs(points[0]) >= 5 and abs(points[1]) < abs(points[0]) / 4:
        return [f"{text}: most of the effect is in the ramp and the emptying lanes at the end."]
    return [f"{text}."]


def aa_rows(inputs: Inputs) -> list[Row]:
    """A/A contrasts of the run."""
    return [row for row in inputs.contrasts if row["contrast"] == AA]

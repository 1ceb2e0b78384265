"""The reply to the issue: its three questions, the evidence, and a text for the documentation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from kvstudy.report.page import markdown_table
from kvstudy.report.text import Safe, fenced, listing, markdown, number, plural
from kvstudy.report.why import (
    FAMILIES,
    Why,
    family_weights,
    is_expected,
    of_hypothesis,
    of_kind,
    percent,
    why_of,
)
from kvstudy.report.why_regimes import change_range, part, range_of, range_of_counts
from kvstudy.report.wording import change, times
from kvstudy.telemetry.knowledge import entry_for

Row = Mapping[str, Any]

_SIGNS = 3
_SOURCES = ("measured", "emulated", "predicted")


@dataclass(frozen=True)
class Guide:
    """How one version shows its pauses."""

    title: str
    settings: str
    language: str
    look: str
    signs: Sequence[str]
    destructive: str
    interval: str


@dataclass(frozen=True)
class Answer:
    """Everything the template shows, by name."""

    title: str
    banner: str
    short: Sequence[tuple[str, str]]
    why: Why
    regimes: Sequence[str]
    seen: Sequence[str]
    guides: Sequence[Guide]
    warning: Sequence[str]
    basis: Sequence[str]


def answer_of(
    hypotheses: Sequence[Row], regimes: Sequence[Row], cells: Sequence[Row], verdicts: Sequence[Row]
) -> Answer:
    """The reply from the run's tables; no number stands in this module."""
    why = why_of(hypotheses, regimes)
    own: dict[str, list[Row]] = {}
    for row in hypotheses:
        own.setdefault(row["engine"], []).append(row)
    return Answer(
        title="MAX_UTILIZATION under KV-cache pressure",
        banner=banner(cells),
        short=[
            ("Is this magnitude expected?", short_magnitude(own)),
            ("Is there a regime where it wins?", short_regimes(regimes)),
            ("How does one observe it?", short_observing(own, cells)),
        ],
        why=why,
        regimes=[*why.regimes, *pair_sentences(cells)],
        seen=seen_sentences(cells),
        guides=guides(own),
        warning=warning(own, regimes),
        basis=basis_sentences(cells, verdicts),
    )


def banner(cells: Sequence[Row]) -> str:
    """What the numbers are, in one sentence."""
    measured = [row for row in cells if row["source"] == "measured" and row["valid"]]
    if measured:
        engines = sorted({row["engine"] for row in measured})
        return (
            f"{plural(len(measured), 'cell')} measured on {listing(engines)}; published numbers "
            "are named as such, everything else is predicted by a scheduler model."
        )
    return (
        "Nothing in this reply was measured by its authors: it holds published numbers against "
        "a model of the scheduler, and says which probe would settle each open point."
    )


def short_magnitude(own: Mapping[str, Sequence[Row]]) -> str:
    """Question 1 in a sentence or two, per version."""
    parts = []
    for engine, rows in own.items():
        seen, plain = of_kind(rows, "measured", "published"), of_hypothesis(rows, "H2")
        if seen is None or plain is None or seen["throughput_ratio"] is None:
            continue
        families = family_weights(rows)
        first = next(iter(families), None)
        effect = f"{engine} ({seen['kind']}: throughput {change(seen['throughput_ratio'])})"
        if is_expected(plain, seen):
            parts.append(f"On {effect}, yes: the scheduling rules give as much.")
        elif first is None:
            parts.append(f"On {effect}, no.")
        else:
            parts.append(
                f"On {effect}, no: recomputation explains {change(plain['throughput_ratio'])}; "
                f"most likely ({percent(families[first])}) is {FAMILIES[first]}."
            )
    return " ".join(parts) or "Not answered: nothing was measured or published to compare with."


def short_regimes(regimes: Sequence[Row]) -> str:
    """Question 2 in a sentence."""
    rows = part(regimes, "map")
    if not rows:
        return "Not answered: no map was computed."
    wins = [row for row in rows if row["regime"] == "wins"]
    if not wins:
        return f"Not in any of the {plural(len(rows), 'simulated point')}."
    best = max(wins, key=lambda row: row["throughput_ratio"])
    counts = Counter(row["workload"] for row in wins)
    shapes = listing([f"{count} shaped like {name}" for name, count in counts.most_common()])
    return (
        f"Yes, in {len(wins)} of {plural(len(rows), 'simulated point')} ({shapes}). The largest "
        f"gain: throughput {change(best['throughput_ratio'])} shaped like {best['workload']} "
        f"(true outputs: {best['spread']}) with a pool of {number(best['pool_ratio'], 0.01)} "
        f"times the demand, at {times(best['tpot_p99_ratio'])} the TPOT p99."
    )


def short_observing(own: Mapping[str, Sequence[Row]], cells: Sequence[Row]) -> str:
    """Question 3 in a sentence."""
    entries = [entry_for("trtllm", rows[0]["engine_version"]) for rows in own.values()]
    switches = dict.fromkeys(f"{e.versions}: {e.switch}" for e in entries if e is not None)
    if not switches:
        return "No version of this study is described."
    seen = [row for row in cells if row["pauses"] is not None and row["source"] != "predicted"]
    source = seen[0]["source"] if seen else ""
    counted = f" Read in that way here: {plural(len(seen), f'{source} cell')}." if seen else ""
    return f"{'. '.join(switches)}.{counted}"


def pair_sentences(cells: Sequence[Row]) -> list[str]:
    """Throughput of the two policies where the run has a workload whose outputs end early."""
    sentences = []
    groups: dict[tuple[str, str, int, str], dict[str, list[float]]] = {}
    for row in cells:
        value = row["output_tok_per_s"]
        if row["valid"] and value is not None and row["arm"] in ("gne", "mu"):
            key = (row["workload"], row["engine"], row["concurrency"], row["source"])
            groups.setdefault(key, {}).setdefault(row["arm"], []).append(value)
    for (workload, engine, lanes, source), arms in groups.items():
        if len(arms) == 2:
            means = {arm: sum(values) / len(values) for arm, values in arms.items()}
            ratio = means["mu"] / means["gne"]
            if ratio > 1.01:
                sentences.append(
                    f"{workload} at concurrency {lanes} on {engine}, {source}: throughput "
                    f"{change(ratio)} under MAX_UTILIZATION."
                )
    return sentences


def seen_sentences(cells: Sequence[Row]) -> list[str]:
    """What iteration records showed, by source."""
    sentences = []
    for source in _SOURCES:
        rows = [row for row in cells if row["source"] == source and row["pauses"] is not None]
        paused = [row for row in rows if row["pauses"]]
        if rows:
            counts = sorted({int(row["pauses"]) for row in paused})
            shown = f", {range_of_counts(counts)} pauses each" if counts else ""
            sentences.append(
                f"{source}: pauses were counted in {plural(len(rows), 'cell')} and seen in "
                f"{len(paused)}{shown}."
            )
    return sentences or ["No cell of this run has iteration records."]


def guides(own: Mapping[str, Sequence[Row]]) -> list[Guide]:
    """One guide per version of the study that the telemetry's knowledge describes."""
    found = {}
    for rows in own.values():
        entry = entry_for("trtllm", rows[0]["engine_version"])
        if entry is not None:
            found[entry.versions] = Guide(
                title=f"{entry.engine}, {entry.versions}",
                settings=entry.settings,
                language=entry.language,
                look=entry.look,
                signs=[
                    f"{sign.name} ({sign.nature.value}): {sign.meaning}"
                    for sign in entry.signs[:_SIGNS]
                ],
                destructive=entry.destructive,
                interval=entry.interval,
            )
    return list(found.values())


def warning(own: Mapping[str, Sequence[Row]], regimes: Sequence[Row]) -> list[str]:
    """The text proposed for the engine's documentation, one paragraph each."""
    paragraphs = [
        "MAX_UTILIZATION admits a request as soon as its prompt fits into the KV cache and "
        "reserves nothing for its output. When running requests outgrow the cache, the one that "
        "started last is paused, its blocks are freed, and its context is computed again later."
    ]
    paragraphs += _regime_warnings(part(regimes, "map"))
    paragraphs += _version_warnings(own)
    paragraphs.append(
        "Set enable_iter_perf_stats: true and add up inflightBatchingStats.numPausedRequests "
        "over all /metrics records to count pauses; the sum of numCtxTokens beyond the tokens of "
        "all prompts is what they cost."
    )
    return paragraphs


def _regime_warnings(rows: Sequence[Row]) -> list[str]:
    """Where it pays and where it costs, from the simulated points."""
    found = {word: [row for row in rows if row["regime"] == word] for word in ("wins", "loses")}
    words = {"wins": "gained", "loses": "lost"}
    sentences = []
    for regime, own in found.items():
        if own:
            tails = [row["tpot_p99_ratio"] for row in own if row["tpot_p99_ratio"]]
            price = f", at {range_of(tails)} times the TPOT p99" if tails else ""
            sentences.append(
                f"It {words[regime]} throughput in {len(own)} of "
                f"{plural(len(rows), 'simulated point')} "
                f"({change_range([r['throughput_ratio'] for r in own])}{price}); there the prompt "
                f"takes {number(100 * _prompt_share(own))} % of what a request can take with its "
                "max_tokens, at the median."
            )
    if all(found.values()):
        lower = "wins" if _prompt_share(found["wins"]) < _prompt_share(found["loses"]) else "loses"
        sentences.append(
            "Use it where the prompt is a small part of a request, keep GUARANTEED_NO_EVICT where "
            "it is most of it."
            if lower == "wins"
            else "The part that the prompt takes of a request does not tell the two apart."
        )
    return [" ".join(sentences)] if sentences else []


def _prompt_share(rows: Sequence[Row]) -> float:
    return float(median(row["input_blocks"] / row["full_blocks"] for row in rows))


def _version_warnings(own: Mapping[str, Sequence[Row]]) -> list[str]:
    """A paragraph for each version whose numbers the rules alone do not give."""
    found = []
    for rows in own.values():
        seen, plain = of_kind(rows, "measured", "published"), of_hypothesis(rows, "H2")
        if seen is None or plain is None or seen["throughput_ratio"] is None:
            continue
        if not is_expected(plain, seen):
            tail = seen["tpot_p99_ratio"]
            price = f" at {times(tail)} the TPOT p99" if tail is not None else ""
            found.append(
                f"In {seen['engine_version']} a pause was seen to cost far more than "
                f"recomputation ({seen['kind']}: throughput {change(seen['throughput_ratio'])}"
                f"{price}): do not use the policy there when the cache can run out."
            )
    return found


def basis_sentences(cells: Sequence[Row], verdicts: Sequence[Row]) -> list[str]:
    """How many cells of which source and basis, and how the published numbers came out."""
    sentences = []
    for source in _SOURCES:
        rows = [row for row in cells if row["source"] == source and row["valid"]]
        if not rows:
            continue
        bases = Counter(row["basis"] for row in rows)
        shown = listing([f"{count} {basis}" for basis, count in sorted(bases.items())])
        sentences.append(f"{plural(len(rows), 'cell')} {source}: {shown}.")
    for source in _SOURCES:
        words = Counter(row["verdict"] for row in verdicts if row["source"] == source)
        if words:
            shown = listing([f"{count} {word}" for word, count in sorted(words.items())])
            sentences.append(f"Published numbers against {source} ones: {shown}.")
    sentences.append(
        "Published: printed in the issue. Fitted: set the model's constants. Held out: predicted "
        "by a model that did not see the number. Assumed: follows from an assumption about what "
        "a pause costs."
    )
    return sentences


def render(answer: Answer, templates: Path) -> str:
    """The reply as Markdown; all foreign text is inert."""
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
    environment.filters["own"] = Safe
    return environment.get_template("answer.md.j2").render(answer=answer).strip() + "\n"

"""Whether the two sides of a contrast were the same server but for what the config declares.

Three things are compared: what each server said it resolved, the YAML it was given, and its
command line. A difference that no arm option declares spoils the contrast.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from kvstudy.stats.contrast import Pair
from kvstudy.study.model import Arm
from kvstudy.study.sense import resolve_arm

DECLARED_AS: dict[str, frozenset[str]] = {
    "policy": frozenset({"capacity_scheduler_policy", "scheduling_policy", "schedule_policy"}),
    "pool_tokens": frozenset({"max_tokens", "num_gpu_blocks_override", "max_total_tokens"}),
    "block_tokens": frozenset({"tokens_per_block", "block_size", "page_size"}),
    "kv_dtype": frozenset({"dtype", "kv_cache_dtype"}),
    "max_batch_size": frozenset({"max_num_seqs", "max_running_requests"}),
    "max_num_tokens": frozenset({"max_num_batched_tokens", "chunked_prefill_size"}),
    "max_seq_len": frozenset({"max_model_len", "context_length"}),
}
"""Resolved name -> option names, besides itself, under which an engine takes it."""

_PER_LAUNCH = frozenset(
    {"--port", "--host", "--config", "--extra_llm_api_options", "--api-key", "--time-scale"}
    | {"--workload"}
)
_NOT_COMPARED = frozenset({"excerpts"})


@dataclass(frozen=True, slots=True)
class Difference:
    """One setting in which two cells differ."""

    place: str
    key: str
    baseline: str
    treatment: str
    declared: bool


@dataclass(frozen=True, slots=True)
class Finding:
    """The audit of one contrast."""

    contrast: str
    source: str
    workload: str
    concurrency: int
    within: str
    baseline: str
    treatment: str
    known: bool
    differences: tuple[Difference, ...]

    @property
    def undeclared(self) -> list[Difference]:
        """Differences that no option declares."""
        return [difference for difference in self.differences if not difference.declared]

    @property
    def fair(self) -> bool:
        """Whether the sides differ only in what the contrast declares."""
        return not self.undeclared


def audit(
    pairs: Iterable[Pair], runs: Mapping[str, Mapping[str, Any]], arms: Mapping[str, Any]
) -> list[Finding]:
    """One finding per contrast of cells that were run; predictions have no server to audit."""
    types = {name: Arm.model_validate(arm) for name, arm in arms.items()}
    return [_finding(pair, runs, types) for pair in pairs if pair.source != "predicted"]


def spoilt(findings: Iterable[Finding], pairs: Iterable[Pair]) -> dict[str, str]:
    """Cell id to what makes its contrast unfair, for cells of unfair contrasts."""
    unfair = {_key(finding): finding for finding in findings if not finding.fair}
    reasons = {}
    for pair in pairs:
        finding = unfair.get(_key(pair))
        if finding is not None:
            keys = ", ".join(sorted({d.key for d in finding.undeclared}))
            for row in (*pair.baseline.cells, *pair.treatment.cells):
                reasons[row["cell_id"]] = (
                    f"invalid: {pair.contrast} on {pair.within} also differs in {keys}"
                )
    return reasons


def _key(of: Finding | Pair) -> tuple[str, str, str, int, str]:
    return (of.contrast, of.source, of.workload, of.concurrency, of.within)


def _finding(pair: Pair, runs: Mapping[str, Mapping[str, Any]], arms: Mapping[str, Arm]) -> Finding:
    differences: dict[tuple[str, str, str, str], Difference] = {}
    known = True
    within_engine = pair.baseline.cells[0]["engine"] == pair.treatment.cells[0]["engine"]
    declared = _declared(pair, arms) if within_engine else frozenset()
    for left in pair.baseline.cells:
        for right in pair.treatment.cells:
            sides = runs.get(left["cell_id"]), runs.get(right["cell_id"])
            if sides[0] is None or sides[1] is None:
                known = False
                continue
            for found in _differences(sides[0], sides[1], declared, within_engine=within_engine):
                key = (found.place, found.key, found.baseline, found.treatment)
                differences[key] = found
    return Finding(
        *_key(pair), pair.baseline.name, pair.treatment.name, known, tuple(differences.values())
    )


def _declared(pair: Pair, arms: Mapping[str, Arm]) -> frozenset[str]:
    """Option names in which the two arms differ by declaration."""
    sides = []
    for side in (pair.baseline, pair.treatment):
        name = side.cells[0]["arm"]
        sides.append(flatten(resolve_arm(dict(arms), name).options) if name in arms else {})
    return frozenset(
        key.rpartition(".")[2]
        for key in sides[0].keys() | sides[1].keys()
        if sides[0].get(key) != sides[1].get(key)
    )


def _differences(
    left: Mapping[str, Any],
    right: Mapping[str, Any],
    declared: frozenset[str],
    *,
    within_engine: bool,
) -> list[Difference]:
    found = []
    for place, one, two in _views(left, right, within_engine=within_engine):
        for key in sorted(one.keys() | two.keys()):
            values = one.get(key), two.get(key)
            if values[0] == values[1] or (place == "resolved" and None in values):
                continue
            leaf = key.rpartition(".")[2].removeprefix("--").replace("-", "_")
            names = {leaf} | DECLARED_AS.get(leaf, frozenset())
            one_said, two_said = ("not set" if v is None else str(v) for v in values)
            found.append(Difference(place, key, one_said, two_said, bool(names & declared)))
    return found


def _views(
    left: Mapping[str, Any], right: Mapping[str, Any], *, within_engine: bool
) -> list[tuple[str, dict[str, Any], dict[str, Any]]]:
    views = [("resolved", _resolved(left), _resolved(right))]
    if within_engine:
        views.append(("configuration file", _yaml(left), _yaml(right)))
        views.append(("command line", flags(left["argv"]), flags(right["argv"])))
        views.append(("versions", _versions(left), _versions(right)))
    return views


def _resolved(run: Mapping[str, Any]) -> dict[str, Any]:
    resolved = run.get("resolved") or {}
    return {key: value for key, value in flatten(resolved).items() if key not in _NOT_COMPARED}


def _yaml(run: Mapping[str, Any]) -> dict[str, Any]:
    merged: dict[str, Any] = {}
    for text in (run.get("files") or {}).values():
        document = yaml.safe_load(text)
        if isinstance(document, dict):
            merged |= flatten(document)
    return merged


def _versions(run: Mapping[str, Any]) -> dict[str, Any]:
    versions = run.get("versions") or {}
    return {key: versions.get(key) for key in ("engine", "driver")}


def flags(argv: Iterable[str]) -> dict[str, Any]:
    """Command line as option to value, without what changes at every launch."""
    found: dict[str, Any] = {}
    words = list(argv)
    for at, word in enumerate(words):
        if not word.startswith("--"):
            continue
        name, _, value = word.partition("=")
        following = words[at + 1] if at + 1 < len(words) else "--"
        if not value:
            value = "set" if following.startswith("--") else following
        if name not in _PER_LAUNCH:
            found[name] = value
    return found


def flatten(document: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested mapping as dotted keys."""
    flat: dict[str, Any] = {}
    for key, value in document.items():
        if isinstance(value, Mapping):
            flat |= flatten(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = value
    return flat

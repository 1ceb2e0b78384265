"""Everything the report reads, with the look-ups that its parts share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from kvstudy.report.page import Figure
from kvstudy.stats.audit import Finding
from kvstudy.stats.claims import Claim, Layout, Published
from kvstudy.stats.data import Data, Row

SOURCE_WORDS = {
    "published": "published",
    "measured": "measured",
    "emulated": "emulated",
    "predicted": "predicted",
}
PROVENANCE = {
    "measured": "measured on the GPU named under Environment",
    "emulated": "emulated: a scheduler model answers over HTTP, no GPU and no model ran",
    "predicted": "predicted: the same scheduler model in virtual time",
}


def published_first(rows: Sequence[Row], published: Sequence[Published]) -> list[Row]:
    """Rows of published workloads first, in the order of the published tables."""
    places: dict[str, int] = {}
    for file in published:
        for layout in file.layouts:
            places.setdefault(layout.workload, len(places))
    return sorted(rows, key=lambda row: places.get(row["workload"], len(places)))


@dataclass(frozen=True)
class Inputs:
    """One study's tables and words."""

    spec: Mapping[str, Any]
    data: Data
    contrasts: Sequence[Row]
    verdicts: Sequence[Row]
    runs: Mapping[str, Mapping[str, Any]]
    published: Sequence[Published]
    findings: Sequence[Finding] = ()
    figures: Sequence[Figure] = ()
    hypotheses: Sequence[Row] = ()
    regimes: Sequence[Row] = ()
    more: Mapping[str, Any] = field(default_factory=dict)

    @property
    def backend(self) -> str:
        """`measured` or `emulated`."""
        return str(self.spec["backend"])

    @property
    def config(self) -> Mapping[str, Any]:
        """The study as declared."""
        config: Mapping[str, Any] = self.spec["config"]
        return config

    @cached_property
    def run_sources(self) -> list[str]:
        """The run's own source first, then the prediction."""
        return [s for s in (self.backend, "predicted") if s in self.data.sources]

    @cached_property
    def claims(self) -> dict[str, Claim]:
        """Every claim by id."""
        return {claim.id: claim for file in self.published for claim in file.claims}

    @cached_property
    def verdict_of(self) -> dict[tuple[str, str], Row]:
        """Verdict row by claim and source."""
        return {(row["claim_id"], row["source"]): row for row in self.verdicts}

    @cached_property
    def layouts(self) -> list[Layout]:
        """Tables in the source's own layout."""
        return [layout for file in self.published for layout in file.layouts]

    @cached_property
    def arm_names(self) -> dict[str, str]:
        """Arm to how the published study names it; else its key."""
        names = {arm: arm for arm in self.config["arms"]}
        for layout in reversed(self.layouts):
            for arm, words in layout.arms.items():
                names[arm] = words.partition(" (")[0]
        return names

    def arm(self, name: str) -> str:
        """How the report names an arm."""
        return self.arm_names.get(name, name)

    def contrast(self, metric: str, source: str, **keys: Any) -> Row | None:
        """The contrast row of a metric; None where there is none."""
        for row in self.contrasts:
            same = row["metric"] == metric and row["source"] == source
            if same and all(row[key] == value for key, value in keys.items()):
                return row
        return None

    def provenance(self, sources: Sequence[str]) -> str:
        """What the numbers of a table are, for its head."""
        return "; ".join(PROVENANCE[source] for source in sources if source in PROVENANCE)

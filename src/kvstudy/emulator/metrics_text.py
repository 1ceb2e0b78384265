"""Prometheus text of the three engines: the counters and gauges this study reads, and some more."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field

_SECONDS = (0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


@dataclass(slots=True)
class Histogram:
    """A cumulative histogram of seconds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(_SECONDS) + 1))
    total_s: float = 0.0

    def observe(self, seconds: float) -> None:
        """One value."""
        self.counts[bisect_left(_SECONDS, seconds)] += 1
        self.total_s += seconds

    def lines(self, name: str, labels: str) -> Iterable[str]:
        """The family in text form; `labels` without braces."""
        yield f"# TYPE {name} histogram"
        seen = 0
        for bound, count in zip((*_SECONDS, "+Inf"), self.counts, strict=True):
            seen += count
            yield f'{name}_bucket{{le="{bound}",{labels}}} {seen}'
        yield f"{name}_sum{{{labels}}} {self.total_s}"
        yield f"{name}_count{{{labels}}} {seen}"


@dataclass(frozen=True, slots=True)
class Sample:
    """One value of a metric family; a family's samples stand together."""

    name: str
    kind: str
    value: float
    labels: str = ""

    def line(self, labels: str) -> str:
        """The sample in text form."""
        both = ",".join(part for part in (labels, self.labels) if part)
        return f"{self.name}{{{both}}} {self.value}"


def render(
    samples: Iterable[Sample], histograms: Iterable[tuple[str, Histogram]], labels: str
) -> str:
    """The whole page."""
    lines: list[str] = []
    family = ""
    for sample in samples:
        if sample.name != family:
            lines.append(f"# TYPE {sample.name} {sample.kind}")
            family = sample.name
        lines.append(sample.line(labels))
    for name, histogram in histograms:
        lines += histogram.lines(name, labels)
    return "\n".join(lines) + "\n"


def label(value: str) -> str:
    """A value as it may stand between quotes."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")

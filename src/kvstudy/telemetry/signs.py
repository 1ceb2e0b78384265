"""The words that knowledge of an engine's telemetry is written in."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

Release = tuple[int, int, int, int]
"""(major, minor, patch, candidate); a final release comes after its candidates."""


class Nature(StrEnum):
    """What a number is, and so how it may be added up."""

    EVENT = "event"
    """Belongs to one record: the sum over all records is the total. Lost records lose events."""
    COUNTER = "counter"
    """Grows since the server's start: last minus first is the total. Scrapes lose nothing."""
    GAUGE = "gauge"
    """A photograph of one moment: what happens between two looks is not seen."""
    LOG = "log line"
    """Printed when it happens."""


@dataclass(frozen=True, slots=True)
class Sign:
    """One thing to look at."""

    name: str
    nature: Nature
    meaning: str


@dataclass(frozen=True, slots=True)
class Entry:
    """One engine from one version on, until the engine's next entry."""

    adapter: str
    engine: str
    since: Release
    versions: str
    switch: str
    settings: str
    language: str
    look: str
    destructive: str
    interval: str
    signs: tuple[Sign, ...]
    not_shown: tuple[str, ...]
    pitfalls: tuple[str, ...]
    basis: str

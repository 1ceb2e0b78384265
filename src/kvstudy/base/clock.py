"""One monotonic clock per process, read as study time.

Study time is wall time since the clock's origin, multiplied by the time scale: an emulated cell
at scale 40 lives 40 s of study time in 1 s of wall time. A measured cell has scale 1.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field

from kvstudy.base.units import NS_PER_S


@dataclass(frozen=True, slots=True)
class StudyClock:
    """Monotonic wall clock with an origin and a scale."""

    scale: float = 1.0
    origin_wall_ns: int = field(default_factory=time.monotonic_ns)

    def now_ns(self) -> int:
        """Study time now, in ns since the origin."""
        return self.from_wall_ns(time.monotonic_ns())

    def from_wall_ns(self, wall_ns: int) -> int:
        """Study time of a reading of `time.monotonic_ns()`."""
        return round((wall_ns - self.origin_wall_ns) * self.scale)

    def to_wall_ns(self, study_ns: int) -> int:
        """The `time.monotonic_ns()` reading at which `study_ns` is reached."""
        return self.origin_wall_ns + round(study_ns / self.scale)

    def wall_s_until(self, study_ns: int) -> float:
        """Wall seconds from now until `study_ns`; negative when it has passed."""
        return (self.to_wall_ns(study_ns) - time.monotonic_ns()) / NS_PER_S

"""The workload file: which prompts a client will send in which order, and their true lengths."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvstudy.base.errors import DataError


@dataclass(frozen=True, slots=True)
class Expected:
    """One request that is going to come."""

    phase: int
    position: int
    prompt_sha256: str
    output_tokens: int


@dataclass(slots=True)
class Phase:
    """One phase of the file: its requests by position, and its closed-loop lanes (0: open loop)."""

    name: str
    concurrency: int
    requests: list[Expected] = field(default_factory=list)

    @property
    def first_count(self) -> int:
        """How many requests the phase begins with."""
        return min(self.concurrency, len(self.requests))


class Workload:
    """All phases in file order, searchable by prompt digest; a prompt may come more than once."""

    def __init__(self, phases: Iterable[Phase] = ()) -> None:
        self.phases = list(phases)
        self._by_digest: dict[str, deque[Expected]] = defaultdict(deque)
        for phase in self.phases:
            for request in phase.requests:
                self._by_digest[request.prompt_sha256].append(request)

    def __bool__(self) -> bool:
        return bool(self.phases)

    def claim(self, prompt_sha256: str) -> Expected | None:
        """The next request of the file with this prompt that has not come yet; None otherwise."""
        waiting = self._by_digest.get(prompt_sha256)
        return waiting.popleft() if waiting else None


def read_workload(path: Path) -> Workload:
    """Read a file of schema `base.tables.EXPECTED`. DataError if it is not one."""
    phases: dict[str, Phase] = {}
    rows: dict[str, list[dict[str, Any]]] = {}
    for row in _rows(path):
        name = row["phase"]
        phases.setdefault(name, Phase(name, row["concurrency"]))
        rows.setdefault(name, []).append(row)
    for index, (name, phase) in enumerate(phases.items()):
        mine = sorted(rows[name], key=lambda row: int(row["position"]))
        if [row["position"] for row in mine] != list(range(len(mine))):
            raise DataError(f"{path}: phase {name}: positions are not 0, 1, 2, …; write it again")
        if any(row["concurrency"] != phase.concurrency for row in mine):
            raise DataError(f"{path}: phase {name}: more than one concurrency; write it again")
        phase.requests = [
            Expected(index, row["position"], row["prompt_sha256"], row["output_tokens"])
            for row in mine
        ]
    return Workload(phases.values())


def _rows(path: Path) -> list[dict[str, Any]]:
    # Imported here, and read without `pq.read_table`: that would triple the time to start.
    import pyarrow as pa  # noqa: PLC0415
    import pyarrow.parquet as pq  # noqa: PLC0415

    from kvstudy.base import tables  # noqa: PLC0415

    wanted = tables.EXPECTED.schema
    try:
        with pq.ParquetFile(path) as file:
            schema = file.schema_arrow
            if not schema.equals(wanted) or not wanted.metadata.items() <= schema.metadata.items():
                raise DataError(f"{path}: is not table {tables.EXPECTED.name}; write it again")
            rows: list[dict[str, Any]] = file.read().to_pylist()
    except FileNotFoundError:
        raise DataError(f"{path}: no such file; write it first") from None
    except (pa.ArrowInvalid, OSError) as error:
        raise DataError(f"{path}: not a readable Parquet file ({error})") from error
    if any(row["output_tokens"] < 1 for row in rows):
        raise DataError(f"{path}: a request has no output token; write it again")
    return rows

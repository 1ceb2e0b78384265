"""A small file that says how far an allocation is, for `kvstudy watch` on any machine."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class ProgressFile:
    """Rewritten about once a second; losing one costs nothing, so nothing is synced."""

    path: Path
    allocation: str
    finished_cells: list[str] = field(default_factory=list)
    cell_id: str = ""
    phase: str = "start"
    requests: int = 0
    requests_done: int = 0
    chunks: int = 0
    tok_per_s: float = 0.0

    def enter(self, cell_id: str, phase: str, requests: int = 0) -> None:
        """A cell goes into a phase: start, warm-up, measuring, stopping."""
        self.cell_id, self.phase, self.requests = cell_id, phase, requests
        self.requests_done, self.chunks, self.tok_per_s = 0, 0, 0.0
        self.write()

    def advance(self, requests_done: int, chunks: int, tok_per_s: float) -> None:
        """Requests and chunks of the phase so far; tok_per_s in study time."""
        self.requests_done, self.chunks, self.tok_per_s = requests_done, chunks, tok_per_s
        self.write()

    def finish(self, cell_id: str) -> None:
        """A cell is in the store."""
        self.finished_cells.append(cell_id)
        self.requests_done = 0
        self.write()

    def write(self) -> None:
        """Replace the file; a full disk must not end a measurement for the sake of this file."""
        values = {key: value for key, value in vars(self).items() if key != "path"}
        values["updated_s"] = time.time()
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            temporary = self.path.with_name(f".{self.path.name}.tmp")
            temporary.write_text(json.dumps(values), encoding="utf-8")
            temporary.replace(self.path)

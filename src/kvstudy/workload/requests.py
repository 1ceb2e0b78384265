"""Reading a workload file back, phase by phase, in the order in which it is submitted."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvstudy.base import tables
from kvstudy.base.errors import DataError
from kvstudy.workload.lengths import submission_order

LENGTHS = ["request_id", "phase", "index", "input_tokens", "output_tokens", "output_cap_tokens"]
PROMPTS = [*LENGTHS, "arrival_s", "prompt_token_ids", "prompt_sha256"]


def in_order(
    path: Path, spec: dict[str, Any], repeat: int, columns: list[str]
) -> dict[str, list[dict[str, Any]]]:
    """Rows of a workload file per phase, in submission order.

    Warm-up comes as generated, the measured phase as the repeat's shuffle says. Raises DataError
    when the file does not hold the slice's workload.
    """
    rows = tables.read(path, tables.WORKLOAD, columns).to_pylist()
    phases: dict[str, list[dict[str, Any]]] = {"warmup": [], "measured": []}
    for row in rows:
        phases[row["phase"]].append(row)
    measured = phases["measured"]
    if len(measured) != spec["requests"]:
        raise DataError(
            f"{path}: holds {len(measured)} measured requests, the study wants "
            f"{spec['requests']}; delete it and run again"
        )
    order = submission_order(spec["seed"], spec["name"], repeat, len(measured))
    phases["measured"] = [measured[index] for index in order]
    return phases

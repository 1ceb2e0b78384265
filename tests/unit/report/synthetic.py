"""Synthetic studies: complete tables and runs.json, small by hand or full from the simulator."""

from __future__ import annotations

import json
import random
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import yaml

from kvstudy.base import files, tables
from kvstudy.metrics.per_request import complete
from kvstudy.metrics.rows import cell_row, keys_of
from kvstudy.study.plan import Study, study_from

ROOT = Path(__file__).resolve().parents[3]
GPU = "GPU-00000000-1111-2222-3333-444444444444"


def study_of(**changes: Any) -> Study:
    """The repository's own study with top-level keys replaced."""
    document = yaml.safe_load((ROOT / "config.yaml").read_text())
    return study_from({**document, **changes}, [])


@dataclass
class Tables:
    """Rows of every table, as the stages in front of the report would write them."""

    study: Study
    source: str
    cells: list[dict[str, Any]] = field(default_factory=list)
    requests: list[dict[str, Any]] = field(default_factory=list)
    iterations: list[dict[str, Any]] = field(default_factory=list)
    runs: dict[str, dict[str, Any]] = field(default_factory=dict)

    def add(
        self,
        cell_id: str,
        source: str,
        requests: list[dict[str, Any]],
        iterations: list[dict[str, Any]] = (),  # type: ignore[assignment]
        **facts: Any,
    ) -> None:
        """One cell of one source: its rows, and its summary by the project's own metrics."""
        plan = self.study.tables_plan()
        row = next(r for r in plan["cells"] if r["cell_id"] == cell_id)
        keys = keys_of(plan, row, source)
        whole = [complete(r, keys, r.pop("retokenized_tokens", r["chunk_count"])) for r in requests]
        facts = {"planned": len(whole), **facts}
        if source != "predicted":
            facts = {"attempt": 1, "time_scale": 1.0, "node": "node-a", "commit": "c" * 40} | facts
        self.cells.append(cell_row(plan, row, source, whole, list(iterations), facts))
        self.requests += whole
        names = [c.name for c in tables.ITERATIONS.columns if c.name not in ("cell_id", "source")]
        self.iterations += [
            {"cell_id": cell_id, "source": source, **{n: r.get(n) for n in names}}
            for r in iterations
        ]
        if source != "predicted":
            self.runs[cell_id] = run_of(self.study, cell_id, source)

    def write(self, folder: Path) -> Path:
        """Every input file of the report's steps."""
        tables.write(folder / "cells.parquet", self.cells, tables.CELLS)
        tables.write(folder / "requests.parquet", self.requests, tables.REQUESTS)
        tables.write(folder / "iterations.parquet", self.iterations, tables.ITERATIONS)
        files.write_json(folder / "runs.json", self.runs)
        files.write_json(folder / "study.json", self.study.resolved())
        return folder


def request(order: int, *, send_s: float, ttft_s: float, gaps_s: list[float], **own: Any) -> dict:
    """One completed request from its times in seconds."""
    send, first = round(send_s * 1e9), round((send_s + ttft_s) * 1e9)
    chunks = [first]
    for gap in gaps_s:
        chunks.append(chunks[-1] + round(gap * 1e9))
    ns = [b - a for a, b in pairwise(chunks)]
    row = {
        "request_id": f"q{order:04d}",
        "submit_order": order,
        "lane": order % 2,
        "scheduled_ns": send,
        "send_ns": send,
        "first_byte_ns": first,
        "first_chunk_ns": first,
        "last_chunk_ns": chunks[-1],
        "end_ns": chunks[-1],
        "chunk_ns": chunks,
        "chunk_count": len(chunks),
        "empty_chunk_count": 0,
        "read_count": len(chunks),
        "planned_input_tokens": 16384,
        "server_input_tokens": None,
        "cached_tokens": 0,
        "planned_output_tokens": len(chunks),
        "output_cap_tokens": 512,
        "usage_tokens": None,
        "finish_reason": "length",
        "outcome": "ok",
        "http_status": 200,
        "error": None,
        "output_sha256": None,
        "ttft_ns": first - send,
        "tpot_chunks_ns": (chunks[-1] - chunks[0]) / len(ns) if ns else None,
        "e2e_ns": chunks[-1] - send,
        "max_gap_ns": max(ns, default=None),
        "stall_count": sum(gap > 1e9 for gap in ns) if ns else None,
    }
    return row | own


def iterations_of(until_s: float, steps: int = 40, **own: Any) -> list[dict[str, Any]]:
    """A plain server record: full pool, one pause in the middle."""
    return [
        {
            "t_ns": round(until_s * 1e9 * (i + 1) / steps),
            "iter": i,
            "scheduled_requests": 2,
            "context_requests": 0,
            "generation_requests": 2,
            "paused_requests": int(i == steps // 2),
            "context_tokens": 0,
            "active_requests": 4,
            "queued_requests": 0,
            "used_blocks": 10000 + 10 * i,
            "free_blocks": 1520 - 10 * i,
            "max_blocks": 11520,
            "iter_latency_ns": round(until_s * 1e9 / steps),
        }
        | own
        for i in range(steps)
    ]


def run_of(study: Study, cell_id: str, source: str) -> dict[str, Any]:
    """The runs.json entry of a cell whose server resolved what was declared."""
    cell = study.cell(cell_id)
    policy = "MAX_UTILIZATION" if cell.arm == "mu" else "GUARANTEED_NO_EVICT"
    extra = {
        "kv_cache_config": {"enable_block_reuse": False, "dtype": "fp8", "max_tokens": 368640},
        "enable_chunked_prefill": True,
        "scheduler_config": {"capacity_scheduler_policy": policy},
    }
    version = study.config.engines[cell.engine].version
    return {
        "source": source,
        "engine": cell.engine,
        "arm": cell.arm,
        "argv": ["trtllm-serve", "serve", "/model", "--max_batch_size", "64", "--port", "41001"],
        "files": {"extra.yaml": yaml.safe_dump(extra)},
        "resolved": {
            "policy": policy,
            "pool_tokens": 368640,
            "block_tokens": 32,
            "kv_dtype": "fp8",
            "max_batch_size": 64,
            "excerpts": [f"capacity_scheduler_policy=<{policy}>"],
        },
        "mismatches": [],
        "versions": {"python": "3.11.7", "kvstudy": "0.1.0", "engine": version, "driver": None},
        "host": {"node": "node-a", "cpu": "a processor", "os": "Debian 12"},
        "gpu": {"uuid": GPU, "name": "NVIDIA H200", "driver": "580.65.06"}
        if source == "measured"
        else None,
        "started_at": "2026-12-01T10:00:00Z",
        "time_scale": 1.0 if source == "measured" else 60.0,
        "ending": "stopped",
        "commit": "c" * 40,
        "dirty": False,
        "spec_digest": study.cell_digest(cell),
        "attempt": 1,
        "pins": {"image": "sha256:" + "b" * 64, "model_revision": study.config.model.revision},
    }


def small_study(source: str = "measured", *, ttft_s: float = 2.0) -> Tables:
    """W-C on 1.2.1 only: 4 requests a cell, numbers one can compute in one's head.

    GUARANTEED_NO_EVICT: every request 2 s to the first of 5 chunks, 0.1 s between them.
    MAX_UTILIZATION: half the time to first chunk, twice the gaps, one stall of 3 s.
    """
    built = Tables(study_of(backend=source), source)
    for kind in (source, "predicted"):
        for repeat in (1, 2):
            slow = 1 + 0.01 * (repeat - 1) * (kind != "predicted")
            gne = [
                request(i, send_s=i // 2 * 3.0, ttft_s=ttft_s, gaps_s=[0.1 * slow] * 4)
                for i in range(4)
            ]
            mu = [
                request(i, send_s=i // 2 * 3.0, ttft_s=ttft_s / 2, gaps_s=[0.2 * slow] * 3 + [3.0])
                if i == 3
                else request(i, send_s=i // 2 * 3.0, ttft_s=ttft_s / 2, gaps_s=[0.2 * slow] * 4)
                for i in range(4)
            ]
            for arm, rows in (("gne", gne), ("mu", mu)):
                cell_id = f"W-C.c32.trtllm-1.2.1.{arm}.r{repeat}"
                gpu = {"gpu_uuid": GPU} if kind == "measured" else {}
                built.add(cell_id, kind, rows, iterations_of(8.0), **gpu)
    return built


def full_study(source: str = "emulated", *, noise: float = 0.002, **changes: Any) -> Tables:
    """The configured study, every cell from the simulator, the run's own with a little jitter."""
    from kvstudy.sim.of_cell import Prediction
    from kvstudy.workload.lengths import submission_order

    built = Tables(study_of(backend=source, **changes), source)
    for cell in built.study.cells:
        values = json.loads(built.study.prediction_spec(SimpleNamespace(cell=cell.id)))
        workload = values["workload"]
        planned = _planned(workload)
        order = submission_order(16827, cell.workload, cell.repeat, len(planned))
        prediction = Prediction(values, [planned[i] for i in order])
        facts = {k: v for k, v in prediction.totals.items() if k != "iterations"}
        built.add(cell.id, "predicted", prediction.request_rows(), prediction.iterations, **facts)
        rng = random.Random(f"{cell.id}")
        speed = 1 + rng.uniform(-noise, noise)
        rows = [_jitter(r, speed, rng) for r in prediction.request_rows()]
        steps = [s | {"t_ns": round(s["t_ns"] * speed)} for s in prediction.iterations]
        gpu = {"gpu_uuid": GPU} if source == "measured" else {"time_scale": 60.0}
        built.add(cell.id, source, rows, steps, **facts, **gpu)
    return built


def _planned(workload: dict[str, Any]) -> list[dict[str, Any]]:
    rng = random.Random(16827)

    def draw(length: Any) -> int:
        return length if isinstance(length, int) else rng.randint(*length["uniform"])

    rows = []
    for i in range(workload["requests"]):
        output = draw(workload["output_tokens"])
        cap = workload["output_cap_tokens"]
        rows.append(
            {
                "request_id": f"{workload['name']}-{i:04d}",
                "input_tokens": draw(workload["input_tokens"]),
                "output_tokens": output,
                "output_cap_tokens": cap if isinstance(cap, int) else output,
            }
        )
    return rows


def _jitter(row: dict[str, Any], speed: float, rng: random.Random) -> dict[str, Any]:
    """The row with all times stretched a little and each chunk up to 2 ms late."""
    chunks = sorted(round(t * speed) + rng.randint(0, 2_000_000) for t in row["chunk_ns"])
    send = round(row["send_ns"] * speed)
    ns = [b - a for a, b in pairwise(chunks)]
    return row | {
        "scheduled_ns": send,
        "send_ns": send,
        "first_byte_ns": chunks[0],
        "first_chunk_ns": chunks[0],
        "last_chunk_ns": chunks[-1],
        "end_ns": chunks[-1],
        "chunk_ns": chunks,
        "ttft_ns": chunks[0] - send,
        "tpot_chunks_ns": (chunks[-1] - chunks[0]) / len(ns) if ns else None,
        "e2e_ns": chunks[-1] - send,
        "max_gap_ns": max(ns, default=None),
        "stall_count": sum(gap > 1e9 for gap in ns) if ns else None,
    }

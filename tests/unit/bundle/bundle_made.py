"""A finished results folder, constructed: the steps of the line on simulated cells, no server."""

from __future__ import annotations

import copy
import json
import zipfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

import kvstudy
from kvstudy.base import tables
from kvstudy.base.digest import sha256_text
from kvstudy.base.files import write_json, write_text
from kvstudy.base.store import CellStore
from kvstudy.bundle.pack import in_memory, write_zip
from kvstudy.bundle.publish import CHECKSUMS, publish
from kvstudy.bundle.publish import checksums as sums_of
from kvstudy.bundle.scrub import Scrubber
from kvstudy.steps import build_tables, check_cell, compare_arms, make_workload, simulate_cell
from kvstudy.study.parse import parse_config
from kvstudy.study.plan import Study
from kvstudy.workload.tokens import HubTokenizer, tokenizer_digest

TOKENIZER = Path(kvstudy.__file__).parent / "workload" / "tokenizer"
CLAIMS = """
study: made
title: constructed claims of a constructed study
defaults: {engine: trtllm-1.2.1, concurrency: 4, workload: W-B}
claims:
  - id: made.gne.throughput
    group: made
    label: throughput of a constructed study
    value: 100.0
    unit: tok/s
    step: 0.1
    where: nowhere
    compute: {op: value, of: {arm: gne, metric: output_tok_per_s, repeat: mean}}
    tolerance: {relative: 0.5, reason: constructed}
"""


def study_of(document: dict[str, Any]) -> Study:
    """One engine, two arms, two repeats of a small workload."""
    small = copy.deepcopy(document)
    small |= {"study": "made", "title": "A constructed study", "published": ["claims/made.yaml"]}
    small["engines"] = {"trtllm-1.2.1": small["engines"]["trtllm-1.2.1"]}
    small["workloads"] = {
        "W-B": {
            "requests": 12, "input_tokens": 64, "output_tokens": 16, "ignore_eos": True,
            "concurrency": [4], "repeats": 2, "warmup": None,
        }
    }  # fmt: skip
    small["arms"]["gne"]["engines"] = ["trtllm-1.2.1"]
    small["contrasts"] = [{"baseline": "gne", "treatment": "mu", "within": "engine"}]
    small["emulator"]["fitted_to"] = []
    return Study(parse_config(small))


def checkout(folder: Path) -> Path:
    """A checkout as publish sees one."""
    write_text(folder / "Snakefile", "rule all:\n    input: []\n")
    write_text(folder / "rules" / "study.smk", "# rules\n")
    write_text(folder / "LICENSE", "a licence\n")
    write_text(folder / "claims" / "made.yaml", CLAIMS)
    return folder


def results(folder: Path, study: Study, claims: Path) -> Path:
    """The results folder of a study whose cells are the simulator's."""
    write_json(folder / "study.json", study.resolved())
    write_json(folder / "plan.json", study.tables_plan())
    tokenizer = _tokenizer(folder)
    make_workload.main(
        [
            *("--spec", study.workload_spec(SimpleNamespace(workload="W-B"))),
            *("--tokenizer", str(tokenizer / "tokenizer.digest.json")),
            *("--requests", str(folder / "workloads" / "W-B.parquet")),
            *("--manifest", str(folder / "workloads" / "W-B.json")),
        ]
    )
    words = HubTokenizer(tokenizer)
    plain = next(i for i in range(words.size) if words.encode(words.decode([i]) * 16) == [i] * 16)
    for cell in study.cells:
        _cell(folder, study, cell.id, words.decode([plain]))
    tabulate(folder, study, claims)
    _rest(folder, study)
    return folder


def tabulate(folder: Path, study: Study, claims: Path) -> None:
    """Tables and statistics, by the steps of the line."""
    named = {n: folder / "tables" / f"{n}.parquet" for n in ("requests", "iterations", "cells")}
    runs = ["--runs", str(folder / "tables" / "runs.json")]
    build_tables.main(
        [
            *("--plan", str(folder / "plan.json")),
            *("--tokenizer", str(folder / "tokenizer" / "tokenizer.digest.json")),
            *("--cells-dir", str(folder / "cells"), "--predicted-dir", str(folder / "predicted")),
            *(word for name, path in named.items() for word in (f"--{name}", str(path))),
            *runs,
        ]
    )
    compare_arms.main(
        [
            *("--spec", study.stats_spec(), "--cells", str(named["cells"])),
            *("--requests", str(named["requests"]), *runs, "--study", str(folder / "study.json")),
            *("--published", str(claims)),
            *("--contrasts", str(folder / "stats" / "contrasts.parquet")),
            *("--verdicts", str(folder / "stats" / "verdicts.parquet")),
        ]
    )


def _tokenizer(folder: Path) -> Path:
    place = folder / "tokenizer"
    place.mkdir(parents=True)
    for path in TOKENIZER.glob("*.json"):
        (place / path.name).write_bytes(path.read_bytes())
    digest = {"backend": "emulated", "sha256": tokenizer_digest(place)}
    write_json(place / "tokenizer.digest.json", digest)
    return place


def _cell(folder: Path, study: Study, cell_id: str, word: str) -> None:
    """A predicted cell, and the same rows once more as if they had been measured."""
    names = SimpleNamespace(cell=cell_id)
    predicted = folder / "predicted" / cell_id
    simulate_cell.main(
        [
            *("--spec", study.prediction_spec(names)),
            *("--workload", str(folder / "workloads" / "W-B.parquet")),
            *("--requests", str(predicted / "requests.parquet")),
            *("--iterations", str(predicted / "iterations.parquet")),
            *("--run", str(predicted / "run.json")),
        ]
    )
    cell = study.cell(cell_id)
    attempt = CellStore(folder / "store", cell_id, study.cell_digest(cell)).start(1)
    rows = tables.read(predicted / "requests.parquet", tables.CLIENT_REQUESTS).to_pylist()
    texts = {row["request_id"]: word * row["chunk_count"] for row in rows}
    rows = [row | {"output_sha256": sha256_text(texts[row["request_id"]])} for row in rows]
    outputs = [{"request_id": key, "text": text} for key, text in texts.items()]
    tables.write(attempt.folder / "requests.parquet", rows, tables.CLIENT_REQUESTS)
    tables.write(attempt.folder / "outputs.parquet", outputs, tables.OUTPUTS)
    (attempt.folder / "iterations.parquet").write_bytes(
        (predicted / "iterations.parquet").read_bytes()
    )
    write_json(attempt.folder / "run.json", _run(study, cell_id))
    write_text(attempt.folder / "server.log", "server up\nserver down\n")
    write_text(attempt.folder / "telemetry.jsonl", '{"path": "/metrics", "body": "[]"}\n' * 3)
    write_text(attempt.folder / "extra.yaml", "kv_cache_config: {dtype: fp8}\n")
    attempt.seal({"cell_id": cell_id})
    check_cell.main(
        [
            *("--spec", study.cell_spec(names), "--store", str(folder / "store")),
            *("--manifest", "unused", "--check", str(folder / "cells" / cell_id / "check.json")),
        ]
    )


def _run(study: Study, cell_id: str) -> dict[str, Any]:
    cell = study.cell(cell_id)
    policy = {"gne": "GUARANTEED_NO_EVICT", "mu": "MAX_UTILIZATION"}[cell.arm]
    return {
        "cell_id": cell_id, "engine": cell.engine, "attempt": 1, "source": "emulated",
        "argv": ["serve", "--config", "{dir}/extra.yaml"], "env": {"KVSTUDY_API_KEY": "***"},
        "files": {"extra.yaml": "kv_cache_config: {dtype: fp8}\n"},
        "resolved": {"policy": policy, "excerpts": []},
        "versions": {"engine": "1.2.1", "python": "3.11"},
        "audit": {"clock_jumps": 0, "loop_lag_p99_ms": 1.0, "loop_lag_max_ms": 2.0,
                  "cpu_share": 0.1},
        "phases_s": {"starting": 1.0, "warming": 1.0, "measuring": 5.0, "stopping": 1.0},
        "gpu": None, "host": {"node": "constructed", "cpu": "none"}, "commit": "c0ffee" * 6,
        "dirty": False, "reasons": [], "time_scale": 1.0, "pins": {"image_digest": None},
        "started_at": f"2026-01-0{cell.repeat}T00:00:00Z",
    }  # fmt: skip


def _rest(folder: Path, study: Study) -> None:
    """What the bundle carries and nothing here is about."""
    write_text(folder / "report" / "index.html", "<!doctype html><title>made</title>\n")
    write_text(folder / "report" / "report.md", "# made\n")
    write_text(folder / "figures" / "effects.svg", "<svg/>\n")
    write_text(folder / "figures" / "effects.csv", "a,b\n1,2\n")
    write_json(folder / "figures" / "manifest.json", [])
    write_json(folder / "pins" / "lock.json", {"digest": "0" * 64})
    write_json(folder / "pins" / "trtllm-1.2.1.probe.json", {"engine": "trtllm-1.2.1"})
    write_text(folder / "logs" / "build_tables.log", "all well\n")
    for cell in study.cells:
        write_json(folder / "allocations" / f"{cell.allocation}.json", {"cells": {}})


def document(root: Path) -> dict[str, Any]:
    """The published configuration, on the emulated backend."""
    loaded = yaml.safe_load((root / "config.yaml").read_text(encoding="utf-8"))
    return {**json.loads(json.dumps(loaded)), "backend": "emulated"}


_BUILT: dict[str, Any] = {}


@pytest.fixture(scope="session")
def made(root: Path, tmp_path_factory: pytest.TempPathFactory) -> SimpleNamespace:
    """A constructed study: `.study`, `.results` (holds emulated/), `.checkout`. Copy to change."""
    # Modules of two folders import this fixture; each would build the study anew.
    if "made" not in _BUILT:
        base = tmp_path_factory.mktemp("made")
        study = study_of(document(root))
        place = checkout(base / "checkout")
        results(base / "results" / "emulated", study, place / "claims" / "made.yaml")
        _BUILT["made"] = SimpleNamespace(study=study, results=base / "results", checkout=place)
    return _BUILT["made"]


@pytest.fixture(scope="session")
def bundle(made: SimpleNamespace, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The bundle of the constructed study."""
    if "bundle" not in _BUILT:
        out = tmp_path_factory.mktemp("bundle") / "made.zip"
        publish(
            made.results / "emulated",
            out,
            checkout=made.checkout,
            licence="https://example.org/licence",
            scrubber=Scrubber({}),
        )
        _BUILT["bundle"] = out
    return _BUILT["bundle"]


# ---- bundles with something wrong ------------------------------------------------------------


def members(path: Path) -> dict[str, bytes]:
    """A bundle's files by name."""
    with zipfile.ZipFile(path) as archive:
        return {name: archive.read(name) for name in archive.namelist()}


def packed(path: Path, files: dict[str, bytes], *, checksums: bool) -> Path:
    """A bundle of these files; `checksums`: with sums that match them again."""
    listed = [in_memory(name, content) for name, content in files.items() if name != CHECKSUMS]
    if checksums:
        listed.append(in_memory(CHECKSUMS, json.dumps(sums_of(listed)).encode()))
    else:
        listed.append(in_memory(CHECKSUMS, files[CHECKSUMS]))
    write_zip(path, listed)
    return path

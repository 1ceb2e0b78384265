"""One cell, from a fresh server to a sealed attempt in the store."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import httpx

from kvstudy.base import tables
from kvstudy.base.clock import StudyClock
from kvstudy.base.errors import CellError
from kvstudy.base.files import write_json
from kvstudy.base.store import Attempt
from kvstudy.base.units import NS_PER_S, ns_to_s
from kvstudy.cell.facts import host, versions, visible_gpu
from kvstudy.cell.launch import Place, launch_of
from kvstudy.cell.progress import ProgressFile
from kvstudy.client.model import Limits, Load, Planned, Progress, Target
from kvstudy.client.phase import PhaseResult, run_phase
from kvstudy.serve import resolved as resolving
from kvstudy.serve.lifecycle import Server, serve
from kvstudy.serve.model import Ended, Ending
from kvstudy.telemetry.collect import Collected
from kvstudy.telemetry.poll import Poller, interval_ms
from kvstudy.telemetry.poll import Target as Endpoint

Row = dict[str, Any]
STOP_GRACE_S = 60.0


@dataclass(frozen=True, slots=True)
class Job:
    """What to measure: the cell's values, its requests in order, and where it stands."""

    values: Row
    phases: Mapping[str, list[Row]]
    place: Place
    pins: Row
    commit: str | None
    dirty: bool


@dataclass(slots=True)
class _Outcome:
    """What one server life gave."""

    warmup: PhaseResult | None
    measured: PhaseResult
    telemetry: Collected
    resolved: resolving.Resolved
    emulator: Row | None
    marks_ns: dict[str, int]


async def measure(job: Job, attempt: Attempt, progress: ProgressFile) -> Row:
    """Run one cell into `attempt` and seal it; returns its run.json.

    Raises CellError with a reason code when the server cannot be measured or dies; the attempt
    then stays partial, with what there is of its log.
    """
    cell_id = job.values["cell_id"]
    progress.enter(cell_id, "start")
    server = serve(
        launch_of(job.values, job.place),
        attempt.folder,
        ready_timeout_s=job.values["client"]["ready_timeout_s"],
        stop_grace_s=STOP_GRACE_S,
        relaunch=lambda port: launch_of(job.values, job.place, port),
    )
    async with server:
        outcome = await _use(job, server, attempt, progress)
        progress.enter(cell_id, "stopping")
    ended = server.ended
    if ended is None or ended.ending is Ending.DIED:
        raise CellError(
            "server_died", f"{cell_id}: the server died during the run; see {server.log_path}"
        )
    facts = _facts(job, attempt, server, ended, outcome)
    _write(attempt, outcome, facts)
    attempt.seal({"cell_id": cell_id, "attempt": attempt.number})
    progress.finish(cell_id)
    return facts


async def _use(job: Job, server: Server, attempt: Attempt, progress: ProgressFile) -> _Outcome:
    values = job.values
    clock = StudyClock(scale=job.place.time_scale)
    resolved = await _resolved(values["cell_id"], server)
    marks_ns = {"ready": time.time_ns()}
    poller = Poller(
        _endpoint(server, values),
        clock,
        attempt.folder / "telemetry.jsonl",
        interval_ms=interval_ms(values["telemetry"]["interval_ms"], clock.scale),
    )
    async with poller:
        warm = await _phase(job, "warmup", clock, attempt, progress, server)
        marks_ns["measuring"] = time.time_ns()
        measured = await _phase(job, "measured", clock, attempt, progress, server)
        marks_ns["measured"] = time.time_ns()
        telemetry = await poller.stop()
    assert measured is not None  # noqa: S101 - a workload has measured requests
    summary = await _summary(server) if values["backend"] == "emulated" else None
    return _Outcome(warm, measured, telemetry, resolved, summary, marks_ns)


async def _resolved(cell_id: str, server: Server) -> resolving.Resolved:
    """What the server says it is; raises CellError where that is not what was declared."""
    found = await resolving.read(server.launch, server.log_text())
    problems = resolving.mismatches(server.launch.expectations, found)
    if problems:
        raise CellError("server_config", f"{cell_id}: {'; '.join(problems)}; not measured")
    return found


def _endpoint(server: Server, values: Row) -> Endpoint:
    routes = server.launch.routes
    on = values["telemetry"]["enabled"]
    return Endpoint(
        url=server.url,
        path=routes.metrics_path if on else None,
        kind=routes.metrics_kind.value if on else "none",
        adapter=server.launch.adapter,
        version=values["engine"]["version"],
        headers=server.headers,
        block_tokens=values["server"]["kv_pool"]["block_tokens"],
        perf_metrics_path=routes.perf_metrics_path if on else None,
    )


def _target(server: Server) -> Target:
    llama = server.launch.adapter == "llamacpp"
    return Target(
        base_url=server.url,
        model=server.launch.expectations.served_model,
        api_key=server.launch.api_key,
        # llama.cpp reuses a slot's cache unless it is told not to, whatever the server's flags.
        extra_body={"cache_prompt": False} if llama else {},
    )


async def _phase(
    job: Job,
    phase: str,
    clock: StudyClock,
    attempt: Attempt,
    progress: ProgressFile,
    server: Server,
) -> PhaseResult | None:
    rows = job.phases[phase]
    if not rows:
        return None
    values = job.values
    warm = phase == "warmup"
    lanes = values["workload"]["warmup"]["concurrency"] if warm else values["concurrency"]
    progress.enter(values["cell_id"], "warm-up" if warm else "measuring", len(rows))
    started = clock.now_ns()

    def show(now: Progress) -> None:
        elapsed_s = ns_to_s(clock.now_ns() - started)
        progress.advance(now.finished, now.chunks, now.chunks / max(elapsed_s, 1e-9))

    load = asyncio.ensure_future(
        run_phase(
            _target(server),
            [_planned(row) for row in rows],
            Load(concurrency=lanes),
            _limits(values),
            clock,
            journal=None if warm else attempt.folder / "journal.jsonl",
            on_progress=show,
        )
    )
    death = asyncio.ensure_future(server.died())
    try:
        await asyncio.wait({load, death}, return_when=asyncio.FIRST_COMPLETED)
        if not load.done():
            raise CellError(
                "server_died",
                f"{values['cell_id']}: the server died in {phase}; see {server.log_path}",
            )
        return load.result()
    finally:
        for task in (load, death):
            task.cancel()
        await asyncio.gather(load, death, return_exceptions=True)


def _planned(row: Row) -> Planned:
    return Planned(
        request_id=row["request_id"],
        prompt=row["prompt_token_ids"],
        input_tokens=row["input_tokens"],
        output_tokens=row["output_tokens"],
        output_cap_tokens=row["output_cap_tokens"],
        arrival_s=row["arrival_s"],
    )


def _limits(values: Row) -> Limits:
    client = values["client"]
    early = values["backend"] == "measured" and (
        values["workload"]["output_tokens"] != values["workload"]["output_cap_tokens"]
    )
    return Limits(
        no_progress_s=client["no_progress_s"],
        max_duration_s=client["max_duration_s"],
        stall_threshold_ms=client["stall_threshold_ms"],
        close_after_planned=early,
    )


async def _summary(server: Server) -> Row:
    async with httpx.AsyncClient(trust_env=False, timeout=30) as client:
        answer = await client.get(f"{server.url}/emulator/summary", headers=server.headers)
        answer.raise_for_status()
        return dict(answer.json())


def _reasons(outcome: _Outcome) -> list[str]:
    """Reason codes that only this process can know."""
    codes = []
    if outcome.emulator is not None and outcome.emulator["late_arrivals"]:
        codes.append("emulator_late")
    return codes


def _facts(job: Job, attempt: Attempt, server: Server, ended: Ended, outcome: _Outcome) -> Row:
    values = job.values
    marks = outcome.marks_ns
    ready = ended.ready_ns or marks["ready"]
    phases_s = {
        "starting": (ready - ended.launch_ns) / NS_PER_S,
        "warming": (marks["measuring"] - ready) / NS_PER_S,
        "measuring": (marks["measured"] - marks["measuring"]) / NS_PER_S,
        "stopping": (ended.ended_ns - marks["measured"]) / NS_PER_S,
    }
    gpu = visible_gpu() if values["backend"] == "measured" else None
    return {
        "cell_id": values["cell_id"],
        "source": values["backend"],
        "engine": values["engine"]["name"],
        "attempt": attempt.number,
        "argv": list(server.launch.argv),
        "env": server.launch.public_env,
        "files": server.launch.files,
        "resolved": outcome.resolved.as_json(),
        "mismatches": [],
        "unstated": resolving.unstated(server.launch.expectations, outcome.resolved),
        "versions": {**versions(), "engine": server.version},
        "host": host(),
        "gpu": gpu,
        "started_at": time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ended.launch_ns / NS_PER_S)),
        "time_scale": job.place.time_scale,
        "ending": ended.ending.value,
        "leftovers": ended.leftovers,
        "exposed": server.exposed,
        "commit": job.commit,
        "dirty": job.dirty,
        "pins": job.pins,
        "phases_s": phases_s,
        "audit": asdict(outcome.measured.audit),
        "warmup_audit": asdict(outcome.warmup.audit) if outcome.warmup else None,
        "telemetry": outcome.telemetry.as_json(),
        "emulator": outcome.emulator,
        "reasons": _reasons(outcome),
    }


def _write(attempt: Attempt, outcome: _Outcome, facts: Row) -> None:
    folder: Path = attempt.folder
    tables.write(folder / "requests.parquet", outcome.measured.rows, tables.CLIENT_REQUESTS)
    tables.write(folder / "outputs.parquet", outcome.measured.texts, tables.OUTPUTS)
    if outcome.warmup is not None:
        tables.write(folder / "warmup.parquet", outcome.warmup.rows, tables.CLIENT_REQUESTS)
    iterations = outcome.telemetry.rows
    tables.write(folder / "iterations.parquet", iterations, tables.CELL_ITERATIONS)
    write_json(folder / "run.json", facts)
    # The journal kept the rows of a running cell; the table holds them all now.
    (folder / "journal.jsonl").unlink(missing_ok=True)

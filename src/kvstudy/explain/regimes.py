"""When MAX_UTILIZATION wins: a map of pool, output lengths and concurrency, and the cliff.

The map scans the pool from far too small to more than enough, for request shapes taken from the
study's workloads, with outputs that end ever further below their cap. The cliff scans single
blocks around a workload's own pool, where whole numbers of residents decide.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvstudy.base.digest import sha256_text
from kvstudy.base.errors import ConfigError
from kvstudy.explain.hypotheses import pressured_pairs
from kvstudy.explain.scenario import (
    BASELINE,
    TREATMENT,
    Outcome,
    Scenario,
    exact_lengths,
    ratio,
    scenario_of,
)
from kvstudy.sim.model import Pause
from kvstudy.sim.of_cell import pause_of
from kvstudy.sim.request import blocks_of
from kvstudy.sim.spec import RequestShape
from kvstudy.study.plan import Cell, Study

Row = dict[str, Any]

EQUAL = 0.002
"""Ratios closer to 1 than this count as equal."""


@dataclass(frozen=True, slots=True)
class Grid:
    """What is scanned; the config's `regime_map` block."""

    workloads: Sequence[str] = ()
    pool_ratios: Sequence[float] = (0.2, 0.35, 0.5, 0.65, 0.8, 0.9, 1.0)
    output_shares: Sequence[Sequence[float]] = ((1, 1), (0.5, 1), (0.1, 1), (1 / 64, 0.25))
    concurrency: Sequence[int] = (16, 32, 64, 128)
    requests: int = 96
    cliff_blocks: Sequence[int] = ()
    cliff_step: int = 8

    @classmethod
    def of(cls, block: Mapping[str, Any]) -> Grid:
        """The block with defaults for what it does not give; unknown keys are an error."""
        unknown = sorted(set(block) - set(cls.__slots__))
        if unknown:
            raise ConfigError([f"regime_map.{name}: unknown key" for name in unknown])
        return cls(**block)


def regimes(study: Study, grid: Grid) -> list[Row]:
    """All rows of `tables.REGIMES`."""
    rows = [row for cell in _shapes(study, grid) for row in map_rows(study, cell, grid)]
    pairs = pressured_pairs(study)
    if pairs:
        rows += cliff_rows(study, [cell for cell, _ in pairs], grid)
    return rows


def _shapes(study: Study, grid: Grid) -> list[Cell]:
    """One TensorRT-LLM cell per workload of the map; by default those with a pressured shape."""
    cells = [c for c in study.cells if study.config.engines[c.engine].adapter == "trtllm"]
    known = {cell.workload for cell in cells}
    wanted = grid.workloads or [name for name in _default_workloads(study) if name in known]
    for name in wanted:
        if name not in known:
            raise ConfigError([f"regime_map.workloads: no TensorRT-LLM cell of workload {name!r}"])
    return [next(c for c in cells if c.workload == name) for name in wanted]


def _default_workloads(study: Study) -> list[str]:
    """Workloads whose outputs may end below their cap first, then those under KV pressure."""
    early = [
        name
        for name in study.workloads_in_use
        if not isinstance(study.config.workloads[name].output_tokens, int)
    ]
    pressured = [cell.workload for cell, _ in pressured_pairs(study)]
    return list(dict.fromkeys([*early, *pressured]))


def _base(study: Study, cell: Cell) -> tuple[Scenario, str]:
    """The cell's engine with equal requests: longest prompt, full cap."""
    values = json.loads(study.prediction_spec(SimpleNamespace(cell=cell.id)))
    workload = values["workload"]
    longest = workload["input_tokens"]
    exact = {
        **workload,
        "input_tokens": longest if isinstance(longest, int) else max(longest["uniform"]),
        "output_tokens": workload["output_cap_tokens"],
    }
    return scenario_of({**values, "workload": exact}, exact_lengths), cell.workload


def map_rows(study: Study, cell: Cell, grid: Grid) -> Iterator[Row]:
    """One row per pool ratio, spread of outputs and concurrency."""
    base, workload = _base(study, cell)
    full = base.requests[0]
    for lanes in grid.concurrency:
        for low, high in grid.output_shares:
            requests = _requests(full, max(grid.requests, 3 * lanes), low, high)
            for share in grid.pool_ratios:
                scenario = replace(
                    base,
                    requests=requests,
                    concurrency=lanes,
                    engine=replace(
                        base.engine, max_batch_size=max(base.engine.max_batch_size, lanes)
                    ),
                )
                blocks = max(round(share * lanes * scenario.full_blocks), scenario.full_blocks)
                yield _row(
                    "map", workload, spread_words(low, high), scenario.with_pool(blocks), Pause()
                )


def cliff_rows(study: Study, cells: Sequence[Cell], grid: Grid) -> list[Row]:
    """Both policies block by block around the pool, once per pause mode of the study's engines."""
    base, workload = _base(study, cells[0])
    modes = {"recompute": Pause()}
    for cell in cells:
        mode = study.config.engines[cell.engine].emulate.model_dump()["pause"]
        modes.setdefault(pause_words(pause_of(mode)), pause_of(mode))
    return [
        _row("cliff", workload, spread_words(1, 1), base.with_pool(blocks), pause)
        for pause in modes.values()
        for blocks in cliff_pools(base, grid)
    ]


def cliff_pools(base: Scenario, grid: Grid) -> list[int]:
    """Pools of the fine scan: evenly spaced, and every block around whole residents.

    By default from a little below the pool at which the greedy policy could hold one resident
    more than the reserving one does to a little above the pool at which both hold it.
    """
    more = base.engine.pool_blocks // base.full_blocks + 1
    edges = (more * base.input_blocks, more * base.full_blocks)
    low, high = grid.cliff_blocks or (edges[0] - 64, edges[1] + 34)
    fine = {edge + offset for edge in edges for offset in range(-8, 3)}
    pools = {*range(low, high + 1, grid.cliff_step), *fine, base.engine.pool_blocks}
    return sorted(p for p in pools if low <= p <= high and p >= base.full_blocks)


def _requests(full: RequestShape, count: int, low: float, high: float) -> tuple[RequestShape, ...]:
    """Requests whose true output is uniform between two shares of the cap, from a named seed."""
    name = int(sha256_text(f"regimes/{count}/{low}/{high}")[:16], 16)
    rng = np.random.Generator(np.random.PCG64(name))
    cap = full.output_cap_tokens
    least, most = max(1, round(low * cap)), max(1, round(high * cap))
    lengths = rng.integers(least, most, size=count, endpoint=True)
    return tuple(RequestShape(full.input_tokens, int(length), cap) for length in lengths)


def spread_words(low: float, high: float) -> str:
    """How far below the cap outputs end, in words."""
    if low == high:
        return "all reach the cap" if low == 1 else f"all at {100 * low:.3g} % of the cap"
    return f"{100 * low:.3g} to {100 * high:.3g} % of the cap"


def pause_words(pause: Pause) -> str:
    """A pause mode as one string."""
    if pause.never_release:
        return "never_release"
    cut = pause.truncate_to_tokens
    return "recompute" if cut is None else f"truncate_to_tokens: {cut}"


def _row(part: str, workload: str, spread: str, scenario: Scenario, pause: Pause) -> Row:
    baseline, treatment = scenario.run(BASELINE), scenario.run(TREATMENT, pause)
    shape, pool = scenario.requests[0], scenario.engine.usable_blocks
    lanes = scenario.concurrency
    outputs = [r.output_tokens for r in scenario.requests]
    full = blocks_of(shape.input_tokens + shape.output_cap_tokens, scenario.engine.block_tokens)
    prompts = blocks_of(shape.input_tokens, scenario.engine.block_tokens)
    again = treatment.value("recomputed_tokens")
    row = {
        "part": part,
        "workload": workload,
        "pause": pause_words(pause),
        "spread": spread,
        "output_mean_share": sum(outputs) / len(outputs) / shape.output_cap_tokens,
        "concurrency": lanes,
        "requests": len(outputs),
        "pool_blocks": pool,
        "pool_ratio": pool / (lanes * full),
        "full_blocks": full,
        "input_blocks": prompts,
        "residents_reserving": min(lanes, pool // full),
        "residents_greedy": min(lanes, pool // prompts),
        "residents_baseline": baseline.summary["residents_max"],
        "residents_treatment": treatment.summary.get("residents_max"),
        "baseline_tok_per_s": baseline.summary["output_tok_per_s"],
        "treatment_tok_per_s": treatment.value("output_tok_per_s"),
        **_ratios(treatment, baseline),
        "pauses": treatment.summary.get("pauses"),
        "recomputed_tokens": treatment.summary.get("recomputed_tokens"),
        "recomputed_share": (
            None if again is None else again / sum(r.input_tokens for r in scenario.requests)
        ),
    }
    return row | {
        "regime": regime_of(row["throughput_ratio"]),
        "arithmetic_holds": arithmetic_holds(row),
    }


def _ratios(treatment: Outcome, baseline: Outcome) -> dict[str, float | None]:
    columns = {
        "throughput_ratio": "output_tok_per_s",
        "tpot_p99_ratio": "tpot_p99_ms",
        "ttft_p50_ratio": "ttft_p50_ms",
        "e2e_p99_ratio": "e2e_p99_s",
    }
    return {name: ratio(treatment.value(c), baseline.value(c)) for name, c in columns.items()}


def regime_of(throughput_ratio: float | None) -> str:
    """`equal`, `wins`, `loses` or `stuck`."""
    if throughput_ratio is None:
        return "stuck"
    if abs(throughput_ratio - 1) < EQUAL:
        return "equal"
    return "wins" if throughput_ratio > 1 else "loses"


def arithmetic_holds(row: Mapping[str, Any]) -> bool:
    """Whether a run is as block counts say.

    The reserving policy holds at most min(lanes, pool // full) residents; the greedy one, while a
    paused request needs its whole prompt again, at most min(lanes, pool // prompt). Where the two
    bounds are one number, both policies must run alike, to the bit.
    """
    if row["residents_baseline"] > row["residents_reserving"]:
        return False
    if row["pause"] == "recompute" and row["residents_treatment"] > row["residents_greedy"]:
        return False
    alike = row["residents_reserving"] == row["residents_greedy"]
    return not alike or (row["throughput_ratio"] == 1 and row["pauses"] == 0)

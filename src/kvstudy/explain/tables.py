"""Schemas of what explanation writes: hypotheses side by side, and the regime map."""

from __future__ import annotations

import pyarrow as pa

from kvstudy.base.tables import BOOL, F64, I64, TEXT, Column, Table

DECIDER = pa.struct(
    [
        pa.field("test", TEXT),
        pa.field("counter", TEXT),
        pa.field("where", TEXT),
        pa.field("expected", TEXT),
        pa.field("value", F64),
        pa.field("unit", TEXT),
    ]
)
"""What would change our mind: a counter or probe, where to read it, and what is expected."""

RATIOS = {
    "throughput_ratio": "output_tok_per_s",
    "ttft_p50_ratio": "ttft_p50_ms",
    "tpot_p50_ratio": "tpot_p50_ms",
    "tpot_p99_ratio": "tpot_p99_ms",
    "e2e_p99_ratio": "e2e_p99_s",
}
"""Ratio column to the column of cells that it is treatment over baseline of."""

OBSERVED = ("published", "measured", "emulated", "predicted")
"""Kinds of rows that are not hypotheses: where their numbers come from."""


def _text(name: str, meaning: str, null_means: str | None = None) -> Column:
    return Column(name, TEXT, "", meaning, null_means)


def _real(name: str, unit: str, meaning: str, null_means: str | None = None) -> Column:
    return Column(name, F64, unit, meaning, null_means)


def _count(name: str, unit: str, meaning: str, null_means: str | None = None) -> Column:
    return Column(name, I64, unit, meaning, null_means)


_NOT_SAID = "not said, or the run does not end"
_NO_SCORE = "not a hypothesis, or no evidence on this engine"

HYPOTHESES = Table(
    "hypotheses",
    "Per engine: what each rival hypothesis predicts, and what was published and run.",
    (
        _text("engine", "key of the engine in the config"),
        _text("engine_version", "version the engine entry pins"),
        _text("workload", "workload under KV pressure"),
        _count("concurrency", "requests", "closed-loop lanes"),
        _text("baseline", "arm every ratio is over"),
        _text("treatment", "arm every ratio is of"),
        _text("kind", "hypothesis, or published, measured, emulated, predicted"),
        _text("hypothesis", "id, such as H1.1024", "not a hypothesis"),
        _text("family", "H0, H1, H2 or H3", "not a hypothesis"),
        _text("label", "the row in words"),
        _count("truncate_to_tokens", "tokens", "tokens that come back after a pause", "all do"),
        _text("outcome", "ends, livelock (no request can ever run again), or observed"),
        _text("outcome_words", "what a livelock looks like", "the run ends"),
        *(
            _real(name, "", f"treatment / baseline of {column}", _NOT_SAID)
            for name, column in RATIOS.items()
        ),
        *(
            _real(
                name.replace("_ratio", "_spread"),
                "",
                f"standard error of ln {name}: of the evidence, or from the open constants",
                _NOT_SAID,
            )
            for name in RATIOS
        ),
        *(
            _real(f"treatment_{column}", "", f"{column} of the treatment", _NOT_SAID)
            for column in RATIOS.values()
        ),
        _count("pauses", "events", "pauses of the treatment's run", _NOT_SAID),
        _count("recomputed_tokens", "tokens", "tokens computed again after pauses", _NOT_SAID),
        _count("hidden_tokens", "tokens", "decoded without being streamed", _NOT_SAID),
        _count("iterations", "steps", "steps of the treatment's run", _NOT_SAID),
        _real("max_gap_s", "s", "longest gap between chunks of one request", _NOT_SAID),
        _count("stalled_requests", "requests", "with a gap above a minute", _NOT_SAID),
        _text("evidence", "published or measured: what the score compares with", _NO_SCORE),
        _real("log_likelihood", "", "sum of weighted log densities", _NO_SCORE),
        _real("weight", "", "share of all hypotheses of this engine, 0 to 1", _NO_SCORE),
        _count("rank", "", "1 is the most likely hypothesis of this engine", _NO_SCORE),
        _text("against", "why the row is ruled out or held unlikely", "nothing is against it"),
        _text("assumptions", "what the score takes for granted", _NO_SCORE),
        Column("deciders", pa.list_(DECIDER), "", "what would change our mind, with its value"),
    ),
)

REGIMES = Table(
    "regimes",
    "Both policies over pool, output lengths and concurrency, and the scan around the cliff.",
    (
        _text("part", "map or cliff"),
        _text("workload", "workload the part is shaped like"),
        _text("pause", "recompute, or truncate_to_tokens: n"),
        _text("spread", "how far below their cap outputs end, in words"),
        _real("output_mean_share", "", "mean true output / cap"),
        _count("concurrency", "requests", "closed-loop lanes"),
        _count("requests", "requests", "requests of the run"),
        _count("pool_blocks", "blocks", "KV pool"),
        _real("pool_ratio", "", "pool / (concurrency x (input + cap)), in blocks"),
        _count("full_blocks", "blocks", "blocks of one request: input and cap"),
        _count("input_blocks", "blocks", "blocks of one prompt"),
        _count("residents_reserving", "requests", "min(concurrency, pool // full_blocks)"),
        _count("residents_greedy", "requests", "min(concurrency, pool // input_blocks)"),
        _count("residents_baseline", "requests", "most that held blocks, GUARANTEED_NO_EVICT"),
        _count("residents_treatment", "requests", "the same of MAX_UTILIZATION", "stuck"),
        _real("baseline_tok_per_s", "tok/s", "throughput, GUARANTEED_NO_EVICT"),
        _real("treatment_tok_per_s", "tok/s", "throughput, MAX_UTILIZATION", "stuck"),
        _real("throughput_ratio", "", "MAX_UTILIZATION / GUARANTEED_NO_EVICT", "stuck"),
        _real("tpot_p99_ratio", "", "the same of TPOT p99", "stuck, or no TPOT"),
        _real("ttft_p50_ratio", "", "the same of TTFT p50", "stuck"),
        _real("e2e_p99_ratio", "", "the same of end-to-end p99", "stuck"),
        _count("pauses", "events", "pauses of MAX_UTILIZATION", "stuck"),
        _count("recomputed_tokens", "tokens", "computed again under MAX_UTILIZATION", "stuck"),
        _real("recomputed_share", "", "recomputed tokens / tokens of all prompts", "stuck"),
        _text("regime", "equal, wins, loses or stuck"),
        Column("arithmetic_holds", BOOL, "", "residents and equality are as block counts say"),
    ),
)

"""Stable reason codes: why a cell is not valid, or what a reader must know about it.

A code is data: it stands in `check.json`, `cells.parquet` and the report, and never changes its
meaning. `INVALID` codes take the cell's right to a verdict; `WARNING` codes do not.
"""

from __future__ import annotations

INVALID: dict[str, str] = {
    "server_not_ready": "the server never answered a real request",
    "server_died": "the server ended before the client did",
    "server_version": "the server's version is not the pinned one",
    "server_config": "the server resolved another configuration than declared",
    "server_model": "the server serves another model than asked",
    "requests_missing": "fewer request rows than the workload has",
    "requests_failed": "at least one request did not end well",
    "input_tokens_differ": "the server counted other prompt tokens than planned",
    "cached_tokens": "prompt tokens came from a cache although reuse is off",
    "duplicate_prompts": "two measured requests carried the same prompt",
    "time_order": "a request's times are not in order",
    "clock_jump": "the process was stopped or the clock jumped during the window",
    "client_saturated": "the client was too slow for its load",
    "concurrency_not_held": "requests in flight were not what the cell declares",
    "emulator_late": "the emulator could not keep its schedule",
    "telemetry_gap": "iteration records are missing although telemetry is required",
    "counts_differ": "the cell's counts are not those of its request rows",
    "throughput_differs": "tokens are not throughput x window",
    "percentile_order": "percentiles of one metric do not ascend, or its mean exceeds its maximum",
    "peak_below_mean": "a mean exceeds the peak of the same quantity",
    "token_count_low": "completed requests carried no output",
    "mixed_measure_version": "the cell was measured by another measure version",
    "interrupted": "the attempt was interrupted",
    "damaged": "a file of the cell does not match its checksum",
    "not_run": "the cell has not been run",
}

WARNING: dict[str, str] = {
    "early_ended": "streams ended before their planned length",
    "telemetry_off": "no iteration telemetry was asked for",
    "telemetry_partial": "some iteration records were lost",
    "other_commit": "cells of the study were measured at different commits",
    "dirty_checkout": "the checkout had uncommitted changes",
    "later_attempt": "an earlier attempt exists",
    "littles_law": "mean in flight differs from arrivals x latency",
    "aa_difference": "halves of one cell differ more often than the stated error rate",
}


def describe(code: str) -> str:
    """The meaning of a reason code; a KeyError for one that does not exist."""
    return INVALID[code] if code in INVALID else WARNING[code]

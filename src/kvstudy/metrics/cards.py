"""Metric cards: name, formula, unit and when a metric is undefined.

A metric without a card does not exist. `docs/metrics.md` is printed from this list. Terms follow
the vendor-neutral draft draft-gaikwad-llm-benchmarking-methodology where it has one.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Card:
    """One metric."""

    name: str
    title: str
    unit: str
    formula: str
    undefined_when: str
    note: str = ""


CARDS = (
    Card(
        "ttft",
        "Time to first token",
        "ms",
        "first non-empty content chunk - send",
        "no content came",
        "In a closed loop a lane's waiting for KV blocks is inside TTFT.",
    ),
    Card(
        "tpot",
        "Time per output token",
        "ms",
        "(last content chunk - first content chunk) / (n - 1), n = re-tokenised tokens",
        "n < 2",
        "The issue's definition: a request's mean, not a percentile over gaps. A text that "
        "re-tokenises to fewer tokens than were streamed inflates it; see tpot_chunks.",
    ),
    Card(
        "tpot_chunks",
        "Time per output chunk",
        "ms",
        "(last content chunk - first content chunk) / (n - 1), n = content chunks",
        "n < 2",
        "Equals TPOT where every chunk is one token and the text re-tokenises to itself.",
    ),
    Card(
        "e2e",
        "End-to-end latency",
        "s",
        "last content chunk - send",
        "no content came",
    ),
    Card(
        "max_gap",
        "Longest gap",
        "ms",
        "largest difference between successive content chunks of one request",
        "fewer than 2 chunks",
        "The client-visible trace of a pause.",
    ),
    Card(
        "output_tok_per_s",
        "Output throughput",
        "tok/s",
        "re-tokenised tokens of completed requests / window",
        "no text was kept",
        "Window: first send to last end of the measured phase.",
    ),
    Card(
        "output_tok_per_s_nominal",
        "Output throughput, nominal count",
        "tok/s",
        "planned output tokens of all requests / window",
        "no window",
    ),
    Card(
        "output_tok_per_s_chunks",
        "Output throughput, chunk count",
        "tok/s",
        "content chunks of completed requests / window",
        "no window",
    ),
    Card(
        "output_tok_per_s_usage",
        "Output throughput, the server's count",
        "tok/s",
        "usage.completion_tokens of completed requests / window",
        "the server did not say usage",
    ),
    Card(
        "output_tok_per_s_steady",
        "Steady-state output throughput",
        "tok/s",
        "content chunks between the first and the last moment at which every lane is busy, "
        "excluding the first round of requests / that time",
        "no such span",
        "Leaves out the ramp at the start and the emptying lanes at the end.",
    ),
    Card(
        "goodput_req_per_s",
        "Goodput",
        "1/s",
        "requests with outcome ok and every SLO met / window",
        "no SLO is configured",
        "An SLO on an undefined metric is not met: a request with no content is not good.",
    ),
    Card(
        "pauses",
        "Pauses",
        "events",
        "sum of paused requests over the iteration records of the window",
        "iteration telemetry is missing or partial",
    ),
    Card(
        "recomputed_tokens",
        "Recomputed tokens",
        "tokens",
        "sum of context tokens over the iteration records - sum of prompt tokens",
        "iteration telemetry is missing or partial",
    ),
    Card(
        "hidden_tokens",
        "Hidden tokens",
        "tokens",
        "sum of generating requests over the iteration records - chunks streamed by generation "
        "steps",
        "iteration telemetry is missing or partial",
        "Tokens decoded without being streamed: the trace of a truncating pause.",
    ),
    Card(
        "mean_in_flight",
        "Mean requests in flight",
        "requests",
        "sum of (end - send) / window",
        "no window",
    ),
)


def card(name: str) -> Card:
    """The card of a metric; a KeyError for one that does not exist."""
    for candidate in CARDS:
        if candidate.name == name:
            return candidate
    raise KeyError(name)

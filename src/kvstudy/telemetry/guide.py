"""`docs/observing-kv-pressure.md`, printed from `telemetry.knowledge`."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from kvstudy.telemetry.knowledge import ENTRIES
from kvstudy.telemetry.signs import Entry

_HEAD = """\
# Observing KV pressure: pauses, evictions, recomputation

<!-- Printed from src/kvstudy/telemetry/knowledge.py by render_guide(); edit that file. -->

A server whose KV pool is too small for what it admitted has to take blocks away from running \
requests.
TensorRT-LLM calls it a *pause*, vLLM a *preemption*, SGLang a *retraction*.
No engine warns about it by default.
This page says, version by version, what to switch on, where to look, and how to read it.
`kvstudy` switches these on by itself and uses the same knowledge in its collectors.
"""

_QUESTION = """\
## The question of issue #16827, answered

*Observability: what is the supported way to observe pause, evict and recompute activity from \
trtllm-serve with the PyTorch backend in 1.2.1?*

- Set `enable_iter_perf_stats: true` in the YAML given with `--config`, and poll `GET /metrics` \
about once a second from **one** reader. \
The sum of `inflightBatchingStats.numPausedRequests` is the number of pauses.
- `/metrics` is registered in every configuration. Without that key it answers `[]`, which looks \
like an endpoint that is not there. It speaks JSON; Prometheus text is at `/prometheus/metrics`.
- `iter_stats_max_iterations` and `request_stats_max_iterations` do not apply: they belong to the \
TensorRT engine backend. The PyTorch backend keeps 1,000 records, whatever they say.
- `return_perf_metrics: true` does apply. It opens `/prometheus/metrics` (request latencies, no \
pauses in 1.2.1) and, with `perf_metrics_max_requests`, `/perf_metrics` (iterations and blocks \
per request). Leave it off while you poll `/metrics`.
- Recomputation has no counter of its own. It is the sum of `numCtxTokens` minus the sum of the \
prompt lengths.
"""

_NATURES = """\
## Event, counter, gauge

The same word, *paused requests*, is three different things.

| nature | how to add it up | what a missed look costs |
|---|---|---|
| event | sum over all records | the events of the lost records |
| counter | last minus first, on one server | nothing |
| gauge | not at all | everything between two looks |
| log line | count the lines | nothing, but writing them costs time |
"""

_EVIDENCE = """\
## From counters to evidence

- **Pauses** = sum of `numPausedRequests` over the records of the window, or the growth of a true \
counter. State the coverage (`iter` seen / `iter` run) beside it.
- **Recomputed tokens** = sum of context tokens - sum of prompt tokens of the same requests. \
A full recompute of a 16,384-token request costs about 16,500 tokens per pause; a truncating pause \
only as many as the cut leaves.
- **Hidden decoding** = iterations a request lived - chunks the client saw. Near 0 without pauses; \
a few dozen per recomputing pause; thousands per truncated one.
- **Stalls**: join each request's largest gap between chunks to the times of pauses. A gap that \
begins at a pause and lasts minutes is a paused request that decodes silently or waits.

### Without any counter

The client alone can tell. Record send time, every chunk's time, `finish_reason` and usage \
(`stream_options: {include_usage: true}`):

- one long gap in a few requests while the median does not move: pauses;
- a better TTFT together with a worse tail: more requests were admitted than the pool sustains;
- fewer content chunks than `completion_tokens`: empty chunks, or tokens decoded out of sight.
"""


def render_guide() -> str:
    """The whole page."""
    parts = [_HEAD, _table(), _QUESTION, _NATURES]
    parts += [_section(entry) for entry in ENTRIES]
    parts.append(_EVIDENCE)
    return "\n".join(parts)


def _table() -> str:
    lines = [
        "## In one table",
        "",
        "| engine | version | switch on | where pauses show | nature | read takes it away |",
        "|---|---|---|---|---|---|",
    ]
    for entry in ENTRIES:
        first = entry.signs[0]
        if entry.adapter == "llamacpp":
            shown, nature = "never pauses: requests fail", "-"
        else:
            shown, nature = _code(first.name), str(first.nature)
        taken = "yes" if entry.destructive.startswith("yes") else "no"
        name = entry.engine.partition(" (")[0].partition(",")[0]
        cells = (name, entry.versions, entry.switch, shown, nature, taken)
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join([*lines, ""])


def _section(entry: Entry) -> str:
    """One version; what it shares with the entry before is said once, there."""
    before = _before(entry)
    known = before.signs if before else ()
    warned = before.pitfalls if before else ()
    signs = [sign for sign in entry.signs if sign not in known]
    pitfalls = [text for text in entry.pitfalls if text not in warned]
    lines = [
        *(f"## {entry.engine}: {entry.versions}", ""),
        *("Switch on:", "", f"```{entry.language}", entry.settings, "```", ""),
        *("Look:", "", "```sh", entry.look, "```", ""),
    ]
    if before is None or entry.destructive != before.destructive:
        lines.append(f"- Does a read take it away? {_sentence(entry.destructive)}")
    if before is None or entry.interval != before.interval:
        lines.append(f"- How often: {_sentence(entry.interval)}")
    if lines[-1]:
        lines.append("")
    if before is not None:
        lines += [f"The signs and pitfalls of {before.versions} hold here too. In addition:", ""]
    if signs:
        lines += ["| sign | nature | meaning |", "|---|---|---|"]
        lines += [f"| {_code(s.name)} | {s.nature} | {s.meaning} |" for s in signs]
        lines.append("")
    lines += _list("Not shown by any option:", entry.not_shown)
    lines += _list("Pitfalls:", pitfalls)
    lines += [f"How this is known: {_sentence(entry.basis)}", ""]
    return "\n".join(lines)


def _before(entry: Entry) -> Entry | None:
    """The entry of the same engine that this one follows."""
    own = [other for other in ENTRIES if other.adapter == entry.adapter]
    at = own.index(entry)
    return own[at - 1] if at else None


def _list(head: str, texts: Sequence[str]) -> list[str]:
    return [head, "", *(f"- {_sentence(text)}" for text in texts), ""] if texts else []


def _code(name: str) -> str:
    return name if "`" in name else f"`{name}`"


def _sentence(text: str) -> str:
    capital = text[0].upper() + text[1:] if text[0].isalpha() else text
    return capital if capital.endswith(".") else f"{capital}."


if __name__ == "__main__":
    sys.stdout.write(render_guide())

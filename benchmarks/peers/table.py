"""Results of `run.py` → Markdown: `python -m benchmarks.peers.table side/peers.json`. Pure."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from benchmarks.peers.truth import CASES, COLUMNS

Document = dict[str, Any]
OURS, RIVAL, CEILING = "kvstudy", "vllm", "raw reader"
_NAMES = {
    "outcome": "outcome",
    "tokens": "output tokens",
    "tpot": "TPOT",
    "chunks": "chunk count",
    "empty": "empty chunks",
    "finish": "finish_reason",
    "partial": "partial results",
}


def render(document: Document) -> str:
    """All tables that the results allow."""
    parts = [_versions(document)]
    if "rate" in document:
        parts.append(_rate(document["rate"]))
    if "times" in document:
        parts.append(_times(document["times"]))
    if "accounting" in document:
        parts += [_cases(document["accounting"]), _columns(document["accounting"])]
    parts.append(_targets(document))
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(head: list[str], rows: list[list[str]]) -> str:
    lines = [f"| {' | '.join(head)} |", "|" + "---|" * len(head)]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in rows)])


def number(value: float | None, digits: int) -> str:
    """A figure with its digits; a dash where there is none."""
    return "-" if value is None else f"{value:,.{digits}f}"


def _versions(document: Document) -> str:
    machine = document["machine"]
    shown = [
        f"{machine['processor']}, {machine['cores']} cores, {machine['memory_gib']} GiB, "
        f"Linux {machine['kernel']}, Python {machine['python']}.",
        "Versions: " + "; ".join(f"{k} ({v})" for k, v in document["versions"].items()) + ".",
    ]
    if document["skipped"]:
        out = "; ".join(f"{name}: {why}" for name, why in document["skipped"].items())
        shown.append(f"Not run: {out}.")
    else:
        shown.append("Not run: none.")
    return "\n".join(shown)


def _rate(rates: Document) -> str:
    rows = []
    for name, one in rates.items():
        if one.get("chunks_per_s") is None:
            rows.append([name, f"did not run: {one['problem']}", *["-"] * 5])
            continue
        rounds = ", ".join(number(each and each / 1e3, 1) for each in one["rounds"])
        row = [name, number(one["chunks_per_s"], 0), rounds]
        row += [number(one["cpu_s_per_1000"] * 1e3, 1)]
        row += [number(one["cpu_s_per_1000_whole"] * 1e3, 1)]
        rows.append([*row, number(one["lost"], 0), number(one["peak_mb"], 0)])
    head = ["client", "chunks/s", "all rounds, 1,000/s", "CPU ms per 1,000 chunks, under load"]
    head += ["CPU ms per 1,000 chunks, to the last result", "chunks lost", "peak memory MB"]
    return "### Flat out\n\n" + _table(head, rows)


def _times(times: Document) -> str:
    rows = []
    for name, one in times.items():
        if one.get("n") is None:
            rows.append([name, f"nothing to compare: {one['problem'] or 'no times'}", *["-"] * 5])
            continue
        row = [name, number(one["ttft_p50_ms"], 2), number(one["ttft_max_ms"], 2)]
        row += [number(one["tpot_p50_ms"], 4), number(one["tpot_max_ms"], 4)]
        how = "" if one["matched"] == "text" else " (by rank)"
        rows.append([*row, number(one["cpu_s_per_1000"] * 1e3, 0), f"{one['n']}{how}"])
    head = ["client", "TTFT error p50 ms", "TTFT error max ms", "TPOT error p50 ms"]
    head += ["TPOT error max ms", "CPU ms per 1,000 chunks", "requests compared"]
    return "### Paced, 575 chunks/s over 32 streams\n\n" + _table(head, rows)


def _cell(one: Document) -> str:
    verdicts = one["verdicts"]
    if one.get("problem") or not verdicts:
        return f"**no results** ({one['ok']} ok)" if "ok" in one else "**no results**"

    def mark(column: str, text: str) -> str:
        return f"**{text}**" if verdicts[column] == "wrong" else text

    ok = f"{one['ok']} ok" + (f" of {one['sent']}" if one["sent"] != 16 else "")
    parts = [mark("outcome", ok), mark("tokens", number(one["tokens"], 0))]
    parts += [mark("tpot", number(one["tpot_ms"], 1)), mark("chunks", number(one["chunks"], 0))]
    return " / ".join(parts)


def _truth(case: Any, cells: Document) -> str:
    true = [one["true_tpot_ms"] for one in cells.values() if one.get("true_tpot_ms")]
    tpot = number(sorted(true)[len(true) // 2] if true else None, 1)
    return f"{16 if case.ok else 0} ok / {case.tokens} / {tpot} / {case.chunks}"


def _cases(accounting: Document) -> str:
    names = list(next(iter(accounting.values())))
    cases = [case for case in CASES if case.shape in accounting]
    rows = []
    for case in cases:
        cells = accounting[case.shape]
        row = [case.title, _truth(case, cells), *(_cell(cells[name]) for name in names)]
        rows.append(row)
    text = "Requests counted ok of 16 / output tokens / TPOT ms / chunks; wrong ones in bold.\n\n"
    return "### Accounting\n\n" + text + _table(["answer", "truth", *names], rows)


def tally(accounting: Document, name: str) -> dict[str, list[str]]:
    """For one client: the columns that are wrong in some case, and those it never gives."""
    found: dict[str, list[str]] = {"wrong": [], "absent": []}
    for column in COLUMNS:
        verdicts = {
            case.title: accounting[case.shape][name]["verdicts"].get(column, "absent")
            for case in CASES
            if case.shape in accounting
        }
        wrong = [title for title, verdict in verdicts.items() if verdict == "wrong"]
        if wrong:
            found["wrong"].append(f"{_NAMES[column]} ({', '.join(wrong)})")
        if all(verdict == "absent" for verdict in verdicts.values()):
            found["absent"].append(_NAMES[column])
    return found


def _columns(accounting: Document) -> str:
    rows = []
    for name in next(iter(accounting.values())):
        found = tally(accounting, name)
        kept = {cells[name].get("finish") for cells in accounting.values()} - {None}
        place = "in stored bytes only" if kept == {"raw"} else "yes" if kept else "no"
        broken = [
            case.title
            for case in CASES
            if accounting.get(case.shape, {}).get(name, {}).get("problem")
        ]
        row = [name, "; ".join(found["wrong"]) or "none", ", ".join(found["absent"]) or "none"]
        rows.append([*row, place, ", ".join(broken) or "none"])
    head = ["client", "columns wrong", "columns never given", "finish_reason kept"]
    return _table([*head, "left no results"], rows)


def ratios(rates: Document) -> dict[str, float] | None:
    """Ours over vLLM's bench and over the ceiling; None when one of them did not run."""
    ours, rival, ceiling = (rates.get(name, {}) for name in (OURS, RIVAL, CEILING))
    if not all(one.get("chunks_per_s") for one in (ours, rival, ceiling)):
        return None
    return {
        "rate": ours["chunks_per_s"] / rival["chunks_per_s"],
        "ceiling": ours["chunks_per_s"] / ceiling["chunks_per_s"],
        "cpu": ours["cpu_s_per_1000"] / rival["cpu_s_per_1000"],
        "cpu_whole": ours["cpu_s_per_1000_whole"] / rival["cpu_s_per_1000_whole"],
    }


def _met(met: bool) -> str:
    return "met" if met else "**missed**"


def _targets(document: Document) -> str:
    rows = []
    found = ratios(document.get("rate", {}))
    if found is not None:
        rate = f"{found['rate']:.2f} ({found['ceiling']:.2f} of the raw reader's)"
        met = found["rate"] >= 1.2 or found["ceiling"] >= 1.0
        rows.append(["chunk rate over vllm's", "1.2, or the emitter's ceiling", rate, _met(met)])
        for key, what in (("cpu", "under load"), ("cpu_whole", "to the last result")):
            shown = f"{found[key]:.2f}"
            title = f"CPU per chunk over vllm's, {what}"
            rows.append([title, "at most 0.7", shown, _met(found[key] <= 0.7)])
        lost = document["rate"][OURS]["lost"]
        rows.append(["chunks lost", "0", str(lost), _met(lost == 0)])
    rows += _ranks(document)
    return "### Targets\n\n" + _table(["what", "target", "seen", ""], rows) if rows else ""


def _ranks(document: Document) -> list[list[str]]:
    """Rows that ask that no peer is better."""
    rows = []
    for part, key, title, scale in (
        ("times", "cpu_s_per_1000", "CPU ms per 1,000 chunks, paced", 1e3),
        ("rate", "peak_mb", "peak memory MB", 1.0),
        ("times", "ttft_p50_ms", "TTFT error p50 ms", 1.0),
        ("times", "ttft_max_ms", "TTFT error max ms", 1.0),
        ("times", "tpot_p50_ms", "TPOT error p50 µs", 1e3),
        ("times", "tpot_max_ms", "TPOT error max µs", 1e3),
    ):
        figures = {name: one.get(key) for name, one in document.get(part, {}).items()}
        peers = {k: v for k, v in figures.items() if v is not None and k not in (OURS, CEILING)}
        ours = figures.get(OURS)
        if ours is None or not peers:
            continue
        best = min(peers, key=lambda name: peers[name])
        target = f"not above {number(peers[best] * scale, 2)} ({best})"
        rows.append([title, target, number(ours * scale, 2), _met(ours <= peers[best])])
    if "accounting" in document:
        wrong = tally(document["accounting"], OURS)["wrong"]
        rows.append(["accounting columns wrong", "0", str(len(wrong)), _met(not wrong)])
    return rows


def main() -> None:
    """Print the tables of a results file."""
    print(render(json.loads(Path(sys.argv[1]).read_text(encoding="utf-8"))))


if __name__ == "__main__":
    main()

"""Our client and every installed peer against the scripted server, side by side in one run.

    python -m benchmarks.peers.run [--out results.json] [--only NAME ...] [--rounds 3]

The server is pinned to one core, the client's whole process tree to another. Three parts:

- rate: 512 requests of 256 one-token chunks on 32 streams, flat out; every round in the other
  order, the fastest round of a client counts, since other work only ever takes away;
- times: 575 chunks/s over 32 streams, both sides at real-time priority if they may;
- accounting: six odd answers, 16 requests on 8 lanes.

A part that is not run (`--parts`) stays in the results as it is. `python -m
benchmarks.peers.table results.json` prints the tables.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from benchmarks.peers import truth
from benchmarks.peers.clients import CLIENTS, RAW, Client, Task
from benchmarks.peers.results import Seen
from benchmarks.peers.setup import ROOT, SIDE
from benchmarks.peers.watch import Cost, watch
from tokenizers import Tokenizer

_SERVER = ROOT / "benchmarks" / "scripted_server.py"
_TOKENIZER = ROOT / "src" / "kvstudy" / "workload" / "tokenizer"
_TIMEOUT_S = 240
_TEMPLATE = "{% for m in messages %}{{ m['content'] }}{% endfor %}"


@dataclass(frozen=True)
class Setting:
    """One load and how the server answers it."""

    streams: int
    requests: int
    tokens: int
    interval_ms: float = 0.0
    shape: str = "normal"
    tagged: bool = False
    real_time: bool = False


RATE = Setting(32, 512, 256)
TIMES = Setting(32, 96, 60, interval_ms=55.6, tagged=True, real_time=True)
CASE_MS = 20.0


@dataclass(frozen=True)
class Run:
    """What one run left: the server's record of its measured requests, cost, results."""

    requests: list[dict[str, Any]]
    in_flight: int
    cost: Cost
    seen: list[Seen]
    problem: str | None
    written_ns: int

    def cpu_s(self) -> tuple[float, float]:
        """CPU seconds from the first request to the last, and to the last result written."""
        arrived = [request["arrived_ns"] for request in self.requests]
        begin = self.cost.cpu_until(min(arrived))
        during = self.cost.cpu_until(max(arrived)) - begin
        return during, self.cost.cpu_until(max(self.written_ns, *arrived)) - begin


def tokenizer(folder: Path) -> Path:
    """A tokenizer to which every word of the scripted answers is one token."""
    made = Tokenizer.from_file(str(_TOKENIZER / "tokenizer.json"))
    made.add_tokens([" word", " end", *(f" #{n}" for n in range(1024))])
    folder.mkdir()
    made.save(str(folder / "tokenizer.json"))
    told = json.loads((_TOKENIZER / "tokenizer_config.json").read_text(encoding="utf-8"))
    told["chat_template"] = _TEMPLATE
    (folder / "tokenizer_config.json").write_text(json.dumps(told), encoding="utf-8")
    (folder / "config.json").write_text('{"model_type": "llama"}', encoding="utf-8")
    return folder


def _placer(core: int, *, real_time: bool) -> Callable[[], None]:
    def place() -> None:
        os.sched_setaffinity(0, {core})
        if real_time:
            with suppress(PermissionError):
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(10))

    return place


@contextmanager
def _serving(setting: Setting, times: Path) -> Iterator[str]:
    core = min(os.sched_getaffinity(0))
    argv = [sys.executable, str(_SERVER), "--times", str(times), "--shape", setting.shape]
    argv += ["--interval-ms", str(setting.interval_ms), "--expect", str(setting.tokens)]
    argv += ["--tagged"] if setting.tagged else []
    place = _placer(core, real_time=setting.real_time)
    with subprocess.Popen(argv, stdout=subprocess.PIPE, text=True, preexec_fn=place) as process:  # noqa: PLW1509
        assert process.stdout is not None
        try:
            yield process.stdout.readline().strip()
        finally:
            process.send_signal(signal.SIGTERM)


def run(client: Client, setting: Setting, tokens: Path) -> Run:
    """One client under one load, in fresh processes.

    Probes come before the load: the measured requests are the last ones, except where a client
    sends more than it was asked for.
    """
    core = max(os.sched_getaffinity(0))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        out = folder / "out"
        out.mkdir()
        with _serving(setting, folder / "times.json") as url:
            task = Task(url, setting.streams, setting.requests, setting.tokens, out, tokens)
            cost = watch(
                client.command(task),
                env=client.environment(),
                cwd=ROOT if client.name in ("kvstudy", RAW.name) else folder,
                log=folder / "log",
                place=_placer(core, real_time=setting.real_time),
                timeout_s=_TIMEOUT_S,
            )
        told = json.loads((folder / "times.json").read_text(encoding="utf-8"))
        seen, problem = _results(client, task, cost)
        written_ns = _last_written_ns(out)
    requests = told["requests"][-setting.requests :]
    if client.overshoots:
        requests = told["requests"]
    if len(requests) < setting.requests:
        problem = problem or f"sent {len(requests)} of {setting.requests} requests"
    skipped = 0 if client.overshoots else len(told["requests"]) - len(requests)
    seen = [_shifted(one, skipped) for one in seen]
    return Run(requests, told["in_flight_max"], cost, seen, problem, written_ns)


def _last_written_ns(folder: Path) -> int:
    """When the last file in a folder was written, on the monotonic clock; 0 if there is none."""
    stamps = [path.stat().st_mtime_ns for path in folder.rglob("*") if path.is_file()]
    return max(stamps) + time.monotonic_ns() - time.time_ns() if stamps else 0


def _shifted(one: Seen, skipped: int) -> Seen:
    if one.tag is None or not skipped:
        return one
    return Seen(**{**asdict(one), "tag": one.tag - skipped})


def _results(client: Client, task: Task, cost: Cost) -> tuple[list[Seen], str | None]:
    try:
        return client.read(task), None
    except (OSError, LookupError, ValueError, TypeError) as error:
        last = (cost.log.strip().splitlines() or ["no output"])[-1][:200]
        return [], f"no results (exit {cost.exit_code}; {type(error).__name__}): {last}"


def rate_of(one: Run, setting: Setting) -> dict[str, Any]:
    """Rate, cost and loss of one flat-out run."""
    if len(one.requests) < setting.requests:
        return {"problem": one.problem}
    chunks = sum(min(len(each["sent_ns"]), setting.tokens) for each in one.requests)
    answered = (len(one.requests) - setting.streams) * setting.tokens
    during, whole = one.cpu_s()
    received = sum(seen.chunks or 0 for seen in one.seen) if one.seen else None
    if received is not None and all(seen.chunks is None for seen in one.seen):
        received = None
    return {
        "problem": one.problem,
        "chunks_per_s": truth.closed_loop_rate(one.requests, setting.streams, setting.tokens),
        "cpu_s_per_1000": during / answered * 1e3,
        "cpu_s_per_1000_whole": whole / chunks * 1e3,
        "peak_mb": one.cost.peak_mb,
        "in_flight": one.in_flight,
        "lost": None if received is None else chunks - received,
    }


def measure_rates(clients: list[Client], rounds: int, tokens: Path) -> dict[str, Any]:
    """Every client in every round, in the other order each time; the fastest round of each."""
    best: dict[str, Any] = {}
    for number in range(rounds):
        for client in clients if number % 2 == 0 else clients[::-1]:
            figures = rate_of(run(client, RATE, tokens), RATE)
            _say(f"rate {number + 1}: {client.name}", figures)
            rates = [*best.get(client.name, {}).get("rounds", []), figures.get("chunks_per_s")]
            before = best.get(client.name, {}).get("chunks_per_s") or -1
            if client.name not in best or (figures.get("chunks_per_s") or 0) > before:
                best[client.name] = figures
            best[client.name]["rounds"] = rates
    return best


def measure_times(clients: list[Client], tokens: Path) -> dict[str, Any]:
    """Errors of TTFT and TPOT at the paced load, and what it costs."""
    out: dict[str, Any] = {}
    for client in clients:
        one = run(client, TIMES, tokens)
        found = truth.errors(one.seen, one.requests, TIMES.tokens)
        figures = {"problem": one.problem, **(asdict(found) if found else {})}
        if found:
            figures["cpu_s_per_1000"] = one.cpu_s()[1] / (TIMES.requests * TIMES.tokens) * 1e3
        out[client.name] = figures
        _say(f"times: {client.name}", out[client.name])
    return out


def measure_accounting(clients: list[Client], tokens: Path) -> dict[str, Any]:
    """Figures and verdicts of every client in every case."""
    out: dict[str, Any] = {}
    for case in truth.CASES:
        setting = Setting(8, 16, 20, interval_ms=CASE_MS, shape=case.shape)
        for client in clients:
            one = run(client, setting, tokens)
            slack = setting.streams if client.overshoots else 0
            if one.requests:
                figures = truth.judge(one.seen, one.requests, case, slack=slack)
            else:
                figures = {"verdicts": {}}
            figures["problem"] = one.problem
            out.setdefault(case.shape, {})[client.name] = figures
            _say(f"{case.shape}: {client.name}", figures)
    return out


def _say(what: str, figures: dict[str, Any]) -> None:
    shown = {
        name: round(value, 3) if isinstance(value, float) else value
        for name, value in figures.items()
    }
    print(f"{what}: {shown}", file=sys.stderr, flush=True)


def machine() -> dict[str, Any]:
    """Where this ran."""
    model = platform.processor()
    with suppress(OSError):
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                model = line.partition(":")[2].strip()
                break
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30
    return {
        "processor": model,
        "cores": len(os.sched_getaffinity(0)),
        "memory_gib": round(memory),
        "kernel": platform.release(),
        "python": platform.python_version(),
    }


def main() -> int:
    """Run all parts and write the results."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--out", type=Path, default=SIDE / "peers.json")
    parser.add_argument("--only", nargs="*", help="client names")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--parts", nargs="*", default=["rate", "times", "accounting"])
    args = parser.parse_args()
    wanted = [one for one in CLIENTS if not args.only or one.name in args.only]
    clients = [one for one in wanted if one.missing is None]
    document: dict[str, Any] = {}
    if args.out.exists():
        document = json.loads(args.out.read_text(encoding="utf-8"))
    document |= {
        "machine": machine(),
        "versions": {one.name: one.version for one in clients},
        "skipped": {one.name: one.missing for one in wanted if one.missing},
    }
    # Asked to stop, it stops its server and its client first.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    args.out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as name:
        tokens = tokenizer(Path(name) / "tokenizer")
        parts: dict[str, Callable[[], dict[str, Any]]] = {
            "rate": lambda: measure_rates([RAW, *clients], args.rounds, tokens),
            "times": lambda: measure_times(clients, tokens),
            "accounting": lambda: measure_accounting(clients, tokens),
        }
        for part in args.parts:
            document[part] = parts[part]()
            args.out.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())

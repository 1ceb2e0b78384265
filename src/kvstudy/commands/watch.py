"""`kvstudy watch`: a run as it goes, from the files it writes; or a command with one live line."""

from __future__ import annotations

import argparse
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TextIO

from kvstudy.base.errors import DataError
from kvstudy.base.files import read_json
from kvstudy.commands.parser import Parser
from kvstudy.commands.terminal import inert, note, out
from kvstudy.study.parse import read_config
from kvstudy.study.plan import Study
from kvstudy.study.sense import longest

_EPILOG = """examples:
  kvstudy watch                                     a run that goes on elsewhere
  kvstudy watch --backend emulated -- snakemake --profile profiles/local"""

_PLAIN_EVERY_S = 15.0
_RULE_LOG = re.compile(r"^    log: (.+?) \(check log", re.MULTILINE)


class State:
    """What the files of a run say about its progress."""

    def __init__(self, study: Study, results: Path) -> None:
        self._study = study
        self._results = results
        self._started = time.monotonic()
        self._weight_at_start: float | None = None

    def _weight(self, cell_id: str) -> float:
        workload = self._study.config.workloads[self._study.cell(cell_id).workload]
        return float(workload.requests * longest(workload.output_tokens))

    def line(self) -> str:
        """One line: cells done, the current cell, its requests, tokens/s, time left."""
        done, current = 0.0, None
        cells_done = 0
        for allocation, cells in self._study.allocations.items():
            runnable = [c for c in cells if self._study.runnable(c)]
            if (self._results / "allocations" / f"{allocation}.json").is_file():
                cells_done += len(runnable)
                done += sum(self._weight(c.id) for c in runnable)
                continue
            try:
                progress = read_json(self._results / "progress" / f"{allocation}.json")
            except DataError:
                continue
            finished = set(progress["finished_cells"])
            cells_done += len(finished)
            done += sum(self._weight(cell_id) for cell_id in finished)
            if time.time() - progress["updated_s"] < 30:
                current = progress
                if progress["phase"] == "measuring" and progress["requests"]:
                    share = progress["requests_done"] / progress["requests"]
                    done += self._weight(progress["cell_id"]) * share
        total = sum(self._weight(c) for c in self._study.runnable_ids)
        head = f"{cells_done}/{len(self._study.runnable_ids)} cells"
        return head + self._rest(current, done, total)

    def _rest(self, current: dict[str, object] | None, done: float, total: float) -> str:
        elapsed = time.monotonic() - self._started
        if self._weight_at_start is None:
            self._weight_at_start = done
        gained = done - self._weight_at_start
        eta = ""
        if gained > 0 and done < total:
            eta = f" | about {elapsed * (total - done) / gained:.0f} s left"
        if current is None:
            return f" | {elapsed:.0f} s" + (eta if done < total else " | making the report")
        return (
            f" | {current['cell_id']} {current['phase']}"
            f" {current['requests_done']}/{current['requests']} requests"
            f" {current['tok_per_s']:.0f} tok/s | {elapsed:.0f} s{eta}"
        )


def main(argv: list[str]) -> int:
    """Show progress until the command, or the run, ends."""
    parser = Parser(
        prog="kvstudy watch",
        description=__doc__,
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--backend", choices=["measured", "emulated"], default=None)
    parser.add_argument("--configfile", type=Path, nargs="+", default=[Path("config.yaml")])
    parser.add_argument("--once", action="store_true", help="print one line and stop")
    parser.add_argument("command", nargs="*", help="after --: what to run and watch")
    args = parser.parse_args(argv)
    overrides = {"backend": args.backend} if args.backend else {}
    study = Study(read_config(*args.configfile, overrides=overrides))
    results = Path("results") / study.backend
    state = State(study, results)
    if args.command:
        return _run(args.command, state, results)
    while True:
        out(state.line())
        if args.once:
            return 0
        time.sleep(5)


def _run(command: list[str], state: State, results: Path) -> int:
    logs = results / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    log = logs / "snakemake.log"
    with log.open("wb") as sink, (logs / "progress.log").open("a", encoding="utf-8") as plain:
        process = subprocess.Popen(command, stdout=sink, stderr=subprocess.STDOUT)
        _forward_signals(process)
        _show_until_end(process, state, plain)
    text = log.read_text(encoding="utf-8", errors="replace")
    if process.returncode:
        _explain(text, log)
        return process.returncode if process.returncode > 0 else 130
    if "Nothing to be done" in text:
        note("nothing to do: everything is up to date")
    out(f"report: {results / 'report' / 'index.html'}")
    return 0


def _forward_signals(process: subprocess.Popen[bytes]) -> None:
    def forward(number: int, _frame: object) -> None:
        # Snakemake stops at once on SIGINT; on SIGTERM it would wait for running jobs.
        if process.poll() is None and (number == signal.SIGTERM or not os.isatty(0)):
            process.send_signal(signal.SIGINT)

    signal.signal(signal.SIGTERM, forward)
    signal.signal(signal.SIGINT, forward)


def _show_until_end(process: subprocess.Popen[bytes], state: State, plain: TextIO) -> None:
    live = sys.stderr.isatty()
    last = -_PLAIN_EVERY_S
    while True:
        ended = _wait(process, 1.0 if live else 2.0)
        line = inert(state.line())
        if live:
            sys.stderr.write(f"\r\x1b[K{line[: _columns() - 1]}")
            sys.stderr.flush()
        if ended or time.monotonic() - last >= _PLAIN_EVERY_S:
            last = time.monotonic()
            plain.write(f"{time.strftime('%Y-%m-%dT%H:%M:%S')} {line}\n")
            plain.flush()
            if not live:
                note(line)
        if ended:
            if live:
                sys.stderr.write("\n")
            return


def _wait(process: subprocess.Popen[bytes], seconds: float) -> bool:
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _columns() -> int:
    try:
        return os.get_terminal_size(sys.stderr.fileno()).columns
    except OSError:
        return 100


def _explain(text: str, log: Path) -> None:
    """Say what failed: the last lines of each failed rule's log, else of Snakemake's own."""
    named = [Path(name) for name in dict.fromkeys(_RULE_LOG.findall(text))]
    failed = [path for path in named if path.is_file()]
    for path in failed:
        note(f"--- {path}")
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines()[-15:]:
            note(line)
    if not failed:
        for line in text.splitlines()[-25:]:
            note(line)
    note(f"failed; the whole log is {log}. Finished cells are kept: run again to go on")

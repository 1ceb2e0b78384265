"""The container tool, Apptainer or Singularity, whichever is there: found, run, and its argv."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from kvstudy.base.errors import PinError
from kvstudy.pins.credentials import scrub, without_secrets

_NAMES = ("apptainer", "singularity")
_TAIL_LINES = 15
_LINE_CHARS = 400


@dataclass(frozen=True, slots=True)
class Tool:
    """An installed container tool."""

    name: str
    path: str
    version: str

    def record(self) -> dict[str, str]:
        """What a lock says of it; the path is the site's own affair."""
        return {"name": self.name, "version": self.version}

    def pull_argv(self, address: str, target: Path, *, plain: bool) -> list[str]:
        """Pull an image, by digest, into a file that does not exist yet."""
        return [self.path, "pull", *(["--no-https"] if plain else []), str(target), address]

    def build_argv(self, source: str, target: Path) -> list[str]:
        """Convert a local image (`oci:FOLDER`, `docker-archive:FILE`) into a file."""
        return [self.path, "build", str(target), source]

    def exec_argv(self, sif: Path, command: Sequence[str]) -> list[str]:
        """Run a command in an image, on the CPU, with nothing of the host in it."""
        return [self.path, "exec", *_CLOSED, str(sif), *command]


_CLOSED = ("--cleanenv", "--containall", "--no-home", "--pwd", "/")


def find_tool(environ: Mapping[str, str] = os.environ) -> Tool:
    """The tool named by KVSTUDY_APPTAINER, else apptainer, else singularity.

    Raises PinError when there is none on this machine.
    """
    named = environ.get("KVSTUDY_APPTAINER")
    for name in [named] if named else _NAMES:
        path = shutil.which(name, path=environ.get("PATH"))
        if path is None:
            continue
        result = subprocess.run(
            [path, "--version"], capture_output=True, text=True, timeout=60, check=False
        )
        match = re.search(r"(apptainer|singularity)\S* version (\S+)", result.stdout)
        if result.returncode == 0 and match:
            return Tool(match[1], path, match[2])
    wanted = f"KVSTUDY_APPTAINER={named}" if named else "neither apptainer nor singularity"
    raise PinError(
        f"{wanted}: no working container tool on this machine. Load the site's module, set "
        "KVSTUDY_APPTAINER, or let the rule run in a job on a node that has it (docs/pins.md)"
    )


def tool_environment(
    tool: Tool,
    *,
    cache: Path,
    temporary: Path,
    pulls: bool,
    environ: Mapping[str, str] = os.environ,
) -> dict[str, str]:
    """The environment of a run: no hub token, registry login only for a pull, its folders set.

    A cache folder of the user's is not taken: the tool trusts whatever lies there (`layers`).
    """
    prefix = tool.name.upper()
    base = without_secrets(environ, keep_registry=pulls)
    return {
        f"{prefix}_TMPDIR": str(temporary),
        **base,
        f"{prefix}_CACHEDIR": str(cache),
    }


def run_tool(
    argv: Sequence[str], environ: Mapping[str, str], what: str, *, hint: str = "run again"
) -> None:
    """Run the tool to its end; raises PinError with the last lines it said.

    The whole process group ends when this process is interrupted or told to end.
    """
    tail: deque[str] = deque(maxlen=_TAIL_LINES)
    with (
        _ending_is_an_exit(),
        subprocess.Popen(
            argv,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            env=dict(environ),
            start_new_session=True,
        ) as process,
    ):
        try:
            for line in process.stdout or ():
                tail.append(_both_ends(line.decode(errors="replace").rstrip()))
            code = process.wait()
        finally:
            end_group(process)
    if code != 0:
        said = scrub("\n  ".join(tail), environ)
        raise PinError(f"{what}: {Path(argv[0]).name} ended with {code}; {hint}\n  {said}")


def _both_ends(line: str) -> str:
    """A long line without its middle: the reason of a fault stands at its end."""
    if len(line) <= _LINE_CHARS:
        return line
    return f"{line[: _LINE_CHARS // 4]} ... {line[-3 * _LINE_CHARS // 4 :]}"


def end_group(process: subprocess.Popen[bytes]) -> None:
    """End a child and everything it started; does nothing when it has ended."""
    if process.poll() is None:
        os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def _ending_is_an_exit() -> Iterator[None]:
    """Within the block SIGTERM unwinds the stack, so that children and temporary files go too."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return

    def leave(number: int, _frame: FrameType | None) -> None:
        sys.exit(128 + number)

    before = signal.signal(signal.SIGTERM, leave)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)

"""Slurm's own commands, asked and read; every answer may be missing."""

from __future__ import annotations

import getpass
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

NEEDED = ("sbatch", "squeue", "scontrol", "sinfo")
_TIMEOUT_S = 10
_GPU = re.compile(r"gpu(?::(?P<type>[^:(=]+))?(?:[:=](?P<count>\d+))?(?:\(|$)")


@dataclass(frozen=True, slots=True)
class Partition:
    """A partition: its longest job, and the GPUs of its kinds of nodes as (type, count)."""

    name: str
    is_up: bool
    minutes: float | None
    gpus: tuple[tuple[str | None, int], ...]


class Slurm:
    """The cluster as its commands describe it."""

    def missing(self) -> list[str]:
        """Commands that are not on PATH."""
        return [name for name in NEEDED if shutil.which(name) is None]

    def is_complete(self) -> bool:
        """Whether every command that is needed is there."""
        return not self.missing()

    def partitions(self) -> dict[str, Partition]:
        """Partitions by name."""
        found: dict[str, Partition] = {}
        for line in _ask("sinfo", "-h", "-o", "%R|%a|%l|%G") or []:
            fields = line.strip().split("|")
            if len(fields) != 4:
                continue
            name, up, limit, gres = fields
            gpus = tuple(gpus_of(part) for part in _split(gres) if part.startswith("gpu"))
            before = found[name].gpus if name in found else ()
            found[name] = Partition(name, up == "up", minutes_of(limit), before + gpus)
        return found

    def accounts(self) -> set[str] | None:
        """Accounts of this user in lower case; None where there is no accounting."""
        words = ("show", "assoc", f"user={getpass.getuser()}", "format=account")
        lines = _ask("sacctmgr", "-n", "-P", *words)
        return None if lines is None else {line.strip().lower() for line in lines if line.strip()}

    def min_job_age_s(self) -> int | None:
        """How long the controller remembers an ended job."""
        for line in _ask("scontrol", "show", "config") or []:
            if found := re.match(r"MinJobAge\s*=\s*(\d+)", line):
                return int(found[1])
        return None

    def jobs_in(self, folder: Path, rule: str) -> list[str]:
        """`<number> (<comment>)` of this user's unfinished jobs of a rule from a folder."""
        found = []
        for line in _ask("squeue", "-h", "-u", getpass.getuser(), "-o", "%i|%Z|%k") or []:
            number, _, rest = line.strip().partition("|")
            place, _, comment = rest.partition("|")
            if Path(place) == folder and comment.startswith(f"rule_{rule}"):
                found.append(f"{number} ({comment.removeprefix(f'rule_{rule}_wildcards_')})")
        return found


def _ask(*argv: str) -> list[str] | None:
    """Lines that a command prints; None when it is not there, fails or does not answer."""
    try:
        done = subprocess.run(argv, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout.splitlines() if done.returncode == 0 else None


def _split(gres: str) -> list[str]:
    """Entries of a gres list: at commas that are not inside `(S:0,1)`."""
    return re.split(r",(?![^(]*\))", gres)


def gpus_of(gres: str) -> tuple[str | None, int]:
    """(type, count) of a gres entry: gpu, gpu:2, gpu:h200, gpu:h200:1, gpu:h200:4(S:0-1)."""
    found = _GPU.match(gres)
    if found is None:
        return None, 0
    kind, count = found["type"], found["count"]
    if kind is not None and kind.isdecimal() and count is None:
        kind, count = None, kind
    return kind, int(count or 1)


def minutes_of(limit: str) -> float | None:
    """Minutes of a Slurm time (`30`, `1:30`, `2:00:00`, `1-12:00:00`); None for no limit."""
    limit = limit.strip()
    days, dash, rest = limit.rpartition("-")
    if not re.fullmatch(r"\d*", days) or not re.fullmatch(r"\d+(:\d+){0,2}", rest):
        return None
    parts = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = [*parts, 0, 0][:3]
    elif len(parts) == 3:
        hours, minutes, seconds = parts
    else:
        hours, (minutes, seconds) = 0, [*parts, 0][:2]
    return int(days or 0) * 1440 + hours * 60 + minutes + seconds / 60

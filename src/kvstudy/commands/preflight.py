"""What of a site would stop a run: asked in seconds, before anything is submitted.

`check` compares the study with a Slurm profile and with what the cluster and this machine say. It
changes nothing and submits nothing. A question that the site does not answer (no accounting, no
such command) is no problem by itself; only a wrong answer is.
"""

from __future__ import annotations

import math
import os
import re
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from kvstudy.base.errors import PinError
from kvstudy.commands.slurm_site import Partition, Slurm, gpus_of, minutes_of
from kvstudy.pins.spec import cache_folder
from kvstudy.pins.store import ImageStore
from kvstudy.pins.tool import find_tool
from kvstudy.serve.processes import free_port
from kvstudy.study.cost import FIRST_LOAD_S, cell_seconds
from kvstudy.study.plan import Study

MEASURE = "measure_allocation"
LONGEST_POLL_S = 180
"""The longest pause between two status queries of the executor plugin."""
IMAGE_GB = 30.0
"""Room for one engine image and its layers while it is being pulled."""
TEMP_GB = 2.0
EPHEMERAL = Path("/proc/sys/net/ipv4/ip_local_port_range")
FEWEST_PORTS = 1000


@dataclass(frozen=True, slots=True)
class Problem:
    """Something that would stop or spoil a run, and what to change."""

    what: str
    fix: str


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a profile asks for, for the rule that measures."""

    profile: dict[str, Any]
    default: dict[str, Any]
    measure: dict[str, Any]

    @classmethod
    def of(cls, path: Path) -> Wanted:
        """Read a profile: its file, or the folder that holds it."""
        file = path / "config.yaml" if path.is_dir() else path
        profile = yaml.safe_load(file.read_text(encoding="utf-8")) or {}
        default = _pairs(profile.get("default-resources"))
        rules = profile.get("set-resources") or {}
        own = rules.get(MEASURE, {}) if isinstance(rules, dict) else {}
        return cls(profile, default, {**default, **own})

    @property
    def partitions(self) -> set[str]:
        """Every partition that jobs are sent to."""
        names = {self.default.get("slurm_partition"), self.measure.get("slurm_partition")}
        return {str(name) for name in names if name}

    def gpus(self) -> tuple[str | None, int]:
        """(type, count) of the GPUs of one measuring job; the type is None for any."""
        if "gres" in self.measure:
            return gpus_of(str(self.measure["gres"]))
        return self.measure.get("gpu_model"), int(self.measure.get("gpu") or 0)


def check(study: Study, profile_path: Path) -> list[Problem]:
    """Every problem of running `study` with this profile from this machine."""
    try:
        wanted = Wanted.of(profile_path)
    except (OSError, yaml.YAMLError) as error:
        return [Problem(f"{profile_path}: {error}", "name a profile folder with a config.yaml")]
    slurm = Slurm()
    problems = [*_profile(wanted), *_commands(slurm)]
    if slurm.is_complete():
        partitions = slurm.partitions()
        problems += [
            *_partitions(wanted, partitions),
            *_gpu(study, wanted, partitions),
            *_time(study, wanted, partitions),
            *_account(wanted, slurm),
            *_polling(wanted, slurm),
            *_running(slurm),
        ]
    return [*problems, *_engines(study), *_disk(study), *_ports()]


# ---- the profile itself --------------------------------------------------------------------------


def _profile(wanted: Wanted) -> Iterator[Problem]:
    profile = wanted.profile
    if profile.get("slurm-array-jobs"):
        yield Problem(
            "slurm-array-jobs is set: plugin 2.8.0 loses outputs of arrays",
            "remove the entry from the profile",
        )
    if not profile.get("slurm-requeue"):
        yield Problem(
            "slurm-requeue is not set: after a node failure two copies of a job could run, and a "
            "preempted one would never end",
            "set `slurm-requeue: true` in the profile",
        )
    if profile.get("slurm-status-command") != "squeue":
        yield Problem(
            "slurm-status-command is not squeue: plugin 2.8.0 never notices a cancelled job "
            "through sacct",
            "set `slurm-status-command: squeue` in the profile, or install plugin 2.3.1",
        )
    if "gres" in wanted.measure and "gpu" in wanted.measure:
        yield Problem(
            f"{MEASURE} asks for GPUs twice, by gres and by gpu",
            f"keep one of them in set-resources.{MEASURE}",
        )


def _commands(slurm: Slurm) -> Iterator[Problem]:
    for command in slurm.missing():
        yield Problem(
            f"{command} is not on PATH: this machine cannot submit jobs",
            "run on a login node of the cluster, or load its Slurm module",
        )


# ---- the cluster ---------------------------------------------------------------------------------


def _partitions(wanted: Wanted, known: dict[str, Partition]) -> Iterator[Problem]:
    for name in sorted(wanted.partitions - set(known)):
        yield Problem(
            f"partition {name} does not exist (there are: {', '.join(sorted(known)) or 'none'})",
            "set slurm_partition in default-resources and set-resources of the profile",
        )
    for name in sorted(wanted.partitions & set(known)):
        if not known[name].is_up:
            yield Problem(f"partition {name} is not up", "choose another, or wait for the site")


def _gpu(study: Study, wanted: Wanted, known: dict[str, Partition]) -> Iterator[Problem]:
    kind, count = wanted.gpus()
    where = f"set-resources.{MEASURE} of the profile"
    tp = study.config.server.tp
    if study.backend == "measured" and count < tp:
        yield Problem(
            f"a job gets {count} GPUs, the server needs {tp} (server.tp)", f"set gres in {where}"
        )
    partition = known.get(str(wanted.measure.get("slurm_partition")))
    if partition is None or count == 0:
        return
    if not partition.gpus:
        yield Problem(f"partition {partition.name} has no GPUs", f"set slurm_partition in {where}")
    elif kind is not None and kind not in {name for name, _ in partition.gpus}:
        there = ", ".join(sorted({f"gpu:{name or '(no type)'}" for name, _ in partition.gpus}))
        yield Problem(
            f"partition {partition.name} has no GPU of type {kind} (it has {there})",
            f"set gres in {where}",
        )
    elif count > max(n for name, n in partition.gpus if kind in (None, name)):
        yield Problem(f"no node of {partition.name} has {count} such GPUs", f"set gres in {where}")


def _time(study: Study, wanted: Wanted, known: dict[str, Partition]) -> Iterator[Problem]:
    longest, needed = 0.0, ""
    for name, cells in study.allocations.items():
        runnable = [cell for cell in cells if study.runnable(cell)]
        minutes = sum(cell_seconds(study, cell) for cell in runnable) / 60
        if minutes > longest:
            longest, needed = minutes, name
    own = _pairs((wanted.profile.get("set-resources") or {}).get(MEASURE)).get("runtime")
    partition = known.get(str(wanted.measure.get("slurm_partition")))
    most = partition.minutes if partition else None
    asked = minutes_of(str(own)) if own is not None else longest * 2 + FIRST_LOAD_S / 60
    if asked is not None and asked < longest:
        yield Problem(
            f"time limit {asked:.0f} min is shorter than the {longest:.0f} min that {needed} takes",
            f"raise or remove runtime in set-resources.{MEASURE} of the profile",
        )
    if asked is not None and most is not None and asked > most and partition is not None:
        yield Problem(
            f"{needed} asks for {math.ceil(asked)} min, partition {partition.name} allows "
            f"{most:.0f}",
            f"set runtime in set-resources.{MEASURE} to at most that, or choose another partition; "
            "an allocation that is cut off goes on with its missing cells at the next try",
        )


def _account(wanted: Wanted, slurm: Slurm) -> Iterator[Problem]:
    known = slurm.accounts()
    named = {str(a) for a in (_account_of(wanted.default), _account_of(wanted.measure)) if a}
    for account in sorted(named):
        if known is not None and account.lower() not in known:
            yield Problem(
                f"account {account} is not one of yours ({', '.join(sorted(known)) or 'none'})",
                "set slurm_account in default-resources of the profile",
            )


def _account_of(resources: dict[str, Any]) -> Any:
    return resources.get("slurm_account")


def _polling(wanted: Wanted, slurm: Slurm) -> Iterator[Problem]:
    age = slurm.min_job_age_s()
    if wanted.profile.get("slurm-status-command") != "squeue" or age is None:
        return
    if age <= LONGEST_POLL_S:
        yield Problem(
            f"the controller forgets ended jobs after {age} s (MinJobAge), the plugin may ask only "
            f"every {LONGEST_POLL_S} s: an ended job would be waited for for ever",
            "ask the site for MinJobAge=300, or use plugin 2.3.1 with slurm-status-command: sacct",
        )


def _running(slurm: Slurm) -> Iterator[Problem]:
    here = slurm.jobs_in(Path.cwd(), MEASURE)
    if here:
        yield Problem(
            f"jobs of an earlier run from this folder are still there: {', '.join(here)}",
            "wait for them (their finished cells are taken from the store), or `scancel` them; "
            "a second copy would measure the same cells again",
        )


# ---- this machine --------------------------------------------------------------------------------


def _engines(study: Study) -> Iterator[Problem]:
    images = [e.image for name, e in study.config.engines.items() if name in study.runnable_engines]
    if study.backend != "measured" or not any(images):
        return
    try:
        find_tool()
    except PinError as error:
        yield Problem(str(error), "load the site's module in the shell that starts Snakemake")
    for image in images:
        if image is not None and image.staged and not Path(image.staged).exists():
            yield Problem(
                f"staged image {image.staged} does not exist", "correct image.staged in config.yaml"
            )
    path = study.config.model.path
    if path and not Path(path).is_dir():
        yield Problem(f"model folder {path} does not exist", "correct model.path in config.yaml")


def _disk(study: Study) -> Iterator[Problem]:
    if study.backend == "measured":
        cache = cache_folder(None)
        store = ImageStore(cache)
        images = [study.config.engines[name].image for name in study.runnable_engines]
        wanted = [i for i in images if i is not None and not i.staged]
        pulled = [i for i in wanted if store.record(i.digest) is None]
        yield from _room(cache, IMAGE_GB * len(pulled), "set KVSTUDY_CACHE to a larger folder")
        if pulled and Path.home() in cache.parents:
            yield Problem(
                f"images go to {cache}, below your home: quotas there are often small, and every "
                "compute node must see it",
                "set KVSTUDY_CACHE to a shared project folder",
            )
    temporary = Path(tempfile.gettempdir())
    yield from _room(temporary, TEMP_GB, "set TMPDIR to node-local scratch")
    yield from _room(Path.cwd(), TEMP_GB, "run from a checkout on a larger file system")


def _room(folder: Path, needed_gb: float, fix: str) -> Iterator[Problem]:
    there = folder
    while not there.exists():
        there = there.parent
    free_gb = shutil.disk_usage(there).free / 1e9
    if free_gb < needed_gb:
        yield Problem(f"{folder}: {free_gb:.1f} GB free, {needed_gb:.0f} GB needed", fix)
    if not os.access(there, os.W_OK):
        yield Problem(f"{there} cannot be written", fix)


def _ports() -> Iterator[Problem]:
    try:
        free_port()
    except OSError as error:
        yield Problem(f"no port on the loopback interface can be had: {error}", "ask the site")
    if EPHEMERAL.is_file():
        low, high = map(int, EPHEMERAL.read_text(encoding="ascii").split())
        if high - low < FEWEST_PORTS:
            yield Problem(
                f"only ports {low} to {high} are handed out ({EPHEMERAL}): servers of several jobs "
                "on one node would get in each other's way",
                "ask the site to widen the range, or take whole nodes with --exclusive",
            )


def _pairs(resources: Any) -> dict[str, Any]:
    """Resources of a profile, written as a mapping or as a list of `key=value`."""
    if isinstance(resources, list):
        split = (re.split(r"\s*=\s*", str(item), maxsplit=1) for item in resources)
        return {pair[0]: pair[1] for pair in split if len(pair) == 2}
    return dict(resources or {})

"""Where a cell runs: host, GPU, versions and the commit of this checkout."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import version
from pathlib import Path
from typing import Any

import psutil


def host() -> dict[str, Any]:
    """Node name, CPU model, cores in reach, memory in bytes, OS and kernel."""
    return {
        "node": platform.node(),
        "cpu": _cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": psutil.virtual_memory().total,
        "os": _os_name(),
        "kernel": platform.release(),
        "slurm_job_id": os.environ.get("SLURM_JOB_ID"),
    }


def versions() -> dict[str, str]:
    """Versions of Python and of the packages that touch a number."""
    names = ("kvstudy", "httpx", "aiohttp", "numpy", "pyarrow", "tokenizers", "transformers")
    return {"python": platform.python_version(), **{name: version(name) for name in names}}


def visible_gpu() -> dict[str, Any] | None:
    """UUID, name and driver of the first GPU this process may use; None where there is none."""
    fields = ("uuid", "name", "driver_version", "memory.total")
    query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader"]
    chosen = os.environ.get("CUDA_VISIBLE_DEVICES", "").split(",")[0]
    if chosen:
        query.append(f"--id={chosen}")
    try:
        done = subprocess.run(query, capture_output=True, text=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError):
        return None
    lines = done.stdout.strip().splitlines()
    if not lines:
        return None
    uuid, name, driver, memory = (part.strip() for part in lines[0].split(",", 3))
    return {"uuid": uuid, "name": name, "driver": driver, "memory": memory}


def commit(folder: Path) -> tuple[str | None, bool]:
    """(commit, has uncommitted changes) of the checkout; (None, False) outside one."""
    head = _git(folder, "rev-parse", "HEAD")
    if head is None:
        return None, False
    return head.strip(), bool(_git(folder, "status", "--porcelain", "--untracked-files=no"))


def _git(folder: Path, *arguments: str) -> str | None:
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *arguments],
            capture_output=True,
            text=True,
            timeout=30,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired):
        return None
    return done.stdout if done.returncode == 0 else None


def _cpu_model() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    except OSError:
        pass
    return platform.machine()


def _os_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()

"""Process facts from the outside: free ports, who listens, what carries a run's mark."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from collections.abc import Mapping
from pathlib import Path

import psutil

MARK_ENV = "KVSTUDY_RUN_MARK"
_CONTAINER_PREFIXES = ("APPTAINERENV_", "SINGULARITYENV_")
_SECRET_WORDS = frozenset(
    ("TOKEN", "SECRET", "PASSWORD", "PASSWD", "PASSPHRASE", "APIKEY", "KEY", "CREDENTIALS")
)


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody listens on right now; somebody may take it before it is used."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.bind((host, 0))
        return int(probe.getsockname()[1])


def is_port_free(port: int, host: str = "127.0.0.1") -> bool:
    """Whether a server could bind the port now (as servers do, with SO_REUSEADDR)."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((host, port))
        except OSError:
            return False
        return True


def listening(root: int) -> dict[int, set[str]] | None:
    """Port to addresses that the tree below `root` listens on; None where it cannot be seen."""
    try:
        tree = [psutil.Process(root), *psutil.Process(root).children(recursive=True)]
    except psutil.Error:
        return None
    found: dict[int, set[str]] = {}
    for process in tree:
        try:
            connections = process.net_connections(kind="tcp")
        except psutil.NoSuchProcess:
            continue
        except psutil.Error:
            return None
        for one in connections:
            if one.status == psutil.CONN_LISTEN and one.laddr:
                found.setdefault(one.laddr.port, set()).add(one.laddr.ip)
    return found


def is_loopback(address: str) -> bool:
    """Whether an address is reachable from this machine only."""
    return address.startswith(("127.", "::ffff:127.")) or address == "::1"


def is_secret(name: str) -> bool:
    """Whether an environment variable's name says that its value is secret."""
    return not _SECRET_WORDS.isdisjoint(name.upper().split("_"))


def server_env(
    inherited: Mapping[str, str], own: Mapping[str, str], *, mark: str
) -> dict[str, str]:
    """The environment of a server: no secret of ours, its own variables, and the run's mark.

    A server works from a staged model and needs no token of the hub or the registry. What the
    user's shell would slip into a container is kept out too.
    """
    env = {
        name: value
        for name, value in inherited.items()
        if not is_secret(name) and not name.startswith(_CONTAINER_PREFIXES)
    }
    for prefix in ("", *_CONTAINER_PREFIXES):
        env[prefix + MARK_ENV] = mark
    return {**env, **own}


def sweep(mark: str) -> int:
    """Kill every process whose environment carries the mark; how many there were."""
    needle = f"{MARK_ENV}={mark}".encode()
    count = 0
    for entry in os.listdir("/proc"):  # noqa: PTH208  a path object per process is slow
        if not entry.isdecimal() or int(entry) == os.getpid():
            continue
        with contextlib.suppress(OSError):
            if needle in Path(f"/proc/{entry}/environ").read_bytes():
                os.kill(int(entry), signal.SIGKILL)
                count += 1
    return count

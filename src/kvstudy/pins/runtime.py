"""How a verified engine is started: argv and environment for the measuring step."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvstudy.base.errors import PinError
from kvstudy.pins.at_rest import recheck
from kvstudy.pins.tool import Tool, find_tool

_ENV_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@dataclass(frozen=True, slots=True)
class Runtime:
    """Where an engine runs: in a verified image, or on the host (which includes the emulator)."""

    kind: Literal["image", "host", "emulated"]
    engine: str
    verified: bool
    sif: Path | None = None
    sif_sha256: str | None = None
    manifest_digest: str | None = None
    tool: Tool | None = None

    def argv(
        self,
        command: Sequence[str],
        *,
        scratch: Path,
        gpu: bool = True,
        binds: Mapping[Path, str] | None = None,
    ) -> list[str]:
        """The whole command line; on the host that is the command itself.

        The image sees nothing of the host but `binds` (host path to path inside, read-only) and
        `scratch`, which becomes its /tmp and home. Values of the environment never stand here:
        see `environment`.
        """
        if self.kind != "image":
            return list(command)
        if self.tool is None or self.sif is None:
            raise PinError(f"engine {self.engine}: no container tool was looked for")
        argv = [self.tool.path, "exec", "--cleanenv", "--containall", "--pwd", "/tmp"]  # noqa: S108
        argv += ["--workdir", _plain(scratch)]
        argv += ["--nv"] if gpu else []
        for source, inside in (binds or {}).items():
            argv += ["--bind", f"{_plain(source)}:{_plain(Path(inside))}:ro"]
        return [*argv, str(self.sif), *command]

    def environment(self, wanted: Mapping[str, str]) -> dict[str, str]:
        """Variables to add to the child's environment so that the engine sees `wanted`.

        An image is given them under the tool's own prefix, so that secrets such as a server's key
        never stand on a command line. NO_EVAL: without it Apptainer hands values through a shell,
        which runs `$(...)` inside them.
        """
        if self.kind != "image" or self.tool is None:
            return dict(wanted)
        for name in wanted:
            if not _ENV_NAME.fullmatch(name):
                raise PinError(f"engine {self.engine}: env: {name!r} is no variable name")
        prefix = self.tool.name.upper()
        given = {f"{prefix}ENV_{name}": value for name, value in wanted.items()}
        return {f"{prefix}_NO_EVAL": "1", **given}

    def record(self) -> dict[str, Any]:
        """What a cell records of it."""
        return {
            "kind": self.kind,
            "verified": self.verified,
            "manifest_digest": self.manifest_digest,
            "sif_sha256": self.sif_sha256,
            "tool": self.tool.record() if self.tool else None,
        }


def image_part(lock: Mapping[str, Any], engine: str) -> Mapping[str, Any]:
    """An engine's image part, of a whole lock or of the engine's own image.json."""
    if "engines" in lock:
        if engine not in lock["engines"]:
            raise PinError(f"engine {engine}: not in the lock; run the pin rules again")
        part: Mapping[str, Any] = lock["engines"][engine]["image"]
        return part
    if lock.get("engine") != engine:
        raise PinError(f"engine {engine}: the image file is of engine {lock.get('engine')!r}")
    return lock


def runtime_for(lock: Mapping[str, Any], engine: str, tool: Tool | None = None) -> Runtime:
    """What the lock says of an engine's runtime; touches no file.

    Raises PinError for an image that was not verified.
    """
    part = image_part(lock, engine)
    if part["backend"] == "emulated":
        return Runtime("emulated", engine, verified=False)
    if part["kind"] == "host":
        return Runtime("host", engine, verified=False)
    if part.get("verified") is not True:
        raise PinError(f"engine {engine}: its image is not verified; run the pin rules again")
    return Runtime(
        "image",
        engine,
        verified=True,
        sif=Path(part["place"]["path"]),
        sif_sha256=part["sif_sha256"],
        manifest_digest=part["manifest_digest"] or part["pinned"]["digest"],
        tool=tool,
    )


def ready_runtime(lock: Mapping[str, Any], engine: str) -> Runtime:
    """The runtime, with the image file looked at again and the tool of this machine found.

    Call it before each use. Raises PinError when the file was altered or there is no tool.
    """
    runtime = runtime_for(lock, engine)
    if runtime.kind != "image":
        return runtime
    recheck(image_part(lock, engine)["place"], f"engine {engine}")
    return runtime_for(lock, engine, find_tool())


def _plain(path: Path) -> str:
    text = str(path)
    if not path.is_absolute() or any(sign in text for sign in ":,\n"):
        raise PinError(f"{text!r}: a path bound into an image is absolute and holds no ':' or ','")
    return text

"""The probe rule: what is inside a verified image, and whether it is the pinned version."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

from kvstudy.base.errors import PinError
from kvstudy.pins.at_rest import recheck, say
from kvstudy.pins.credentials import scrub
from kvstudy.pins.probe_script import MARK
from kvstudy.pins.spec import Document, EngineSpec, emulated
from kvstudy.pins.tool import find_tool, tool_environment

PROBE_LOCK_VERSION = 1
PACKAGE_OF = {"trtllm": "tensorrt_llm", "vllm": "vllm", "sglang": "sglang"}
"""Which package's version an adapter's pin means."""

_TIMEOUT_S = 900.0
_MOST_CHARS = 1 << 20
_PRE = {"c": "rc", "pre": "rc", "preview": "rc", "alpha": "a", "beta": "b"}


def probe_engine(spec: EngineSpec, image: Document) -> Document:
    """Look inside an engine's image (or its host installation) on the CPU.

    Raises PinError when the image was altered, the probe cannot run, or the version found is not
    the pinned one.
    """
    if spec.emulated:
        return emulated(engine=spec.engine)
    if image.get("engine") != spec.engine:
        raise PinError(f"engine {spec.engine}: the image file is of {image.get('engine')!r}")
    facts = _in_image(spec, image) if image["kind"] == "image" else _on_host(spec, image)
    version = check_version(spec, facts)
    say(f"engine {spec.engine}: version {version}, as pinned")
    return {
        "probe_lock_version": PROBE_LOCK_VERSION,
        "backend": spec.backend,
        "verified": True,
        "engine": spec.engine,
        "version": version,
        "facts": facts,
    }


def check_version(spec: EngineSpec, facts: Mapping[str, Any]) -> str:
    """The version found; raises PinError when it is not the pinned one, or there is none."""
    package = PACKAGE_OF.get(spec.adapter)
    found = facts["packages"].get(package) if package else facts.get("command_version")
    name = package or f"{spec.command[0] if spec.command else spec.adapter} --version"
    if found is None:
        raise PinError(
            f"engine {spec.engine}: expected {name} {spec.version}, found none installed. Check "
            f"engines.{spec.engine}.adapter and its image"
        )
    if not same_version(spec.version, str(found)):
        raise PinError(
            f"engine {spec.engine}: expected {name} {spec.version} (engines.{spec.engine}.version),"
            f" found {found}. Correct the version, or pin the image that holds it"
        )
    return str(found)


def same_version(pinned: str, found: str) -> bool:
    """Whether two version texts mean the same release.

    Spelling is free (`1.3.0-rc22`, `1.3.0rc22`); a local part (`+cpu`) counts only when pinned.
    """
    if "+" not in pinned:
        found = found.split("+", maxsplit=1)[0]
    return _canonical(pinned) == _canonical(found)


def parse_probe(output: str, what: str) -> Document:
    """The probe's JSON out of everything an image printed; raises PinError without it."""
    for line in reversed(output[-_MOST_CHARS:].splitlines()):
        if line.startswith(MARK):
            try:
                facts = json.loads(line.removeprefix(MARK))
            except ValueError:
                break
            if isinstance(facts, dict) and isinstance(facts.get("packages"), dict):
                return facts
    raise PinError(f"{what}: the probe gave no answer. It said:\n  {scrub(output[-1500:])}")


def script() -> bytes:
    """The probe's source, to be fed to a Python on stdin."""
    return (resources.files("kvstudy.pins") / "probe_script.py").read_bytes()


def _canonical(version: str) -> str:
    text = version.strip().lower().removeprefix("v")
    match = re.fullmatch(r"([0-9.]+?)[-_.]?(rc|c|preview|pre|alpha|a|beta|b)[-_.]?(\d+)(.*)", text)
    if match:
        pre = _PRE.get(match[2], match[2])
        text = f"{match[1]}{pre}{int(match[3])}{match[4]}"
    return re.sub(r"(\.0)+(?=$|[a-z+])", "", re.sub(r"[-_]", ".", text))


def _in_image(spec: EngineSpec, image: Document) -> Document:
    if image.get("verified") is not True:
        raise PinError(f"engine {spec.engine}: its image is not verified; run verify_image again")
    place = recheck(image["place"], f"engine {spec.engine}")
    tool = find_tool()
    what = f"engine {spec.engine}: probe in {place['path']}"
    with tempfile.TemporaryDirectory(prefix="kvstudy-probe-") as scratch:
        work = Path(scratch)
        environ = tool_environment(tool, cache=work / "cache", temporary=work, pulls=False)
        argv = tool.exec_argv(Path(place["path"]), ["python3", "-B", "-"])
        return parse_probe(_run(argv, what, script(), environ), what)


def _on_host(spec: EngineSpec, image: Document) -> Document:
    """Probe with the interpreter that the command itself runs on; else ask for its version."""
    executable = Path(image["executable"])
    what = f"engine {spec.engine}: probe of {executable}"
    python = interpreter_of(executable)
    if python is not None:
        facts = parse_probe(_run([*python, "-B", "-"], what, script()), what)
    else:
        facts = {"packages": {}, "system": {}, "entry_points": {}, "engines": {}, "notes": []}
    if spec.adapter not in PACKAGE_OF:
        said = _run([str(executable), "--version"], what, b"")
        match = re.search(rf"(?<![\w.]){re.escape(spec.version)}(?![\w.])", said)
        lines = said.strip().splitlines()
        facts["command_version"] = match[0] if match else (lines[0][:200] if lines else None)
    return facts


def interpreter_of(executable: Path) -> list[str] | None:
    """The Python a script's first line names; None for anything else."""
    with executable.open("rb") as handle:
        first = handle.readline(512).decode(errors="replace")
    if not first.startswith("#!"):
        return None
    words = first[2:].split()
    if words and Path(words[0]).name == "env":
        words = [found for word in words[1:2] if (found := shutil.which(word))]
    if words and Path(words[0]).name.startswith("python"):
        return words[:1]
    return None


def _run(
    argv: Sequence[str], what: str, stdin: bytes, environ: Mapping[str, str] | None = None
) -> str:
    try:
        result = subprocess.run(
            argv, input=stdin, capture_output=True, timeout=_TIMEOUT_S, env=environ, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise PinError(f"{what}: cannot run ({type(error).__name__}: {error})") from None
    output = result.stdout.decode(errors="replace")
    if result.returncode != 0:
        said = scrub(result.stderr.decode(errors="replace")[-1500:])
        raise PinError(f"{what}: ended with {result.returncode}\n  {said}")
    return result.stderr.decode(errors="replace") + "\n" + output

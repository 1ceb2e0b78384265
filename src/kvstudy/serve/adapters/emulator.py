"""The emulator in the place of any engine it has a dialect of: the same flags, files and routes."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from kvstudy.base.digest import canonical_json
from kvstudy.base.errors import ServerError
from kvstudy.serve.model import Launch

DIALECTS = ("trtllm", "vllm", "sglang")
API_KEY_ENV = "KVSTUDY_API_KEY"


def emulate(
    launch: Launch,
    emulate: Mapping[str, Any],
    time_scale: float,
    workload_file: Path | None,
    *,
    api_key: str | None = None,
) -> Launch:
    """The launch of an emulated server that takes a real engine's launch.

    `emulate` describes the emulation (version, pause, step_time, …); the version defaults to the
    one the launch expects. `api_key` protects dialects whose real engine takes no key.
    """
    if launch.adapter not in DIALECTS:
        raise ServerError(
            f"{launch.adapter}: the emulator has no such dialect; "
            f"use one of {', '.join(DIALECTS)}, or backend: measured"
        )
    described = {"version": launch.expectations.version, **emulate}
    key = launch.api_key or api_key
    env = {name: value for name, value in launch.env.items() if name not in launch.secrets}
    flags, files = _without_private(launch)
    words = [*flags, "--dialect", launch.adapter, "--time-scale", repr(float(time_scale))]
    if workload_file is not None:
        words += ["--workload", str(workload_file)]
    words += ["--emulate", canonical_json({k: v for k, v in described.items() if v is not None})]
    return replace(
        launch,
        executable=(sys.executable, "-m", "kvstudy", "emulate", "serve"),
        model_words=(launch.model,),
        flags=tuple(words),
        env=env if key is None else {**env, API_KEY_ENV: key},
        files=files,
        api_key=key,
        secrets=() if key is None else (API_KEY_ENV,),
        private_files=(),
    )


def _without_private(launch: Launch) -> tuple[list[str], dict[str, str]]:
    """Flags and files without those that only carry the real engine's key."""
    flags: list[str] = []
    words = iter(launch.flags)
    for word in words:
        following = next(words, None) if word == "--config" else None
        if following is None:
            flags.append(word)
        elif following.rpartition("/")[2] not in launch.private_files:
            flags += [word, following]
    return flags, {n: text for n, text in launch.files.items() if n not in launch.private_files}

"""A cell's values to the launch of its server: a real engine in its image, or the emulator."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from kvstudy.base.digest import sha256_file
from kvstudy.base.errors import PinError
from kvstudy.pins.runtime import Runtime
from kvstudy.serve.adapters.emulator import emulate
from kvstudy.serve.apptainer import visible_gpus, wrap
from kvstudy.serve.command import build, new_api_key
from kvstudy.serve.model import DIR, EngineSettings, Launch, ServerSettings
from kvstudy.serve.processes import free_port

SITE_NAME = "sitecustomize.py"


@dataclass(frozen=True, slots=True)
class Place:
    """What a launch needs beside the cell's values."""

    model: Path
    served_name: str
    runtime: Runtime | None
    time_scale: float
    expected: Path | None


def server_settings(server: Mapping[str, Any]) -> ServerSettings:
    """The server settings of a cell, in the adapters' form."""
    pool = server["kv_pool"]
    return ServerSettings(
        tp=server["tp"],
        max_batch_size=server["max_batch_size"],
        max_num_tokens=server["max_num_tokens"],
        max_seq_len=server["max_seq_len"],
        chunked_prefill=server["chunked_prefill"],
        pool_tokens=pool["tokens"],
        block_tokens=pool["block_tokens"],
        kv_dtype=pool["dtype"],
        prefix_reuse=pool["prefix_reuse"],
        free_gpu_memory_fraction=pool["free_gpu_memory_fraction"],
    )


def launch_of(values: Mapping[str, Any], place: Place, port: int | None = None) -> Launch:
    """The launch of a cell's server on `port`, or on a free one."""
    engine = values["engine"]
    key = new_api_key()
    site = _site_file(engine)
    launch = build(
        EngineSettings(
            adapter=engine["adapter"],
            version=engine["version"],
            env=engine["env"],
            as_published=engine["as_published"],
            telemetry=values["telemetry"]["enabled"],
            command=tuple(engine["command"]),
        ),
        server_settings(values["server"]),
        values["arm_options"],
        model=str(place.model),
        served_name=place.served_name,
        port=port if port is not None else free_port(),
        api_key=key,
    )
    if values["backend"] == "emulated":
        emulator = values["emulator"]
        described = {
            "pause": engine["emulate"]["pause"],
            "step_time": emulator["step_time"],
            "admission_lag_steps": emulator["admission_lag_steps"],
        }
        return emulate(launch, described, place.time_scale, place.expected, api_key=key)
    if site is not None:
        launch = replace(launch, files={**launch.files, SITE_NAME: site})
        launch = launch.with_env(PYTHONPATH=DIR)
    return _in_image(launch, place)


def _site_file(engine: Mapping[str, Any]) -> str | None:
    """The engine's patch, checked against its pinned hash; None where it has none."""
    site = engine.get("site")
    if site is None:
        return None
    path = Path(site["file"])
    if not path.is_file():
        raise PinError(f"engines.{engine['name']}.site.file: {path}: no such file")
    found = f"sha256:{sha256_file(path)}"
    if found != site["sha256"]:
        raise PinError(
            f"engines.{engine['name']}.site.sha256: pinned {site['sha256']}, {path} is {found}. "
            "Restore the file, or pin the new one"
        )
    return path.read_text(encoding="utf-8")


def _in_image(launch: Launch, place: Place) -> Launch:
    """The launch inside the engine's verified image; unchanged on the host."""
    runtime = place.runtime
    if runtime is None or runtime.sif is None or runtime.tool is None:
        return launch
    return wrap(
        launch,
        image=str(runtime.sif),
        gpus=visible_gpus(os.environ),
        runtime=runtime.tool.name,
    )

"""A launch inside an Apptainer (or Singularity) image: pure wrapping of words and environment.

`--cleanenv` keeps the host's environment out, so every variable is passed by name. Values that
are secret travel in the environment of the runtime (`APPTAINERENV_…`), never in its words. The
container shares the host's network: a server that listens on loopback is reached from outside.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from kvstudy.base.errors import ServerError
from kvstudy.serve.model import DIR, Launch

_RUNTIMES = {"apptainer": "APPTAINERENV_", "singularity": "SINGULARITYENV_"}
_BREAKS_A_BIND = frozenset(",:")


def wrap(
    launch: Launch,
    *,
    image: str,
    binds: Sequence[str] = (),
    gpus: str | None = None,
    pwd: str = DIR,
    runtime: str = "apptainer",
) -> Launch:
    """The launch run inside `image` (a SIF file or a sandbox folder).

    `binds` are host paths, seen read-only under the same path inside; the model's folder is one of
    them where the model is a path, the run folder is bound writable. `gpus` is the value of
    CUDA_VISIBLE_DEVICES that the job was given; None runs without a GPU.
    """
    if runtime not in _RUNTIMES:
        raise ServerError(f"container runtime {runtime!r}: expected one of {', '.join(_RUNTIMES)}")
    paths = [*binds, launch.model] if launch.model.startswith("/") else list(binds)
    words = [runtime, "exec"]
    if gpus is not None:
        words.append("--nv")
    words.append("--cleanenv")
    for path in dict.fromkeys(paths):
        words += ["--bind", f"{_bindable(path)}:{path}:ro"]
    words += ["--bind", f"{DIR}:{DIR}"]
    prefix = _RUNTIMES[runtime]
    # The runtime would otherwise evaluate values in a shell: `$(...)` in one would be run.
    hidden: dict[str, str] = {f"{runtime.upper()}_NO_EVAL": "1"}
    visible = {} if gpus is None else {"CUDA_VISIBLE_DEVICES": gpus}
    for name, value in {**launch.env, **visible}.items():
        if name in launch.secrets or not _is_plain(value):
            hidden[prefix + name] = value
        else:
            words += ["--env", f"{name}={value}"]
    return replace(
        launch,
        executable=(*words, "--pwd", pwd, image, *launch.executable),
        env=hidden,
        secrets=tuple(prefix + name for name in launch.secrets),
    )


def visible_gpus(environment: Mapping[str, str]) -> str | None:
    """The job's GPUs as the scheduler states them; None outside of a GPU job."""
    value = environment.get("CUDA_VISIBLE_DEVICES") or environment.get("SLURM_STEP_GPUS")
    return value or None


def _bindable(path: str) -> str:
    if not path.startswith("/") or not _BREAKS_A_BIND.isdisjoint(path):
        raise ServerError(f"bind {path!r}: expected an absolute path without ',' and ':'")
    return path


def _is_plain(value: str) -> bool:
    """Whether `--env` takes a value as it is: it reads quotes, and commas beside a second `=`."""
    return '"' not in value and not ("," in value and "=" in value)

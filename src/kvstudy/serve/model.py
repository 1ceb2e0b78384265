"""What a server is asked to be, how it is launched, and what it must turn out to be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum

from kvstudy.base.errors import ServerError

DIR = "{dir}"
"""Stands for the run folder in argv, environment and file contents until the server is started."""


@dataclass(frozen=True, slots=True)
class ServerSettings:
    """Server settings in no engine's words, equal for every arm."""

    tp: int
    max_batch_size: int
    max_num_tokens: int
    max_seq_len: int
    chunked_prefill: bool
    pool_tokens: int
    block_tokens: int
    kv_dtype: str
    prefix_reuse: bool
    free_gpu_memory_fraction: float


@dataclass(frozen=True, slots=True)
class EngineSettings:
    """One engine version.

    `command` replaces the executable's words (`vllm`, `trtllm-serve`, `llama-server`,
    `python3 -m sglang.launch_server`), for instance with one of a side environment.
    """

    adapter: str
    version: str
    env: Mapping[str, str] = field(default_factory=dict)
    as_published: bool = False
    telemetry: bool = True
    command: tuple[str, ...] = ()


class MetricsKind(StrEnum):
    """What a metrics route answers with."""

    NONE = "none"
    ITERATIONS = "iterations"
    PROMETHEUS = "prometheus"


@dataclass(frozen=True, slots=True)
class Expectations:
    """What the running server must say of itself; None: nothing is expected."""

    version: str | None
    policy: str | None
    pool_tokens: int | None
    served_model: str


@dataclass(frozen=True, slots=True)
class Routes:
    """Where an engine answers what.

    `version_key` is the key of the version in the JSON that `version_path` answers with.
    """

    ready_path: str = "/health"
    version_path: str | None = "/version"
    version_key: str = "version"
    info_path: str | None = None
    metrics_path: str | None = None
    metrics_kind: MetricsKind = MetricsKind.NONE
    perf_metrics_path: str | None = None


@dataclass(frozen=True, slots=True)
class Launch:
    """Everything needed to start one server, and what to expect of it.

    The words of the command line are kept in three parts, so that the emulator can take the place
    of the executable. `files` maps a name to the content written beside the run; the words refer
    to them as `{dir}/name`. `secrets` names the environment variables whose values are secret,
    `private_files` the files that are removed once the server has read them.
    """

    adapter: str
    executable: tuple[str, ...]
    model_words: tuple[str, ...]
    flags: tuple[str, ...]
    env: dict[str, str]
    files: dict[str, str]
    expectations: Expectations
    routes: Routes
    model: str
    port: int
    host: str = "127.0.0.1"
    api_key: str | None = field(default=None, repr=False)
    secrets: tuple[str, ...] = ()
    private_files: tuple[str, ...] = ()
    binds: tuple[str, ...] = ()

    @property
    def argv(self) -> tuple[str, ...]:
        """The whole command line."""
        return (*self.executable, *self.model_words, *self.flags)

    @property
    def url(self) -> str:
        """Base URL of the server."""
        return f"http://{self.host}:{self.port}"

    @property
    def public_env(self) -> dict[str, str]:
        """The environment with its secrets masked: what may be recorded."""
        return {k: "***" if k in self.secrets else v for k, v in self.env.items()}

    @property
    def headers(self) -> dict[str, str]:
        """Request headers that the server wants."""
        return {} if self.api_key is None else {"Authorization": f"Bearer {self.api_key}"}

    def with_env(self, **variables: str) -> Launch:
        """The same launch with more environment variables."""
        return replace(self, env={**self.env, **variables})


class Ending(StrEnum):
    """How a server ended."""

    STOPPED = "stopped"
    """Asked to end, it did in time."""
    KILLED = "killed"
    """Asked to end, it did not in time and was killed."""
    DIED = "died"
    """It ended by itself, before or after it was ready."""
    NEVER_READY = "never_ready"
    """It was given up: never ready in time, or not what was declared."""


@dataclass(frozen=True, slots=True)
class Ended:
    """How and when a server ended. Times are ns of the wall clock (Unix).

    `leftovers` counts processes of its tree that outlived it and had to be killed.
    """

    ending: Ending
    exit_code: int | None
    signal: int | None
    leftovers: int
    launch_ns: int
    ready_ns: int | None
    stop_ns: int | None
    ended_ns: int


class UnfitServerError(ServerError):
    """A server that cannot be measured.

    `reason` is a code of `kvstudy.base.reasons`; `is_port_taken` says that another port may help.
    """

    def __init__(self, reason: str, message: str, *, is_port_taken: bool = False) -> None:
        self.reason = reason
        self.is_port_taken = is_port_taken
        super().__init__(message)

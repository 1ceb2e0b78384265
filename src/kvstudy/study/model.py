"""The configuration's frozen, strict types. Units end the names; defaults stand here only."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StringConstraints

TO_BE_PINNED = "to-be-pinned"

Name = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$")]
Sha256 = Annotated[str, StringConstraints(pattern=r"^sha256:[0-9a-f]{64}$")]
Positive = Annotated[int, Field(ge=1)]
PositiveReal = Annotated[float, Field(gt=0, allow_inf_nan=False)]
NonNegativeReal = Annotated[float, Field(ge=0, allow_inf_nan=False)]

Backend = Literal["measured", "emulated"]
Adapter = Literal["trtllm", "vllm", "sglang", "llamacpp"]


class Strict(BaseModel):
    """Unknown keys, coercions and later changes are refused."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)


class Model(Strict):
    """The model: a hub repository at a commit, and the files whose hashes are pinned."""

    repo: Annotated[str, StringConstraints(pattern=r"^[\w.-]+(/[\w.-]+)?$")]
    revision: Annotated[str, StringConstraints(pattern=rf"^([0-9a-f]{{40}}|{TO_BE_PINNED})$")]
    files: dict[str, Sha256] = Field(default={}, description="file name -> pinned hash")
    path: str | None = Field(default=None, description="folder that already holds the model")


class Image(Strict):
    """A container image: where it is and what it must be."""

    uri: Annotated[
        str, StringConstraints(pattern=r"^(docker|oci|oci-archive|docker-archive)://\S+$")
    ]
    digest: Sha256 | Literal["to-be-pinned"] = Field(description="linux/amd64 manifest digest")
    index_digest: Sha256 | None = Field(default=None, description="multi-arch index digest")
    sif_sha256: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")] | None = Field(
        default=None, description="gates a staged SIF file only"
    )
    staged: str | None = Field(default=None, description="path of a SIF or OCI layout on the site")


class Truncate(Strict):
    """Pause mode: only the first tokens come back, the rest is decoded silently."""

    truncate_to_tokens: Positive


class Emulate(Strict):
    """What the emulator assumes of one engine version."""

    pause: Literal["recompute", "never_release"] | Truncate = "recompute"


class Site(Strict):
    """A sitecustomize.py that the engine's Python imports first: a patch without a new image."""

    file: str = Field(description="path of the file, relative to the checkout")
    sha256: Sha256


class Engine(Strict):
    """One engine version."""

    adapter: Adapter
    version: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    image: Image | None = Field(default=None, description="none: the engine runs on the host")
    command: list[str] = Field(default=[], description="executable on the host, with no image")
    env: dict[str, str] = Field(default={}, description="environment of the server")
    as_published: bool = Field(default=False, description="exactly the published command line")
    site: Site | None = Field(default=None, description="a patch of the engine's Python code")
    emulate: Emulate = Emulate()


class KvPool(Strict):
    """The KV pool, equal for every engine."""

    tokens: Positive
    block_tokens: Positive = 32
    dtype: Literal["auto", "fp8", "bfloat16", "float16"] = "auto"
    prefix_reuse: bool = False
    free_gpu_memory_fraction: Annotated[float, Field(gt=0, lt=1)] = 0.9


class Server(Strict):
    """Server settings, equal for every arm unless a workload overrides them."""

    tp: Positive = 1
    max_batch_size: Positive
    max_num_tokens: Positive
    max_seq_len: Positive
    chunked_prefill: bool = True
    kv_pool: KvPool


class Uniform(Strict):
    """Lengths drawn uniformly from [low, high], both included."""

    uniform: Annotated[list[Positive], Field(min_length=2, max_length=2)]


Length = Positive | Uniform


class Warmup(Strict):
    """Requests before the counted window, with prompts of their own."""

    requests: Positive
    concurrency: Positive


class Workload(Strict):
    """A fixed list of requests and how it is offered."""

    requests: Positive
    input_tokens: Length
    output_tokens: Length = Field(description="true output length")
    output_cap_tokens: Positive | None = Field(
        default=None, description="max_tokens; default: true"
    )
    ignore_eos: bool = True
    concurrency: Annotated[list[Positive], Field(min_length=1)]
    repeats: Positive = 2
    warmup: Warmup | None = None
    server: dict[str, Any] = Field(default={}, description="server keys this workload overrides")
    arms: list[Name] | None = Field(default=None, description="default: every arm")
    engines: list[Name] | None = Field(default=None, description="default: every engine of the arm")


class Arm(Strict):
    """One server configuration being compared."""

    extends: Name | None = None
    engines: list[Name] | None = None
    options: dict[str, Any] = {}


class Contrast(Strict):
    """Treatment against baseline, within one engine or within one arm."""

    baseline: Name
    treatment: Name
    within: Literal["engine", "arm"]


class Slo(Strict):
    """Upper bounds a request must meet, all of them."""

    ttft_ms: PositiveReal | None = None
    tpot_ms: PositiveReal | None = None
    e2e_s: PositiveReal | None = None


class Telemetry(Strict):
    """What is read from the server while it works."""

    enabled: bool = True
    interval_ms: Annotated[int, Field(ge=50, le=60000)] = 1000


class Client(Strict):
    """Limits of the client."""

    ready_timeout_s: PositiveReal = 3600.0
    no_progress_s: PositiveReal = 1800.0
    max_duration_s: PositiveReal = 7200.0
    stall_threshold_ms: PositiveReal = 1000.0


class StepTime(Strict):
    """Constants of the step-time model; see docs/laws.md for the formula."""

    fixed_s: NonNegativeReal = 0.01878
    per_generation_s: NonNegativeReal = 7.5e-6
    per_generation_context_token_s: NonNegativeReal = 3.23e-8
    per_context_token_s: NonNegativeReal = 1.314e-4
    per_context_attention_s: NonNegativeReal = 1.58e-9


class Emulator(Strict):
    """The emulator's cost model and pace."""

    step_time: StepTime = StepTime()
    fitted_to: list[str] = Field(default=[], description="cell patterns the constants saw")
    admission_lag_steps: Annotated[int, Field(ge=0)] = 2
    chunks_per_s: PositiveReal = Field(
        default=24000.0, description="wall pace of emulated cells in their busiest seconds"
    )


class Config(Strict):
    """The whole configuration."""

    study: Name
    title: str = ""
    backend: Backend
    seed: Annotated[int, Field(ge=0, lt=2**63)]
    published: list[str] = []
    model: Model
    engines: Annotated[dict[Name, Engine], Field(min_length=1)]
    server: Server
    workloads: Annotated[dict[Name, Workload], Field(min_length=1)]
    arms: Annotated[dict[Name, Arm], Field(min_length=1)]
    contrasts: list[Contrast] = []
    slo: Slo = Slo()
    attempts: dict[str, Positive] = {}
    telemetry: Telemetry = Telemetry()
    client: Client = Client()
    emulator: Emulator = Emulator()

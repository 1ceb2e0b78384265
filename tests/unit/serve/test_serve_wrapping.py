"""The emulator in an engine's place, and engines inside images: pure rewriting of words."""

from __future__ import annotations

import json
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from serve_settings import ISSUE, MODEL, MU, launch

from kvstudy.base.errors import ServerError
from kvstudy.serve.adapters.emulator import emulate
from kvstudy.serve.apptainer import visible_gpus, wrap

PYTHON = sys.executable


def test_the_emulator_takes_the_same_flags_and_yaml() -> None:
    real = launch("trtllm", "1.2.1", MU)

    built = emulate(
        real, {"pause": {"truncate_to_tokens": 1024}}, 40.0, Path("/w/expected.parquet")
    )

    assert built.argv == (
        *(PYTHON, "-m", "kvstudy", "emulate", "serve", MODEL),
        *real.flags,
        *("--dialect", "trtllm", "--time-scale", "40.0", "--workload", "/w/expected.parquet"),
        *("--emulate", '{"pause":{"truncate_to_tokens":1024},"version":"1.2.1"}'),
    )
    assert built.files == real.files
    assert built.expectations == real.expectations


def test_the_emulators_key_goes_through_the_environment() -> None:
    built = emulate(launch("trtllm", "1.2.1"), {}, 1.0, None, api_key="k-123456")

    assert built.env == {"KVSTUDY_API_KEY": "k-123456"}
    assert built.secrets == ("KVSTUDY_API_KEY",)
    assert built.headers == {"Authorization": "Bearer k-123456"}
    assert "--workload" not in built.argv


def test_an_engines_key_becomes_the_emulators() -> None:
    vllm = emulate(launch("vllm", "0.33.0", api_key="k-123456"), {}, 1.0, None)
    sglang = emulate(launch("sglang", "0.5.23", api_key="k-123456"), {}, 1.0, None)

    for built in (vllm, sglang):
        assert built.env["KVSTUDY_API_KEY"] == "k-123456"
        assert "VLLM_API_KEY" not in built.env
        assert built.files == {}
        assert "--config" not in built.argv


def test_sglangs_model_becomes_positional() -> None:
    argv = emulate(launch("sglang", "0.5.23"), {}, 1.0, None).argv

    assert argv[5] == MODEL
    assert "--model-path" not in argv
    assert argv[argv.index("--dialect") + 1] == "sglang"


def test_an_emulated_version_can_be_stated() -> None:
    argv = emulate(launch("trtllm", "1.2.1"), {"version": "1.2.2"}, 1.0, None).argv

    assert json.loads(argv[-1]) == {"version": "1.2.2"}


def test_engines_without_a_dialect_are_refused() -> None:
    with pytest.raises(ServerError, match="no such dialect"):
        emulate(launch("llamacpp", "b1", server=replace(ISSUE, kv_dtype="auto")), {}, 1.0, None)


def test_apptainer_gets_everything_by_name() -> None:
    real = launch("trtllm", "1.2.1", MU, env={"TLLM_LOG_LEVEL": "info"})

    built = wrap(real, image="/sif/1.2.1.sif", binds=["/scratch/cache"], gpus="0")

    assert " ".join(built.argv[: built.argv.index("trtllm-serve")]) == (
        "apptainer exec --nv --cleanenv --bind /scratch/cache:/scratch/cache:ro"
        f" --bind {MODEL}:{MODEL}:ro --bind {{dir}}:{{dir}}"
        " --env TLLM_LOG_LEVEL=info --env CUDA_VISIBLE_DEVICES=0"
        " --pwd {dir} /sif/1.2.1.sif"
    )
    assert built.argv[built.argv.index("trtllm-serve") :] == real.argv
    assert built.env == {"APPTAINER_NO_EVAL": "1"}


def test_a_secret_never_stands_in_the_containers_words() -> None:
    built = wrap(launch("vllm", "0.33.0", api_key="k-123456"), image="v.sif", gpus="GPU-1,GPU-2")

    assert built.env == {"APPTAINER_NO_EVAL": "1", "APPTAINERENV_VLLM_API_KEY": "k-123456"}
    assert built.secrets == ("APPTAINERENV_VLLM_API_KEY",)
    assert not any("k-123456" in word for word in built.argv)
    assert "CUDA_VISIBLE_DEVICES=GPU-1,GPU-2" in built.argv


def test_values_that_the_env_option_would_misread_go_the_other_way() -> None:
    built = wrap(launch("trtllm", "1.2.1", env={"A": "x=1,y=2", "B": 'say "hi"'}), image="i.sif")

    assert built.env == {
        "APPTAINER_NO_EVAL": "1",
        "APPTAINERENV_A": "x=1,y=2",
        "APPTAINERENV_B": 'say "hi"',
    }
    assert "--nv" not in built.argv


def test_a_hub_name_is_not_bound() -> None:
    built = wrap(replace(launch("trtllm", "1.2.1"), model="nvidia/m"), image="i.sif")

    assert "nvidia/m:nvidia/m:ro" not in built.argv


@pytest.mark.parametrize("bad", ["relative/path", "/a:b", "/a,b"])
def test_binds_that_would_be_misread_are_refused(bad: str) -> None:
    with pytest.raises(ServerError, match="bind"):
        wrap(launch("trtllm", "1.2.1"), image="i.sif", binds=[bad])


def test_an_unknown_runtime_is_refused() -> None:
    with pytest.raises(ServerError, match="container runtime"):
        wrap(launch("trtllm", "1.2.1"), image="i.sif", runtime="docker")


def test_singularity_has_its_own_prefix() -> None:
    built = wrap(launch("vllm", "0.33.0", api_key="k-123456"), image="i.sif", runtime="singularity")

    assert built.argv[0] == "singularity"
    assert "SINGULARITYENV_VLLM_API_KEY" in built.env


def test_gpus_are_those_the_job_was_given() -> None:
    assert visible_gpus({"CUDA_VISIBLE_DEVICES": "3"}) == "3"
    assert visible_gpus({"SLURM_STEP_GPUS": "1"}) == "1"
    assert visible_gpus({}) is None

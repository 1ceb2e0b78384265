"""A cell's values to a launch: emulated, on the host, in an image, with a patch."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvstudy.base.errors import PinError
from kvstudy.cell.launch import Place, launch_of
from kvstudy.pins.runtime import Runtime
from kvstudy.study.plan import Study

CELL = "W-C.c32.trtllm-1.2.1.mu.r1"


@pytest.fixture
def values(study_with: Callable[..., Study]) -> Callable[..., dict[str, Any]]:
    def make(**engine: Any) -> dict[str, Any]:
        study = study_with(lambda d: d["engines"]["trtllm-1.2.1"].update(engine))
        spec = json.loads(study.cell_spec(SimpleNamespace(cell=CELL)))
        return dict(spec["values"])

    return make


def place(tmp_path: Path, runtime: Runtime | None = None) -> Place:
    return Place(
        model=tmp_path, served_name="m", runtime=runtime, time_scale=40.0, expected=Path("{dir}/x")
    )


def test_an_emulated_cell_runs_the_emulator_with_the_engines_own_words(
    values: Any, tmp_path: Path
) -> None:
    argv = launch_of(values(), place(tmp_path)).argv

    assert list(argv[1:5]) == ["-m", "kvstudy", "emulate", "serve"]
    assert argv[argv.index("--max_batch_size") + 1] == "64"
    assert argv[argv.index("--time-scale") + 1] == "40.0"
    emulation = json.loads(argv[argv.index("--emulate") + 1])
    assert emulation["pause"] == {"truncate_to_tokens": 1024}
    assert emulation["admission_lag_steps"] == 2


def test_every_launch_has_a_key_of_its_own_that_is_never_in_its_words(
    values: Any, tmp_path: Path
) -> None:
    one, two = (launch_of(values(), place(tmp_path)) for _ in range(2))

    assert one.api_key
    assert one.api_key != two.api_key
    assert not any(one.api_key in word for word in one.argv)


def test_a_measured_engine_runs_in_its_verified_image(values: Any, tmp_path: Path) -> None:
    runtime = Runtime(
        "image",
        "trtllm-1.2.1",
        verified=True,
        sif=Path("/cache/a.sif"),
        tool=SimpleNamespace(name="apptainer", path="/usr/bin/apptainer"),  # type: ignore[arg-type]
    )
    launch = launch_of({**values(), "backend": "measured"}, place(tmp_path, runtime))

    assert list(launch.argv[:2]) == ["apptainer", "exec"]
    assert launch.argv[launch.argv.index("/cache/a.sif") + 1] == "trtllm-serve"


def test_a_patch_goes_first_on_the_engines_path_once_its_hash_holds(
    values: Any, tmp_path: Path
) -> None:
    patch = tmp_path / "p.py"
    patch.write_text("x = 1\n")
    digest = f"sha256:{hashlib.sha256(b'x = 1' + bytes([10])).hexdigest()}"
    launch = launch_of(
        {**values(site={"file": str(patch), "sha256": digest}), "backend": "measured"},
        place(tmp_path),
    )

    assert launch.files["sitecustomize.py"] == "x = 1\n"
    assert launch.env["PYTHONPATH"] == "{dir}"
    patch.write_text("x = 2\n")
    with pytest.raises(PinError, match=r"engines\.trtllm-1\.2\.1\.site\.sha256: pinned"):
        launch_of(values(site={"file": str(patch), "sha256": digest}), place(tmp_path))

"""The step on the emulated backend; on the measured one tests/unit/pins covers it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

from kvstudy.base.files import read_json, write_json
from kvstudy.steps.probe_engine import main
from kvstudy.study.plan import Study


def test_the_emulated_backend_probes_nothing(
    study_with: Callable[..., Study], tmp_path: Path
) -> None:
    spec = study_with().pins_spec(SimpleNamespace(engine="trtllm-1.2.1"))
    write_json(tmp_path / "image.json", {"backend": "emulated"})

    main(
        [
            *("--spec", spec, "--image-lock", str(tmp_path / "image.json")),
            *("--out", str(tmp_path / "probe.json")),
        ]
    )

    assert read_json(tmp_path / "probe.json")["verified"] is False
    assert read_json(tmp_path / "probe.json")["engine"] == "trtllm-1.2.1"

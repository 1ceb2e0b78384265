"""The step: emulated says so, to-be-pinned stops and says what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pytest

from kvstudy.base.errors import PinError
from kvstudy.base.files import read_json
from kvstudy.steps.verify_image import main
from kvstudy.study.plan import Study


def arguments(study: Study, engine: str, out: Path) -> list[str]:
    """The command line of the rule."""
    spec = study.pins_spec(SimpleNamespace(engine=engine))
    return ["--spec", spec, "--cache", str(out.parent / "cache"), "--out", str(out)]


def test_the_emulated_backend_verifies_nothing_and_says_so(
    study_with: Callable[..., Study], tmp_path: Path
) -> None:
    main(arguments(study_with(), "trtllm-1.3.0rc22", tmp_path / "x.image.json"))

    assert read_json(tmp_path / "x.image.json") == {
        "backend": "emulated",
        "engine": "trtllm-1.3.0rc22",
        "verified": False,
        "why": "the emulated backend runs no image and reads no model",
    }
    assert not (tmp_path / "cache").exists()


def test_a_digest_to_be_pinned_names_engine_key_and_command(
    study_with: Callable[..., Study], tmp_path: Path
) -> None:
    study = study_with(lambda d: d.update(backend="measured"))
    out = tmp_path / "x.image.json"

    with pytest.raises(PinError) as caught:
        main(arguments(study, "trtllm-1.3.0rc22", out))

    assert "engines.trtllm-1.3.0rc22.image.digest" in str(caught.value)
    assert "`kvstudy pin trtllm-1.3.0rc22`" in str(caught.value)
    assert not out.exists()

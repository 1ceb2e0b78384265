"""The step: emulated says so, a commit to be pinned stops."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstudy.base.errors import PinError
from kvstudy.base.files import read_json
from kvstudy.steps.verify_model import main
from kvstudy.study.plan import Study


def test_the_emulated_backend_reads_no_model(
    study_with: Callable[..., Study], tmp_path: Path
) -> None:
    main(["--spec", study_with().model_spec(), "--out", str(tmp_path / "model.json")])

    assert read_json(tmp_path / "model.json")["backend"] == "emulated"
    assert read_json(tmp_path / "model.json")["verified"] is False


def test_a_commit_to_be_pinned_stops(study_with: Callable[..., Study], tmp_path: Path) -> None:
    def change(document: dict[str, Any]) -> None:
        document["backend"] = "measured"
        document["model"]["revision"] = "to-be-pinned"

    study = study_with(change)

    with pytest.raises(PinError, match=r"model\.revision is 'to-be-pinned'.*kvstudy pin model"):
        main(["--spec", study.model_spec(), "--out", str(tmp_path / "model.json")])

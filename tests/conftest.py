"""Shared fixtures: the published study's configuration and a clean environment."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from kvstudy.study.parse import parse_config
from kvstudy.study.plan import Study

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="session")
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture
def document() -> dict[str, Any]:
    """A fresh copy of the published configuration, on the emulated backend."""
    loaded = yaml.safe_load((ROOT / "config.yaml").read_text(encoding="utf-8"))
    return {**copy.deepcopy(loaded), "backend": "emulated"}


@pytest.fixture
def study_with(document: dict[str, Any]) -> Callable[..., Study]:
    """Makes a study of the published configuration after a change."""

    def make(change: Callable[[dict[str, Any]], object] | None = None) -> Study:
        changed = copy.deepcopy(document)
        if change is not None:
            change(changed)
        return Study(parse_config(changed))

    return make

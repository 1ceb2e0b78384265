"""A tiny model folder for all tests of the emulator."""

from __future__ import annotations

from pathlib import Path

import pytest
from emulator_harness import train_tokenizer


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the tokenizer of a model called `tiny`."""
    return train_tokenizer(tmp_path_factory.mktemp("models") / "tiny")

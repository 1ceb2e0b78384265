"""Environments: exact, hashed, without an address, and the same everywhere."""

import re
import runpy
from pathlib import Path

import pytest


@pytest.mark.parametrize("name", ["requirements.lock", "requirements-dev.lock"])
def test_every_locked_line_has_hashes_and_no_address(root: Path, name: str) -> None:
    text = (root / "envs" / name).read_text()
    blocks = re.split(r"\n(?=[a-z0-9])", text)
    packages = [block for block in blocks if "==" in block.splitlines()[0]]

    assert len(packages) > 50
    assert all("--hash=sha256:" in block for block in packages)
    assert "://" not in text
    assert "index-url" not in text


def test_conda_takes_the_locked_versions(root: Path) -> None:
    made = runpy.run_path(str(root / "envs" / "conda.py"))["text"]()

    assert (root / "envs" / "kvstudy.yaml").read_text() == made, "run envs/lock.sh"

"""Fixtures of the pin tests: a clean home, a fake container tool, a constructed image."""

from __future__ import annotations

from pathlib import Path

import pins_parts
import pytest

_NAMES = (
    *("APPTAINER_DOCKER_USERNAME", "APPTAINER_DOCKER_PASSWORD", "SINGULARITY_DOCKER_USERNAME"),
    *("SINGULARITY_DOCKER_PASSWORD", "DOCKER_CONFIG", "HF_TOKEN", "APPTAINER_NO_HTTPS"),
    *("SINGULARITY_NOHTTPS", "KVSTUDY_CACHE", "KVSTUDY_APPTAINER", "APPTAINER_CACHEDIR"),
    *("APPTAINER_TMPDIR", "HF_HOME", "HF_ENDPOINT", "HF_HUB_OFFLINE"),
)


@pytest.fixture(autouse=True)
def clean_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials, no caches and no proxies of the machine."""
    for name in _NAMES:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))


@pytest.fixture
def parts() -> pins_parts.Parts:
    """A constructed image."""
    return pins_parts.make_parts()


@pytest.fixture
def tool_log(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A fake apptainer in use; its calls go to the returned file."""
    program = pins_parts.fake_tool(tmp_path / "bin")
    log = tmp_path / "tool.log"
    monkeypatch.setenv("KVSTUDY_APPTAINER", str(program))
    monkeypatch.setenv("FAKE_LOG", str(log))
    return log

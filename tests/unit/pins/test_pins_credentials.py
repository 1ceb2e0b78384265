"""Credentials come from the tool's login or the environment, and are never shown."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from kvstudy.pins.credentials import Basic, credentials_for, scrub, without_secrets


def login(path: Path, host: str, user: str, password: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    auth = base64.b64encode(f"{user}:{password}".encode()).decode()
    path.write_text(json.dumps({"auths": {host: {"auth": auth}}}), encoding="utf-8")


def test_the_environment_comes_first_then_the_tools_login_files(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    login(tmp_path / ".docker" / "config.json", "r.example", "docker", "d")
    assert credentials_for("r.example", home) == Basic("docker", "d")

    login(tmp_path / ".apptainer" / "docker-config.json", "r.example", "tool", "t:with:colons")
    assert credentials_for("r.example", home) == Basic("tool", "t:with:colons")

    given = {**home, "APPTAINER_DOCKER_USERNAME": "env", "APPTAINER_DOCKER_PASSWORD": "e"}
    assert credentials_for("r.example", given) == Basic("env", "e")


def test_a_login_for_another_host_is_not_used(tmp_path: Path) -> None:
    login(tmp_path / ".apptainer" / "docker-config.json", "r.example", "tool", "t")

    assert credentials_for("r.example.evil", {"HOME": str(tmp_path)}) is None
    assert credentials_for("example", {"HOME": str(tmp_path)}) is None


@pytest.mark.parametrize(
    "text",
    ["", "[]", '{"auths": []}', '{"auths": {"r.example": {"auth": "%%"}}}', '{"auths": null}'],
)
def test_a_damaged_login_file_means_no_login(tmp_path: Path, text: str) -> None:
    path = tmp_path / ".docker" / "config.json"
    path.parent.mkdir()
    path.write_text(text, encoding="utf-8")

    assert credentials_for("r.example", {"HOME": str(tmp_path)}) is None


def test_secrets_do_not_show() -> None:
    assert "planted" not in repr(Basic("planted-user", "planted-secret"))

    environ = {"HF_TOKEN": "hf_planted", "APPTAINER_DOCKER_PASSWORD": "planted"}
    text = "GET https://u:pw@r.example/a?X-Signature=abc failed with hf_planted and planted"

    assert scrub(text, environ) == "GET https://***@r.example/a?*** failed with *** and ***"


def test_a_child_gets_no_token_it_does_not_need() -> None:
    environ = {"HF_TOKEN": "x", "APPTAINER_DOCKER_PASSWORD": "y", "PATH": "/bin"}

    assert without_secrets(environ, keep_registry=False) == {"PATH": "/bin"}
    assert "APPTAINER_DOCKER_PASSWORD" in without_secrets(environ, keep_registry=True)

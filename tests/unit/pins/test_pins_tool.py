"""The container tool: found, run, ended, and its exact command lines."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path

import pins_parts
import pytest

from kvstudy.base.errors import PinError
from kvstudy.pins.tool import Tool, find_tool, run_tool, tool_environment

TOOL = Tool("apptainer", "/opt/bin/apptainer", "1.4.5")


def test_apptainer_is_taken_before_singularity(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_LOG", str(tmp_path / "log"))
    pins_parts.fake_tool(tmp_path / "bin", "singularity")
    environ = {"PATH": f"{tmp_path / 'bin'}:{os.environ['PATH']}"}
    assert find_tool(environ).name == "singularity"

    pins_parts.fake_tool(tmp_path / "bin", "apptainer")
    found = find_tool(environ)
    assert (found.name, found.version) == ("apptainer", "1.4.5")
    assert found.record() == {"name": "apptainer", "version": "1.4.5"}


def test_no_tool_says_what_to_do(tmp_path: Path) -> None:
    with pytest.raises(PinError, match=r"neither apptainer nor singularity.*in a job on a node"):
        find_tool({"PATH": str(tmp_path)})
    with pytest.raises(PinError, match="KVSTUDY_APPTAINER=nothing"):
        find_tool({"PATH": str(tmp_path), "KVSTUDY_APPTAINER": "nothing"})


def test_the_command_lines() -> None:
    address = "docker://r.example/a@sha256:" + "0" * 64
    sif = Path("/cache/x.sif")

    assert TOOL.pull_argv(address, sif, plain=False) == [TOOL.path, "pull", str(sif), address]
    assert TOOL.pull_argv(address, sif, plain=True)[2] == "--no-https"
    assert TOOL.build_argv("oci:/l", sif) == [TOOL.path, "build", str(sif), "oci:/l"]
    assert TOOL.exec_argv(sif, ["python3"]) == [
        *(TOOL.path, "exec", "--cleanenv", "--containall", "--no-home", "--pwd", "/"),
        *(str(sif), "python3"),
    ]


def test_the_environment_holds_its_folders_and_no_token() -> None:
    given = {"HF_TOKEN": "t", "APPTAINER_DOCKER_PASSWORD": "p", "APPTAINER_CACHEDIR": "/site"}
    given["APPTAINER_TMPDIR"] = "/site/tmp"
    made = tool_environment(
        TOOL, cache=Path("/c"), temporary=Path("/t"), pulls=False, environ=given
    )

    assert made == {"APPTAINER_CACHEDIR": "/c", "APPTAINER_TMPDIR": "/site/tmp"}
    pulls = tool_environment(
        TOOL, cache=Path("/c"), temporary=Path("/t"), pulls=True, environ=given
    )
    assert pulls["APPTAINER_DOCKER_PASSWORD"] == "p"
    assert "HF_TOKEN" not in pulls


def test_a_fault_shows_the_last_lines_without_secrets() -> None:
    code = "import sys; print('first'); print('token planted', file=sys.stderr); sys.exit(3)"
    environ = {**os.environ, "HF_TOKEN": "planted"}

    with pytest.raises(PinError, match=r"pulling: python\S* ended with 3; run again") as caught:
        run_tool([sys.executable, "-c", code], environ, "pulling")
    assert "token ***" in str(caught.value)
    assert "planted" not in str(caught.value)


def test_being_told_to_end_ends_the_tool_too(tmp_path: Path) -> None:
    pid_file = tmp_path / "pid"
    child = f"import os, time; open({str(pid_file)!r}, 'w').write(str(os.getpid())); time.sleep(60)"
    parent = (
        "import os, sys\nfrom kvstudy.pins.tool import run_tool\n"
        f"run_tool([sys.executable, '-c', {child!r}], dict(os.environ), 'x')\n"
    )
    with subprocess.Popen([sys.executable, "-c", parent]) as process:
        for _ in range(200):
            if pid_file.exists() and pid_file.read_text():
                break
            time.sleep(0.05)
        process.terminate()
        assert process.wait(20) == 143

    with pytest.raises(ProcessLookupError):
        os.kill(int(pid_file.read_text()), 0)

"""Logs, environments and ports: the small parts below the lifecycle."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kvstudy.serve import logs
from kvstudy.serve.guard import descendants
from kvstudy.serve.processes import (
    free_port,
    is_loopback,
    is_port_free,
    is_secret,
    listening,
    server_env,
    sweep,
)


def test_the_tail_is_short_and_free_of_control_characters(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_bytes(b"a\n" * 100 + b"\x1b[31mred\x1b[0m \x07bell\n" + b"x" * 1000 + b"\n\xff\n")

    lines = logs.tail(path, lines=3)

    assert lines == ["red bell", "x" * 400, "�"]


def test_the_tail_of_a_start_does_not_show_the_one_before(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("old\n")
    start = logs.size(path)
    with path.open("a") as file:
        file.write("new\n")

    assert logs.tail(path, after=start) == ["new"]
    assert logs.tail(tmp_path / "missing") == []


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("[Errno 98] error while attempting to bind: address already in use", "port"),
        ("127.0.0.1:80: cannot listen ([Errno 98])", "port"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate", "memory ran out"),
        ("Error: No such option: --served_model_name", "does not know an option"),
        ("vllm: error: unrecognized arguments: --watermark 0.3", "does not know an option"),
        ("pydantic_core: Extra inputs are not permitted", "does not know an option"),
        ("ImportError: libcuda.so.1: cannot open shared object file", "no usable GPU"),
        ("importlib.metadata.PackageNotFoundError: vllm", "incomplete"),
        ("FATAL:   could not open image /x.sif: image", "cannot be started"),
        ("is larger than the maximum number of tokens that can be stored", "does not hold"),
        ("OSError: /m is not a local folder and is not a valid model identifier", "not where"),
        ("OSError: [Errno 28] No space left on device", "disk is full"),
    ],
)
def test_known_failures_are_named(line: str, meaning: str) -> None:
    known = logs.diagnose(["starting", line, "bye"])

    assert known is not None
    assert meaning in known.meaning


def test_an_unknown_failure_is_not_guessed() -> None:
    assert logs.diagnose(["starting", "something odd"]) is None


def test_short_secrets_do_not_blank_out_a_log(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text("one a two\n")

    assert logs.scrub(path, ["", "a"]) == 0
    assert path.read_text() == "one a two\n"
    assert logs.masked("one a two", ["a"]) == "one a two"


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("HF_TOKEN", True),
        ("HUGGING_FACE_HUB_TOKEN", True),
        ("APPTAINER_DOCKER_PASSWORD", True),
        ("VLLM_API_KEY", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("TOKENIZERS_PARALLELISM", False),
        ("PATH", False),
        ("KEYBOARD", False),
    ],
)
def test_secrets_are_known_by_their_names(name: str, secret: bool) -> None:
    assert is_secret(name) is secret


def test_a_server_inherits_no_secret_and_nothing_for_containers() -> None:
    mine = {"PATH": "/bin", "HF_TOKEN": "t", "APPTAINERENV_X": "1"}

    env = server_env(mine, {"VLLM_API_KEY": "own"}, mark="abc")

    assert env == {
        "PATH": "/bin",
        "VLLM_API_KEY": "own",
        "KVSTUDY_RUN_MARK": "abc",
        "APPTAINERENV_KVSTUDY_RUN_MARK": "abc",
        "SINGULARITYENV_KVSTUDY_RUN_MARK": "abc",
    }


def test_a_free_port_can_be_bound() -> None:
    assert is_port_free(free_port())


def test_loopback_is_told_from_the_rest() -> None:
    assert all(map(is_loopback, ["127.0.0.1", "127.1.2.3", "::1", "::ffff:127.0.0.1"]))
    assert not any(map(is_loopback, ["0.0.0.0", "::", "10.0.0.1"]))  # noqa: S104


def test_marked_processes_are_swept_and_others_left() -> None:
    sleep = [sys.executable, "-I", "-S", "-c", "import time; time.sleep(600)"]
    marked = subprocess.Popen(sleep, env={**os.environ, "KVSTUDY_RUN_MARK": "m1-test"})
    other = subprocess.Popen(sleep, env={**os.environ, "KVSTUDY_RUN_MARK": "m2-test"})
    try:
        assert {marked.pid, other.pid} <= set(descendants(os.getpid()))
        assert sweep("m1-test") == 1
        assert marked.wait(30) == -9
        assert other.poll() is None
    finally:
        other.kill()
        other.wait()


def test_a_process_that_is_gone_listens_on_nothing_known() -> None:
    gone = subprocess.Popen([sys.executable, "-I", "-S", "-c", ""])
    gone.wait()

    assert listening(gone.pid) is None

"""Every problem of a configuration is found, named by path, and all are shown at once."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvstudy.base.errors import ConfigError
from kvstudy.study.parse import parse_config, read_config

Change = Callable[[dict[str, Any]], object]


def set_at(*path: Any, value: Any) -> Change:
    def change(document: dict[str, Any]) -> None:
        node = document
        for key in path[:-1]:
            node = node[key]
        node[path[-1]] = value

    return change


CASES: list[tuple[str, Change, str]] = [
    ("unknown key", set_at("serer", value=1), "serer: unknown key; did you mean 'server'?"),
    (
        "unknown key below",
        set_at("server", "kv_pool", "tokenz", value=1),
        "server.kv_pool.tokenz: unknown key; did you mean 'tokens'?",
    ),
    (
        "wrong type",
        set_at("server", "tp", value="1"),
        "server.tp: expected a valid integer, got '1'",
    ),
    (
        "real for whole",
        set_at("workloads", "W-C", "requests", value=1.5),
        "workloads.W-C.requests: expected a valid integer, got 1.5",
    ),
    (
        "bool for whole",
        set_at("seed", value=True),
        "seed: expected a valid integer, got True",
    ),
    (
        "concurrency 0",
        set_at("workloads", "W-C", "concurrency", value=[0]),
        "workloads.W-C.concurrency[0]: expected greater than or equal to 1, got 0",
    ),
    (
        "missing arm",
        set_at("arms", "mu", "extends", value="gni"),
        "arms.mu.extends: no arm named 'gni'; did you mean 'gne'?",
    ),
    (
        "cycle",
        set_at("arms", "gne", "extends", value="mu"),
        "arms.gne.extends: goes in a circle (gne -> mu -> gne)",
    ),
    (
        "self cycle",
        set_at("arms", "gne", "extends", value="gne"),
        "arms.gne.extends: goes in a circle (gne -> gne)",
    ),
    (
        "too long",
        set_at("workloads", "W-C", "input_tokens", value=20000),
        "workloads.W-C: input + output cap is 20512 tokens, more than server.max_seq_len 20480",
    ),
    (
        "pool too small",
        set_at("server", "kv_pool", "tokens", value=16895),
        "workloads.W-C: one request needs 528 blocks of 32 tokens, the pool "
        "server.kv_pool.tokens has 527",
    ),
    (
        "unknown engine",
        set_at("arms", "gne", "engines", value=["trtllm-1.2.2"]),
        "arms.gne.engines[0]: no engine named 'trtllm-1.2.2'; did you mean 'trtllm-1.2.1'?",
    ),
    (
        "level twice",
        set_at("workloads", "W-C", "concurrency", value=[32, 32]),
        "workloads.W-C.concurrency: 32 stands twice",
    ),
    (
        "cap below output",
        set_at("workloads", "W-D", "output_cap_tokens", value=2047),
        "workloads.W-D.output_cap_tokens: 2047 is below the longest output, 2048",
    ),
    (
        "override",
        set_at("workloads", "W-D", "server", value={"max_batch_sise": 3}),
        "workloads.W-D.server.max_batch_sise",
    ),
    (
        "contrast",
        set_at("contrasts", 0, "treatment", value="um"),
        "contrasts[0].treatment: no arm named 'um'",
    ),
    (
        "name",
        set_at("arms", "$(touch x)", value={}),
        "arms.$(touch x): ",
    ),
    (
        "path as a name",
        set_at("workloads", "../../etc", value={}),
        "workloads.../../etc: ",
    ),
    (
        "digest",
        set_at("engines", "trtllm-1.2.1", "image", "digest", value="sha256:12"),
        "engines.trtllm-1.2.1.image.digest",
    ),
    (
        "not finite",
        set_at("slo", value={"ttft_ms": float("inf")}),
        "slo.ttft_ms: expected a finite number, got inf",
    ),
]


@pytest.mark.parametrize(("change", "line"), [c[1:] for c in CASES], ids=[c[0] for c in CASES])
def test_a_problem_names_path_value_and_expectation(
    document: dict[str, Any], change: Change, line: str
) -> None:
    change(document)
    with pytest.raises(ConfigError) as error:
        parse_config(document)

    assert any(problem.startswith(line) for problem in error.value.problems), error.value.problems
    assert error.value.exit_code == 64


def test_all_problems_are_shown_at_once(document: dict[str, Any]) -> None:
    document["serer"] = 1
    document["server"]["tp"] = "one"
    document["workloads"]["W-B"]["requests"] = 0
    with pytest.raises(ConfigError) as error:
        parse_config(document)

    assert len(error.value.problems) == 3


def test_two_cells_of_one_name_are_refused(document: dict[str, Any]) -> None:
    """Dots in names: engine `x`, arm `y.z` and engine `x.y`, arm `z` meet in one id."""
    engine = document["engines"]["trtllm-1.2.1"]
    document["engines"] = {"x": engine, "x.y": engine}
    document["arms"] = {"y.z": {"engines": ["x"]}, "z": {"engines": ["x.y"]}}
    document["contrasts"] = []
    document["workloads"] = {"W-C": document["workloads"]["W-C"]}
    with pytest.raises(ConfigError, match=r"two cells would be called 'W-C\.c32\.x\.y\.z\.r1'"):
        parse_config(document)


def test_a_key_that_stands_twice_is_found_in_the_file(tmp_path: Path, root: Path) -> None:
    path = tmp_path / "config.yaml"
    text = (root / "config.yaml").read_text()
    path.write_text(text + "\nstudy: again\n")
    with pytest.raises(ConfigError, match="study: the key stands twice"):
        read_config(path)


def test_files_are_laid_over_each_other_key_by_key(tmp_path: Path, root: Path) -> None:
    over = tmp_path / "over.yaml"
    over.write_text("server: {kv_pool: {tokens: 400000}}\n")
    config = read_config(root / "config.yaml", over)

    assert config.server.kv_pool.tokens == 400000
    assert config.server.kv_pool.dtype == "fp8"


def test_a_file_that_is_not_there_or_not_yaml_is_named(tmp_path: Path) -> None:
    bad = tmp_path / "bad.yaml"
    bad.write_text("a: [")
    for path in (tmp_path / "none.yaml", bad):
        with pytest.raises(ConfigError, match=path.name):
            read_config(path)

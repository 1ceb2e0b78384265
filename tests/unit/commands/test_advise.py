"""`kvstudy advise`: what it says, what it chooses, and how it refuses bad input."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvstudy.base.errors import EXIT_USAGE, SpecError, UsageError
from kvstudy.commands.advise import main
from kvstudy.explain.advise import choose
from kvstudy.explain.loads import draw
from kvstudy.explain.versions import pause_cost
from kvstudy.sim.model import Pause, Policy

LLAMA = {
    "model_type": "llama", "num_hidden_layers": 80, "hidden_size": 8192,
    "num_attention_heads": 64, "num_key_value_heads": 8, "intermediate_size": 28672,
    "vocab_size": 128256, "torch_dtype": "bfloat16",
    "quantization_config": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"},
}  # fmt: skip
WC = "--pool-tokens 368640 --input-tokens 16384 --output-tokens 512"


def asked(capsys: pytest.CaptureFixture[str], words: str) -> Any:
    assert main([*words.split(), "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def by_policy(document: Any) -> dict[str, Any]:
    return {row["policy"]: row for row in document["policies"]}


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA), encoding="utf-8")
    return tmp_path


def test_a_truncating_version_is_told_to_reserve(capsys: pytest.CaptureFixture[str]) -> None:
    document = asked(capsys, f"{WC} --version 1.2.1 --policy max_utilization")
    rows = by_policy(document)
    assert rows["guaranteed_no_evict"]["residents_by_arithmetic"] == 21
    assert rows["guaranteed_no_evict"]["residents_max"] == 21
    assert rows["max_utilization"]["pause"] == "truncate_to_tokens: 1024"
    assert rows["max_utilization"]["pauses"] == 4
    assert document["pool"]["oversubscription"] == pytest.approx(540672 / 368640)
    assert document["setting"]["use"] == "GUARANTEED_NO_EVICT"
    assert document["setting"]["agrees"] is False
    assert document["pause_cost"]["basis"] == "assumed"
    assert document["if_pauses_only_recompute"]["pauses"] == 5
    assert "GUARANTEED_NO_EVICT" in document["setting"]["yaml"]
    assert "enable_iter_perf_stats: true" in document["watch"]["settings"]
    assert any("assumed" in line for line in document["not_known"])


def test_every_number_has_a_range(capsys: pytest.CaptureFixture[str]) -> None:
    for row in asked(capsys, f"{WC} --version 1.2.1")["policies"]:
        for metric in ("output_tok_per_s", "ttft_p50_ms", "tpot_p99_ms", "e2e_p99_s"):
            assert row[metric]["low"] < row[metric]["value"] < row[metric]["high"]


def test_early_ends_make_the_greedy_policy_win(
    capsys: pytest.CaptureFixture[str], model: Path
) -> None:
    words = (
        f"--model {model} --gpu h200 --version 1.3.0rc22 --input-tokens 2048 --cap 8192 "
        "--output-tokens uniform:128:2048 --concurrency 64 --max-batch-size 256"
    )
    document = asked(capsys, words)
    assert document["setting"]["use"] == "MAX_UTILIZATION"
    assert document["setting"]["throughput_ratio"] > 1.1
    assert document["constants"]["basis"] == "uncalibrated"
    assert 300_000 < document["pool"]["tokens"] < 450_000
    assert document["if_pauses_only_recompute"] is None


def test_off_pressure_the_default_stays(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--pool-tokens 368640 --version 1.2.1 --input-tokens 2048 --output-tokens 256"
    document = asked(capsys, words)
    assert document["setting"]["throughput_ratio"] == 1
    assert "run alike" in document["setting"]["why"]


def test_other_engines_have_one_policy(capsys: pytest.CaptureFixture[str]) -> None:
    for engine, policy in (("vllm", "vllm_recompute"), ("sglang", "sglang_retract")):
        document = asked(capsys, f"{WC} --engine {engine} --version 0.5.23 --requests 40")
        assert [row["policy"] for row in document["policies"]] == [policy]
        assert document["setting"]["use"] is None


def test_the_table_says_the_same_in_words(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([*f"{WC} --version 1.2.1 --policy MAX_UTILIZATION".split()]) == 0
    said = capsys.readouterr().out
    for words in ("demand 1.47 x pool", "Use: GUARANTEED_NO_EVICT, because", "You use MAX_UTIL"):
        assert words in said
    assert "capacity_scheduler_policy: GUARANTEED_NO_EVICT" in said
    assert "Not known: " in said


def test_a_pool_in_gib(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--pool-gib 56.25 --kv-bytes-per-token 163840 --version 1.2.1"
    document = asked(capsys, f"{words} --input-tokens 64 --output-tokens 8 --requests 4")
    assert document["pool"]["tokens"] == 368640


def trace(path: Path, text: str) -> str:
    path.write_text(text, encoding="utf-8")
    return f"--pool-tokens 36864 --version 1.2.1 --trace {path}"


def test_a_trace_file_in_both_formats(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    csv = "input_tokens,output_tokens,arrival_s\n100,10,0\n200,20,0.5\n"
    lines = '{"input_tokens": 100, "output_tokens": 10, "arrival_s": 0}\n\n'
    lines += '{"input_tokens": 200, "output_tokens": 20, "arrival_s": 0.5}\n'
    one = asked(capsys, trace(tmp_path / "a.csv", csv))
    two = asked(capsys, trace(tmp_path / "a.jsonl", lines))
    assert one == two
    assert one["load"]["loop"] == "open"
    assert one["load"]["requests"] == 2
    closed = asked(capsys, trace(tmp_path / "a.csv", csv) + " --concurrency 1")
    assert closed["load"]["loop"] == "closed"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("input_tokens,output_tokens\n100,\n", "output_tokens: expected a whole number"),
        ("input_tokens,output_tokens\n100,-1\n", "output_tokens"),
        ("input_tokens,output_tokens\n100\n", "as many fields"),
        ("input_tokens,output_tokens,x\n1,1,1\n", "unknown column 'x'"),
        ("input_tokens,output_tokens\n", "no request"),
        ("input_tokens,output_tokens,arrival_s\n1,1,0\n1,1,\n", "missing in 1 of 2"),
        ("input_tokens,output_tokens,arrival_s\n1,1,5\n1,1,4\n", "request 2 is before"),
        ("input_tokens,output_tokens,arrival_s\n1,1,nan\n", "arrival_s"),
        ("input_tokens,output_tokens,output_cap_tokens\n1,5,4\n", "below output_tokens"),
    ],
)
def test_a_trace_with_holes_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    words = trace(tmp_path / "t.csv", text)
    with pytest.raises(UsageError, match=problem):
        main(words.split())


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("--version 1 --input-tokens 9 --output-tokens 9", "give --pool-tokens"),
        ("--version 1 --pool-tokens 999", "give --input-tokens"),
        (f"{WC} --version 1 --input-tokens -5", "input-tokens"),
        (f"{WC} --version 1 --output-tokens uniform:9", "expected N, uniform"),
        (f"{WC} --version 1 --output-tokens uniform:9:1", "LOW <= HIGH"),
        (f"{WC} --version 1 --output-tokens lognormal:nan:1", "expected N"),
        (f"{WC} --version 1 --cap 100", "longest output, 512"),
        (f"{WC} --version 1 --concurrency 0", "concurrency"),
        (f"{WC} --version 1 --policy FASTEST", "GUARANTEED_NO_EVICT"),
        (f"{WC} --version 1 --free-fraction 2", "free-fraction"),
        (f"{WC} --version 1 --model /nowhere", "cannot be read"),
        (f"{WC} --version 1 --constants /nowhere", "not the output"),
        ("--pool-gib 3 --version 1 --input-tokens 9 --output-tokens 9", "kv-bytes-per-token"),
        (f"{WC} --version 1 --trace x.csv", "drop the other"),
    ],
)
def test_bad_input_is_one_clear_error(words: str, problem: str) -> None:
    with pytest.raises(UsageError, match=problem) as caught:
        main(words.split())
    assert caught.value.exit_code == EXIT_USAGE
    assert "\n" not in str(caught.value)


def test_a_pool_smaller_than_a_request_is_refused() -> None:
    with pytest.raises(SpecError, match="pool_tokens"):
        main(
            [
                "--pool-tokens",
                "640",
                "--version",
                "1",
                "--input-tokens",
                "900",
                "--output-tokens",
                "9",
            ]
        )


def test_a_usage_error_exits_with_64(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["--engine", "other"])
    assert caught.value.code == EXIT_USAGE
    assert "--engine" in capsys.readouterr().err


def test_a_gpu_without_room_is_refused(model: Path) -> None:
    words = f"--model {model} --gpu L4 --version 1 --input-tokens 9 --output-tokens 9"
    with pytest.raises(UsageError, match="the weights"):
        main(words.split())


BROKEN = (
    {"num_hidden_layers": 0},
    {"hidden_size": None},
    {"kv_lora_rank": 512},
    {"intermediate_size": None},
)


@pytest.mark.parametrize("broken", BROKEN)
def test_a_broken_model_configuration_is_refused(tmp_path: Path, broken: dict[str, Any]) -> None:
    (tmp_path / "config.json").write_text(json.dumps(LLAMA | broken), encoding="utf-8")
    words = f"--model {tmp_path} --gpu H200 --version 1 --input-tokens 9 --output-tokens 9"
    with pytest.raises(UsageError, match="--model"):
        main(words.split())


@pytest.mark.parametrize(
    ("version", "pause", "basis"),
    [
        ("1.2.1", Pause(truncate_to_tokens=1024), "assumed"),
        ("1.3.0rc1", Pause(truncate_to_tokens=1024), "assumed"),
        ("1.3.0rc2", Pause(), "inferred"),
        ("1.3.0rc22", Pause(), "inferred"),
        ("1.4.0rc1", Pause(), "not modelled"),
    ],
)
def test_the_version_table(version: str, pause: Pause, basis: str) -> None:
    cost = pause_cost("trtllm", version)
    assert (cost.pause, cost.basis) == (pause, basis)


@pytest.mark.parametrize(
    ("version", "pauses", "gain", "tail", "use"),
    [
        ("1.2.1", 3, 0.6, 8.0, "GUARANTEED_NO_EVICT"),
        ("1.2.1", 0, 1.02, 1.0, "MAX_UTILIZATION"),
        ("1.3.0rc22", 5, 0.99, 1.1, "GUARANTEED_NO_EVICT"),
        ("1.3.0rc22", 5, 1.005, 1.1, "GUARANTEED_NO_EVICT"),
        ("1.3.0rc22", 50, 1.3, 3.0, "MAX_UTILIZATION"),
        ("1.3.0rc22", 0, None, None, "GUARANTEED_NO_EVICT"),
    ],
)
def test_the_choice(
    version: str, pauses: int, gain: float | None, tail: float | None, use: str
) -> None:
    row = {"pauses": pauses, "stuck": None}
    chosen, why = choose(row, gain, tail, pause_cost("trtllm", version))
    assert chosen is Policy[use]
    assert why


def test_distributions_are_seeded_and_within_their_bounds() -> None:
    drawn = draw("uniform:10:20", 500, 1, "--x")
    assert drawn == draw("uniform:10:20", 500, 1, "--x") != draw("uniform:10:20", 500, 2, "--x")
    assert (min(drawn), max(drawn)) == (10, 20)
    assert min(draw("exponential:2", 500, 1, "--x")) >= 1
    assert 80 < sorted(draw("lognormal:100:1", 999, 1, "--x"))[499] < 125

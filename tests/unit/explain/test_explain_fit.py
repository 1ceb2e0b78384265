"""Calibration: known constants come back, and what cannot be separated is said."""

from __future__ import annotations

from dataclasses import asdict, replace
from typing import Any

import numpy as np
import pytest

from kvstudy.base.errors import SpecError, UsageError
from kvstudy.explain.basis import CONSTANTS, METRICS, basis_of, values_of
from kvstudy.explain.calibrate import calibrate
from kvstudy.explain.evidence import PublishedValue
from kvstudy.explain.fit import fit
from kvstudy.explain.scenario import BASELINE, TREATMENT, Scenario
from kvstudy.explain.targets import Target, inline_targets, published_targets
from kvstudy.sim.model import Pause
from kvstudy.sim.spec import RequestShape, parse_engine
from kvstudy.sim.timing import PUBLISHED_FIT, StepTime
from kvstudy.study.plan import Study

TRUE = StepTime(0.011, 6e-5, 2.5e-8, 9e-5, 3e-9)


def scenario(count: int, prompt: int, output: int, lanes: int) -> Scenario:
    engine = parse_engine({"policy": "guaranteed_no_evict", "pool_tokens": 368640})
    return Scenario(engine, (RequestShape(prompt, output, output),) * count, lanes)


LOADS = {
    "short": scenario(256, 64, 128, 64),
    "one": scenario(8, 512, 256, 1),
    "middle": scenario(64, 2048, 256, 32),
    "long": scenario(32, 16384, 128, 16),
    "prompts": scenario(16, 12000, 2, 4),
}


def target(name: str, load: Scenario, step_time: StepTime) -> Target:
    summary = load.with_step_time(step_time).run(BASELINE).summary
    observed = {metric: summary[metric] for metric in METRICS}
    return Target(name, load, BASELINE, Pause(), observed, "given")


@pytest.mark.parametrize("pause", [None, Pause(truncate_to_tokens=512)])
def test_times_are_linear_in_the_constants(pause: Pause | None) -> None:
    load = scenario(96, 16384, 128, 32)
    policy = BASELINE if pause is None else TREATMENT
    basis = basis_of(load, policy, pause)
    for constants in (PUBLISHED_FIT, TRUE):
        summary = load.with_step_time(constants).run(policy, pause).summary
        linear = basis.metrics(values_of(constants))
        assert {m: summary[m] for m in METRICS} == pytest.approx(linear, rel=1e-6)


def test_an_open_loop_and_a_zero_start_are_refused() -> None:
    load = replace(LOADS["one"], arrivals_ns=(0,) * 8)
    with pytest.raises(SpecError, match="closed loop"):
        basis_of(load, BASELINE)
    with pytest.raises(SpecError, match="above 0"):
        basis_of(LOADS["one"], BASELINE, unit=StepTime(1.0))


def test_known_constants_come_back_from_rich_rows() -> None:
    found = fit([target(name, load, TRUE) for name, load in LOADS.items()])
    assert asdict(found.step_time) == pytest.approx(asdict(TRUE), rel=0.02)
    assert found.cost < 1e-8
    assert found.not_separable == []
    for known, estimate in zip(values_of(TRUE), found.ranges, strict=True):
        assert estimate.high is not None
        assert estimate.low <= 1.001 * known
        assert known <= 1.001 * estimate.high


def test_noise_moves_the_constants_within_their_ranges() -> None:
    rng = np.random.default_rng(16827)
    noisy = []
    for name, load in LOADS.items():
        exact = target(name, load, TRUE)
        observed = {m: v * float(np.exp(rng.normal(0, 0.005))) for m, v in exact.observed.items()}
        noisy.append(replace(exact, observed=observed))
    found = fit(noisy)
    wide = [r for r in found.ranges if r.separable]
    assert {"fixed_s", "per_context_token_s"} <= {r.name for r in wide}
    truth = dict(zip(CONSTANTS, values_of(TRUE), strict=True))
    for estimate in wide:
        assert estimate.high is not None
        assert 0.9 * estimate.low <= truth[estimate.name] <= 1.1 * estimate.high


def test_a_constant_that_no_row_sees_is_reported() -> None:
    found = fit([target("one", LOADS["one"], TRUE), target("short", LOADS["short"], TRUE)])
    assert "per_context_attention_s" in found.not_separable
    weakest = found.directions[-1]
    assert max(weakest.parts, key=lambda name: abs(weakest.parts[name])) in found.not_separable
    assert weakest.strength < found.directions[0].strength / 100


@pytest.fixture(scope="module")
def document(study: Study, published: list[PublishedValue]) -> dict[str, Any]:
    patterns = study.config.emulator.fitted_to
    return calibrate(published_targets(study, published), patterns)


def test_the_published_baseline_rows_reproduce_the_published_constants_predictions(
    study: Study, document: dict[str, Any]
) -> None:
    """Within 1 % of the predictions of the constants that the study ships, for all pause modes."""
    found = StepTime(**document["step_time"])
    for workload in ("W-C", "W-B"):
        cell = next(c for c in study.cells if c.workload == workload)
        rows = published_targets(
            study,
            [
                PublishedValue(
                    cell.engine, workload, cell.concurrency, "gne", "ttft_p50_ms", 1.0, 0.0
                )
            ],
        )
        load = rows[0].scenario
        modes = (None, Pause(), *(Pause(truncate_to_tokens=n) for n in (512, 1024, 2048, 4096)))
        for pause in modes:
            policy = BASELINE if pause is None else TREATMENT
            new = load.with_step_time(found).run(policy, pause).summary
            old = load.with_step_time(PUBLISHED_FIT).run(policy, pause).summary
            for metric in ("output_tok_per_s", "ttft_p50_ms", "tpot_p50_ms", "tpot_p99_ms"):
                assert new[metric] == pytest.approx(old[metric], rel=0.01)
            assert new["e2e_p99_s"] == pytest.approx(old["e2e_p99_s"], rel=0.01)
            assert new["pauses"] == old["pauses"]


def test_the_published_rows_do_not_separate_the_per_generation_constant(
    document: dict[str, Any],
) -> None:
    assert "per_generation_s" in document["not_separable"]
    assert "fixed_s" not in document["not_separable"]
    assert set(document["directions"][-1]["parts"]) == {"per_generation_s"}
    assert document["weights"] == {"others": 1.0, "output_tok_per_s": 3.0, "ttft_p50_ms": 0.5}


def test_rows_that_were_not_fitted_are_predicted_with_their_basis(document: dict[str, Any]) -> None:
    assert {row["basis"] for row in document["fitted"]} == {"fitted"}
    assert document["numbers_fitted"] == len(document["fitted"]) == 8
    basis = {row["id"]: row["basis"] for row in document["predicted"]}
    assert basis["W-C.c32.trtllm-1.2.1.mu"] == "assumed"
    assert basis["W-B.c32.trtllm-1.2.1.mu"] == "held_out"
    assert basis["W-C.c32.trtllm-1.3.0rc22.mu"] == "held_out"
    for row in document["predicted"]:
        assert row["low"] <= row["modelled"] * 1.0001
        assert row["modelled"] <= row["high"] * 1.0001


def test_a_row_that_gets_stuck_is_said_to(study: Study) -> None:
    stuck = {
        "policy": "max_utilization", "pause": "never_release", "pool_tokens": 368640,
        "concurrency": 32, "requests": {"count": 64, "input_tokens": 16384, "output_tokens": 512},
    }  # fmt: skip
    rows = inline_targets([{"id": "stuck", "spec": stuck, "values": {"output_tok_per_s": 1.0}}])
    found = calibrate([target("one", LOADS["one"], TRUE), *rows], ["one"])
    assert found["predicted"][0]["metric"] is None
    assert "stops making progress" in found["predicted"][0]["stuck"]


@pytest.mark.parametrize(
    "broken",
    [
        {"id": "x"},
        {"id": "x", "spec": {}, "values": {"output_tok_per_s": 1}},
        {"id": "x", "spec": {"policy": "guaranteed_no_evict", "pool_tokens": 3200,
                             "concurrency": 1, "requests": {"input_tokens": 10,
                                                            "output_tokens": 10}}, "values": {}},
    ],
)  # fmt: skip
def test_broken_rows_are_refused(broken: Any) -> None:
    with pytest.raises(UsageError):
        inline_targets([broken])


def test_nothing_to_fit_is_an_error() -> None:
    with pytest.raises(UsageError, match="nothing to fit"):
        calibrate([target("one", LOADS["one"], TRUE)], ["other"])

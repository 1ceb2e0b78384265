"""Sentences follow the numbers, whatever they are."""

from __future__ import annotations

from typing import Any

import pytest
from synthetic import small_study

from kvstudy.report import wording
from kvstudy.report.inputs import Inputs
from kvstudy.stats.contrast import contrast_rows, pairs_of
from kvstudy.stats.data import Data

MU = "mu vs gne"


def row(ratio: float | None, **changes: Any) -> dict[str, Any]:
    base = {
        "contrast": MU,
        "source": "measured",
        "workload": "W-C",
        "concurrency": 32,
        "within": "trtllm-1.2.1",
        "baseline": "gne",
        "treatment": "mu",
        "metric": "output_tok_per_s",
        "ratio": ratio,
        "noise_ratio": 1.007,
        "noise_factor": None,
    }
    return base | changes


def inputs(*rows: dict[str, Any], backend: str = "measured", cells: Any = ()) -> Inputs:
    study = small_study(backend).study
    config = study.config.model_dump()
    return Inputs(
        spec={"backend": backend, "config": config},
        data=Data(list(cells)),
        contrasts=list(rows),
        verdicts=[],
        runs={},
        published=[],
    )


@pytest.mark.parametrize(
    ("ratio", "noise", "text"),
    [
        (0.594, 1.007, "40.6 % lower"),
        (1.27, None, "27.0 % higher"),
        (1.0002, 1.007, "equal"),
        (1.003, 1.007, "0.3 % higher, within repeat-to-repeat noise"),
        (0.997, 1.007, "0.3 % lower, within repeat-to-repeat noise"),
        (None, None, "not known"),
    ],
)
def test_a_change_in_words(ratio: float | None, noise: float | None, text: str) -> None:
    assert wording.change(ratio, noise) == text


def test_times_keeps_two_digits_after_the_point_only_below_two() -> None:
    assert wording.times(9.09) == "9.1\u00d7"
    assert wording.times(1.149) == "1.15\u00d7"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"noise_factor": 74.6}, "by a factor of 75."),
        ({"noise_factor": 2.345}, "by a factor of 2.3."),
        ({"noise_factor": 0.4}, "Not larger than"),
        ({"noise_ratio": None}, "With one repeat, no interval"),
        ({"noise_ratio": 1.0}, "do not differ at all"),
        ({"source": "predicted"}, "has no repeat-to-repeat noise"),
        ({"ratio": None}, "No ratio exists"),
    ],
)
def test_the_noise_sentence(changes: dict[str, Any], words: str) -> None:
    assert words in wording.noise_sentence(row(0.5) | changes)


def test_a_loss_on_one_version_only_is_a_matter_of_the_version() -> None:
    said = wording.magnitude(inputs(row(0.594), row(0.99, within="trtllm-1.3.0rc22")))
    assert said[0] == (
        "It is a matter of the version: on W-C at concurrency 32, trtllm-1.2.1 loses 40.6 % and "
        "trtllm-1.3.0rc22 does not."
    )
    assert "40.6 % lower" in said[1]


def test_a_loss_on_every_version_is_not_blamed_on_one() -> None:
    said = wording.magnitude(inputs(row(0.6), row(0.7, within="trtllm-1.3.0rc22")))
    assert said[0] == "On W-C at concurrency 32, more than one version loses throughput."


def test_no_loss_is_said_to_be_none() -> None:
    said = wording.magnitude(inputs(row(1.02), row(1.0, within="trtllm-1.3.0rc22")))
    assert said[0] == "No loss of throughput above 10 % is seen in this study."


def test_one_version_alone_is_compared_with_nothing() -> None:
    assert "no other version" in wording.magnitude(inputs(row(0.6)))[0]


def test_without_a_pair_nothing_is_claimed() -> None:
    for words in (wording.magnitude(inputs()), wording.where_it_wins(inputs())):
        assert words == ["This study has no valid pair of policies to compare."]


def test_a_gain_within_noise_is_no_win() -> None:
    said = wording.where_it_wins(inputs(row(1.004)))
    assert said[0].startswith("In none of the 1 pair measured does mu win")


def test_a_gain_beyond_noise_is_a_win_with_its_price() -> None:
    tail = row(1.6, metric="tpot_p99_ms")
    said = wording.where_it_wins(inputs(row(1.27, noise_factor=34.0), tail))
    assert "27.0 % higher, at 1.60\u00d7 the TPOT p99" in said[0]
    assert "factor of 34" in said[0]


def test_an_emulated_study_says_that_nothing_is_measured() -> None:
    emulated = row(0.594, source="emulated")
    said = wording.magnitude(inputs(emulated, backend="emulated"))
    assert "nothing here is measured" in said[-1]
    assert wording.banner(inputs(backend="emulated")).startswith("Emulated:")


def test_pauses_are_counted_only_where_they_were_measured() -> None:
    study = small_study("measured")
    with_pauses = wording.observing(inputs(cells=study.cells))
    assert "pauses by repeat" in with_pauses[0]
    assert "which a reserving policy never should" in with_pauses[1]
    for cell in study.cells:
        cell["pauses"] = None
    assert "not measured here" in wording.observing(inputs(cells=study.cells))[0]


def test_counting_and_steady_state_sentences() -> None:
    same = [row(0.594), row(0.598)]
    assert "0.4 points" in wording.counting_sentence(same)
    assert "agree on the direction" in wording.counting_sentence(same)
    assert "disagree" in wording.counting_sentence([row(0.9), row(1.1)])
    assert "Only one way" in wording.counting_sentence([row(0.9)])
    (said,) = wording.steady_sentences([row(0.59)], [row(0.985)])
    assert said.endswith("emptying lanes at the end.")
    (said,) = wording.steady_sentences([row(0.59)], [row(0.6)])
    assert "emptying" not in said
    assert wording.steady_sentences([row(0.59)], []) == []


def test_the_sentences_fit_the_contrasts_of_a_whole_study() -> None:
    """MAX_UTILIZATION of the small study is slower by 1 - 5.4/7.6 in repeat 1."""
    study = small_study("measured")
    data = Data(study.cells)
    rows = contrast_rows(
        pairs_of([{"baseline": "gne", "treatment": "mu", "within": "engine"}], data), data, seed=1
    )
    said = wording.magnitude(inputs(*rows, cells=study.cells))
    assert "28." in said[1]
    assert "lower" in said[1]

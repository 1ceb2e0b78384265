"""The time limit of an allocation's job, against the simulator's own answer."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace

from kvstudy.study.cost import FIRST_LOAD_S, MARGIN, cell_seconds
from kvstudy.study.plan import Study

PREDICTED_S = {
    # `kvstudy plan --json` of the published configuration, December 2026: 300 s of start included.
    "W-C.c32.trtllm-1.2.1.gne.r1": 829.5,
    "W-C.c32.trtllm-1.2.1.mu.r1": 1110.1,
    "W-B.c32.trtllm-1.2.1.gne.r1": 556.0,
    "W-D.c64.trtllm-1.3.0rc22.gne.r1": 483.6,
    "W-D.c64.trtllm-1.3.0rc22.mu.r1": 455.3,
}


def test_the_closed_form_is_near_the_simulation_and_the_margin_covers_it(
    study_with: Callable[..., Study],
) -> None:
    study = study_with()
    for cell_id, predicted in PREDICTED_S.items():
        seconds = cell_seconds(study, study.cell(cell_id))
        assert 0.7 < seconds / predicted < 1.3, cell_id
        assert MARGIN * seconds > 1.3 * predicted, cell_id


def test_limits_grow_with_cells_and_with_tries(study_with: Callable[..., Study]) -> None:
    study = study_with()
    two_repeats = SimpleNamespace(allocation="W-C.c32.trtllm-1.2.1")
    first, second = study.minutes(two_repeats, 1), study.minutes(two_repeats, 2)

    assert second == 2 * first
    assert first > FIRST_LOAD_S / 60 + 4 * 829.5 / 60

"""One percentile, equal to numpy's linear interpolation."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvstudy.metrics.percentile import mean, percentile

VALUES = st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=200)


@given(VALUES, st.floats(0, 100))
def test_it_is_numpy_linear(values: list[float], percent: float) -> None:
    expected = float(np.percentile(values, percent, method="linear"))
    found = percentile(values, percent)

    assert found is not None
    assert found == pytest.approx(expected, rel=1e-9, abs=1e-3)


def test_by_hand() -> None:
    """p99 of 128 values lies at index 125.73, as in the issue's e2e p99."""
    assert percentile([1, 2, 3, 4], 50) == 2.5
    assert percentile(range(128), 99) == pytest.approx(125.73)


def test_nulls_are_left_out_and_nothing_is_none() -> None:
    assert percentile([None, 3.0, None], 99) == 3.0
    assert percentile([None], 50) is None
    assert mean([None, 2.0, 4.0]) == 3.0
    assert mean([]) is None


@pytest.mark.parametrize("percent", [-1, 101])
def test_a_percent_outside_is_refused(percent: float) -> None:
    with pytest.raises(ValueError, match="within"):
        percentile([1.0], percent)


def test_nan_is_not_a_measurement() -> None:
    with pytest.raises(ValueError, match="NaN"):
        percentile([1.0, float("nan")], 50)

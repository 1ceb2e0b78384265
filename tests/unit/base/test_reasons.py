"""Reason codes are stable, distinct and explained."""

from kvstudy.base.reasons import INVALID, WARNING, describe


def test_codes_are_distinct_and_described() -> None:
    assert not INVALID.keys() & WARNING.keys()
    assert all(describe(code) for code in [*INVALID, *WARNING])

"""Study time is wall time since the origin, scaled."""

from kvstudy.base.clock import StudyClock


def test_study_time_runs_at_the_scale() -> None:
    clock = StudyClock(scale=40.0, origin_wall_ns=1_000)

    assert clock.from_wall_ns(1_250) == 10_000
    assert clock.to_wall_ns(10_000) == 1_250

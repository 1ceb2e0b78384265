"""Who joins at which step, without clock or socket."""

from __future__ import annotations

from kvstudy.emulator.expected import Expected, Phase, Workload
from kvstudy.emulator.lanes import Lanes

LAG = 2


def workload(*sizes: tuple[int, int]) -> Workload:
    """Phases of (requests, concurrency); digests are p<phase>-<position>."""
    phases = []
    for index, (count, concurrency) in enumerate(sizes):
        requests = [Expected(index, at, f"p{index}-{at}", 5) for at in range(count)]
        phases.append(Phase(f"phase{index}", concurrency, requests))
    return Workload(phases)


def opened(count: int = 6, concurrency: int = 2) -> tuple[Workload, Lanes[str]]:
    """One phase whose first requests have joined."""
    load = workload((count, concurrency))
    lanes: Lanes[str] = Lanes(load, LAG)
    for position in range(concurrency):
        come(load, lanes, position)
    lanes.take(0)
    return load, lanes


def come(load: Workload, lanes: Lanes[str], position: int, *, at_ns: int = 0) -> None:
    expected = load.claim(f"p0-{position}")
    assert expected is not None
    lanes.arrive(f"r{position}", expected, at_ns)


def end(load: Workload, lanes: Lanes[str], step: int, position: int) -> None:
    lanes.ended(step, step * 100, load.phases[0].requests[position])


def names(taken: list[tuple[str, int]]) -> list[str]:
    return [name for name, _ in taken]


def test_a_phase_opens_when_all_its_first_requests_are_there_in_order_of_position() -> None:
    """Three lanes, arrivals 2, 0, 1: nobody joins before the last; the phase began at the first."""
    load = workload((5, 3))
    lanes: Lanes[str] = Lanes(load, LAG)
    come(load, lanes, 2, at_ns=10)
    come(load, lanes, 0, at_ns=20)
    assert lanes.is_opening and lanes.take(1000) == []
    come(load, lanes, 1, at_ns=30)
    assert lanes.take(30) == [("r0", 10), ("r1", 10), ("r2", 10)]
    assert not lanes.is_opening


def test_a_phase_smaller_than_its_lanes_opens_with_all_it_has() -> None:
    """Two requests, eight lanes."""
    load = workload((2, 8))
    lanes: Lanes[str] = Lanes(load, LAG)
    come(load, lanes, 1)
    come(load, lanes, 0)
    assert names(lanes.take(0)) == ["r0", "r1"]


def test_a_successor_joins_at_s_plus_1_plus_lag_and_counts_from_the_end_of_s() -> None:
    """Step 4 ends a request; its successor joins before step 7, not 6."""
    load, lanes = opened()
    end(load, lanes, 4, 0)
    come(load, lanes, 2, at_ns=401)
    lanes.call(6)
    assert lanes.take(10_000) == [] and lanes.awaited == []
    lanes.call(7)
    assert lanes.take(10_000) == [("r2", 400)]


def test_two_ended_in_one_step_are_followed_by_the_next_two_positions_in_order() -> None:
    """Arrival order does not matter."""
    load, lanes = opened()
    end(load, lanes, 4, 0)
    end(load, lanes, 4, 1)
    come(load, lanes, 3)
    lanes.call(7)
    assert [one.position for one in lanes.awaited] == [2]
    come(load, lanes, 2)
    assert lanes.awaited == []
    assert names(lanes.take(0)) == ["r2", "r3"]


def test_everyone_falls_due_when_nothing_runs() -> None:
    """No empty step is run."""
    load, lanes = opened()
    end(load, lanes, 4, 0)
    come(load, lanes, 2)
    assert lanes.has_reservations
    lanes.call(5, everyone=True)
    assert names(lanes.take(0)) == ["r2"]
    assert not lanes.has_reservations


def test_the_last_requests_reserve_nobody() -> None:
    """Two lanes, two requests left: nobody follows them."""
    load, lanes = opened(count=2)
    end(load, lanes, 4, 0)
    end(load, lanes, 5, 1)
    assert not lanes.has_reservations


def test_a_request_that_never_comes_is_given_up_and_one_that_comes_later_is_late() -> None:
    """Late arrivals are counted once, whether they come at last or not."""
    load, lanes = opened()
    end(load, lanes, 4, 0)
    end(load, lanes, 4, 1)
    lanes.call(7)
    assert [one.position for one in lanes.give_up()] == [2, 3]
    assert lanes.take(0) == [] and lanes.awaited == []
    assert (lanes.arrivals.late, lanes.arrivals.missing) == (0, 2)
    come(load, lanes, 2, at_ns=900)
    assert (lanes.arrivals.late, lanes.arrivals.missing) == (1, 1)
    assert lanes.take(899) == [] and lanes.take(900) == [("r2", 900)]


def test_a_position_nobody_reserved_joins_as_it_comes_and_is_not_reserved_again() -> None:
    """What a lane does whose request was cancelled."""
    load, lanes = opened()
    come(load, lanes, 2, at_ns=50)
    assert lanes.arrivals.unexpected == 1
    assert names(lanes.take(50)) == ["r2"]
    end(load, lanes, 4, 0)
    lanes.call(7)
    assert [one.position for one in lanes.awaited] == [3]


def test_a_client_that_goes_away_before_it_joined_leaves_no_gap() -> None:
    """In the lobby, reserved, or ready."""
    load = workload((4, 2))
    lanes: Lanes[str] = Lanes(load, LAG)
    come(load, lanes, 0)
    assert lanes.leave("r0", load.phases[0].requests[0], 5)
    come(load, lanes, 1, at_ns=9)
    assert lanes.take(9) == [("r1", 0)]
    end(load, lanes, 4, 1)
    come(load, lanes, 2)
    assert lanes.leave("r2", load.phases[0].requests[2], 5)
    lanes.call(7)
    assert lanes.awaited == [] and lanes.take(100) == []
    lanes.arrive("x", None, 7)
    assert lanes.leave("x", None, 8) and not lanes.leave("x", None, 8)
    assert not lanes.leave("r1", load.phases[0].requests[1], 9)


def test_a_refused_request_does_not_hold_up_its_phase() -> None:
    """The phase opens without it."""
    load = workload((4, 2))
    lanes: Lanes[str] = Lanes(load, LAG)
    come(load, lanes, 1, at_ns=3)
    refused = load.claim("p0-0")
    assert refused is not None
    lanes.excuse(refused, 8)
    assert lanes.take(8) == [("r1", 3)]


def test_a_phase_that_never_fills_opens_without_those_that_did_not_come() -> None:
    """They count as missing, and as late once they come."""
    load = workload((4, 3))
    lanes: Lanes[str] = Lanes(load, LAG)
    come(load, lanes, 1)
    lanes.open_incomplete(70)
    assert lanes.take(70) == [("r1", 0)]
    assert lanes.arrivals.missing == 2
    come(load, lanes, 0, at_ns=80)
    assert (lanes.arrivals.late, lanes.arrivals.missing) == (1, 1)


def test_an_open_loop_phase_and_foreign_requests_join_when_they_come() -> None:
    """No lobby, no reservation, no late one."""
    load = workload((3, 0))
    lanes: Lanes[str] = Lanes(load, LAG)
    come(load, lanes, 1, at_ns=30)
    lanes.arrive("foreign", None, 20)
    assert lanes.next_ready_ns == 20
    assert names(lanes.take(25)) == ["foreign"]
    assert names(lanes.take(30)) == ["r1"]
    end(load, lanes, 2, 1)
    assert not lanes.has_reservations
    assert lanes.arrivals.foreign == 1 and lanes.arrivals.unexpected == 0


def test_the_same_prompt_twice_is_two_requests_and_a_third_time_foreign() -> None:
    """A digest is claimed once per row of the file."""
    rows = [Expected(0, at, "same", 5) for at in range(2)]
    load = Workload([Phase("measured", 2, rows)])
    assert [load.claim("same"), load.claim("same"), load.claim("same")] == [*rows, None]

"""The arithmetic that holds clients against the server's record; every number is by hand."""

from __future__ import annotations

import pytest
from benchmarks.peers import truth
from benchmarks.peers.results import Seen, tag_of
from benchmarks.peers.watch import Cost

MS = 1_000_000


def sent(arrived_ms: float, *writes_ms: float) -> truth.Sent:
    return {"arrived_ns": int(arrived_ms * MS), "sent_ns": [int(at * MS) for at in writes_ms]}


def test_a_closed_loop_is_timed_by_what_its_arrivals_prove() -> None:
    """Four requests on two lanes: at the last arrival, 30 ms after the first, two were answered."""
    requests = [sent(0), sent(1), sent(20), sent(30)]

    assert truth.closed_loop_rate(requests, lanes=2, chunks=6) == pytest.approx(400)


def test_true_times_are_those_of_the_texts() -> None:
    """Arrived at 5, empty event at 7, texts from 15 to 45: TTFT 10 ms, TPOT 30 / 3 ms."""
    one = sent(5, 7, 15, 25, 35, 45)

    assert truth.true_ttft_ms(one, first=1) == pytest.approx(10)
    assert truth.true_tpot_ms(one, first=1, last=4, tokens=4) == pytest.approx(10)


def test_errors_pair_requests_by_the_number_in_their_text() -> None:
    """True TTFTs 10 and 20, said 21 and 10.5 the other way round: errors 1 and 0.5."""
    requests = [sent(0, 10, 20, 30), sent(0, 20, 40, 60)]
    seen = [Seen(True, 21.0, 20.0, tag=1), Seen(True, 10.5, 10.25, tag=0)]

    found = truth.errors(seen, requests, tokens=3)

    assert found == truth.Errors(2, "text", 0.75, 1.0, 0.125, 0.25)


def test_without_text_requests_are_paired_by_rank() -> None:
    requests = [sent(0, 10, 20, 30), sent(0, 20, 40, 60), sent(0, 99)]
    seen = [Seen(True, 21.0, 20.0), Seen(True, 10.5, 10.0)]

    found = truth.errors(seen, requests, tokens=3)

    assert found == truth.Errors(2, "rank", 0.75, 1.0, 0.0, 0.0)


def test_nothing_to_compare_is_none() -> None:
    assert truth.errors([Seen(True, tokens=3)], [sent(0, 1, 2, 3)], tokens=3) is None


CASE = truth.Case("two_tokens", "", ok=True, tokens=4, chunks=2, last=1)


def test_a_right_client_is_right_everywhere() -> None:
    """Two chunks of two tokens 30 ms apart: 10 ms a token."""
    seen = [Seen(True, 5.0, 10.0, tokens=4, chunks=2, empty=0, finish="field")]

    verdicts = truth.judge(seen, [sent(0, 5, 35)], CASE)["verdicts"]

    assert verdicts.pop("partial") == "absent"
    assert set(verdicts.values()) == {"right"}


def test_chunks_taken_for_tokens_are_wrong_and_silence_is_absent() -> None:
    seen = [Seen(True, 5.0, 30.0, tokens=2)]

    verdicts = truth.judge(seen, [sent(0, 5, 35)], CASE)["verdicts"]

    assert verdicts == {
        "outcome": "right",
        "tokens": "wrong",
        "tpot": "wrong",
        "chunks": "absent",
        "empty": "absent",
        "finish": "absent",
        "partial": "absent",
    }


def test_a_broken_answer_counted_ok_is_wrong() -> None:
    case = truth.Case("error_event", "", ok=False, tokens=2, chunks=2, last=1)
    requests = [sent(0, 5, 35), sent(0, 5, 35)]
    counted = [Seen(True, 5.0, 30.0, tokens=2, chunks=2)] * 2
    dropped = [Seen(False), Seen(False)]
    kept = [Seen(False, 5.0, 30.0, tokens=2, chunks=2)] * 2

    verdicts = [truth.judge(seen, requests, case)["verdicts"] for seen in (counted, dropped, kept)]

    assert [one["outcome"] for one in verdicts] == ["wrong", "right", "right"]
    assert [one["partial"] for one in verdicts] == ["absent", "absent", "right"]


def test_cpu_between_two_samples_is_in_proportion() -> None:
    cost = Cost(at_ns=[100, 200, 300], cpu_s=[1.0, 2.0, 6.0])

    assert [cost.cpu_until(at) for at in (50, 150, 275, 900)] == [1.0, 1.5, 5.0, 6.0]


def test_the_number_of_an_answer_is_in_its_first_text() -> None:
    assert (tag_of(" #17 word word"), tag_of(" word")) == (17, None)

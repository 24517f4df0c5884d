"""A run over time, and its totals, from tallies and from timed requests."""

import pytest
from support.shots import failed
from support.shots import shot as timed
from support.tallies import S, sketch, tally

from toolkit.records import ErrorCount, Event
from toolkit.tuning.criteria import Costs, criteria
from toolkit.tuning.host_report import MOST_STRETCHES, host_report, tallied
from toolkit.tuning.lab_report import Report, event_words, text_lines
from toolkit.tuning.pages import report_page


def test_each_second_of_a_short_run_is_a_stretch() -> None:
    tallies = [
        tally(S, ok=4, output_tokens=40, e2e=sketch(100, 100, 100, 100)),
        tally(S + 2, ok=2, errors=2, error_kinds=(ErrorCount(kind="timeout", count=2),)),
    ]
    found = host_report(tallies, S, S + 3)
    told = [(t_s, one.figure("rps"), one.figure("error_rate")) for t_s, one in found.stretches]
    assert told == [(0.5, 4, 0), (1.5, 0, None), (2.5, 2, 0.5), (3.5, 0, None)]
    first, second, *_ = (one.figure("e2e_p50_ms") for _, one in found.stretches)
    assert (first, second) == (pytest.approx(100, rel=0.01), None)
    # 6 in 4 s; 2 of 8 failed
    whole = found.as_json()
    assert (whole["rps"], whole["error_rate"], whole["error_kinds"]) == (1.5, 0.25, {"timeout": 2})


def test_a_long_run_has_equal_stretches_and_no_part_of_one_at_its_end() -> None:
    # 400 s: stretches of 3 s, of which 133 are whole; the 400th second is in none
    found = host_report([tally(S + place, ok=3) for place in range(400)], S, S + 399)
    assert len(found.stretches) == 133
    assert len(found.stretches) <= MOST_STRETCHES
    assert {one.figure("rps") for _, one in found.stretches} == {3.0}
    assert found.whole.ok == 1200


def test_a_bench_is_drawn_as_a_blast_is() -> None:
    shots = [
        timed(0, planned_at=S + 0.0, tokens=10, first_ms=50.0),
        timed(1, planned_at=S + 0.0, stream=False, cache_status="HIT"),
        failed(3, "timeout", took_ms=60_000.0, planned_at=S + 0.0),
    ]
    tallies = tallied(shots)
    first, second, third = tallies
    # 50 ms and nine tokens of 20 ms: it ended in its first second
    assert (first.at_s, first.ok, first.streamed, first.output_tokens) == (S, 1, 1, 10)
    assert (second.cache_told, second.cache_hits, second.streamed) == (1, 1, 0)
    assert (third.at_s, third.errors, third.error_kinds) == (
        S + 60,
        1,
        (ErrorCount(kind="timeout", count=1),),
    )


def test_kinds_of_errors_are_told_the_most_frequent_first_and_equals_by_name() -> None:
    counts = {"connect": 1, "timeout": 3, "cut": 1}
    kinds = tuple(ErrorCount(kind=kind, count=count) for kind, count in counts.items())
    found = host_report([tally(S, errors=5, error_kinds=kinds)], S, S)
    assert found.kinds_told == "3 timeout, 1 connect, 1 cut"


def test_cache_hits_are_those_that_answers_tell_and_those_that_were_inferred() -> None:
    told = tally(S, ok=9, cache_told=4, cache_hits=1, cache_judged=5, cache_inferred=2)
    found = host_report([told], S, S)
    assert (found.cache_told, found.cache_hits) == (9, 3)


@pytest.mark.parametrize(
    ("at", "words"),
    [
        (S + 130.0, "2 min 10 s  alice: restart out of memory"),
        (S - 5.0, "5 s before  alice: restart out of memory"),
    ],
)
def test_an_event_is_told_by_its_moment_of_the_run(at: float, words: str) -> None:
    event = Event(name="alice", at=at, kind="restart", text="out of memory")
    assert event_words(event, S) == words


def report(**changes) -> Report:
    """Two seconds of two hosts; alice answers 4 a second, bob nothing."""
    hosts = [
        host_report([tally(S + at, host=(name, "http://h"), ok=ok) for at in (0, 1)], S, S + 1)
        for name, ok in (("alice", 4), ("bob", 0))
    ]
    told = {
        "run": "r",
        "verb": "blast",
        "started_at": float(S),
        "ended_at": S + 2.0,
        "told": "",
        "hosts": tuple(hosts),
        "criteria": criteria(hosts),
        "costs": None,
        "events": (),
        "notes": (),
    }
    return Report(**(told | changes))


def test_the_page_has_a_line_a_host_and_an_upright_one_for_each_event_within_the_run() -> None:
    # half a second before the run, in its midst, and a second after it
    events = tuple(Event(at=at, kind="mark", text=f"at {at:g}") for at in (S - 0.5, S + 1, S + 3))
    page = report_page(report(events=events))
    # each of the two plots with lines: requests, and no streamed answer, no answer, no error
    assert page.count('class="rule mark"') == 1
    assert "M500.0 0V1000" in page
    assert [word in page for word in ("No streamed answer.", "No request failed.")] == [True, True]
    assert 'data-host="alice"' in page
    assert 'data-host="bob"' in page


def test_the_page_and_the_text_hold_the_table_of_costs_where_prices_are_told() -> None:
    costs = Costs(
        gpu_hour=2.0, gpus=2, per_million_tokens=0.05, api_per_million_tokens=1.5, even_rps=3.0
    )
    page, text = report_page(report(costs=costs)), "\n".join(text_lines(report(costs=costs)))
    for word in ("4.00", "0.0500", "1.50", "From 3.00 requests a second on, the GPU is cheaper"):
        assert (word in page, word in text) == (True, True), word
    assert "cost of" not in report_page(report())

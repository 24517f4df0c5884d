"""The lab report and the sweep's page and chart, of what was made by hand. How pages look, tests/browser sees."""

import re

import pytest
from support.shots import failed
from support.shots import shot as timed
from support.tallies import S, sketch, tally

from toolkit.plan.catalog import table as table_of
from toolkit.records import ErrorCount, Event
from toolkit.tuning.criteria import Costs, criteria
from toolkit.tuning.lab_report import MOST_STRETCHES, Report, event_words, host_report, text_lines
from toolkit.tuning.pages import report_page, sweep_page
from toolkit.tuning.sweep_chart import picture
from toolkit.tuning.sweep_file import SweepPlan
from toolkit.tuning.sweep_table import SweepRow, moved, table

SHARE = "invalid_json_ratio"


def test_each_second_of_a_short_run_is_a_stretch() -> None:
    tallies = [
        tally(S, ok=4, output_tokens=40, e2e=sketch(100, 100, 100, 100)),
        tally(S + 2, ok=2, errors=2, error_kinds=(ErrorCount(kind="timeout", count=2),)),
    ]
    found = host_report(tallies, range(S, S + 4))
    told = [(t_s, one.figure("rps"), one.figure("error_rate")) for t_s, one in found.stretches]
    assert told == [(0.5, 4, 0), (1.5, 0, None), (2.5, 2, 0.5), (3.5, 0, None)]
    first, second, *_ = (one.figure("e2e_p50_ms") for _, one in found.stretches)
    assert (first, second) == (pytest.approx(100, rel=0.01), None)
    # 6 in 4 s; 2 of 8 failed
    whole = found.as_json()
    assert (whole["rps"], whole["error_rate"], whole["error_kinds"]) == (1.5, 0.25, {"timeout": 2})


def test_a_long_run_has_equal_stretches_and_no_part_of_one_at_its_end() -> None:
    # 400 s: stretches of 3 s, of which 133 are whole; the 400th second is in none, but counts for the whole run
    found = host_report([tally(S + place, ok=3) for place in range(400)], range(S, S + 400))
    assert len(found.stretches) == 133 <= MOST_STRETCHES
    assert {one.figure("rps") for _, one in found.stretches} == {3.0}
    assert (found.whole.ok, found.whole.figure("rps")) == (1200, 3.0)


def test_a_bench_is_drawn_as_a_blast_is() -> None:
    requests = [
        # 50 ms and nine tokens of 20 ms: it ended in its first second
        timed(0, planned_at=S + 0.0, tokens=10, first_ms=50.0),
        timed(1, planned_at=S + 0.0, tokens=10, first_ms=50.0, stream=False, cache_status="HIT"),
        failed(3, "timeout", took_ms=60_000.0, planned_at=S + 0.0),
    ]
    found = host_report(requests, range(S, S + 61))
    ended = [(t_s, one.ok, one.errors) for t_s, one in found.stretches if one.ended]
    assert ended == [(0.5, 2, 0), (60.5, 0, 1)]
    whole = found.whole
    assert (whole.streamed, whole.output_tokens, whole.error_kinds) == (1, 20, {"timeout": 1})
    assert (whole.cache_known, whole.cache_hits) == (1, 1)


def test_cache_hits_are_those_that_answers_tell_and_those_that_were_inferred() -> None:
    hits = tally(S, ok=9, cache_told=4, cache_hits=1, cache_judged=5, cache_inferred=2)
    found = host_report([hits], range(S, S + 1)).as_json()
    assert (found["cache_told"], found["cache_hits"]) == (9, 3)


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


def report(*events: Event, costs: Costs | None = None) -> Report:
    """Two seconds of two hosts; alice answers 4 a second, bob nothing."""
    hosts = [
        host_report(
            [tally(S + at, host=(name, "http://h"), ok=ok) for at in (0, 1)], range(S, S + 2)
        )
        for name, ok in (("alice", 4), ("bob", 0))
    ]
    return Report(
        run="r",
        verb="blast",
        started_at=float(S),
        ended_at=S + 2.0,
        plan="",
        hosts=hosts,
        criteria=criteria(table_of("criteria"), [(host.name, host.whole) for host in hosts]),
        costs=costs,
        events=events,
        notes=(),
    )


def test_the_page_has_a_line_a_host_and_an_upright_one_for_each_event_within_the_run() -> None:
    # half a second before the run, in its midst, and a second after it
    events = [Event(at=at, kind="mark", text=f"at {at:g}") for at in (S - 0.5, S + 1, S + 3)]
    page = report_page(report(*events))
    # each of the two plots with lines: requests, and no streamed answer, no answer, no error
    assert page.count('class="rule mark"') == 1
    for words in (
        "M500.0 0V1000",
        "No streamed answer.",
        "No request failed.",
        'data-host="alice"',
    ):
        assert words in page
    assert 'data-host="bob"' in page


def test_the_page_and_the_text_hold_the_table_of_costs_where_prices_are_given() -> None:
    costs = Costs(
        gpu_hour=2.0, gpus=2, per_million_tokens=0.05, api_per_million_tokens=1.5, even_rps=3.0
    )
    page, text = report_page(report(costs=costs)), "\n".join(text_lines(report(costs=costs)))
    for word in ("4.00", "0.0500", "1.50", "From 3.00 requests a second on, the GPU is cheaper"):
        assert (word in page, word in text) == (True, True), word
    assert "cost of" not in report_page(report())


# --- a sweep


def measured(name: str, *values: float) -> SweepRow:
    blocks = {number: {SHARE: value} for number, value in enumerate(values, start=1)}
    return SweepRow(
        name=name, stage=1, lever="asked for", value=name, status="measured", blocks=blocks
    )


def plan_and_rows(*known: SweepRow) -> tuple[SweepPlan, tuple[SweepRow, ...]]:
    return SweepPlan(name="json", look_at=(SHARE,), blocks=2), table(known, [SHARE])


def test_from_all_to_none_is_drawn() -> None:
    # every answer in words is invalid, none by the schema is: 100 points less, of which no ratio can be told
    plan, rows = plan_and_rows(measured("in words", 1.0, 1.0), measured("by the schema", 0.0, 0.0))
    assert "-100.0 points" in sweep_page(plan, rows, moved(rows, SHARE))
    (axes,) = picture(plan, rows).axes
    assert [bar.get_width() for bar in axes.patches] == [1.0, 0.0]


def test_the_first_bar_and_one_of_no_difference_are_marked() -> None:
    plan, rows = plan_and_rows(
        measured("first", 0.5, 0.5), measured("same", 0.5, 0.5), measured("less", 0.1, 0.1)
    )
    found = re.findall(
        r'<div class="(first|equal)"><span class="name">(\w+)', sweep_page(plan, rows, ())
    )
    assert found == [("first", "first"), ("equal", "same")]


def test_a_shares_interval_is_drawn_in_points() -> None:
    # 0.5 -> 0.25 with an interval of 0.6353 to both sides (see test_sweep_table): it begins below 0, where nothing is
    plan, rows = plan_and_rows(measured("in words", 0.5, 0.5), measured("any", 0.2, 0.3))
    (axes,) = picture(plan, rows).axes
    (whisker,) = axes.lines
    # the longest bar is 0.5, and an interval is cut at 1.15 of it
    assert list(whisker.get_xdata()) == [0.0, pytest.approx(0.575)]
    # on the page at 1.25 of it
    assert 'class="cut" style="left:0.00%;width:100.00%"' in sweep_page(plan, rows, ())

import json
from typing import Any

import pytest
from leaderboard_page.strip import kpis, margin, strip
from support.page_html import Node, tree
from support.standings import AT_S, board, standing

from toolkit.records import Event, Run
from toolkit.units import UNKNOWN, time_of_day

STARTED_AT = float(AT_S - 899)
RUN = Run(
    id="0123456789ab",
    verb="blast",
    started_at=STARTED_AT,
    settings=json.dumps({"duration_s": 7200}),
)
PHASES = [
    Event(run="r", at=STARTED_AT, kind="phase", text="warm-up"),
    Event(run="r", at=STARTED_AT + 300, kind="phase", text="full"),
    Event(run="r", at=AT_S + 60.0, kind="phase", text="later"),
]


def drawn(shown: Any, **changes: Any) -> Node:
    usual = {"run": RUN, "now": AT_S + 3.0, "measured_s": AT_S}
    return tree(strip(shown, **usual | changes))


def fact(shown: Any, key: str, **changes: Any) -> str:
    return drawn(shown, **changes).one("li", class_=key).one(class_="value").text


@pytest.mark.parametrize(
    ("now", "text", "state"),
    # the last second is over, and may be known, one second after it began
    [
        (-60, "0 s", "fresh"),  # a clock that is behind
        (1, "0 s", "fresh"),
        (6, "5 s", "fresh"),
        (6.1, "5 s", "late"),
        (16, "15 s", "late"),
        (16.1, "15 s", "stale"),
        (500, "8 min 19 s", "stale"),
    ],
)
def test_the_datas_age_is_amber_after_5_and_red_after_15_seconds(
    now: float, text: str, state: str
) -> None:
    age = drawn(board(), now=float(AT_S + now)).one(class_="age")
    assert (age.text, age["data-state"]) == (text, state)


@pytest.mark.parametrize(
    ("changes", "view"),
    [
        ({"ended": True}, {}),
        ({"frozen_at_s": AT_S}, {}),
        ({"data_end_s": None}, {}),
        ({}, {"replayed": True}),
        ({}, {"revealing": 1}),
    ],
)
def test_a_board_that_stands_still_has_no_age(
    changes: dict[str, Any], view: dict[str, Any]
) -> None:
    assert drawn(board(**changes), **view).all(class_="age") == []


@pytest.mark.parametrize(
    ("changes", "key", "text"),
    [
        # the run began 902 s ago; of 7,200 s are left 6,298
        ({}, "clock", "15:02 1:44:58 left"),
        ({"ended": True}, "clock", "15:00"),
        ({"ended": True}, "phase", "over"),
        ({}, "window", f"{time_of_day(AT_S - 899)}-{time_of_day(AT_S + 1)}"),
        # a young run's begins with the run
        ({"elapsed_s": 60}, "window", f"{time_of_day(AT_S - 59)}-{time_of_day(AT_S + 1)}"),
        ({"frozen_at_s": AT_S}, "frozen", f"frozen at {time_of_day(AT_S)}"),
    ],
)
def test_a_fact_stands_under_its_name(changes: dict[str, Any], key: str, text: str) -> None:
    assert fact(board(**changes), key) == text


def test_what_does_not_hold_is_not_said_and_trouble_is_escaped() -> None:
    for settings in ("{}", "[]", "no JSON", '{"duration_s": "long"}'):
        run = Run(id="1", verb="blast", started_at=STARTED_AT, settings=settings)
        assert fact(board(), "clock", run=run) == "15:02"
    assert drawn(board()).all("li", class_="frozen") == []
    # the last phase that had begun
    assert [fact(board(), "phase", events=events) for events in (PHASES, ())] == ["full", "running"]
    shown = drawn(board(), trouble="<b>locked</b>")
    assert shown.one("p", class_="trouble").text == "<b>locked</b>"


@pytest.mark.parametrize(
    ("shown", "view", "text", "runs"),
    [
        # behind a freeze at 15:00 the load has gone on for another 10 minutes
        ({"frozen_at_s": AT_S}, {"measured_s": AT_S + 600, "now": AT_S + 602.0}, "25:01", True),
        # and so during a reveal
        ({}, {"measured_s": AT_S + 600, "now": AT_S + 602.0, "revealing": 3}, "25:01", True),
        # it ended behind the freeze: 900 + 600 s
        (
            {"frozen_at_s": AT_S, "ended": True},
            {"measured_s": AT_S + 600, "now": AT_S + 9999.0},
            "25:00",
            False,
        ),
        # nothing was measured for a while: the load stands still, and so does its clock
        ({}, {"now": AT_S + 17.0}, "15:00", False),
        # a page's clock that is behind the load generator's
        ({}, {"now": AT_S - 60.0}, "15:00", True),
        # a moment of the past is no running event
        ({}, {"replayed": True}, "15:00", False),
        # begun 3 s ago, and nothing was measured yet
        (
            {"at_s": None, "data_end_s": None},
            {"measured_s": None, "now": STARTED_AT + 3.0},
            "0:03",
            True,
        ),
    ],
)
def test_the_events_clock_runs_as_long_as_the_load_does(
    shown: dict[str, Any], view: dict[str, Any], text: str, runs: bool
) -> None:
    run = Run(id="1", verb="blast", started_at=STARTED_AT)
    clock = drawn(board(**shown), run=run, **view).one("li", class_="clock")
    assert clock.one(class_="value").text == text
    assert bool(clock.all(class_="runs")) is runs


# --- the few figures ------------------------------------------------------------------------------


def card(key: str, *standings: Any) -> list[str]:
    cards = tree(kpis(board(*standings))).all("li", class_=key)
    return [f"{c.one(class_='value').text} / {c.one(class_='below').text}" for c in cards]


def test_the_leader_stands_with_its_margin_totals_and_the_best_latencies() -> None:
    first = standing("a", 1, rps=11.0, ok=90, p95_ms=900.0)
    second = standing("b", 2, rps=10.0, ttft_p95_ms=100.0, p95_ms=None)
    third = standing("c", 3, rps=0.0, ok=0, errors=10, p95_ms=None, ttft_p95_ms=None)
    assert card("leader", first, second, third) == ["a / 10.0 % ahead of b"]
    assert card("total", first, second, third) == ["21.0 / requests/s"]
    assert card("errors", first, third) == ["10.0 % / 10 of 100"]
    assert card("best", standing("a", 1, ttft_p95_ms=200.0, p95_ms=900.0), second) == [
        "100 ms / b",
        "900 ms / a",
    ]
    tied = (standing(name, 1, tied=True) for name in "abcd")
    assert card("leader", *tied) == ["a / tied with b, c and others"]


def test_cards_leave_out_who_fails_is_down_or_has_too_few_answers() -> None:
    fails = standing("fails", 1, rps=99.0, error_rate=0.11, errors=100, p95_ms=1.0)
    few = standing("few", 2, rps=50.0, ok=10, streamed=10, p95_ms=2.0)
    unsure = standing("unsure", 3, rps=9.0, ok=129, p95_ms=3.0)
    plain = standing("plain", 4, rps=6.0, p95_ms=4.0)
    down = standing("down", 5, ok=0, errors=5, rps=0.0, error_rate=1.0, p95_ms=None)
    assert card("leader", fails, few, unsure, plain, down) == [
        "unsure / 50.0 % ahead of plain; not counted: fails and 1 more, failing"
    ]
    assert card("best", fails, few, unsure, plain, down)[1] == "4.00 ms / plain"
    assert card("leader", few, down) == [f"{UNKNOWN} / too few good answers yet"]
    assert card("leader", down) == [f"{UNKNOWN} / nobody has answered yet"]
    # one of the same rank is not ahead
    level = standing("level", 1, rps=9.0, ok=10, streamed=10, tied=True)
    assert card("leader", level, standing("b", 1, tied=True)) == ["b / no rival"]
    silent = standing("a", 1, ok=0, errors=0, rps=0.0, ttft_p95_ms=None, p95_ms=None)
    assert card("best", silent) == [f"{UNKNOWN} / no answer yet"] * 2


def test_under_covers_no_figure_is_shown() -> None:
    covered = tree(kpis(board(standing("a", 1, rps=11.0)), covered=True)).text
    assert covered == "leader ? place by place, from the last to the first"


@pytest.mark.parametrize(
    ("rank_by", "first", "second", "text"),
    [
        ("rps", {"rps": 10.0}, {"rps": 8.0}, "25.0 % ahead of b"),
        ("rps", {"rps": 10.0}, {"rps": 2.5}, "4.0 times ahead of b"),
        ("rps", {"rps": 10.0}, {"rps": 0.0}, "ahead of b"),
        ("p95", {"p95_ms": 100.0}, {"p95_ms": 110.0}, "10.0 % faster than b"),
        ("ttft_p95", {"ttft_p95_ms": 100.0}, {"ttft_p95_ms": None}, "ahead of b"),
        ("error_rate", {"error_rate": 0.01}, {"error_rate": 0.035}, "2.5 points under b"),
    ],
)
def test_a_margin_is_in_the_rankings_own_terms(
    rank_by: Any, first: dict[str, Any], second: dict[str, Any], text: str
) -> None:
    assert margin(standing("a", **first), standing("b", **second), rank_by) == text

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


def told(shown: Any, **changes: Any) -> Node:
    return tree(strip(shown, **{"run": RUN, "now": AT_S + 3.0} | changes))


def fact(shown: Any, key: str, **changes: Any) -> str:
    return told(shown, **changes).one("li", class_=key).one(class_="told").text


@pytest.mark.parametrize(
    ("now", "text", "state"),
    # the last second is over, and may be known, one second after it began
    [
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
    age = told(board(), now=float(AT_S + now)).one(class_="age")
    assert (age.text, age["data-state"]) == (text, state)


def test_a_clock_that_is_behind_makes_no_negative_age() -> None:
    assert told(board(), now=float(AT_S - 60)).one(class_="age").text == "0 s"


@pytest.mark.parametrize("changes", [{"ended": True}, {"frozen_at_s": AT_S}, {"data_end_s": None}])
def test_a_board_that_stands_still_has_no_age(changes: dict[str, Any]) -> None:
    assert told(board(**changes)).all(class_="age") == []


def test_a_replay_and_a_reveal_have_no_age_either() -> None:
    assert told(board(), replayed=True).all(class_="age") == []
    assert told(board(), revealing=True).all(class_="age") == []


def test_the_clock_tells_what_is_gone_and_what_is_left() -> None:
    # 900 s of 7,200 are gone
    assert fact(board(), "clock") == "15:00 1:45:00 left"


def test_a_run_without_a_planned_end_or_with_odd_settings_just_counts() -> None:
    for settings in ("{}", "[]", "no JSON", '{"duration_s": "long"}'):
        run = Run(id="1", verb="blast", started_at=STARTED_AT, settings=settings)
        assert fact(board(), "clock", run=run) == "15:00"


def test_nothing_is_left_of_a_run_that_is_over() -> None:
    assert fact(board(ended=True), "clock") == "15:00"
    assert fact(board(ended=True), "phase") == "over"


def test_the_phase_is_the_last_that_had_begun() -> None:
    phases = [
        Event(run="r", at=STARTED_AT, kind="phase", text="warm-up"),
        Event(run="r", at=STARTED_AT + 300, kind="phase", text="full"),
        Event(run="r", at=AT_S + 60.0, kind="phase", text="later"),
    ]
    assert fact(board(), "phase", events=phases) == "full"
    assert fact(board(), "phase") == "running"


def test_the_window_ends_with_the_end_of_its_last_second() -> None:
    assert fact(board(), "window") == f"{time_of_day(AT_S - 899)}-{time_of_day(AT_S + 1)}"


def test_the_window_of_a_young_run_begins_with_the_run() -> None:
    assert fact(board(elapsed_s=60), "window").startswith(time_of_day(AT_S - 59))


def test_seconds_of_a_loader_at_its_limit_are_a_share_of_those_lived_through() -> None:
    assert fact(board(limited_s=45, elapsed_s=900), "limited") == "5.0 % 45 s"
    assert told(board()).all("li", class_="limited") == []


def test_a_freeze_says_since_when() -> None:
    assert fact(board(frozen_at_s=AT_S), "frozen") == f"frozen at {time_of_day(AT_S)}"
    assert told(board()).all("li", class_="frozen") == []


def test_trouble_is_told_in_words_and_escaped() -> None:
    shown = told(board(), trouble="<b>locked</b>")
    assert shown.one("p", class_="trouble").text == "<b>locked</b>"


# --- the few figures ------------------------------------------------------------------------------


def card(shown: Any, key: str) -> list[str]:
    cards = tree(kpis(shown)).all("li", class_=key)
    return [f"{c.one(class_='told').text} / {c.one(class_='below').text}" for c in cards]


def test_the_leader_is_told_with_its_margin() -> None:
    shown = board(standing("a", 1, rps=11.0), standing("b", 2, rps=10.0))
    assert card(shown, "leader") == ["a / 10.0 % ahead of b"]


def test_a_tied_lead_names_with_whom() -> None:
    shown = board(*(standing(name, 1, tied=True) for name in "abcd"))
    assert card(shown, "leader") == ["a / tied with b, c and others"]


def test_totals_leave_nobody_out() -> None:
    shown = board(
        standing("a", 1, rps=11.0, ok=90, errors=0), standing("b", 2, rps=9.5, ok=0, errors=10)
    )
    assert card(shown, "total") == ["20.5 / requests/s"]
    assert card(shown, "errors") == ["10.0 % / 10 of 100"]


def test_the_best_latencies_name_whose_they_are() -> None:
    shown = board(
        standing("a", 1, ttft_p95_ms=200.0, p95_ms=900.0),
        standing("b", 2, ttft_p95_ms=100.0, p95_ms=None),
    )
    assert card(shown, "best") == ["100 ms / b", "900 ms / a"]


def test_cards_leave_out_who_fails_is_down_or_has_too_few_answers() -> None:
    fails = standing("fails", 1, rps=99.0, error_rate=0.11, errors=100, p95_ms=1.0)
    few = standing("few", 2, rps=50.0, ok=10, streamed=10, p95_ms=2.0)
    unsure = standing("unsure", 3, rps=9.0, ok=129, p95_ms=3.0)
    plain = standing("plain", 4, rps=6.0, p95_ms=4.0)
    down = standing("down", 5, ok=0, errors=5, rps=0.0, error_rate=1.0, p95_ms=None)
    shown = board(fails, few, unsure, plain, down)
    assert card(shown, "leader") == [
        "unsure / 50.0 % ahead of plain; not counted: fails and 1 more, failing"
    ]
    assert card(shown, "best")[1] == "4.00 ms / plain"
    assert card(board(few, down), "leader") == [f"{UNKNOWN} / too few good answers yet"]
    assert card(board(down), "leader") == [f"{UNKNOWN} / nobody has answered yet"]


def test_before_anybody_answered_nothing_is_made_up() -> None:
    shown = board(standing("a", 1, ok=0, errors=0, rps=0.0, ttft_p95_ms=None, p95_ms=None))
    assert "nobody has answered yet" in tree(kpis(shown)).text
    assert "no answer yet" in tree(kpis(shown)).text


def test_under_covers_no_figure_is_told() -> None:
    shown = board(standing("a", 1, rps=11.0))
    assert (
        tree(kpis(shown, covered=True)).text
        == "leader ? place by place, from the last to the first"
    )


@pytest.mark.parametrize(
    ("rank_by", "first", "second", "told"),
    [
        ("rps", {"rps": 10.0}, {"rps": 8.0}, "25.0 % ahead of b"),
        ("rps", {"rps": 10.0}, {"rps": 2.5}, "4.0 times ahead of b"),
        ("rps", {"rps": 10.0}, {"rps": 0.0}, "ahead of b"),
        ("p95", {"p95_ms": 100.0}, {"p95_ms": 110.0}, "10.0 % faster than b"),
        ("ttft_p95", {"ttft_p95_ms": 100.0}, {"ttft_p95_ms": None}, "ahead of b"),
        ("error_rate", {"error_rate": 0.01}, {"error_rate": 0.035}, "2.5 points under b"),
    ],
)
def test_a_margin_is_told_in_the_rankings_own_terms(
    rank_by: Any, first: dict[str, Any], second: dict[str, Any], told: str
) -> None:
    assert margin(standing("a", **first), standing("b", **second), rank_by) == told

import json
from dataclasses import replace
from typing import Any

import pytest
from leaderboard_page.provenance import provenance
from support.page_html import Node, tree
from support.standings import AT_S, board

from toolkit.records import Event, Run
from toolkit.units import day, time_of_day

BEGAN = AT_S - 899.0
PLAN = {
    "load_generator": ["box-1"],
    "users": 32,
    "users_per_host": 4,
    "profile": "contest",
    "workers": 1,
    "non_neutral": None,
}


def drawn(events: tuple[Event, ...] = (), plan: Any = None, **changes: Any) -> Node:
    settings = json.dumps(PLAN | (plan or {}))
    run = Run(id="0123456789ab", verb="blast", started_at=BEGAN, settings=settings)
    return tree(provenance(board(**changes), run, events))


def fact(key: str, **changes: Any) -> str:
    return drawn(**changes).one("li", class_=key).one(class_="value").text


def test_one_line_says_where_the_figures_come_from() -> None:
    found = drawn()
    assert found.all(class_="banner") == []
    assert [one.text for one in found.one("ul", class_="provenance").all("li")] == [
        "run 0123456789ab",
        "load generator box-1, not on the hosts' machines",
        "at its limit never in the window",
        "load 32 users, 4 a host",
        "profile contest",
        f"since {day(BEGAN)}, {time_of_day(BEGAN, seconds=False)}",
        "see also hosts, bench, workload",
    ]
    assert found.one("li", class_="run").one("a")["href"] == "?run=0123456789ab"


@pytest.mark.parametrize(
    ("plan", "key", "text"),
    [
        ({"load_generator": ["a", "b", "c", "d"]}, "loader", "a, b, c and 1 more, not on"),
        ({"workers": 4}, "loader", "box-1, 4 processes, not on the hosts' machines"),
        ({"non_neutral": "`a` is"}, "loader", "box-1, on the same machine as the hosts"),
        ({"rate": 2.5}, "users", "32 users, 4 a host, 2.5 requests/s a host"),
        # of a run from before this was kept
        (
            {"load_generator": None},
            "loader",
            "unknown machine, unknown whether on a host's machine",
        ),
        ({"users": None, "users_per_host": "?"}, "users", "unknown"),
        ({"profile": None}, "profile", "unknown"),
    ],
)
def test_what_a_run_does_not_say_is_unknown(plan: dict[str, Any], key: str, text: str) -> None:
    assert fact(key, plan=plan).startswith(text)


def test_limited_seconds_count_or_not_and_a_switch_says_which() -> None:
    counted = drawn(limited_s=45).one("li", class_="limited")
    assert counted.one(class_="value").text == "45 s of 15 min (5.0 %), counted Leave them out"
    switch = counted.one("a", role="switch")
    assert (switch["href"], switch["aria-checked"]) == ("?skip_limited=1", "false")
    skipped = drawn(limited_s=45, skip_limited=True).one("li", class_="limited")
    assert ", left out" in skipped.text
    switch = skipped.one("a", role="switch")
    assert (switch["href"], switch["aria-checked"]) == ("?skip_limited=", "true")
    # who skips them can stop that, though there is none now
    assert len(drawn(skip_limited=True).all("a", role="switch")) == 1
    assert drawn().all("a", role="switch") == []


@pytest.mark.parametrize(
    ("text", "banner"),
    [
        (
            "not valid for ranking: `a` (::1) and `b` (::1) are on this machine",
            "Not valid for ranking. Load generator on the same machine as the hosts: a (::1) and b (::1).",
        ),
        # as it was written before
        (
            "not neutral: `a` (::1) is on this machine",
            "Not valid for ranking. Load generator on the same machine as the hosts: a (::1).",
        ),
        # for any other reason
        ("not valid for ranking: <b>rehearsal</b>", "Not valid for ranking. <b>rehearsal</b>"),
        ("swapped the model", None),
    ],
)
def test_a_run_that_is_not_valid_for_ranking_says_so_in_a_banner(
    text: str, banner: str | None
) -> None:
    mark = Event(run="r", at=BEGAN, kind="mark", text=text)
    assert drawn(events=(replace(mark, name="a", url="u"),)).all(class_="banner") == []
    assert [one.text for one in drawn(events=(mark,)).all(class_="banner")] == [banner][
        : bool(banner)
    ]

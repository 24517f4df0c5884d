"""Restarts and other settings between two looks at a host."""

from typing import Any

import pytest

from toolkit.board.scrapes import changes, scrape_of, together
from toolkit.records import Event, Sighting

AT = 1_800_000_000.0


def sighting(at: float, **more: Any) -> Sighting:
    usual = {"name": "a", "url": "u", "status": "ok", "started_at": AT - 900, "config_hash": "c1"}
    return Sighting(**{**usual, "at": AT + at, **more})


def seen(*sightings: Sighting) -> list[tuple[str, float, str]]:
    found = changes("a", "u", [scrape_of(each) for each in sightings])
    events = [each.event for each in found]
    assert all((each.name, each.url, each.run) == ("a", "u", None) for each in events)
    return [(each.kind, each.at - AT, each.text) for each in events]


def test_a_host_that_stays_as_it_is_tells_nothing() -> None:
    assert seen(sighting(0), sighting(30, started_at=AT - 900.4), sighting(60)) == []


def test_a_restart_lies_at_the_start_of_the_new_process() -> None:
    assert seen(sighting(0), sighting(30, started_at=AT + 12)) == [("restart", 12, "started anew")]


def test_nobody_knew_before_the_second_look() -> None:
    (only,) = changes(
        "a", "u", [scrape_of(sighting(0)), scrape_of(sighting(30, started_at=AT + 12))]
    )
    assert only.noticed_at == AT + 30


@pytest.mark.parametrize(("started", "told"), [(-50.0, 0.0), (700.0, 30.0)])
def test_a_host_with_a_wrong_clock_restarted_between_the_two_looks(
    started: float, told: float
) -> None:
    assert seen(sighting(0), sighting(30, started_at=AT + started))[0][:2] == ("restart", told)


def test_two_processes_that_answer_in_turn_are_no_restarts() -> None:
    one, other = AT - 900, AT - 800
    starts = (other, one, other, one, other)
    looks = [sighting(30 * number, started_at=at) for number, at in enumerate(starts)]
    assert seen(*looks) == []


def test_without_a_start_time_a_counter_that_fell_is_a_restart() -> None:
    before = sighting(0, started_at=None, requests_total=100.0)
    assert seen(before, sighting(30, started_at=None, requests_total=101.0)) == []
    assert seen(before, sighting(30, started_at=None, requests_total=3.0))[0][:2] == (
        "restart",
        30,
    )


def test_looks_at_a_host_that_is_down_forget_nothing() -> None:
    down = sighting(30, status="down", started_at=None, config_hash=None)
    assert seen(sighting(0), down, sighting(60)) == []
    assert seen(sighting(0), down, sighting(60, started_at=AT + 50)) == [
        ("restart", 50, "started anew")
    ]


def test_a_page_that_says_less_than_before_is_no_change() -> None:
    bare = sighting(30, started_at=None, config_hash=None, model=None)
    assert seen(sighting(0, model="m"), bare, sighting(60, model="m")) == []


def test_another_model_is_told_by_its_names() -> None:
    assert seen(sighting(0, models=("m", "lora")), sighting(30, models=("n",))) == [
        ("model", 30, "`m`, `lora` -> `n`")
    ]


def test_other_settings_are_named() -> None:
    before = sighting(0, max_model_len=8192, cache_dtype="auto")
    after = sighting(30, max_model_len=4096, cache_dtype="auto", config_hash="c2")
    assert seen(before, after) == [("config", 30, "max_model_len 8192 -> 4096")]
    assert seen(sighting(0), sighting(30, config_hash="c2")) == [
        ("config", 30, "other settings than before")
    ]


def test_a_restart_that_was_noted_and_seen_stands_once() -> None:
    noted = Event(name="a", url="u", at=AT + 5, kind="restart", text="bigger batch")
    other = Event(name="b", url="v", at=AT + 6, kind="restart")
    late = Event(name="a", url="u", at=AT + 600, kind="restart")
    same = Event(name="a", url="u", at=AT + 40, kind="restart", text="started anew")
    assert together([noted], [same, other, late]) == [noted, other, late]

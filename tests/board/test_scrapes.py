"""Restarts and other settings between two scrapes of a host, as the feed's events show them."""

from typing import Any

import pytest
from support.board_reader import RUN, START_S, ListReader

from toolkit.board.feed import Feed
from toolkit.board.scrapes import HostScrapes
from toolkit.records import Event, Sighting


def sighting(at: float, **more: Any) -> Sighting:
    usual = {"name": "a", "url": "http://a:8000", "status": "ok", "config_hash": "c1"}
    usual |= {"started_at": START_S - 900.0}
    return Sighting(**{**usual, "at": START_S + at, **more})


def seen(*sightings: Sighting) -> list[tuple[str, float, str]]:
    reader = ListReader("a")
    reader.sightings = list(sightings)
    events = Feed(reader, RUN).events()
    assert all((each.name, each.url, each.run) == ("a", "http://a:8000", None) for each in events)
    return [(each.kind, each.at - START_S, each.text) for each in events]


def test_a_restart_lies_at_the_start_of_the_new_process_and_was_not_known_before_the_second_scrape() -> (
    None
):
    assert seen(sighting(0), sighting(30, started_at=START_S - 900.4), sighting(60)) == []
    again = sighting(30, started_at=START_S + 12)
    assert seen(sighting(0), again) == [("restart", 12, "started anew")]
    scrapes = HostScrapes("a", "u")
    for each in (sighting(0), again):
        assert scrapes.add(each)
        assert not scrapes.add(each)
    assert [each.noticed_at for each in scrapes.changes()] == [START_S + 30]


@pytest.mark.parametrize(("started", "at"), [(-50.0, 0.0), (700.0, 30.0)])
def test_a_host_with_a_wrong_clock_restarted_between_the_two_scrapes(
    started: float, at: float
) -> None:
    assert seen(sighting(0), sighting(30, started_at=START_S + started))[0][:2] == ("restart", at)


def test_two_processes_that_answer_in_turn_are_no_restarts() -> None:
    one, other = START_S - 900, START_S - 800
    starts = (other, one, other, one, other)
    assert seen(*(sighting(30 * n, started_at=at) for n, at in enumerate(starts))) == []


def test_without_a_start_time_a_counter_that_fell_is_a_restart() -> None:
    before = sighting(0, started_at=None, requests_total=100.0)
    for requests, expected in ((101.0, []), (3.0, [30]), (0.0, [30]), (None, [])):
        after = sighting(30, started_at=None, requests_total=requests)
        assert [at for _, at, _ in seen(before, after)] == expected


def test_a_host_that_is_down_or_says_less_than_before_forgets_nothing() -> None:
    down = sighting(30, status="down", started_at=None, config_hash=None)
    assert seen(sighting(0), down, sighting(60)) == []
    restarted = sighting(60, started_at=START_S + 50)
    assert seen(sighting(0), down, restarted) == [("restart", 50, "started anew")]
    bare = sighting(30, started_at=None, config_hash=None, model=None)
    assert seen(sighting(0, model="m"), bare, sighting(60, model="m")) == []
    assert [kind for kind, *_ in seen(sighting(0, model="m"), bare, sighting(60, model="n"))] == [
        "model"
    ]


def test_another_model_and_other_settings_are_named() -> None:
    assert seen(sighting(0, models=("m", "lora")), sighting(30, models=("n",))) == [
        ("model", 30, "`m`, `lora` -> `n`")
    ]
    before = sighting(0, max_model_len=8192, cache_dtype="auto")
    after = sighting(30, max_model_len=4096, cache_dtype="auto", config_hash="c2")
    assert seen(before, after) == [("config", 30, "max_model_len 8192 -> 4096")]
    assert seen(sighting(0), sighting(30, config_hash="c2")) == [
        ("config", 30, "other settings than before")
    ]


def test_a_restart_that_was_noted_and_seen_stands_once() -> None:
    reader = ListReader("a", "b")
    reader.event("restart", 5, "a", "bigger batch")
    noted = reader.happened[0]
    reader.sightings = [
        sighting(0),
        sighting(45, started_at=START_S + 40),  # the same
        sighting(620, started_at=START_S + 600),
        sighting(0, name="b", url="http://b:8000"),
        sighting(30, name="b", url="http://b:8000", started_at=START_S + 6),
    ]
    events = Feed(reader, RUN).events()
    assert events[0] == noted
    assert [(each.name, each.at - START_S) for each in events[1:]] == [("b", 6), ("a", 600)]
    assert isinstance(events[1], Event)

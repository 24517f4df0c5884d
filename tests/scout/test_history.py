"""A host's history: cut where something changed, nowhere else."""

from dataclasses import replace

from toolkit.records import Sighting
from toolkit.scout.history import chapters

FIRST = Sighting(
    name="alice", url="http://h:1", at=1.0, status="ok", version="0.31.0", config_hash="a", started_at=0.0,
    requests_total=5.0,
)  # fmt: skip


def test_no_sightings_are_no_chapters() -> None:
    assert chapters([]) == []


def test_sightings_without_a_change_are_one_chapter() -> None:
    (chapter,) = chapters([replace(FIRST, at=float(at)) for at in range(1, 6)])
    assert (chapter.first.at, chapter.last.at, chapter.sightings) == (1.0, 5.0, 5)
    assert chapter.changes == ("first seen",)


def test_an_outage_a_restart_and_a_new_version_each_start_a_chapter() -> None:
    down = Sighting(
        name="alice", url="http://h:1", at=2.0, status="down", error="connection refused"
    )
    new = replace(
        FIRST, at=3.0, started_at=2.5, version="0.32.0", config_hash="b", requests_total=0.0
    )
    told = chapters([FIRST, down, replace(down, at=2.5), new, replace(new, at=4.0)])
    assert [chapter.sightings for chapter in told] == [1, 2, 2]
    assert told[1].changes == ("ok -> down: connection refused",)
    # compared with the last sighting that had settings, not with the outage between
    assert told[2].changes == ("down -> ok", "restarted", "version 0.31.0 -> 0.32.0")


def test_a_look_that_was_cut_short_neither_hides_nor_invents_a_change() -> None:
    short = replace(
        FIRST, at=2.0, status="degraded", error="slow", started_at=None, config_hash=None
    )
    same, other = replace(FIRST, at=3.0), replace(FIRST, at=3.0, started_at=2.5)
    assert chapters([FIRST, short, same])[2].changes == ("degraded -> ok",)
    assert chapters([FIRST, short, other])[2].changes == ("degraded -> ok", "restarted")


def test_a_short_outage_without_a_restart_is_no_restart() -> None:
    down = replace(
        FIRST, at=2.0, status="down", started_at=None, config_hash=None, requests_total=None
    )
    back = replace(FIRST, at=3.0, requests_total=9.0)
    assert [chapter.changes for chapter in chapters([FIRST, down, back])][2] == ("down -> ok",)

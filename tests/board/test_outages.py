"""When a host was down, and when it was only slow or flaky; and what of it a window still holds."""

import pytest
from support.courses import counted

from toolkit.board.outages import (
    Outage,
    RunSeconds,
    affected_intervals,
    course,
    outage_at,
    outages,
)
from toolkit.board.standings import AffectedInterval
from toolkit.records import Tally

SLOW = ((1, 1, 0), (1, 0, 0)) * 20
"""One answer in two seconds."""


def test_the_seconds_of_all_workers_and_prompts_add_up_and_missing_ones_are_zeros() -> None:
    usual = {"run": "r", "name": "a", "url": "u", "kind": "ranked"}
    parts = [
        Tally(**usual, at_s=at_s, worker=worker, ok=ok, errors=errors)  # type: ignore[arg-type]
        for at_s, worker, ok, errors in ((12, "w1", 3, 1), (10, "w1", 5, 0), (12, "w2", 4, 2))
    ]
    found = course(parts, from_s=9, to_s=13)
    assert found == RunSeconds(first_s=9, ok=(0, 5, 0, 7), errors=(0, 0, 0, 3))
    assert course(parts, from_s=9, to_s=12).ok == (0, 5, 0)
    assert course([], from_s=9, to_s=9) == RunSeconds(first_s=9, ok=(), errors=())


@pytest.mark.parametrize(
    ("spans", "expected"),
    [
        # where nothing was answered or more failed; 3 + 4 * 6 errors
        (((10, 5, 0), (1, 2, 3), (4, 0, 6), (10, 5, 1)), [(1010, 1015, 27, True)]),
        # some fail all the time
        (((60, 4, 1),), []),
        # 6 s with errors lack 3 answers of the usual rate, 20 s lack 10
        ((*SLOW, (6, 0, 1), *SLOW), []),
        ((*SLOW, (20, 0, 1), *SLOW), [(1039, 1060, 20, True)]),
        # two failures alone
        (((10, 5, 0), (4, 0, 0), (2, 0, 1), (10, 5, 0)), []),
        (((10, 5, 0), (3, 0, 0), (3, 0, 1), (10, 5, 0)), [(1010, 1016, 3, True)]),
        # who was never up has had no outage
        (((30, 0, 5),), []),
        (((5, 0, 5), (10, 4, 0)), []),
        # who is down when the run ends
        (((10, 5, 0), (4, 0, 6)), [(1010, 1014, 24, False)]),
    ],
)
def test_an_outage_lacks_more_answers_than_chance_takes(
    spans: tuple[tuple[int, int, int], ...], expected: list[tuple[int, int, int, bool]]
) -> None:
    found = outages(counted(*spans))
    assert [(each.from_s, each.to_s, each.errors, each.is_over) for each in found] == expected
    assert not any(each.restarted for each in found)


def test_silence_is_an_outage_only_around_a_known_restart() -> None:
    seconds = counted((10, 5, 0), (4, 0, 0), (10, 5, 0), (1, 0, 0), (60, 5, 0))
    assert outages(seconds) == []
    long = Outage(from_s=1010, to_s=1014, errors=0, is_over=True, restarted=True)
    # within; noticed after it was back, also past a shorter silence
    for restarts in ([1012.7], [1014.2], [1026.0, 1043.9]):
        assert outages(seconds, restarts=restarts) == [long]
    # too late, and too early
    for at in (1060.0, 1004.9):
        assert outages(seconds, restarts=[at]) == []
    assert outages(counted((30, 0, 5)), restarts=[1010.0]) == []


def test_of_several_outages_a_moment_picks_the_nearest_and_no_moment_the_worst() -> None:
    found = outages(counted((10, 5, 0), (2, 0, 3), (10, 5, 0), (2, 0, 9), (10, 5, 0)))
    first, second = found
    assert outage_at(found, None) is second
    # 1,016 is 4 s after the first, 6 s before the other
    for at, expected in ((1011.0, first), (1016.0, first), (1018.0, second)):
        assert outage_at(found, at) is expected
    assert outage_at([], 1.0) is None


@pytest.mark.parametrize(
    ("up_s", "in_window_s", "clean_in_s", "errors"),
    [
        (0, 30, None, 150),  # still down
        (1, 30, 79, 150),
        (50, 30, 30, 150),  # the window begins as the downtime does
        (70, 10, 10, 50),
        (79, 1, 1, 5),
    ],
)
def test_an_outage_leaves_the_window_second_by_second(
    up_s: int, in_window_s: int, clean_in_s: int | None, errors: int
) -> None:
    # up for 100 s, down for 30 s with 5 errors each, up again; the window is the last 80 s
    seconds = counted((100, 10, 0), (30, 0, 5), (up_s, 10, 0))
    assert affected_intervals(seconds, [], window_s=80) == (
        AffectedInterval(
            restarted=False,
            from_s=1100,
            to_s=1130 if up_s else None,
            in_window_s=in_window_s,
            clean_in_s=clean_in_s,
            errors=errors,
        ),
    )


def test_what_has_left_the_window_is_gone_and_a_known_restart_needs_no_errors() -> None:
    assert affected_intervals(counted((9, 9, 0), (9, 0, 9), (80, 9, 0)), [], window_s=80) == ()
    seconds = counted((100, 10, 0), (20, 0, 5), (40, 10, 0), (4, 0, 0), (36, 10, 0))
    found = affected_intervals(seconds, [1163.0], window_s=150)
    assert [(each.in_window_s, each.restarted) for each in found] == [(20, False), (4, True)]

"""When a host was down, and when it was only slow or flaky."""

import pytest
from support.courses import counted

from toolkit.board.outages import (
    Outage,
    RunSeconds,
    affected_intervals,
    course,
    outage_at,
    outages,
    sentence,
)
from toolkit.board.standings import AffectedInterval
from toolkit.records import Tally


def test_the_seconds_of_all_workers_and_prompts_add_up_and_missing_ones_are_zeros() -> None:
    def tally(at_s: int, worker: str, ok: int, errors: int) -> Tally:
        return Tally(
            run="r",
            name="a",
            url="u",
            at_s=at_s,
            worker=worker,
            kind="ranked",
            ok=ok,
            errors=errors,
        )

    parts = [tally(12, "w1", 3, 1), tally(10, "w1", 5, 0), tally(12, "w2", 4, 2)]
    assert course(parts) == RunSeconds(first_s=10, ok=(5, 0, 7), errors=(0, 0, 3))
    assert course(parts, from_s=9, to_s=12) == RunSeconds(first_s=9, ok=(0, 5, 0), errors=(0, 0, 0))
    assert course([]) == RunSeconds(first_s=0, ok=(), errors=())


def test_an_outage_is_where_nothing_was_answered_or_more_failed() -> None:
    told = counted((10, 5, 0), (1, 2, 3), (4, 0, 6), (10, 5, 1))
    (found,) = outages(told)
    assert found == Outage(from_s=1010, to_s=1015, errors=27, is_over=True)  # 3 + 4 * 6


def test_a_host_that_fails_some_requests_all_the_time_is_not_down() -> None:
    assert outages(counted((60, 4, 1))) == []


def test_a_slow_host_that_fails_now_and_then_is_not_down() -> None:
    # one answer in two seconds; 6 s with 4 errors lack 3 answers of its usual rate, 20 s lack 10
    slow = ((1, 1, 0), (1, 0, 0)) * 20
    assert outages(counted(*slow, (6, 0, 1), *slow)) == []
    assert len(outages(counted(*slow, (20, 0, 1), *slow))) == 1


def test_two_failures_alone_are_no_outage() -> None:
    assert outages(counted((10, 5, 0), (4, 0, 0), (2, 0, 1), (10, 5, 0))) == []
    assert len(outages(counted((10, 5, 0), (3, 0, 0), (3, 0, 1), (10, 5, 0)))) == 1


def test_silence_is_an_outage_only_around_a_known_restart() -> None:
    told = counted((10, 5, 0), (4, 0, 0), (10, 5, 0), (1, 0, 0), (60, 5, 0))
    assert outages(told) == []
    long = Outage(from_s=1010, to_s=1014, errors=0, is_over=True, restarted=True)
    assert outages(told, restarts=[1012.7]) == [long]
    # noticed after it was back, also past a shorter silence
    assert outages(told, restarts=[1014.2]) == [long]
    assert outages(told, restarts=[1026.0, 1043.9]) == [long]
    # too late, and too early
    assert outages(told, restarts=[1060.0]) == []
    assert outages(told, restarts=[1004.9]) == []


def test_a_host_that_was_never_up_has_had_no_outage() -> None:
    assert outages(counted((30, 0, 5))) == []
    assert outages(counted((30, 0, 5)), restarts=[1010.0]) == []
    assert outages(counted((5, 0, 5), (10, 4, 0))) == []


def test_a_host_that_is_still_down_when_the_run_ends_has_an_open_outage() -> None:
    (found,) = outages(counted((10, 5, 0), (4, 0, 6)))
    assert (found.to_s, found.is_over) == (1014, False)


def test_of_several_outages_a_moment_picks_the_nearest_and_no_moment_the_worst() -> None:
    told = counted((10, 5, 0), (2, 0, 3), (10, 5, 0), (2, 0, 9), (10, 5, 0))
    found = outages(told)
    first, second = found
    assert outage_at(found, None) is second
    assert outage_at(found, 1011.0) is first
    assert outage_at(found, 1016.0) is first  # 4 s after it, 6 s before the other
    assert outage_at(found, 1018.0) is second
    assert outage_at([], 1.0) is None


# what a window still holds


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
    told = counted((100, 10, 0), (30, 0, 5), (up_s, 10, 0))
    assert affected_intervals(told, [], window_s=80) == (
        AffectedInterval(
            restarted=False,
            from_s=1100,
            to_s=1130 if up_s else None,
            in_window_s=in_window_s,
            clean_in_s=clean_in_s,
            errors=errors,
        ),
    )


def test_what_has_left_the_window_is_gone() -> None:
    assert affected_intervals(counted((9, 9, 0), (9, 0, 9), (80, 9, 0)), [], window_s=80) == ()


def test_all_outages_are_told_and_a_known_restart_needs_no_errors() -> None:
    told = counted((100, 10, 0), (20, 0, 5), (40, 10, 0), (4, 0, 0), (36, 10, 0))
    found = affected_intervals(told, [1163.0], window_s=150)
    assert [(each.in_window_s, each.restarted) for each in found] == [(20, False), (4, True)]


def test_the_sentence_says_how_much_and_how_long_it_stays() -> None:
    about = {"from_s": 1100, "errors": 9}
    over = AffectedInterval(restarted=True, to_s=1400, in_window_s=250, clean_in_s=250, **about)
    assert sentence(over, "14:32") == (
        "still in the window: 4 min 10 s of the 14:32 restart, clean in 4 min 10 s"
    )
    lasts = AffectedInterval(restarted=False, to_s=None, in_window_s=45, clean_in_s=None, **about)
    assert sentence(lasts, "14:32") == "still in the window: 45 s of the 14:32 outage, still down"

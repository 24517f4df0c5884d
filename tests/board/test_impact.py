"""What a restart costs, against figures worked out by hand and against a count of single requests."""

from dataclasses import replace
from fractions import Fraction

import pytest
from support.courses import counted

from toolkit.board.impact import (
    Impact,
    PlannedRestart,
    ahead,
    decision,
    explained,
    moment,
    outcome,
    planned,
    recorded,
    shown_at,
    turning_points,
)
from toolkit.board.outages import outages

# The contest: five minutes down, 21 % errors in a window of fifteen. The window holds the downtime and ten
# minutes of answers: 300 e / (600 r + 300 e) = 0.21, so e = 0.21 * 600 r / (0.79 * 300) = 0.5316 r.
CONTEST = PlannedRestart(downtime_s=300, window_s=900, rps=10, error_rps=10 * 126 / 237)


def rate_at(change: PlannedRestart, t_s: float) -> float | None:
    return moment(change, t_s).error_rate


# --- planned ----------------------------------------------------------------------------------------


def test_the_contests_switch_shows_its_21_percent_for_the_next_ten_minutes_and_taints_twenty() -> (
    None
):
    told = planned(CONTEST)
    assert told.peak_error_rate == pytest.approx(0.21)
    shown = {each.t_s: each.error_rate for each in told.series}
    assert [shown[t_s] for t_s in (300, 600, 900)] == pytest.approx([0.21, 0.21, 0.21])
    assert (shown[0], shown[1200]) == (0, 0)
    # half of the downtime has left the window: 150 e / (750 r + 150 e), e = 0.53165 r -> 79.75 / 829.75
    assert shown[1050] == pytest.approx(79.747 / 829.747, rel=1e-4)
    assert (told.tainted_s, told.breakeven_s) == (1200, None)
    assert len(told.series) == 1201


def test_a_gain_of_1_3_pays_five_minutes_back_after_1300_seconds() -> None:
    told = planned(replace(CONTEST, gain=1.3))
    # 1.3 * r * (t - 300) = r * t  ->  0.3 t = 390
    assert told.breakeven_s == pytest.approx(1300)
    assert ahead(told, 1300) == pytest.approx(0)
    assert ahead(told, 300) == pytest.approx(-3000)  # 300 s * 10 RPS were not answered
    assert ahead(told, 1301) == pytest.approx(3)  # 13 - 10 a second


def test_the_board_shows_the_old_rps_again_when_the_window_has_made_good_what_it_lost() -> None:
    # 1.3 * r * (t - 300) = 900 r: t = 300 + 692.3; past 900 s, so only answers of after are in the window
    told = planned(replace(CONTEST, gain=1.3))
    assert told.recovered_s == pytest.approx(300 + 900 / 1.3)
    assert moment(replace(CONTEST, gain=1.3), 300 + 900 / 1.3).rps == pytest.approx(10)
    # twice as fast: 2 r (t - 300) = r t at 600 s, while the window still holds 300 s of before
    double = replace(CONTEST, gain=2.0)
    assert planned(double).recovered_s == planned(double).breakeven_s == pytest.approx(600)
    assert moment(double, 600).rps == pytest.approx(10)
    assert moment(double, 599).rps < 10
    # as fast as before: when the whole window lies behind the downtime; slower: never
    assert planned(CONTEST).recovered_s == 1200
    assert planned(replace(CONTEST, gain=0.9)).recovered_s is None


@pytest.mark.parametrize("gain", [1.0, 0.5])
def test_what_gains_nothing_never_pays_back(gain: float) -> None:
    told = planned(replace(CONTEST, gain=gain))
    assert told.breakeven_s is None
    assert decision(told, 1e6).startswith("Don't")


def test_who_comes_back_slower_looks_worst_when_the_window_begins_to_lose_the_downtime() -> None:
    # at 900 s: 300 * 5 errors; 600 s * 10 * 0.5 = 3000 answers -> 1/3; at 300 s: 1500 / 7500 = 0.2
    slower = PlannedRestart(downtime_s=300, window_s=900, rps=10, error_rps=5, gain=0.5)
    assert rate_at(slower, 300) == pytest.approx(0.2)
    assert planned(slower).peak_error_rate == pytest.approx(1 / 3)


def test_without_an_error_nothing_is_tainted_and_an_empty_window_has_no_rate() -> None:
    told = planned(PlannedRestart(downtime_s=30, window_s=10, rps=1, error_rps=0))
    assert (told.peak_error_rate, told.tainted_s) == (0, 0)
    # nothing answered and nothing failed in the whole window: seconds 10 to 30
    assert [each.t_s for each in told.series if each.error_rate is None] == list(range(10, 31))


def test_parts_of_a_second_count() -> None:
    # window (0.5, 1]: 0.25 s of errors at 8, 0.25 s of answers at 4 * 2
    half = PlannedRestart(downtime_s=0.75, window_s=0.5, rps=4, error_rps=8, gain=2.0)
    assert rate_at(half, 1) == pytest.approx(0.5)
    assert [each.t_s for each in planned(half).series] == [0, 1, 2]
    assert planned(half).series[-1].error_rate == 0


def test_the_moments_that_matter_stand_in_their_order_and_show_what_the_board_does() -> None:
    told = planned(replace(CONTEST, gain=1.3))
    points = turning_points(told)
    assert [(round(at_s), what) for at_s, what in points] == [
        (0, "goes down"),
        (300, "is back"),
        (900, "the downtime begins to leave the window"),
        (992, "the board shows the old RPS"),
        (1200, "no error left in the window"),
        (1300, "paid back"),
    ]
    shown = [shown_at(told, at_s) for at_s, _ in points]
    assert [each and each.t_s for each in shown] == [0, 300, 900, 992, 1200, 1200]
    assert shown[-1] == told.series[-1]


def test_what_a_run_did_not_live_to_see_is_not_shown() -> None:
    told = planned(CONTEST)
    cut = replace(told, series=told.series[:400])
    assert shown_at(cut, 399) == told.series[399]
    assert shown_at(cut, 398.5) == told.series[398]
    assert shown_at(cut, 399.5) is None
    assert shown_at(replace(told, series=()), 0) is None


def test_a_downtime_as_long_as_the_window_leaves_no_answer_in_it() -> None:
    whats = [
        what for _, what in turning_points(planned(replace(CONTEST, downtime_s=900, error_rps=0)))
    ]
    assert "no answer in the window" in whats
    assert "no error left in the window" not in whats


@pytest.mark.parametrize(
    ("down", "window", "rps", "errors", "gain"),
    [
        (30, 90, 10, 10, 1),
        (30, 90, 6, 2, 2),
        (50, 20, 8, 3, 1),
        (20, 20, 5, 5, 3),
        (1, 60, 4, 40, 1),
    ],
)
def test_each_second_equals_a_count_of_single_requests(
    down: int, window: int, rps: int, errors: int, gain: int
) -> None:
    told = planned(
        PlannedRestart(downtime_s=down, window_s=window, rps=rps, error_rps=errors, gain=gain)
    )
    shares = []
    for t_s in range(down + window + 1):
        seconds = range(t_s - window, t_s)  # each begins there and ends a second later
        ok = sum(rps if s < 0 else 0 if s < down else rps * gain for s in seconds)
        bad = sum(errors for s in seconds if 0 <= s < down)
        shares.append(Fraction(bad, ok + bad))
        assert told.series[t_s].error_rate == pytest.approx(float(shares[-1]))
        assert told.series[t_s].rps == pytest.approx(ok / window)
    assert told.peak_error_rate == pytest.approx(float(max(shares)))
    # from the first second down until the last error has left the window
    assert told.tainted_s == down + window
    assert shares[-1] == 0
    assert shares[-2] > 0


# --- recorded ---------------------------------------------------------------------------------------


def test_a_recorded_restart_has_its_rates_gain_and_measured_series() -> None:
    # 20 s of 10 a second, 5 s down with 8 errors a second, 30 s of 15
    told = counted((20, 10, 0), (5, 0, 8), (30, 15, 0))
    (outage,) = outages(told)
    impact = recorded(told, outage, 20)
    assert (impact.downtime_s, impact.window_s, impact.rps, impact.error_rps) == (5, 20, 10, 8)
    assert impact.gain == pytest.approx(1.5)
    assert impact.breakeven_s == pytest.approx(15)  # 1.5 (t - 5) = t
    assert impact.tainted_s == 25
    assert impact.peak_error_rate == pytest.approx(40 / 190)  # just back: 15 s * 10, 5 s * 8
    shown = {each.t_s: each.error_rate for each in impact.series}
    assert list(shown) == list(range(26))
    assert shown[15] == pytest.approx(40 / (50 + 150 + 40))  # 5 s * 10, 10 s * 15
    assert shown[25] == 0


def test_a_recorded_series_ends_with_the_run() -> None:
    told = counted((20, 10, 0), (5, 0, 8), (3, 15, 0))
    impact = recorded(told, outages(told)[0], 20)
    assert impact.series[-1].t_s == 8
    assert impact.tainted_s == 25


def test_rates_leave_out_the_runs_first_silence_and_other_outages() -> None:
    # 5 s until the first answers, 10 s of 6, an outage, 10 s of 6, an outage, 4 s of 12, an outage
    told = counted((5, 0, 0), (10, 6, 0), (3, 0, 2), (10, 6, 0), (5, 0, 2), (4, 12, 0), (2, 0, 2))
    found = outages(told)
    assert len(found) == 3
    assert (recorded(told, found[0], 60, found).rps, recorded(told, found[0], 60, found).gain) == (
        6,
        1,
    )
    middle = recorded(told, found[1], 60, found)
    assert (middle.rps, middle.gain) == (6, 2)
    last = recorded(told, found[2], 60, found)
    assert (last.rps, last.gain, last.breakeven_s) == (12, None, None)


# --- in words ---------------------------------------------------------------------------------------


def test_the_cost_is_explained_in_four_sentences() -> None:
    assert explained(planned(replace(CONTEST, gain=1.3))) == [
        "Error rate: up to 21.0% over the last 15 min, as 5.32 requests a second fail for 5 min.",
        "Tainted: for 20 min from the first second down, the last 15 min of them while the host is well.",
        # 300 + 900 / 1.3 = 992.3 s; 1,300 s
        "On the board: back at 10 RPS after 16 min 32 s.",
        "Pays back: after 21 min 40 s; then as many requests are answered as without the change.",
    ]


def test_what_never_happens_is_said_so() -> None:
    errors, taint, board, pays = explained(planned(replace(CONTEST, gain=0.8, error_rps=0)))
    assert errors.startswith("Error rate: up to 0.0%")
    assert taint == "Tainted: never, as no request fails."
    assert board == "On the board: never back at 10 RPS, but at 8."
    assert pays == "Pays back: never, at 0.8 times the RPS of before."


@pytest.mark.parametrize(
    ("left_s", "words"),
    [
        (None, "Do it only with more than 21 min 40 s left."),
        # 10 * (1.3 * 900 - 1200) = -300; 10 * (1.3 * 2100 - 2400) = 3300
        (1200, "Don't: 20 min are too few, after them it is 300 requests behind."),
        (2400, "Do it: after 40 min it has answered 3,300 requests more."),
    ],
)
def test_the_decision_is_one_sentence(left_s: float | None, words: str) -> None:
    assert decision(planned(replace(CONTEST, gain=1.3)), left_s) == words


def test_the_outcome_of_a_recorded_restart_is_told_in_requests() -> None:
    def impact(**changes: float | None) -> Impact:
        return replace(planned(replace(CONTEST, gain=1.3)), **changes)

    assert outcome(impact(), 1200) == (
        "20 min after it went down it had answered about 300 requests fewer than "
        "without the restart."
    )
    assert "about 3,300 requests more" in outcome(impact(), 2400)
    assert outcome(impact(gain=None), 2400) == "Nobody can tell what it won or lost."
    assert "nobody knows" in explained(impact(gain=None, breakeven_s=None))[-1]

"""What a restart costs, against figures worked out by hand and against a count of single requests; and its picture."""

import struct
from dataclasses import replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
from matplotlib.figure import Figure
from support.courses import counted

from toolkit.board.chart import draw, picture
from toolkit.board.impact import (
    BoardMoment,
    Impact,
    ahead,
    decision,
    explained,
    outcome,
    planned,
    recorded,
    shown_at,
    turning_points,
)
from toolkit.board.outages import outages


def contest(**changes: Any) -> Impact:
    """Five minutes down, 21 % errors in a window of fifteen. The window holds the downtime and ten minutes of answers:
    300 e / (600 r + 300 e) = 0.21, so e = 0.21 * 600 r / (0.79 * 300) = 0.5316 r."""
    usual = {"downtime_s": 300, "window_s": 900, "rps": 10, "error_rps": 10 * 126 / 237}
    return planned(**usual | changes)


def shown(impact: Impact) -> dict[float, BoardMoment]:
    return {each.t_s: each for each in impact.series}


# --- planned ----------------------------------------------------------------------------------------


def test_the_contests_switch_shows_its_21_percent_for_ten_minutes_and_is_seen_for_twenty() -> None:
    impact = contest()
    assert impact.peak_error_rate == pytest.approx(0.21)
    rates = {t_s: each.error_rate for t_s, each in shown(impact).items()}
    assert [rates[t_s] for t_s in (300, 600, 900)] == pytest.approx([0.21, 0.21, 0.21])
    assert (rates[0], rates[1200]) == (0, 0)
    # half of the downtime has left the window: 150 e / (750 r + 150 e), e = 0.53165 r -> 79.75 / 829.75
    assert rates[1050] == pytest.approx(79.747 / 829.747, rel=1e-4)
    assert (impact.tainted_s, impact.breakeven_s, len(impact.series)) == (1200, None, 1201)


def test_a_gain_of_1_3_pays_five_minutes_back_after_1300_seconds() -> None:
    impact = contest(gain=1.3)
    # 1.3 * r * (t - 300) = r * t  ->  0.3 t = 390
    assert impact.breakeven_s == pytest.approx(1300)
    # 300 s * 10 RPS were not answered; then 13 - 10 a second
    for t_s, requests in ((300, -3000), (1300, 0), (1301, 3)):
        assert ahead(impact, t_s) == pytest.approx(requests)


def test_the_board_shows_the_old_rps_again_when_the_window_has_made_good_what_it_lost() -> None:
    # 1.3 * r * (t - 300) = 900 r: t = 300 + 692.3; past 900 s, so only answers of after are in the window
    assert contest(gain=1.3).recovered_s == pytest.approx(300 + 900 / 1.3)
    # twice as fast: 2 r (t - 300) = r t at 600 s, while the window still holds 300 s of before
    double = contest(gain=2.0)
    assert double.recovered_s == double.breakeven_s == pytest.approx(600)
    assert shown(double)[600].rps == pytest.approx(10)
    assert shown(double)[599].rps < 10
    # as fast as before: when the whole window lies behind the downtime; slower: never
    assert contest().recovered_s == 1200
    assert contest(gain=0.9).recovered_s is None


@pytest.mark.parametrize("gain", [1.0, 0.5])
def test_what_gains_nothing_never_pays_back(gain: float) -> None:
    assert contest(gain=gain).breakeven_s is None
    assert decision(contest(gain=gain), 1e6).startswith("Don't")


def test_who_comes_back_slower_looks_worst_when_the_window_begins_to_lose_the_downtime() -> None:
    # at 900 s: 300 * 5 errors; 600 s * 10 * 0.5 = 3000 answers -> 1/3; at 300 s: 1500 / 7500 = 0.2
    slower = contest(error_rps=5, gain=0.5)
    assert shown(slower)[300].error_rate == pytest.approx(0.2)
    assert slower.peak_error_rate == pytest.approx(1 / 3)


def test_without_an_error_nothing_is_tainted_and_an_empty_window_has_no_rate() -> None:
    impact = planned(downtime_s=30, window_s=10, rps=1, error_rps=0)
    assert (impact.peak_error_rate, impact.tainted_s) == (0, 0)
    # nothing answered and nothing failed in the whole window: seconds 10 to 30
    assert [each.t_s for each in impact.series if each.error_rate is None] == list(range(10, 31))


def test_parts_of_a_second_count() -> None:
    # window (0.5, 1]: 0.25 s of errors at 8, 0.25 s of answers at 4 * 2
    half = planned(downtime_s=0.75, window_s=0.5, rps=4, error_rps=8, gain=2.0)
    assert [each.t_s for each in half.series] == [0, 1, 2]
    assert [half.series[t_s].error_rate for t_s in (1, 2)] == pytest.approx([0.5, 0])


def test_the_moments_that_matter_stand_in_their_order_and_show_what_the_board_does() -> None:
    impact = contest(gain=1.3)
    points = turning_points(impact)
    assert [(round(at_s), what) for at_s, what in points] == [
        (0, "goes down"),
        (300, "is back"),
        (900, "the downtime begins to leave the window"),
        (992, "the board shows the old RPS"),
        (1200, "no error left in the window"),
        (1300, "paid back"),
    ]
    at_points = [shown_at(impact, at_s) for at_s, _ in points]
    assert [each and each.t_s for each in at_points] == [0, 300, 900, 992, 1200, 1200]
    whats = [what for _, what in turning_points(contest(downtime_s=900, error_rps=0))]
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
    impact = planned(downtime_s=down, window_s=window, rps=rps, error_rps=errors, gain=gain)
    shares = []
    for t_s in range(down + window + 1):
        seconds = range(t_s - window, t_s)  # each begins there and ends a second later
        ok = sum(rps if s < 0 else 0 if s < down else rps * gain for s in seconds)
        bad = sum(errors for s in seconds if 0 <= s < down)
        shares.append(Fraction(bad, ok + bad))
        assert impact.series[t_s].error_rate == pytest.approx(float(shares[-1]))
        assert impact.series[t_s].rps == pytest.approx(ok / window)
    assert impact.peak_error_rate == pytest.approx(float(max(shares)))
    # from the first second down until the last error has left the window
    assert impact.tainted_s == down + window
    assert shares[-1] == 0
    assert shares[-2] > 0


# --- recorded ---------------------------------------------------------------------------------------


def test_a_recorded_restart_has_its_rates_gain_and_measured_series() -> None:
    # 20 s of 10 a second, 5 s down with 8 errors a second, 30 s of 15
    seconds = counted((20, 10, 0), (5, 0, 8), (30, 15, 0))
    impact = recorded(seconds, outages(seconds)[0], 20)
    assert (impact.downtime_s, impact.window_s, impact.rps, impact.error_rps) == (5, 20, 10, 8)
    # 1.5 (t - 5) = t
    assert (impact.gain, impact.breakeven_s) == pytest.approx((1.5, 15))
    assert impact.tainted_s == 25
    assert impact.peak_error_rate == pytest.approx(40 / 190)  # just back: 15 s * 10, 5 s * 8
    assert list(shown(impact)) == list(range(26))
    # 5 s * 10, 10 s * 15
    assert shown(impact)[15].error_rate == pytest.approx(40 / (50 + 150 + 40))
    assert shown(impact)[25].error_rate == 0


def test_a_recorded_series_ends_with_the_run_and_nothing_is_shown_behind_it() -> None:
    seconds = counted((20, 10, 0), (5, 0, 8), (3, 15, 0))
    impact = recorded(seconds, outages(seconds)[0], 20)
    assert (impact.series[-1].t_s, impact.tainted_s) == (8, 25)
    assert shown_at(impact, 8) == impact.series[8]
    assert shown_at(impact, 7.5) == impact.series[7]
    assert shown_at(impact, 8.5) is None
    assert shown_at(replace(impact, series=()), 0) is None


def test_rates_leave_out_the_runs_first_silence_and_other_outages() -> None:
    # 5 s until the first answers, 10 s of 6, an outage, 10 s of 6, an outage, 4 s of 12, an outage
    seconds = counted(
        (5, 0, 0), (10, 6, 0), (3, 0, 2), (10, 6, 0), (5, 0, 2), (4, 12, 0), (2, 0, 2)
    )
    found = outages(seconds)
    impacts = [recorded(seconds, each, 60, found) for each in found]
    assert [(each.rps, each.gain) for each in impacts] == [(6, 1), (6, 2), (12, None)]
    assert impacts[-1].breakeven_s is None


# --- in words ---------------------------------------------------------------------------------------


def test_the_cost_is_explained_in_four_sentences_also_where_something_never_happens() -> None:
    assert explained(contest(gain=1.3)) == [
        "Error rate: up to 21.0% over the last 15 min, as 5.32 requests a second fail for 5 min.",
        "Tainted: for 20 min from the first second down, the last 15 min of them while the host is well.",
        # 300 + 900 / 1.3 = 992.3 s; 1,300 s
        "On the board: back at 10 RPS after 16 min 32 s.",
        "Pays back: after 21 min 40 s; then as many requests are answered as without the change.",
    ]
    errors, *never = explained(contest(gain=0.8, error_rps=0))
    assert errors.startswith("Error rate: up to 0.0%")
    assert never == [
        "Tainted: never, as no request fails.",
        "On the board: never back at 10 RPS, but at 8.",
        "Pays back: never, at 0.8 times the RPS of before.",
    ]


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
    assert decision(contest(gain=1.3), left_s) == words


def test_the_outcome_of_a_recorded_restart_is_a_number_of_requests() -> None:
    assert outcome(contest(gain=1.3), 1200) == (
        "20 min after it went down it had answered about 300 requests fewer than "
        "without the restart."
    )
    assert "about 3,300 requests more" in outcome(contest(gain=1.3), 2400)
    unknown = replace(contest(), gain=None)
    assert outcome(unknown, 2400) == "Nobody can say what it won or lost."
    assert "nobody knows" in explained(unknown)[-1]


# --- as a picture -----------------------------------------------------------------------------------

# 300 s * 5 / (600 s * 10 + 300 s * 5) = 0.2; pays back at 1.5 t = 1.5 * 300 + t: 900 s
DRAWN = {"downtime_s": 300, "window_s": 900, "rps": 10, "error_rps": 5, "gain": 1.5}


def words(figure: Figure) -> set[str]:
    return {text.get_text() for text in figure.legends[0].get_texts()}


def test_the_curves_are_the_series_in_minutes_with_their_moments_marked() -> None:
    figure = picture(planned(**DRAWN))
    errors, answers = figure.axes
    assert [tuple(point) for point in errors.get_lines()[0].get_xydata()[[0, 300, 1200]]] == [
        (0, 0),
        (5, pytest.approx(0.2)),
        (20, 0),
    ]
    assert tuple(answers.get_lines()[0].get_xydata()[1200]) == (20, pytest.approx(15))
    assert errors.get_xlabel() == "minutes since it went down"
    assert errors.get_xlim()[1] > 20
    assert words(figure) == {
        "error rate of the window",
        "RPS of the window",
        "down",
        "no error left: 20 min",
        "paid back: 15 min",
    }
    title = "5 min down, seen through a window of 15 min: up to 20% errors"
    assert errors.get_title() == title


def test_a_break_even_that_is_late_does_not_squeeze_the_curve() -> None:
    figure = picture(planned(**DRAWN | {"gain": 1.01}))
    assert not any(word.startswith("paid back") for word in words(figure))
    assert figure.axes[0].get_xlim()[1] < 25


def test_a_window_without_a_request_is_a_gap_and_an_empty_series_no_reason_to_fail(
    tmp_path: Path,
) -> None:
    series = (BoardMoment(t_s=0, error_rate=0.0, rps=1), BoardMoment(t_s=1, error_rate=None, rps=0))
    line = picture(replace(planned(**DRAWN), series=series)).axes[0].get_lines()[0]
    assert str(line.get_ydata()[1]) == "nan"
    for impact in (planned(**DRAWN), replace(planned(**DRAWN), series=(), error_rps=0.0)):
        draw(impact, tmp_path / "a.png", title="costs $5 and $6")  # no formula
        data = (tmp_path / "a.png").read_bytes()
        assert data[:8] == b"\x89PNG\r\n\x1a\n"
        # 10 x 5.5 inches of 120 dots
        assert struct.unpack(">II", data[16:24]) == (1200, 660)

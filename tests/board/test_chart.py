"""The picture of a restart: what stands in it."""

import struct
from dataclasses import replace
from pathlib import Path

import pytest
from matplotlib.figure import Figure

from toolkit.board.chart import draw, picture
from toolkit.board.impact import BoardMoment, Impact, PlannedRestart, planned

# 300 s * 5 / (600 s * 10 + 300 s * 5) = 0.2; pays back at 1.5 t = 1.5 * 300 + t: 900 s
IMPACT = planned(PlannedRestart(downtime_s=300, window_s=900, rps=10, error_rps=5, gain=1.5))


def words(figure: Figure) -> set[str]:
    return {text.get_text() for text in figure.legends[0].get_texts()}


def test_the_curves_are_the_series_in_minutes() -> None:
    errors, answers = picture(IMPACT).axes
    assert [tuple(point) for point in errors.get_lines()[0].get_xydata()[[0, 300, 1200]]] == [
        (0, 0),
        (5, pytest.approx(0.2)),
        (20, 0),
    ]
    assert tuple(answers.get_lines()[0].get_xydata()[1200]) == (20, pytest.approx(15))
    assert errors.get_xlabel() == "minutes since it went down"
    assert errors.get_xlim()[1] > 20


def test_the_moments_that_matter_are_marked_and_named() -> None:
    figure = picture(IMPACT)
    assert words(figure) == {
        "error rate of the window",
        "RPS of the window",
        "down",
        "no error left: 20 min",
        "paid back: 15 min",
    }
    assert (
        figure.axes[0].get_title()
        == "5 min down, seen through a window of 15 min: up to 20% errors"
    )


def test_a_break_even_far_away_does_not_squeeze_the_curve() -> None:
    late = planned(PlannedRestart(downtime_s=300, window_s=900, rps=10, error_rps=5, gain=1.01))
    figure = picture(late)
    assert not any(word.startswith("paid back") for word in words(figure))
    assert figure.axes[0].get_xlim()[1] < 25


def test_a_window_without_a_request_is_a_gap_and_an_empty_series_no_reason_to_fail() -> None:
    series = (BoardMoment(t_s=0, error_rate=0.0, rps=1), BoardMoment(t_s=1, error_rate=None, rps=0))
    line = picture(replace(IMPACT, series=series)).axes[0].get_lines()[0]
    assert str(line.get_ydata()[1]) == "nan"
    picture(replace(IMPACT, series=(), peak_error_rate=0.0)).draw_without_rendering()


@pytest.mark.parametrize("impact", [IMPACT, replace(IMPACT, series=(), tainted_s=0.0)])
def test_the_file_is_a_png_of_a_fixed_size(impact: Impact, tmp_path: Path) -> None:
    draw(impact, tmp_path / "a.png", title="costs $5 and $6")  # no formula
    data = (tmp_path / "a.png").read_bytes()
    assert data[:8] == b"\x89PNG\r\n\x1a\n"
    # 10 x 5.5 inches of 120 dots
    assert struct.unpack(">II", data[16:24]) == (1200, 660)

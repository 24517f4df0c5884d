"""Moments on the command line."""

import time
from collections.abc import Iterator

import click
import pytest

from toolkit.cli.options import MOMENT, moment_of

NOON = 1_750_075_200.0
"""2025-06-16 12:00:00 UTC: 1,750,075,200 / 86,400 = 20,255.5 days since 1970."""


@pytest.fixture(autouse=True)
def in_utc(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patch:
        patch.setenv("TZ", "UTC")
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize(
    ("text", "after_noon_s"),
    [
        ("11:58", -120),
        ("11:58:30", -90),
        ("9:05", -3 * 3600 + 5 * 60),
        ("12:00", 0),
        # 12:01 today is still to come: it was 23 h 59 min ago
        ("12:01", -86_400 + 60),
        ("12:00:01", -86_400 + 1),
        ("5m ago", -300),
        ("1h30m ago", -5400),
        ("90 s  ago", -90),
        ("now", 0),
        ("2025-06-16T11:59:50", -10),
        ("2025-06-16 11:59", -60),
        ("2025-06-16T13:59:50.5+02:00", -9.5),
        ("2025-06-15", -36 * 3600),
        # what is said with its date may lie ahead
        ("2025-06-16T12:00:10Z", 10),
    ],
)
def test_a_moment_is_read_in_seconds_since_1970(text: str, after_noon_s: float) -> None:
    assert moment_of(text, NOON) == NOON + after_noon_s


def test_a_clock_time_is_this_machines(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "XYZ-2")  # two hours ahead of UTC: noon is 14:00
    time.tzset()
    assert moment_of("13:59", NOON) == NOON - 60
    assert moment_of("2025-06-16T13:59", NOON) == NOON - 60
    assert moment_of("2025-06-16T11:59Z", NOON) == NOON - 60


def test_yesterdays_hand_is_right_across_a_change_of_clocks(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Central Europe, 2025-10-26: at 03:00 (UTC+2) clocks go back to 02:00 (UTC+1)
    monkeypatch.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    sunday_noon_utc = 1_761_480_000.0  # 20,387.5 days since 1970: 2025-10-26 12:00 UTC, 13:00 there
    # 01:30 that morning was UTC+2: 23:30 UTC of Saturday, 12.5 h before noon UTC
    assert moment_of("01:30", sunday_noon_utc) == sunday_noon_utc - 12.5 * 3600
    # 14:00 is to come, and Saturday's was 12:00 UTC
    assert moment_of("14:00", sunday_noon_utc) == sunday_noon_utc - 86_400


@pytest.mark.parametrize(
    "text",
    ["5m", "", "25:00", "12:60", "1432", "ago", "5 ago", "-5m ago", "0s ago", "yesterday", "١٢:٣٠"],
)
def test_what_is_no_moment_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"is no time; write e\.g\. `14:32`.* `5m ago`"):
        MOMENT.convert(text, None, None)


def test_a_moment_before_any_calendar_is_refused() -> None:
    for text in ("0001-01-01T00:00:00", "1969-12-31T23:59Z", "100000d ago", "9" * 400 + "s ago"):
        with pytest.raises(click.BadParameter, match="is no time"):
            MOMENT.convert(text, None, None)


def test_what_is_seconds_already_stays() -> None:
    assert MOMENT.convert(NOON, None, None) == NOON

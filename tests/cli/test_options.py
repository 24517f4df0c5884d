"""Values as people write them on a command line: durations, sizes, moments, prices, levels; and sentences as a screen takes them."""

import time
from collections.abc import Iterator

import click
import pytest

from toolkit.cli.options import DURATION, LEVELS, MOMENT, PRICE, SIZE, Written, moment_of
from toolkit.cli.output import folded


@pytest.mark.parametrize(
    ("option", "text", "value"),
    [
        *((DURATION, "90s", 90), (DURATION, "15m", 900), (DURATION, "2h", 7200)),
        *((DURATION, "1h30m", 5400), (DURATION, "500ms", 0.5), (DURATION, "1d", 86400)),
        *((SIZE, "8GiB", 8 * 2**30), (SIZE, "8GB", 8 * 10**9), (SIZE, "512 MiB", 2**29)),
        *((SIZE, "1.5KiB", 1536), (SIZE, "7B", 7)),
        *((LEVELS, "1, 2,4", (1, 2, 4)), (PRICE, "0.60", (0.6, 0.6)), (PRICE, "1/2", (1.0, 2.0))),
        (MOMENT, 5.0, 5.0),  # what is a value already stays
    ],
)
def test_a_value_is_read(option: Written, text: str, value: object) -> None:
    assert option.convert(text, None, None) == value


WRONG: dict[Written, tuple[str, list[str]]] = {
    DURATION: (r"`500ms`", ["5", "", "s", "5x", "-5s", "0s", "5s junk", "1h-30m", "nan s"]),
    SIZE: (r"`512MiB`", ["8", "8G", "GiB", "8gib"]),
    LEVELS: (r"`1,2,4,8`", ["", "1,,2", "x", "-1", "1.5", "1" * 9]),
    PRICE: (r"`0.15/0.60`", ["", "x", "-1", "inf", "nan", "1/2/3"]),
    MOMENT: (
        r"`14:32`.* `5m ago`",
        [
            *("5m", "", "25:00", "12:60", "1432", "ago", "5 ago", "-5m ago", "0s ago", "yesterday"),
            *("١٢:٣٠", "0001-01-01T00:00:00", "1969-12-31T23:59Z", "100000d ago", "9" * 400 + "s ago"),
        ],
    ),
}  # fmt: skip


@pytest.mark.parametrize("option", WRONG, ids=lambda option: option.name)
def test_what_is_no_value_is_refused_with_examples(option: Written) -> None:
    example, texts = WRONG[option]
    for text in texts:
        with pytest.raises(click.BadParameter, match=rf"write .*{example}"):
            option.convert(text, None, None)


# --- moments ----------------------------------------------------------------------------------------------

NOON = 1_750_075_200.0
"""2025-06-16 12:00:00 UTC: 1,750,075,200 / 86,400 = 20,255.5 days since 1970."""


@pytest.fixture
def zone(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> Iterator[None]:
    """This machine's time zone."""
    with monkeypatch.context() as patch:
        patch.setenv("TZ", request.param)
        time.tzset()
        yield
    time.tzset()


@pytest.mark.parametrize("zone", ["UTC"], indirect=True)
@pytest.mark.usefixtures("zone")
@pytest.mark.parametrize(
    ("text", "after_noon_s"),
    [
        *(("11:58", -120), ("11:58:30", -90), ("9:05", -3 * 3600 + 5 * 60), ("12:00", 0)),
        # 12:01 today is still to come: it was 23 h 59 min ago
        *(("12:01", -86_400 + 60), ("12:00:01", -86_400 + 1)),
        *(("5m ago", -300), ("1h30m ago", -5400), ("90 s  ago", -90), ("now", 0)),
        *(("2025-06-16T11:59:50", -10), ("2025-06-16 11:59", -60), ("2025-06-15", -36 * 3600)),
        ("2025-06-16T13:59:50.5+02:00", -9.5),
        # what is said with its date may lie ahead
        ("2025-06-16T12:00:10Z", 10),
    ],
)
def test_a_moment_is_read_in_seconds_since_1970(text: str, after_noon_s: float) -> None:
    assert moment_of(text, NOON) == NOON + after_noon_s


@pytest.mark.parametrize("zone", ["XYZ-2"], indirect=True)  # two hours ahead of UTC: noon is 14:00
@pytest.mark.usefixtures("zone")
def test_a_clock_time_is_this_machines() -> None:
    for text in ("13:59", "2025-06-16T13:59", "2025-06-16T11:59Z"):
        assert moment_of(text, NOON) == NOON - 60


@pytest.mark.parametrize("zone", ["CET-1CEST,M3.5.0,M10.5.0/3"], indirect=True)
@pytest.mark.usefixtures("zone")
def test_yesterdays_hand_is_right_across_a_change_of_clocks() -> None:
    # Central Europe, 2025-10-26: at 03:00 (UTC+2) clocks go back to 02:00 (UTC+1)
    sunday_noon_utc = 1_761_480_000.0  # 20,387.5 days since 1970: 2025-10-26 12:00 UTC, 13:00 there
    # 01:30 that morning was UTC+2: 23:30 UTC of Saturday, 12.5 h before noon UTC
    assert moment_of("01:30", sunday_noon_utc) == sunday_noon_utc - 12.5 * 3600
    # 14:00 is to come, and Saturday's was 12:00 UTC
    assert moment_of("14:00", sunday_noon_utc) == sunday_noon_utc - 86_400


# --- sentences on a screen ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("line", "shown"),
    [
        ("x" * 15, "x" * 15),
        ("one two three four five", "one two three\nfour five"),
        ("  one two three four five", "  one two three\n  four five"),
        ("  -> one two three four", "  -> one two\n     three four"),
        ("met  one two three four", "met  one two\n     three four"),
        # not cut, as it may be a path
        ("see /a/very/long/path/to/it now", "see\n/a/very/long/path/to/it\nnow"),
        # nor a command, which is to be pasted
        ("go on with `a --b`; or end", "go on with\n`a --b`; or end"),
        ("go on with `a bob --resume x` now", "go on with\n`a bob --resume x`\nnow"),
        ("a ` alone folds as words do", "a ` alone folds\nas words do"),
    ],
)
def test_a_line_is_folded_between_words_below_its_text(line: str, shown: str) -> None:
    assert folded(line, 15) == shown

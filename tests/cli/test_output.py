"""Sentences as a screen takes them: folded between words, what follows below the text behind a title."""

import pytest

from toolkit.cli.output import folded


def test_a_line_that_fits_stays_as_it_is() -> None:
    assert folded("x" * 20, 20) == "x" * 20


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("one two three four five", "one two three\nfour five"),
        ("  one two three four five", "  one two three\n  four five"),
        ("  -> one two three four", "  -> one two\n     three four"),
        ("met  one two three four", "met  one two\n     three four"),
    ],
)
def test_a_longer_one_is_folded_below_its_text(line: str, expected: str) -> None:
    assert folded(line, 15) == expected


def test_a_word_that_is_too_long_is_not_cut_as_it_may_be_a_path() -> None:
    assert folded("see /a/very/long/path/to/it now", 12) == "see\n/a/very/long/path/to/it\nnow"

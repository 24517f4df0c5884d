"""Durations and sizes on the command line."""

import click
import pytest

from toolkit.cli.options import DURATION, SIZE


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90s", 90),
        ("15m", 900),
        ("2h", 7200),
        ("1h30m", 5400),
        ("500ms", 0.5),
        ("0.5s", 0.5),
        ("1d", 86400),
    ],
)
def test_a_duration_is_read_in_seconds(text: str, seconds: float) -> None:
    assert DURATION.convert(text, None, None) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["5", "", "s", "5x", "-5s", "0s", "5s junk", "1h-30m", "nan s"])
def test_what_is_no_duration_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"write e\.g\. `500ms`"):
        DURATION.convert(text, None, None)


@pytest.mark.parametrize(
    ("text", "size"),
    [("8GiB", 8 * 2**30), ("8GB", 8 * 10**9), ("512 MiB", 2**29), ("1.5KiB", 1536), ("7B", 7)],
)
def test_a_size_is_read_in_bytes(text: str, size: int) -> None:
    assert SIZE.convert(text, None, None) == size


@pytest.mark.parametrize("text", ["8", "8G", "GiB", "8gib"])
def test_what_is_no_size_is_refused_with_examples(text: str) -> None:
    with pytest.raises(click.BadParameter, match=r"write e\.g\. `512MiB`"):
        SIZE.convert(text, None, None)

"""What all settings files ask of a value: what passes, what does not, and the way out."""

from collections.abc import Callable
from typing import Any

import pytest

from toolkit import file_values as values
from toolkit.errors import ToolkitError

Check = Callable[[Any], Any]


def small(told: Any) -> int:
    return values.whole(told, "`f`: `k`", 0, 1000)


def short(told: Any) -> float:
    return values.duration(told, "`f`: `k`", 0.5, 3600.0)


def colour(told: Any) -> str:
    return values.choice(told, "`f`: `k`", ("red", "green"))


def line(told: Any) -> str:
    return values.one_line(told, "`f`: `k`")


def truth(told: Any) -> bool:
    return values.switch(told, "`f`: `k`")


def variable(told: Any) -> str:
    return values.variable(told, "`f`: `k`")


@pytest.mark.parametrize(
    ("check", "told", "read"),
    [
        (small, 0, 0),
        (small, 1000, 1000),
        (short, "1m30s", 90.0),
        (short, 2, 2.0),
        (colour, "green", "green"),
        (line, "a b", "a b"),
        (truth, False, False),
        (variable, "RED_KEY_2", "RED_KEY_2"),
    ],
)
def test_what_its_key_takes_passes(check: Check, told: object, read: object) -> None:
    assert check(told) == read


@pytest.mark.parametrize(
    ("check", "told", "message", "hint"),
    [
        (small, 1001, "is not a whole number from 0 to 1,000", "Write, e.g., 1"),
        (small, True, "is not a whole number from 0 to 1,000", "Write, e.g., 1"),
        (small, 2.0, "is not a whole number from 0 to 1,000", "Write, e.g., 1"),
        (
            short,
            "90",
            "is no duration",
            "Write, e.g., `90s`, `15m` or `2h`, or a number of seconds",
        ),
        (
            short,
            True,
            "is no duration",
            "Write, e.g., `90s`, `15m` or `2h`, or a number of seconds",
        ),
        (short, "2h", "is not from 0.5 to 3600 s", "Write, e.g., `5s`"),
        (colour, "grean", "is none of `red`, `green`", "Did you mean `green`?"),
        (colour, ["red"], "is none of `red`, `green`", 'Write, e.g., `"red"`'),
        (line, " ", "is not one line of text", 'Texts stand in quotes: `"..."`'),
        (line, "a\x1b[2J", "is not one line of text", 'Texts stand in quotes: `"..."`'),
        (truth, "true", "is neither true nor false", "Write `true`, without quotes"),
    ],
)
def test_what_it_does_not_take_is_told_with_a_way_out(
    check: Check, told: object, message: str, hint: str
) -> None:
    with pytest.raises(ToolkitError) as caught:
        check(told)
    assert (caught.value.message, caught.value.hint) == (f"`f`: `k` {message}", hint)


@pytest.mark.parametrize("told", ["sk-abc123", "red_key", "", 7, None])
def test_a_key_that_stands_where_its_variables_name_belongs_is_not_repeated(told: object) -> None:
    with pytest.raises(ToolkitError) as caught:
        variable(told)
    assert caught.value.message == "`f`: `k` is not the name of an environment variable"
    assert "sk-" not in str(caught.value.message) + caught.value.hint

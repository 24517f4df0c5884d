"""Durations like `90s 15m 2h`, sizes like `8GiB`, prices like `0.15/0.60` and levels like `1,2,4` on the command line."""

import click

from toolkit.units import bytes_of, seconds_of

LONGEST_WINDOW_S = 86_400.0
"""Of the board: a cold one reads all its seconds."""
HIGHEST_PRICE = 1e9
"""Of a million tokens: more is a slip, and infinity no price."""


class Duration(click.ParamType[float]):
    """A positive time with its unit; the value is in seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read `1h30m` as 5400.0; a bare number is refused, for nobody knows its unit."""
        if isinstance(value, float):
            return value
        seconds = seconds_of(str(value))
        if not seconds:
            self.fail(
                f"`{value}` is no duration; write e.g. `500ms`, `90s`, `15m` or `2h`", param, ctx
            )
        return seconds


class Size(click.ParamType[int]):
    """A positive amount of memory with its unit; the value is in bytes."""

    name = "size"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> int:
        """Read `8GiB` as 8589934592 and `8GB` as 8000000000."""
        if isinstance(value, int):
            return value
        size = bytes_of(str(value))
        if not size:
            self.fail(f"`{value}` is no size; write e.g. `512MiB` or `8GiB`", param, ctx)
        return size


DURATION = Duration()
SIZE = Size()


class Levels(click.ParamType[tuple[int, ...]]):
    """Concurrencies of a sweep: `1,2,4,8`."""

    name = "levels"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[int, ...]:
        """Read whole numbers between commas; whether they rise is the plan's to say."""
        if isinstance(value, tuple):
            return value
        parts = [part.strip() for part in str(value).split(",")]
        if not all(part.isascii() and part.isdecimal() and len(part) < 9 for part in parts):
            self.fail(f"`{value}` is no list of numbers; write e.g. `1,2,4,8`", param, ctx)
        return tuple(int(part) for part in parts)


class Price(click.ParamType[tuple[float, float]]):
    """What a million tokens cost: of prompts and of answers, or one price for both."""

    name = "price"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[float, float]:
        """Read `0.15/0.60`, or `0.60` for both."""
        if isinstance(value, tuple):
            return value
        try:
            words = [float(word) for word in str(value).split("/")]
        except ValueError:
            words = []
        if len(words) not in (1, 2) or not all(0 <= word <= HIGHEST_PRICE for word in words):
            self.fail(
                f"`{value}` is no price; write what a million tokens cost, e.g. `0.60`, or `0.15/0.60` for prompt/answer",
                param,
                ctx,
            )
        return words[0], words[-1]

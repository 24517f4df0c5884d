"""Durations like `90s 15m 2h` and sizes like `8GiB` on the command line."""

import click

from toolkit.quantities import bytes_of, seconds_of


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

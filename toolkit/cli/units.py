"""Durations like `90s 15m 2h` and sizes like `8GiB` on the command line."""

import re

import click

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"B": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for unit, base in (("iB", 1024), ("B", 1000))
}
_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


class Duration(click.ParamType[float]):
    """A positive time with its unit; the value is in seconds."""

    name = "duration"

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read `1h30m` as 5400.0; a bare number is refused, for nobody knows its unit."""
        if isinstance(value, float):
            return value
        seconds = _sum_of(str(value), SECONDS)
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
        size = _sum_of(str(value), BYTES)
        if not size:
            self.fail(f"`{value}` is no size; write e.g. `512MiB` or `8GiB`", param, ctx)
        return round(size)


def _sum_of(text: str, units: dict[str, float] | dict[str, int]) -> float | None:
    """Add up `1h30m`; None when a part is not a number with a known unit."""
    parts = _NUMBER_AND_UNIT.findall(text)
    if not parts or "".join(text.split()) != "".join(number + unit for number, unit in parts):
        return None
    if any(unit not in units for _, unit in parts):
        return None
    return sum(float(number) * units[unit] for number, unit in parts)


DURATION = Duration()
SIZE = Size()

"""Durations like `90s`, `15m`, `1h30m` and sizes like `8GiB`, as people write them. Pure."""

import re

SECONDS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
BYTES = {"B": 1} | {
    prefix + unit: base**power
    for power, prefix in enumerate("KMGT", start=1)
    for unit, base in (("iB", 1024), ("B", 1000))
}
_NUMBER_AND_UNIT = re.compile(r"(\d+(?:\.\d+)?)\s*([A-Za-z]+)")


def seconds_of(text: str) -> float | None:
    """Read `1h30m` as 5400.0; None for what is no duration above 0: nobody knows a bare number's unit."""
    return _sum_of(text, SECONDS) or None


def bytes_of(text: str) -> int | None:
    """Read `8GiB` as 8589934592 and `8GB` as 8000000000; None for what is no size above 0."""
    size = _sum_of(text, BYTES)
    return round(size) if size else None


def _sum_of(text: str, units: dict[str, float] | dict[str, int]) -> float | None:
    """Add up `1h30m`; None when a part is not a number with a known unit."""
    parts = _NUMBER_AND_UNIT.findall(text)
    if not parts or "".join(text.split()) != "".join(number + unit for number, unit in parts):
        return None
    if any(unit not in units for _, unit in parts):
        return None
    return sum(float(number) * units[unit] for number, unit in parts)

"""Durations and sizes, counts and rates, shares and moments: read as people write them, and written as people read them. Pure.

What stands on a page has at most three digits and a unit, unknown is an en dash, and nothing is rounded away: an error share above
zero is never "0 %", nor one below one "100 %". Columns of a terminal's table hold one unit and whole thousands, unknown is `-`: cells
stand below each other there, and are compared.
"""

import math
import re
import sys
import time
from collections.abc import Sequence
from datetime import datetime

from toolkit.stats import ABOVE_MS, BELOW_MS

UNKNOWN = "\N{EN DASH}"
DASH = "-"
"""Unknown, in a terminal's table."""
GIB = 2**30

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


def milliseconds(value_ms: float | None) -> str:
    """A latency: `0.85 ms`, `42 ms`, `1.24 s`; outside the sketch's range only its bound is known."""
    if value_ms is None:
        return UNKNOWN
    if value_ms <= BELOW_MS:
        return "< 0.01 ms"
    if value_ms >= ABOVE_MS:
        return "> 1000 s"
    return f"{digits(value_ms)} ms" if value_ms < 999.5 else f"{digits(value_ms / 1000)} s"


def latency(value_ms: float | None) -> str:
    """A latency in a terminal's table: `0.84 ms`, `219 ms`, `3,379 ms`, `89.0 s`."""
    if value_ms is None:
        return DASH
    if value_ms >= 10_000:
        return f"{value_ms / 1000:,.1f} s" if value_ms < 1e15 else f"{value_ms / 1000:.3g} s"
    return f"{value_ms:,.0f} ms" if value_ms >= 100 else f"{value_ms:.3g} ms"


def spoken_ms(value_ms: float) -> str:
    """A latency in a sentence: `3.2 ms`, `48 ms`, `3,378 ms`, `89.0 s`."""
    return f"{value_ms:.1f} ms" if value_ms < 10 else latency(round(value_ms))


def digits(value: float) -> str:
    """Three significant digits, but never an exponent or fewer than the whole number."""
    if value == 0:
        return "0"
    places = max(0, 2 - math.floor(math.log10(abs(value)) + 1e-12))
    rounded = round(value, places)
    if rounded and abs(rounded) >= 10 ** (3 - places):
        places = max(0, places - 1)
    return f"{value:,.{min(places, 2)}f}"


def tick(value: float) -> str:
    """A round value on an axis: no more digits than it has."""
    return f"{value:,.6g}" if value < 1e6 else f"{value:,.0f}"


def tick_ms(value_ms: float) -> str:
    """A round latency on an axis."""
    return f"{tick(value_ms)} ms" if value_ms < 1000 else f"{tick(value_ms / 1000)} s"


def tick_share(value: float) -> str:
    """A round share on an axis: `25 %`."""
    return f"{100 * value:.3g} %"


def rate(value: float | None) -> str:
    """A rate: `0.42`, `4.2`, `42.1`, `421`, `4,210`."""
    if value is None:
        return UNKNOWN
    if value >= 99.95 or value == 0:
        return f"{value:,.0f}"
    return f"{value:.1f}" if value >= 9.995 else f"{value:.2f}"


def share(value: float | None) -> str:
    """A share of one, in per cent."""
    if value is None:
        return UNKNOWN
    percent = 100 * value
    if 0 < percent < 0.05:
        return "< 0.1 %"
    if 99.95 <= percent < 100:
        return "> 99.9 %"
    return f"{percent:.0f} %" if percent in (0.0, 100.0) else f"{percent:.1f} %"


def percent(value: float | None, places: int = 0) -> str:
    """A share of one in a terminal's table: `24%`, or `22.7%`."""
    return DASH if value is None else f"{value:.{places}%}"


def whole(value: float | None) -> str:
    """A count with its thousands, `1,022`; in short, `1e+300`, where a host talks nonsense."""
    if value is None:
        return DASH
    return f"{value:,.0f}" if value < 1e15 else f"{value:.3g}"


def counted(count: int, thing: str) -> str:
    """`1 run`, `2 runs`."""
    return f"{count:,} {thing}" + ("" if count == 1 else "s")


def spoken_list(names: Sequence[str], most: int = sys.maxsize) -> str:
    """Names in a sentence: `a`, `a and b`, `a, b and c`; where they are more than `most`, `a, b and 5 more`."""
    shown = list(names[:most])
    if len(names) > most:
        shown.append(f"{len(names) - most:,} more")
    *first, last = shown or [""]
    return f"{', '.join(first)} and {last}" if first else last


def per_second(value: float | None) -> str:
    """A rate in a terminal's table: `0.4`, `493.4`, `14,801`."""
    return DASH if value is None else f"{value:,.1f}" if value < 1000 else f"{value:,.0f}"


def short(number: float) -> str:
    """Three digits, or all that stand before the point, and none that says nothing: `5.32`, `4`, `1,280`."""
    return f"{number:,.0f}" if abs(number) >= 100 else f"{number:.3g}"


def size(value: float) -> str:
    """Bytes of memory: `64 MiB`, `1.5 GiB`, `140 GiB`."""
    for unit, power in (("TiB", 4), ("GiB", 3), ("MiB", 2), ("KiB", 1)):
        if value >= 1024**power:
            amount = value / 1024**power
            return f"{amount:.3g} {unit}" if amount < 999.5 else f"{amount:,.0f} {unit}"
    return f"{value:.0f} B"


def file_size(value: float) -> str:
    """Bytes of a file, as a file manager shows them: `1.2 GB`, `340 MB`, `48 kB`."""
    for unit, each in (("GB", 1e9), ("MB", 1e6)):
        if value >= each:
            return f"{value / each:.3g} {unit}"
    return f"{value / 1e3:.0f} kB"


def span(seconds: float | None) -> str:
    """A length of time: `12 s`, `4 min 10 s`, `1 h 5 min`."""
    if seconds is None:
        return UNKNOWN
    minutes, rest = divmod(max(0, round(seconds)), 60)
    if minutes < 60:
        parts = (minutes, "min"), (rest, "s")
    else:
        hours, minutes = divmod(round(minutes + rest / 60), 60)
        parts = (hours, "h"), (minutes, "min")
    return " ".join(f"{count:,} {unit}" for count, unit in parts if count) or "0 s"


def spoken(seconds: float) -> str:
    """A length of time in a sentence: below ten seconds their tenths count, `0.5 s`."""
    is_short = seconds < 10 and not float(seconds).is_integer()
    return f"{seconds:.1f} s" if is_short else span(seconds)


def round_span(seconds: float) -> str:
    """A length of time that somebody chose, in the largest unit that it fills: `1 s`, `10 min`, `1 h`, `7 d`."""
    for unit, name in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= unit and seconds % unit == 0:
            return f"{seconds / unit:g} {name}"
    return f"{seconds:g} s"


def stopwatch(seconds: float, *, shows_hours: bool = False) -> str:
    """A running clock: `7:05`, `1:07:05`; with hours always."""
    minutes, rest = divmod(max(0, math.floor(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours or shows_hours else f"{minutes}:{rest:02d}"


def time_of_day(at: float | None, *, seconds: bool = True) -> str:
    """A moment as this machine's clock shows it: `14:32:10`."""
    if at is None:
        return UNKNOWN
    return time.strftime("%H:%M:%S" if seconds else "%H:%M", time.localtime(at))


def date_and_time(at: float) -> str:
    """A moment as this machine's calendar and clock show it: `2026-11-21 14:32:10`; `?` for one no calendar has."""
    try:
        return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at))
    except (ValueError, OverflowError, OSError):
        return "?"


def clock(at: float, now: float | None = None) -> str:
    """The same, without its date where that is today's."""
    date, _, of_day = date_and_time(at).rpartition(" ")
    return (
        of_day
        if date == date_and_time(time.time() if now is None else now)[:10]
        else f"{date} {of_day}".lstrip()
    )


def day(at: float) -> str:
    """The day of a moment, as the serving machine's calendar shows it."""
    moment = datetime.fromtimestamp(at).astimezone()
    return f"{moment.day} {moment:%B %Y}"

"""Numbers as people read them, in at most three digits and a unit; unknown is a dash. Others' words, fit for a screen.

It never rounds something to nothing: an error share above zero is never "0 %", nor one below one "100 %".
"""

import math
import re
from datetime import datetime

from toolkit.sketches import ABOVE_MS, BELOW_MS

UNKNOWN = "\N{EN DASH}"

ACTS_ON_A_SCREEN = re.compile(
    r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]"
)
"""Control characters but a line's end and a tab, and what turns the direction of writing."""


def cleaned(text: str) -> str:
    """Any text, of one line or many, with `?` for each character that a screen would act upon."""
    return text if text.isprintable() else ACTS_ON_A_SCREEN.sub("?", text)


def spreadsheet_cell(value: object) -> object:
    """A value as a cell of a CSV: text that a spreadsheet would take for a formula gets an apostrophe; numbers are numbers."""
    if not isinstance(value, str):
        return value
    text = cleaned(value)
    return f"'{text}" if text.startswith(("=", "+", "-", "@", "\t")) else text


def printable(text: str) -> str:
    """Words that a host, a file or a client chose, with `?` for what would act on a terminal, e.g., an escape sequence."""
    if text.isprintable():
        return text
    return "".join(char if char.isprintable() else "?" for char in text)


def milliseconds(value_ms: float | None) -> str:
    """A latency: `0.85 ms`, `42 ms`, `1.24 s`; outside the sketch's range only its bound is known."""
    if value_ms is None:
        return UNKNOWN
    if value_ms <= BELOW_MS:
        return "< 0.01 ms"
    if value_ms >= ABOVE_MS:
        return "> 1000 s"
    return f"{digits(value_ms)} ms" if value_ms < 999.5 else f"{digits(value_ms / 1000)} s"


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


def span(seconds: float | None) -> str:
    """A length of time: `12 s`, `4 min 10 s`, `1 h 5 min`."""
    if seconds is None:
        return UNKNOWN
    whole = max(0, round(seconds))
    minutes, rest = divmod(whole, 60)
    if minutes >= 60:
        hours, minutes = divmod(minutes, 60)
        return f"{hours:,} h {minutes} min" if minutes else f"{hours:,} h"
    if not minutes:
        return f"{rest} s"
    return f"{minutes} min {rest} s" if rest else f"{minutes} min"


def stopwatch(seconds: float) -> str:
    """A running clock: `7:05`, `1:07:05`."""
    minutes, rest = divmod(max(0, math.floor(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def time_of_day(at: float | None, *, seconds: bool = True) -> str:
    """A moment as the serving machine's clock shows it."""
    if at is None:
        return UNKNOWN
    moment = datetime.fromtimestamp(at).astimezone()
    return moment.strftime("%H:%M:%S" if seconds else "%H:%M")


def day(at: float) -> str:
    """The day of a moment, as the serving machine's calendar shows it."""
    moment = datetime.fromtimestamp(at).astimezone()
    return f"{moment.day} {moment:%B %Y}"

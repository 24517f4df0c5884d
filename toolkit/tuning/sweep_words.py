"""A sweep's rows in words: each figure with its unit, each difference with its interval, and the whole in one line."""

from collections.abc import Sequence

from toolkit.tuning.metrics import meant
from toolkit.tuning.sweep_table import NO_DIFFERENCE, Compared, Moved, SweepRow
from toolkit.units import UNKNOWN, digits, milliseconds, share


def figure(name: str, value: float | None) -> str:
    """`3,114`, `219 ms`, `4.5 %`."""
    if value is None:
        return UNKNOWN
    if name.partition(":")[0].endswith("_ms"):
        return milliseconds(value)
    if meant(name).is_share:
        return share(value)
    return f"{value:,.0f}" if value >= 1000 else digits(value)


def step(value: float) -> str:
    """A relative difference as `+191 %`, `-4.2 %`; from tenfold on as `11.3x`."""
    percent = 100 * value
    if value >= 9:
        return f"{digits(1 + value)}x"
    places = 0 if abs(percent) >= 9.95 else 1
    return f"{percent:+.{places}f} %"


def points(value: float) -> str:
    """A difference of two shares, in percentage points."""
    return f"{100 * value:+.1f} points"


def difference(one: Compared) -> str:
    """`+191 % (+185 to +197)`, or that none is shown."""
    told = points if meant(one.metric).is_share else step
    if one.difference is None:
        return UNKNOWN
    if one.low is None or one.high is None:
        return f"{told(one.difference)}, one block: no interval"
    if one.low == one.high == 0:
        return NO_DIFFERENCE
    if one.verdict == NO_DIFFERENCE:
        return f"{NO_DIFFERENCE} ({_bounds(told(one.low), told(one.high))})"
    return f"{told(one.difference)} ({_bounds(told(one.low), told(one.high))})"


def _bounds(low: str, high: str) -> str:
    """`+185 to +197 %`: a unit that both have stands once."""
    for unit in (" %", " points"):
        if low.endswith(unit) and high.endswith(unit):
            return f"{low.removesuffix(unit)} to {high}"
    return f"{low} to {high}"


def progression(rows: Sequence[SweepRow], name: str) -> str | None:
    """`1,070 -> 1,211 (+13 %) -> 3,114 (+191 %)`: the first metric of one stage, in the order of the sweep."""
    parts = []
    for row in rows:
        value = row.figures.get(name)
        if row.status != "measured" or value is None:
            continue
        compared = row.of(name)
        if compared is None or compared.difference is None:
            parts.append(figure(name, value))
        elif compared.verdict == NO_DIFFERENCE:
            parts.append(f"{figure(name, value)} ({NO_DIFFERENCE})")
        else:
            parts.append(f"{figure(name, value)} ({_short(compared, name)})")
    return " -> ".join(parts) if len(parts) > 1 else None


def _short(compared: Compared, name: str) -> str:
    told = points if meant(name).is_share else step
    return told(compared.difference or 0.0)


def lever(one: Moved, name: str) -> str:
    """How far one lever moved the figure."""
    title = meant(name).title
    if one.verdict == NO_DIFFERENCE:
        return f"{one.lever}: {NO_DIFFERENCE} in {title} between its positions"
    far, interval = _how_far(one)
    unsure = ", from one block" if one.verdict == "not known" else ""
    return f"{one.lever}: {far}{interval} in {title}, {one.best} against {one.worst}{unsure}"


def _how_far(one: Moved) -> tuple[str, str]:
    """A factor, or points of a share; and the interval, if there is one."""
    if one.is_share:
        bounds = (
            None if one.low is None or one.high is None else (points(one.low), points(one.high))
        )
        return f"{100 * one.factor:.1f} points", f" ({_bounds(*bounds)})" if bounds else ""
    if one.low is None or one.high is None:
        return f"{digits(one.factor)}x", ""
    return f"{digits(one.factor)}x", f" ({digits(one.low)} to {digits(one.high)})"

"""Moments like `14:32`, `5m ago` or `2026-11-21T14:32:10` on the command line."""

import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import click

from toolkit.cli.units import DURATION

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
_AGO = re.compile(r"(.+?)\s+ago")


class MomentParam(click.ParamType[float]):
    """A moment by this machine's clock and time zone; the value is in seconds since 1970."""

    name = "time"

    def __init__(self, now: Callable[[], float] = time.time) -> None:
        self._now = now

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Read `14:32` as the last time that a clock here showed it; a bare `5m` is refused."""
        if isinstance(value, float):
            return value
        seconds = _seconds(str(value).strip(), self._now())
        if seconds is None or not 0 <= seconds < math.inf:
            self.fail(
                f"`{value}` is no time; write e.g. `14:32`, `14:32:10`, `5m ago` or "
                "`2026-11-21T14:32:10`",
                param,
                ctx,
            )
        return seconds


def _seconds(text: str, now: float) -> float | None:
    """Seconds since 1970; None when it is no moment."""
    if text == "now":
        return now
    ago = _AGO.fullmatch(text)
    try:
        if ago:
            return now - DURATION.convert(ago[1], None, None)
        clock = _CLOCK.fullmatch(text)
        if clock:
            return _last(now, *(int(part or 0) for part in clock.groups()))
        return datetime.fromisoformat(text).timestamp()  # without a zone it is this machine's
    except (ValueError, OverflowError, click.BadParameter):
        return None


def _last(now: float, hour: int, minute: int, second: int) -> float:
    """Today's, or yesterday's where today's is still to come. Raises ValueError for 25:00."""
    # without a zone while the hand is set: an offset taken now would be wrong on the day the clocks change
    today = datetime.fromtimestamp(now, UTC).astimezone().replace(tzinfo=None)
    wanted = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
    day = timedelta(days=1) if wanted.timestamp() > now else timedelta()
    return (wanted - day).timestamp()


MOMENT = MomentParam()

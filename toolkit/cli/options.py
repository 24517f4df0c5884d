"""What options of several verbs share: the values they take, and the options that are the same everywhere.

Durations like `90s 15m 2h`, moments like `14:32` or `5m ago`, sizes like `8GiB`, prices like `0.15/0.60`, levels like `1,2,4`.
"""

import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import click

from toolkit.cli import suggestions
from toolkit.cli.places import DATABASE
from toolkit.units import bytes_of, seconds_of

LONGEST_WINDOW_S = 86_400.0
"""Of the board: a cold one reads all its seconds."""
HIGHEST_PRICE = 1e9
"""Of a million tokens: more is a slip, and infinity no price."""

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
_AGO = re.compile(r"(.+?)\s+ago")


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

database_option = click.option(
    "--db",
    "database",
    envvar="TOOLKIT_DB",
    default=DATABASE,
    show_default=True,
    show_envvar=True,
    type=click.Path(dir_okay=False, path_type=Path),
    help="The SQLite file, made on first use.",
)


def tls_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command `--insecure` and `--ca`."""
    trust = click.option(
        "--ca",
        metavar="FILE",
        shell_complete=suggestions.file,
        help="Trust the certificates in this file, too.",
    )
    accept = click.option("--insecure", is_flag=True, help="Accept any TLS certificate.")
    return accept(trust(command))

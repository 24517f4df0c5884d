"""What options of several verbs share: the values they take, and the options that are the same everywhere.

Durations like `90s 15m 2h`, moments like `14:32` or `5m ago`, sizes like `8GiB`, prices like `0.15/0.60`, levels like `1,2,4`.
"""

import math
import re
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, TypeVar

import click

from toolkit.cli import suggestions
from toolkit.cli.help_page import advanced
from toolkit.cli.places import DATABASE
from toolkit.units import bytes_of, seconds_of

LONGEST_WINDOW_S = 86_400.0
"""Of the board: a cold one reads all its seconds."""
HIGHEST_PRICE = 1e9
"""Of a million tokens: more is a slip, and infinity no price."""

_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?", re.ASCII)
_AGO = re.compile(r"(.+?)\s+ago")
T = TypeVar("T")


class Written(click.ParamType[T]):
    """A value as people write it: `read` gives it, or None for what is none, and `wrong` says so with examples."""

    def __init__(self, name: str, read: Callable[[str], T | None], wrong: str) -> None:
        self.name, self._read, self._wrong = name, read, wrong

    def convert(
        self, value: str | T, param: click.Parameter | None, ctx: click.Context | None
    ) -> T:
        """Read a word; what is a value already stays."""
        if not isinstance(value, str):
            return value
        found = self._read(value.strip())
        if found is None:
            self.fail(f"`{value}` {self._wrong}", param, ctx)
        return found


def levels_of(text: str) -> tuple[int, ...] | None:
    """Whole numbers between commas; whether they rise is the plan's to say."""
    parts = [part.strip() for part in text.split(",")]
    if not all(part.isascii() and part.isdecimal() and len(part) < 9 for part in parts):
        return None
    return tuple(int(part) for part in parts)


def price_of(text: str) -> tuple[float, float] | None:
    """What a million tokens of prompts and of answers cost; one price is for both."""
    try:
        words = [float(word) for word in text.split("/")]
    except ValueError:
        return None
    is_price = len(words) in (1, 2) and all(0 <= word <= HIGHEST_PRICE for word in words)
    return (words[0], words[-1]) if is_price else None


def moment_of(text: str, now: float) -> float | None:
    """Seconds since 1970, by this machine's time zone; `14:32` is the last time that a clock here showed it."""
    try:
        if text == "now":
            return now
        if ago := _AGO.fullmatch(text):
            seconds = seconds_of(ago[1])
            at = now - seconds if seconds else math.nan
        elif clock := _CLOCK.fullmatch(text):
            hour, minute, second = (int(part or 0) for part in clock.groups())
            # without a zone while the hand is set: an offset taken now would be wrong on the day the clocks change
            today = datetime.fromtimestamp(now, UTC).astimezone().replace(tzinfo=None)
            wanted = today.replace(hour=hour, minute=minute, second=second, microsecond=0)
            # yesterday's where today's is still to come
            at = (wanted - timedelta(days=wanted.timestamp() > now)).timestamp()
        else:
            at = datetime.fromisoformat(text).timestamp()  # without a zone it is this machine's
    except (ValueError, OverflowError):
        return None
    return at if 0 <= at < math.inf else None


DURATION = Written(
    "duration",
    # a bare number is refused, for nobody knows its unit
    lambda text: seconds_of(text) or None,
    "is no duration; write e.g. `500ms`, `90s`, `15m` or `2h`",
)
SIZE = Written(
    "size", lambda text: bytes_of(text) or None, "is no size; write e.g. `512MiB` or `8GiB`"
)
LEVELS = Written("levels", levels_of, "is no list of numbers; write e.g. `1,2,4,8`")
PRICE = Written(
    "price",
    price_of,
    "is no price; write what a million tokens cost, e.g. `0.60`, or `0.15/0.60` for prompt/answer",
)
MOMENT = Written(
    "time",
    lambda text: moment_of(text, time.time()),
    "is no time; write e.g. `14:32`, `14:32:10`, `5m ago` or `2026-11-21T14:32:10`",
)

database_option = advanced(
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
    trust = advanced(
        "--ca",
        metavar="FILE",
        shell_complete=suggestions.file,
        help="Trust the certificates in this file, too.",
    )
    accept = advanced("--insecure", is_flag=True, help="Accept any TLS certificate.")
    return accept(trust(command))

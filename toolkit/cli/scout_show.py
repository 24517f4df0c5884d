"""How `toolkit scout` shows what it saw: JSON lines, a table, a live table, a history."""

import math
import time
from collections.abc import Sequence
from dataclasses import asdict, fields
from types import TracebackType
from typing import Any, Self

from rich.console import Group, RenderableType
from rich.live import Live
from rich.text import Text

from toolkit.cli.output import print_json, screen
from toolkit.cli.scout_table import history_table, page
from toolkit.records import Finding, Host, Sighting
from toolkit.scout.findings import clock_time
from toolkit.scout.history import chapters


class Show:
    """Collects the newest sighting of each host and prints them at the end."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._order = [host.name for host in hosts]
        self._newest: dict[str, Sighting] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None:
            self.close()

    def add(self, sighting: Sighting) -> None:
        """Take a new sighting."""
        self._newest[sighting.name] = sighting

    def close(self) -> None:
        """Print what is left to print."""
        console = screen()
        console.print(page(self.sightings, console))

    @property
    def sightings(self) -> list[Sighting]:
        """The newest sighting of each host, in the order of the hosts file."""
        return [self._newest[name] for name in self._order if name in self._newest]

    @property
    def all_down(self) -> bool:
        """Whether every host that was looked at is down."""
        return bool(self._newest) and all(s.status == "down" for s in self._newest.values())


class JsonShow(Show):
    """Prints one line for each host, in the order of the hosts file."""

    def close(self) -> None:
        """Print the newest sighting of each host."""
        for sighting in self.sightings:
            print_json(as_object(sighting))


class JsonStream(Show):
    """Prints each sighting as one line as soon as it is there."""

    def add(self, sighting: Sighting) -> None:
        """Print a new sighting."""
        super().add(sighting)
        print_json(as_object(sighting))

    def close(self) -> None:
        """Leave it at the lines."""


class LiveShow(Show):
    """Keeps one table on a terminal up to date; into a pipe it prints a table each interval."""

    def __init__(self, hosts: Sequence[Host], interval_s: float) -> None:
        super().__init__(hosts)
        self._console = screen()
        self._interval_s = interval_s
        self._printed_at = time.monotonic()
        self._live = (
            Live(console=self._console, auto_refresh=False) if self._console.is_terminal else None
        )

    def __enter__(self) -> Self:
        if self._live:
            self._live.start()
        return self

    def add(self, sighting: Sighting) -> None:
        """Redraw with a new sighting."""
        super().add(sighting)
        if self._live:
            self._live.update(self._picture(), refresh=True)
        elif time.monotonic() - self._printed_at >= self._interval_s:
            self._printed_at = time.monotonic()
            self._console.print(self._picture())

    def __exit__(self, *details: object) -> None:
        if self._live:
            self._live.stop()
        elif self._newest:
            self._console.print(self._picture())

    def _picture(self) -> RenderableType:
        newest = max(sighting.at for sighting in self._newest.values())
        title = Text(f"{clock_time(newest)}, Ctrl-C ends", style="dim")
        return Group(title, page(self.sightings, self._console))


def show_for(hosts: Sequence[Host], as_json: bool, watch: bool, interval_s: float) -> Show:
    """Choose how to show."""
    if as_json:
        return JsonStream(hosts) if watch else JsonShow(hosts)
    return LiveShow(hosts, interval_s) if watch else Show(hosts)


JSON_KEYS = [field.name for field in fields(Sighting) if field.name != "readings"]


def as_object(sighting: Sighting) -> dict[str, Any]:
    """The JSON object of a sighting: the record's fields without the raw readings."""
    return {key: _plain(getattr(sighting, key)) for key in JSON_KEYS}


def _plain(value: Any) -> Any:
    """JSON has no NaN and no infinity; whole counts read better without `.0`."""
    if isinstance(value, float):
        if not math.isfinite(value):
            return None
        return int(value) if value.is_integer() and abs(value) < 2**53 else value
    if isinstance(value, tuple):
        return [asdict(one) if isinstance(one, Finding) else one for one in value]
    return value


def print_history(sightings: Sequence[Sighting], *, as_json: bool) -> None:
    """Print every sighting as a line of JSON, or the chapters between changes as a table."""
    if as_json:
        for sighting in sightings:
            print_json(as_object(sighting))
        return
    console = screen()
    console.print(history_table(chapters(sightings), console))

"""Where a watchdog's events go: a line each on the screen, and into the store. A store that refuses ends no watch."""

import queue
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Self

import click

from toolkit.cli.output import print_json
from toolkit.errors import ToolkitError
from toolkit.records import Event
from toolkit.units import time_of_day


class WatchdogEvents:
    """Shows events at once, and keeps them in a thread: a database that is locked must hold up no look."""

    def __init__(self, database: Path | None, *, as_json: bool) -> None:
        """`database` None: they are kept nowhere."""
        self._database, self._as_json = database, as_json
        self._waiting: queue.SimpleQueue[Event | None] = queue.SimpleQueue()
        self._keeper = threading.Thread(target=self._keep, name="keep")

    def __enter__(self) -> Self:
        if self._database is not None:
            self._keeper.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._database is not None:
            self._waiting.put(None)
            self._keeper.join()

    def add(self, event: Event) -> None:
        """Take one."""
        if self._as_json:
            print_json(asdict(event))
        else:
            what = "" if event.kind == "mark" else f"{event.kind}: "
            click.echo(f"{time_of_day(event.at)} {event.name}: {what}{event.text}")
        if self._database is not None:
            self._waiting.put(event)

    def _keep(self) -> None:
        from toolkit.store import Store

        while (event := self._waiting.get()) is not None:
            try:
                with Store.open(self._database or "") as store:
                    store.add_event(event)
            except ToolkitError as error:
                click.echo(f"Warning: the event is not kept: {error.message}", err=True)

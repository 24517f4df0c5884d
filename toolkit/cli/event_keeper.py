"""Keeps what happens in the store, from a thread: a database that is locked must hold up nothing, and one that refuses ends nothing."""

import queue
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Self

from toolkit.cli.output import to_stderr
from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    from collections.abc import Callable

    from toolkit.store import Store


class EventKeeper:
    """Use it as `with`; at the end of the block all is kept, or was refused."""

    def __init__(self, database: Path | None) -> None:
        """`database` None: nothing is kept."""
        self._database = database
        self._waiting: queue.SimpleQueue[Callable[[Store], object] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._write_all, name="keep events")

    def __enter__(self) -> Self:
        if self._database is not None:
            self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._database is not None:
            self._waiting.put(None)
            self._thread.join()

    def keep(self, work: "Callable[[Store], object]") -> None:
        """Have it done with the open store, after all that came before."""
        if self._database is not None:
            self._waiting.put(work)

    def _write_all(self) -> None:
        from toolkit.store import Store

        while (work := self._waiting.get()) is not None:
            try:
                with Store.open(self._database or "") as store:
                    work(store)
            except ToolkitError as error:
                to_stderr(f"Warning: an event is not kept: {error.message}")

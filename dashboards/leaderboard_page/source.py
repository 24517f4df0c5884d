"""The page's door to the database: follows one file for all viewers at once, whatever happens to the file.

It reads at most once a second, however many look. A file that is missing, locked, old, damaged or replaced is one calm
sentence (`trouble`), and the last figures stay until it is well again. It never writes, and never lets an error out.
"""

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar, cast

from leaderboard_page.row_order import RowOrder
from toolkit.board.feed import Feed
from toolkit.errors import ToolkitError
from toolkit.records import Run
from toolkit.store import Store

EVERY_S = 0.4
"""Between two readings: what a viewer sees may be so much older than the database, on top of the 2 s of a tick."""
BUSY_TIMEOUT_S = 0.5
"""How long a reading waits for a lock: all viewers wait with it."""
MOST_FEEDS = 4
"""Runs followed at once: the newest, and old ones that somebody chose."""
MOST_RUNS = 50
"""Of old runs offered for choice."""
MOST_ORDERS = 64
"""Boards whose rows are followed: runs, windows and rankings that somebody looks at."""
MOST_BUILT = 256
"""Pieces of HTML kept: a few dozen settings of a few dozen kB."""
PRESENT_S = 15.0
"""A viewer who was not heard of for this long has gone."""

Built = TypeVar("Built")


@dataclass(frozen=True, slots=True, kw_only=True)
class ReadResult:
    """What one reading found."""

    feed: Feed | None
    """None: there is nothing to show yet."""
    runs: tuple[Run, ...] = ()
    """The blasts in the file, the last begun first."""
    trouble: str | None = None
    """Why this is not what the database holds now, in a sentence or two."""
    version: int = 0
    """Rises whenever anything that may be drawn has changed."""


@dataclass(slots=True)
class _Followed:
    feed: Feed
    version: int = 0


@dataclass(slots=True)
class _OpenDatabase:
    """One opened database."""

    store: Store
    identity: tuple[int, int]
    feeds: dict[str, _Followed] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Built:
    version: Hashable
    at: float
    value: object


class DatabaseSource:
    """One database file, followed for all viewers of this server. Threads may share it."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.RLock()
        self._file: _OpenDatabase | None = None
        self._looks: dict[str | None, tuple[float, ReadResult]] = {}
        self._versions = 0
        self._built: dict[Hashable, _Built] = {}
        self._orders: dict[Hashable, RowOrder] = {}
        self._present: dict[str, float] = {}

    # --- reading ----------------------------------------------------------------------------------

    def look(self, run_id: str | None = None) -> ReadResult:
        """Read what is new, of the newest blast or a chosen one, unless somebody just did."""
        with self._lock:
            now = self._clock()
            known = self._looks.get(run_id)
            if known is not None and now - known[0] < EVERY_S:
                return known[1]
            found = self._read(run_id, known[1] if known else None)
            self._looks[run_id] = (self._clock(), found)
            while len(self._looks) > MOST_FEEDS:
                del self._looks[next(iter(self._looks))]
            return found

    def _read(self, run_id: str | None, before: ReadResult | None) -> ReadResult:
        try:
            file = self._opened()
            runs = tuple(file.store.runs(verb="blast", limit=MOST_RUNS))
            chosen = next((run for run in runs if run.id == run_id), runs[0] if runs else None)
            if chosen is None:
                return ReadResult(feed=None)
            followed = self._followed(file, chosen)
        except ToolkitError as error:
            return self._stale(error, before)
        trouble = None
        if run_id is not None and chosen.id != run_id:
            trouble = f"The run {run_id} is not in the database; this is the newest one."
        return ReadResult(feed=followed.feed, runs=runs, version=followed.version, trouble=trouble)

    def _stale(self, error: ToolkitError, before: ReadResult | None) -> ReadResult:
        """The last figures, and why there are no newer ones."""
        if before is None or before.feed is None:
            return ReadResult(feed=None, trouble=sentence(error))
        told = f"{sentence(error)} These are the last figures that were read; the page goes on by itself."
        return ReadResult(feed=before.feed, runs=before.runs, version=before.version, trouble=told)

    def _opened(self) -> _OpenDatabase:
        """The file at the path, opened anew when another one has taken its place."""
        try:
            stat = self.path.stat()
        except OSError as error:
            raise ToolkitError(f"`{self.path}` is not there") from error
        identity = (stat.st_dev, stat.st_ino)
        if self._file is not None and self._file.identity == identity:
            return self._file
        store = Store.open_readonly(self.path, busy_timeout_s=BUSY_TIMEOUT_S)
        # The old file's connection stays open for viewers that are drawing from it, and goes with its last reader.
        self._file = _OpenDatabase(store=store, identity=identity)
        return self._file

    def _followed(self, file: _OpenDatabase, run: Run) -> _Followed:
        known = file.feeds.pop(run.id, None) or _Followed(feed=Feed(file.store, run))
        file.feeds[run.id] = known  # the last in line to be let go
        if known.feed.refresh() or not known.version:
            self._versions += 1
            known.version = self._versions
        while len(file.feeds) > MOST_FEEDS:
            del file.feeds[next(iter(file.feeds))]
        return known

    @property
    def store(self) -> Store | None:
        """The open database, for what is no part of a blast: sightings and benches."""
        return self._file.store if self._file else None

    # --- what all viewers share -------------------------------------------------------------------

    def once(
        self, key: Hashable, version: Hashable, build: Callable[[], Built], *, keep_s: float = 0.0
    ) -> Built:
        """Build something one time for all who want the same of the same version, or of the last `keep_s` seconds.

        What cannot be built anew, as the file is in trouble, stays as it was. Raises ToolkitError when it never was.
        """
        with self._lock:
            now = self._clock()
            known = self._built.get(key)
            if known is not None and (known.version == version or now - known.at < keep_s):
                return cast("Built", known.value)
            try:
                value = build()
            except ToolkitError:
                if known is None:
                    raise
                return cast("Built", known.value)
            self._built.pop(key, None)
            self._built[key] = _Built(version, now, value)
            while len(self._built) > MOST_BUILT:
                del self._built[next(iter(self._built))]
            return value

    def rows(self, key: Hashable, at_s: int, ranks: Mapping[str, int]) -> list[str]:
        """In which order all viewers of one board see its rows."""
        with self._lock:
            order = self._orders.pop(key, None) or RowOrder()
            self._orders[key] = order
            while len(self._orders) > MOST_ORDERS:
                del self._orders[next(iter(self._orders))]
            return order.update(at_s, ranks)

    def present(self, viewer: str) -> int:
        """Note that a viewer is there, and count all who are."""
        with self._lock:
            now = self._clock()
            self._present[viewer] = now
            gone = [who for who, at in self._present.items() if now - at > PRESENT_S]
            for who in gone:
                del self._present[who]
            return len(self._present)


def sentence(error: ToolkitError) -> str:
    """What is wrong and the way out, as a reader of the page is told it."""
    told = error.message[:1].upper() + error.message[1:] + "."
    return f"{told} {error.hint}." if error.hint else told

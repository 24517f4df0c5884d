"""The page's door to the database: follows one file for all viewers at once, whatever happens to the file.

It reads at most once a second, however many look. A file that is missing, locked, old, damaged or replaced is one calm
sentence (`trouble`), and the last figures stay until it is well again. It never writes, and never lets an error out.
"""

import threading
import time
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from math import inf
from pathlib import Path
from typing import TypeVar, cast

from leaderboard_page.row_order import RowOrder
from toolkit.board.feed import Feed
from toolkit.board.follow import keep
from toolkit.board.reveal import reveal_of
from toolkit.board.standings import frozen_at_s
from toolkit.errors import ToolkitError
from toolkit.records import Event, Run
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
"""Boards whose rows are followed: runs, windows and rankings that somebody has open."""
MOST_BUILT = 256
"""Pieces of HTML kept: a few dozen settings of a few dozen kB."""
FREEZE_HOLDS_S = 86_400.0
"""So long after its run's last second a freeze still holds back what is not of that run."""
PRESENT_S = 15.0
"""A viewer who did not refresh for this long has gone."""

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


class DatabaseSource:
    """One database file, followed for all viewers of this server. Threads may share it."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.monotonic) -> None:
        self.path = path
        self._clock = clock
        self._lock = threading.RLock()
        self.store: Store | None = None
        """The open database, also for what is no part of a blast: sightings and benches."""
        self._identity: tuple[int, int] | None = None
        self._feeds: dict[str, tuple[Feed, int]] = {}
        self._events: dict[str, list[tuple[int, Event]]] = {}
        self._versions = 0
        self._reads: dict[str | None, tuple[float, ReadResult]] = {}
        self._built: dict[Hashable, tuple[Hashable, float, object]] = {}
        self._orders: dict[Hashable, RowOrder] = {}
        self._present: dict[str, float] = {}

    # --- reading ----------------------------------------------------------------------------------

    def read(self, run_id: str | None = None) -> ReadResult:
        """Read what is new, of the newest blast or a chosen one, unless somebody just did."""
        with self._lock:
            at, before = self._reads.get(run_id, (-inf, ReadResult(feed=None)))
            if self._clock() - at < EVERY_S:
                return before
            try:
                found = self._read(run_id)
            except ToolkitError as error:
                trouble = error_sentence(error)
                if before.feed is not None:
                    trouble += (
                        " These are the last figures that were read; the page goes on by itself."
                    )
                found = replace(before, trouble=trouble)
            keep(self._reads, run_id, (self._clock(), found), MOST_FEEDS)
            return found

    def _read(self, run_id: str | None) -> ReadResult:
        try:
            stat = self.path.stat()
        except OSError as error:
            raise ToolkitError(f"`{self.path}` is not there") from error
        identity = (stat.st_dev, stat.st_ino)
        store = self.store
        if store is None or self._identity != identity:
            # Another file has taken the old one's place, whose connection stays open for viewers that are drawing from it,
            # and goes with its last reader.
            store = Store.open_readonly(self.path, busy_timeout_s=BUSY_TIMEOUT_S)
            self.store, self._identity, self._feeds = store, identity, {}
            self._events = {}
        runs = tuple(store.runs(verb="blast", limit=MOST_RUNS))
        if not runs:
            return ReadResult(feed=None)
        chosen = next((run for run in runs if run.id == run_id), runs[0])
        feed, version = self._followed(store, chosen)
        trouble = None
        if run_id is not None and chosen.id != run_id:
            trouble = f"The run {run_id} is not in the database; this is the newest one."
        return ReadResult(feed=feed, runs=runs, version=version, trouble=trouble)

    def _followed(self, store: Store, run: Run) -> tuple[Feed, int]:
        feed, version = self._feeds.get(run.id) or (Feed(store, run), 0)
        if feed.refresh() or not version:
            self._versions += 1
            version = self._versions
        keep(self._feeds, run.id, (feed, version), MOST_FEEDS)
        return feed, version

    def public_until(self, now: float, run_id: str | None = None) -> float:
        """Where what is of no single run stops, as sightings are: at the earliest freeze of any; inf: nothing is frozen.

        A reveal lifts a freeze once its last place is uncovered. One that nobody lifts holds for a day after its run, lest it
        hide the next contest; beside that run itself, which is `run_id` on its page, for good. Raises ToolkitError.
        """
        with self._lock:
            store = self.store
            if store is None:
                return inf
            key = ("public until", self._identity, run_id)
            build = partial(self._public_until, store, now, run_id)
            return self.once(key, now, build, keep_s=EVERY_S)

    def _public_until(self, store: Store, now: float, run_id: str | None) -> float:
        until = inf
        for run in store.runs(verb="blast"):
            noted = self._events.setdefault(run.id, [])
            noted += store.events(run.id, after_row=noted[-1][0] if noted else 0)
            events = [event for _, event in noted]
            frozen_s, reveal = frozen_at_s(events), reveal_of(events)
            if frozen_s is None and reveal is None:
                continue
            # a run that was killed never said its end
            over_s = store.last_second(run.id) or run.started_at
            if run.id != run_id and now - over_s > FREEZE_HOLDS_S:
                continue
            # hosts that are not ranked have no place: only where that matters are the standings read
            if reveal is not None and reveal.covered(now, len(store.hosts_of(run.id))):
                feed, _ = self._followed(store, run)
                if reveal.covered(now, len(feed.revealed().standings)):
                    frozen_s = reveal.frozen_s
            if frozen_s is not None:
                until = min(until, frozen_s + 1.0)
        return until

    def forget(self) -> None:
        """Let the next viewer read anew: something was just written."""
        with self._lock:
            self._reads = {run_id: (-inf, found) for run_id, (_, found) in self._reads.items()}

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
            if known is not None and (known[0] == version or now - known[1] < keep_s):
                return cast("Built", known[2])
            try:
                value = build()
            except ToolkitError:
                if known is None:
                    raise
                return cast("Built", known[2])
            keep(self._built, key, (version, now, value), MOST_BUILT)
            return value

    def rows(self, key: Hashable, at_s: int, ranks: Mapping[str, int]) -> list[str]:
        """In which order all viewers of one board see its rows."""
        with self._lock:
            order = self._orders.get(key) or RowOrder()
            keep(self._orders, key, order, MOST_ORDERS)
            return order.update(at_s, ranks)

    def present(self, viewer: str) -> int:
        """Note that a viewer is there, and count all who are."""
        with self._lock:
            now = self._clock()
            seen = self._present | {viewer: now}
            self._present = {who: at for who, at in seen.items() if now - at <= PRESENT_S}
            return len(self._present)


def error_sentence(error: ToolkitError) -> str:
    """What is wrong and the way out, as a reader of the page sees it."""
    text = error.message[:1].upper() + error.message[1:] + "."
    return f"{text} {error.hint}." if error.hint else text

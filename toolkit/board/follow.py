"""Follows one run in the database, row by row, and hands out its sums; it decides nothing about what may be seen.

    parts --row by row--> late ones into the windows that hold their second
    windows: the sums of one stretch, moved by reading what enters and what leaves; far away ones are filled anew
    steps:   slabs of the whole run, made on first use, for everything that is drawn over time
    looks:   what scout saw, from the earliest moment that was asked for

It reads the store, holds numbers only, never writes, and knows no clock: time is what the
loader's seconds say. Whatever the store raises is the caller's to show: nothing is half applied then.
"""

import gc
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import floor, inf
from typing import TypeVar

from toolkit.board.history import Steps
from toolkit.board.scrapes import Contradiction, Scrape, changes, scrape_of
from toolkit.board.window import Totals
from toolkit.errors import ToolkitError
from toolkit.records import (
    Event,
    Host,
    LoaderSecond,
    Part,
    Run,
    Sighting,
)
from toolkit.store import Store

LIVE_S = 5
"""A worker is live if it reported a second at most this much older than the newest: only those are waited for."""
LOOK_BACK_S = 30
"""Loader seconds that tell which workers are live; and as late may a sighting be written."""
CHUNK_ROWS = 20_000
"""Parts read at once when a whole run is read: about 35 MB at 1,000 requests a second and host."""
KEPT_STEPS = 3
"""Widths of steps that are remembered."""
KEPT_WINDOWS = 24

_Value = TypeVar("_Value")
_Key = TypeVar("_Key")


@dataclass(slots=True)
class _Window:
    """The sums of all parts, up to the last row read, of the seconds from `from_s` to `to_s`."""

    from_s: int
    to_s: int
    totals: Totals

    def holds(self, part: Part) -> bool:
        return self.from_s <= part.at_s <= self.to_s


@dataclass(frozen=True, slots=True)
class _News:
    """What one refresh has read."""

    run: Run
    hosts: dict[int, Host]
    parts: Sequence[Part]
    row: int
    last_s: int | None
    seconds: Sequence[tuple[int, LoaderSecond]]
    events: Sequence[tuple[int, Event]]
    sightings: Sequence[Sighting]


class Follow:
    """One run, as far as it was read. Not for several threads at once: the feed has the lock."""

    def __init__(self, reader: Store, run: Run) -> None:
        """Read nothing yet."""
        self.reader = reader
        self.run = run
        self.hosts: dict[int, Host] = {}
        """By the database's number, in the order of the plan: hosts are rows of all sums in this order."""
        self.events: list[Event] = []
        """As stored, in the order of writing."""
        self.is_fresh = True
        self._row = 0
        self._loader_row = 0
        self._loader_from_s = inf
        self._event_row = 0
        self._newest_of: dict[str, int] = {}
        self._limited: set[int] = set()
        self._users: dict[int, dict[str, int]] = {}
        self._last_s: int | None = None
        self._windows: dict[tuple[int, int], _Window] = {}
        self._steps: dict[int, Steps] = {}
        self._looks: dict[tuple[str, str], dict[float, Scrape]] = {}
        self._changes: dict[tuple[str, str], list[Contradiction]] = {}
        self._looks_from = inf
        self._last_look = -inf

    @property
    def start_s(self) -> int:
        """The run's first second."""
        return floor(self.run.started_at)

    def refresh(self) -> bool:
        """Read what is new; tell whether anything was. Raises ToolkitError, and keeps what it knew."""
        news = self._news()
        is_new = self.is_fresh or bool(
            news.parts
            or news.seconds
            or news.events
            or news.run != self.run
            or news.hosts != self.hosts
        )
        had_looks = sum(map(len, self._looks.values()))
        self._take(news)
        return is_new or sum(map(len, self._looks.values())) > had_looks

    def _news(self) -> _News:
        run_id, reader = self.run.id, self.reader
        run = reader.run(run_id)
        if run is None:
            raise ToolkitError(
                f"the run `{run_id}` is no longer in the database",
                "Was it pruned, or the file replaced? `toolkit runs` lists what is there",
            )
        events = reader.events(run_id, after_row=self._event_row)
        last_s = reader.last_second(run_id) if self.is_fresh else None
        from_s = None
        if self.is_fresh:  # a cold board reads no more than its window
            from_s = self.start_s if last_s is None else last_s - LOOK_BACK_S
        # Before the rows: somebody may write between two readings, and a second that is told must have its parts.
        seconds = reader.loader_seconds(run_id, after_row=self._loader_row, from_s=from_s)
        parts: list[Part] = []
        if self.is_fresh:
            row = reader.last_row(run_id)
        else:
            parts = reader.parts(run_id, after_row=self._row)
            row = max((part.row for part in parts), default=self._row)
            last_s = max((part.at_s for part in parts), default=None)
        return _News(
            run=run,
            parts=parts,
            row=row,
            last_s=last_s,
            seconds=seconds,
            events=events,
            sightings=self._new_sightings(),
            # last, so that no part that was read is of a host that is not known
            hosts=reader.hosts_of(run_id),
        )

    def _new_sightings(self) -> list[Sighting]:
        if self._looks_from == inf:
            return []
        from_at = max(self._looks_from, self._last_look - LOOK_BACK_S)
        return self.reader.sightings_between(from_at, self._looks_to())

    def _take(self, news: _News) -> None:
        """Apply what was read; nothing in here reads."""
        if list(news.hosts) != list(self.hosts):
            self._forget_sums()
        self._take_parts(news.parts)
        if self.is_fresh:
            self._loader_from_s = self.start_s if news.last_s is None else news.last_s - LOOK_BACK_S
        self.run, self.hosts, self._row, self.is_fresh = news.run, news.hosts, news.row, False
        self._last_s = latest(self._last_s, news.last_s)
        self.events += [event for _, event in news.events]
        self._event_row = max((row for row, _ in news.events), default=self._event_row)
        self._take_seconds(news.seconds)
        self._take_sightings(news.sightings)

    def _take_parts(self, parts: Sequence[Part]) -> None:
        """Add what belongs to seconds that were counted already; later ones are read when a window reaches them."""
        if not parts:
            return
        try:
            for window in self._windows.values():
                window.totals.add([part for part in parts if window.holds(part)])
            for steps in self._steps.values():
                steps.add(parts)
        except ToolkitError:  # damaged: some have it, and some have not
            self._forget_sums()
            raise

    def _forget_sums(self) -> None:
        self._windows.clear()
        self._steps.clear()

    # --- the loader's seconds -----------------------------------------------------------------------

    def _take_seconds(self, seconds: Sequence[tuple[int, LoaderSecond]]) -> None:
        for row, second in seconds:
            self._loader_row = max(self._loader_row, row)
            known = self._newest_of.get(second.worker, second.at_s)
            self._newest_of[second.worker] = max(second.at_s, known)
            self._take_load(second)

    def _take_load(self, second: LoaderSecond) -> None:
        if second.limited:
            self._limited.add(second.at_s)
        if second.users is not None:
            self._users.setdefault(second.at_s, {})[second.worker] = second.users

    def end_s(self) -> int | None:
        """The last second that every live worker has reported; of an ended run, that any has."""
        if not self._newest_of or self.run.ended_at is not None:
            return latest(self._last_s, max(self._newest_of.values(), default=None))
        newest = max(self._newest_of.values())
        return min(last for last in self._newest_of.values() if last >= newest - LIVE_S)

    def limited(self, from_s: int, to_s: int) -> list[int]:
        """The seconds in which the load generator was the limit at any worker."""
        self._reach_seconds(from_s)
        return sorted(each for each in self._limited if from_s <= each <= to_s)

    def most_users(self, from_s: int, to_s: int) -> int | None:
        """The most users of all workers at once; None: nobody told."""
        self._reach_seconds(from_s)
        told = (self._users[each] for each in range(from_s, to_s + 1) if each in self._users)
        return max((sum(of_worker.values()) for of_worker in told), default=None)

    def _reach_seconds(self, from_s: int) -> None:
        if from_s < self._loader_from_s:
            # How far the run is comes with a refresh, together with the parts. A row that came late, behind all that a cold
            # board read of the newest seconds, is among these.
            for _, second in self.reader.loader_seconds(self.run.id, from_s=from_s):
                self._take_load(second)
            self._loader_from_s = from_s

    # --- sums -------------------------------------------------------------------------------------

    def totals(self, window_s: int, to_s: int, *, ago_s: int = 0) -> Totals:
        """What the window holds that ends `ago_s` before `to_s`; to be read, not kept."""
        key, to_s = (window_s, ago_s), to_s - ago_s
        known = self._windows.get(key)
        if known is None or _is_far(known, to_s):
            known = self._window(window_s, to_s)
        else:
            self._move(known, to_s)
        self._windows.pop(key, None)
        keep(self._windows, key, known, KEPT_WINDOWS)
        return known.totals

    def prepare(self, window_s: int, to_s: int, agos_s: Sequence[int]) -> None:
        """Fill several windows in one reading, if none of them is near: they overlap by far the most."""
        known = [(self._windows.get((window_s, ago_s)), to_s - ago_s) for ago_s in agos_s]
        if any(window and not _is_far(window, end_s) for window, end_s in known):
            return
        ends = {ago_s: to_s - ago_s + 1 for ago_s in agos_s}
        edges = sorted({*ends.values(), *(end - window_s for end in ends.values())})
        pieces: list[list[Part]] = [[] for _ in edges[1:]]
        for part in self.parts(edges[0], edges[-1] - 1):
            pieces[bisect_right(edges, part.at_s) - 1].append(part)
        added = [Totals(list(self.hosts), pulse_s=window_s) for _ in pieces]
        for totals, piece in zip(added, pieces, strict=True):
            totals.add(piece)
        for ago_s, end in ends.items():
            window = _Window(end - window_s, end - 1, Totals(list(self.hosts), pulse_s=window_s))
            for first, totals in zip(edges, added, strict=False):
                if window.from_s <= first < end:
                    window.totals.add_totals(totals)
            keep(self._windows, (window_s, ago_s), window, KEPT_WINDOWS)

    def _window(self, window_s: int, to_s: int) -> _Window:
        totals = Totals(list(self.hosts), pulse_s=window_s)
        from_s = to_s - window_s + 1
        totals.add(self.parts(from_s, to_s))
        return _Window(from_s, to_s, totals)

    def _move(self, window: _Window, to_s: int) -> None:
        """Let seconds in at one end and out at the other; all is read before anything is changed."""
        by_s = to_s - window.to_s
        if by_s > 0:
            entering = self.parts(window.to_s + 1, to_s)
            leaving = self.parts(window.from_s, window.from_s + by_s - 1)
        elif by_s < 0:
            entering = self.parts(window.from_s + by_s, window.from_s - 1)
            leaving = self.parts(to_s + 1, window.to_s)
        else:
            return
        window.totals.drop(leaving)
        window.totals.add(entering)
        window.from_s += by_s
        window.to_s += by_s

    def parts(self, from_s: int, to_s: int) -> list[Part]:
        """Parts of some seconds, of the rows that were read: newer ones come with the next refresh."""
        with _no_collection():
            found = self.reader.parts(self.run.id, from_s=from_s, to_s=to_s)
        if not found or found[-1].row <= self._row:  # they come in the order of rows
            return found
        return [part for part in found if part.row <= self._row]

    def steps(self, step_s: int) -> Steps:
        """The whole run in steps."""
        steps = self._steps.get(step_s)
        if steps is None:
            steps = Steps(list(self.hosts), start_s=self.start_s, step_s=step_s)
            row = 0
            while parts := self.reader.parts(self.run.id, after_row=row, limit=CHUNK_ROWS):
                row = parts[-1].row
                steps.add([part for part in parts if part.row <= self._row])
        self._steps.pop(step_s, None)
        keep(self._steps, step_s, steps, KEPT_STEPS)
        return steps

    # --- looks ------------------------------------------------------------------------------------

    def looks(self, from_at: float, to_at: float) -> dict[Host, list[Scrape]]:
        """What scout saw of each host between two moments, in order of time."""
        self._reach_looks(from_at)
        return {
            host: [
                look
                for at, look in sorted(self._looks.get((host.name, host.url), {}).items())
                if from_at <= at <= to_at
            ]
            for host in self.hosts.values()
        }

    def changes(self, from_at: float) -> list[Contradiction]:
        """Restarts and other settings that scout saw, with looks from a moment on."""
        self._reach_looks(from_at)
        for host in self.hosts.values():
            key = (host.name, host.url)
            if key in self._looks and key not in self._changes:
                looks = [look for _, look in sorted(self._looks[key].items())]
                self._changes[key] = changes(*key, looks)
        hosts = ((host.name, host.url) for host in self.hosts.values())
        return [change for key in hosts for change in self._changes.get(key, ())]

    def _reach_looks(self, from_at: float) -> None:
        if from_at < self._looks_from:
            self._take_sightings(self.reader.sightings_between(from_at, self._looks_to()))
            self._looks_from = from_at

    def _looks_to(self) -> float:
        """Scout may go on for days after a run; what it sees then is none of the run's."""
        return inf if self.run.ended_at is None else self.run.ended_at + LOOK_BACK_S

    def _take_sightings(self, sightings: Sequence[Sighting]) -> None:
        for sighting in sightings:
            key = (sighting.name, sighting.url)
            of_host = self._looks.setdefault(key, {})
            if sighting.at not in of_host:
                of_host[sighting.at] = scrape_of(sighting)
                self._changes.pop(key, None)
            self._last_look = max(self._last_look, sighting.at)


@contextmanager
def _no_collection() -> Iterator[None]:
    """Let the garbage collector wait: over 18,000 new rows it runs 26 times for nothing, 11 of 59 ms."""
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()


def _is_far(window: _Window, to_s: int) -> bool:
    """Whether a window is filled anew with less work than moved: moving reads both ends."""
    return abs(to_s - window.to_s) * 2 > window.to_s - window.from_s + 1


def latest(one: int | None, other: int | None) -> int | None:
    """The later of two seconds, as far as they are known."""
    known = [each for each in (one, other) if each is not None]
    return max(known, default=None)


def keep(kept: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """Put a value at the end, and let those go that were not put there for the longest."""
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]

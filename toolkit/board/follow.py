"""Follows one run in the database, row by row, and hands out its sums; it decides nothing about what may be seen.

    parts --row by row--> late ones into the windows and steps that hold their second
    windows: the sums of one stretch, moved by reading what enters and what leaves; far away ones are filled anew
    steps:   slabs of the whole run, made on first use, for everything that is drawn over time
    scrapes: what scout saw, from the earliest moment that was needed

It reads the store, holds numbers only, never writes, and knows no clock: time is what the
loader's seconds say. Whatever the store raises is the caller's to show: nothing is half applied then.
"""

import gc
from collections.abc import Sequence
from itertools import pairwise
from math import floor, inf
from typing import TypeVar

from toolkit.board.history import Steps
from toolkit.board.reveal import without_steps
from toolkit.board.scrapes import HostScrapes, Scrape
from toolkit.board.window import Totals
from toolkit.errors import ToolkitError
from toolkit.records import Event, Host, LoaderSecond, Part, Run, Sighting
from toolkit.store import Store

AGO_S = (60, 300)
"""Rank changes are against a minute and five minutes ago."""
LIVE_S = 5
"""A worker is live if it reported a second at most this much older than the newest: only those are waited for."""
LOOK_BACK_S = 30
"""Loader seconds that show which workers are live; and as late may a sighting be written."""
SCRAPED_BEFORE_S = 900
"""What a host was before the run, as far back as that: a change needs a scrape before it."""
SAME_RESTART_S = 60.0
"""A restart that somebody noted so close to one that was seen is the same."""
CHUNK_ROWS = 20_000
"""Parts read at once when a whole run is read: about 35 MB at 1,000 requests a second and host."""
KEPT_STEPS = 3
"""Widths of steps that are remembered."""
KEPT_WINDOWS = 24

_Value = TypeVar("_Value")
_Key = TypeVar("_Key")


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
        self._last_s: int | None = None
        self._event_row = 0
        self._loader_row = 0
        self._loader_from_s = inf
        self._newest_of: dict[str, int] = {}
        self._limited: set[int] = set()
        self._users: dict[int, dict[str, int]] = {}
        self._windows: dict[tuple[int, int], tuple[int, Totals]] = {}
        """(length, seconds ago) -> the last second, and what the window holds that ends with it."""
        self._steps: dict[int, Steps] = {}
        self._scrapes: dict[tuple[str, str], HostScrapes] = {}
        self._scrapes_from = inf
        self._last_scrape = -inf

    @property
    def start_s(self) -> int:
        """The run's first second."""
        return floor(self.run.started_at)

    def refresh(self) -> bool:
        """Read what is new; say whether anything was. Raises ToolkitError, and keeps what it knew."""
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
        # Before the rows: somebody may write between two readings, and a second that is shown must have its parts.
        seconds = reader.loader_seconds(run_id, after_row=self._loader_row, from_s=from_s)
        parts: list[Part] = []
        if self.is_fresh:
            row = reader.last_row(run_id)
        else:
            parts = reader.parts(run_id, after_row=self._row)
            row = max((part.row for part in parts), default=self._row)
            last_s = max((part.at_s for part in parts), default=None)
        sightings: list[Sighting] = []
        if self._scrapes_from < inf:
            from_at = max(self._scrapes_from, self._last_scrape - LOOK_BACK_S)
            sightings = reader.sightings_between(from_at, self._scrapes_to())
        # last, so that no part that was read is of a host that is not known
        hosts = reader.hosts_of(run_id)

        # nothing below reads
        is_new = self.is_fresh or bool(parts or seconds or events)
        is_new = is_new or run != self.run or hosts != self.hosts
        if list(hosts) != list(self.hosts):
            self._windows.clear()
            self._steps.clear()
        try:
            # what belongs to seconds that were counted already; later ones are read when a window reaches them
            for (window_s, _), (to_s, totals) in self._windows.items():
                totals.add([part for part in parts if to_s - window_s < part.at_s <= to_s])
            for steps in self._steps.values():
                steps.add(parts)
        except ToolkitError:  # damaged: some have it, and some have not
            self._windows.clear()
            self._steps.clear()
            raise
        self.run, self.hosts, self._row, self.is_fresh = run, hosts, row, False
        self._last_s = latest(self._last_s, last_s)
        self.events += [event for _, event in events]
        self._event_row = max((row for row, _ in events), default=self._event_row)
        if from_s is not None:
            self._loader_from_s = from_s
        self._loader_row = max((row for row, _ in seconds), default=self._loader_row)
        for _, second in seconds:
            known = self._newest_of.get(second.worker, second.at_s)
            self._newest_of[second.worker] = max(second.at_s, known)
            self._add_loader_second(second)
        return self._add_sightings(sightings) or is_new

    # --- the loader's seconds -----------------------------------------------------------------------

    def end_s(self) -> int | None:
        """The last second that every live worker has reported; of an ended run, that any has."""
        if not self._newest_of or self.run.ended_at is not None:
            return latest(self._last_s, max(self._newest_of.values(), default=None))
        newest = max(self._newest_of.values())
        return min(last for last in self._newest_of.values() if last >= newest - LIVE_S)

    def limited(self, from_s: int, to_s: int) -> list[int]:
        """The seconds in which the load generator was the limit at any worker."""
        self._read_loader_seconds(from_s)
        return sorted(each for each in self._limited if from_s <= each <= to_s)

    def most_users(self, from_s: int, to_s: int) -> int | None:
        """The most users of all workers at once; None: no worker noted them."""
        self._read_loader_seconds(from_s)
        noted = (self._users[each] for each in range(from_s, to_s + 1) if each in self._users)
        return max((sum(of_worker.values()) for of_worker in noted), default=None)

    def _read_loader_seconds(self, from_s: int) -> None:
        if from_s < self._loader_from_s:
            # How far the run is comes with a refresh, together with the parts. A row that came late, behind all that a cold
            # board read of the newest seconds, is among these.
            for _, second in self.reader.loader_seconds(self.run.id, from_s=from_s):
                self._add_loader_second(second)
            self._loader_from_s = from_s

    def _add_loader_second(self, second: LoaderSecond) -> None:
        if second.limited:
            self._limited.add(second.at_s)
        if second.users is not None:
            self._users.setdefault(second.at_s, {})[second.worker] = second.users

    # --- sums -------------------------------------------------------------------------------------

    def totals(self, window_s: int, to_s: int) -> Totals:
        """What the window holds that ends with second `to_s`; to be read, not kept."""
        return self.windows(window_s, to_s, (0,))[0]

    def windows(self, window_s: int, to_s: int, agos_s: Sequence[int]) -> list[Totals]:
        """What the windows hold that end so many seconds before `to_s`; to be read, not kept.

        Near ones are moved, which reads both their ends. Far ones are filled anew with less work, and what they share,
        which is most of them, is read once.
        """
        found, empty = {}, {}
        for ago_s in agos_s:
            end_s = to_s - ago_s
            known = self._windows.get((window_s, ago_s))
            if known is None or abs(end_s - known[0]) * 2 > window_s:
                totals = empty[end_s] = Totals(list(self.hosts), seconds_s=window_s)
            else:
                known_s, totals = known
                # seconds that only the later of the two windows holds, and those that only the earlier does
                before_s, after_s = sorted((known_s, end_s))
                if before_s < after_s:
                    late = self.parts(before_s + 1, after_s)
                    early = self.parts(before_s - window_s + 1, after_s - window_s)
                    totals.add(late if end_s > known_s else early)
                    totals.add(early if end_s > known_s else late, -1)
                    self._windows[window_s, ago_s] = end_s, totals
            found[window_s, ago_s] = end_s, totals

        edges = {edge for end_s in empty for edge in (end_s - window_s + 1, end_s + 1)}
        for first_s, after_s in pairwise(sorted(edges)):
            holding = [
                totals for end_s, totals in empty.items() if end_s - window_s < first_s <= end_s
            ]
            if holding:
                piece = Totals(list(self.hosts), seconds_s=window_s)
                piece.add(self.parts(first_s, after_s - 1))
                for totals in holding:
                    totals.add_totals(piece)
        for key, window in found.items():
            keep(self._windows, key, window, KEPT_WINDOWS)
        return [totals for _, totals in found.values()]

    def stretches(self, window_s: int, at_s: int) -> list[tuple[int, int, Totals]]:
        """The single seconds up to `at_s` that the windows of now and before hold without a gap: (first, last, who has them).

        They begin before the window, as an outage may.
        """
        covered_s = window_s
        for ago_s in AGO_S:
            if ago_s <= covered_s:
                covered_s = ago_s + window_s
        found, next_s = [], max(self.start_s, at_s - covered_s + 1)
        for ago_s in (*reversed(AGO_S), 0):
            to_s = at_s - ago_s
            if to_s >= next_s:
                totals = self.windows(window_s, at_s, [ago_s])[0]
                found.append((max(next_s, to_s - window_s + 1), to_s, totals))
                next_s = to_s + 1
        return found

    def parts(self, from_s: int, to_s: int) -> list[Part]:
        """Parts of some seconds, of the rows that were read: newer ones come with the next refresh."""
        # let the garbage collector wait: over 18,000 new rows it runs 26 times for nothing, 11 of 59 ms
        was_on = gc.isenabled()
        gc.disable()
        try:
            found = self.reader.parts(self.run.id, from_s=from_s, to_s=to_s)
        finally:
            if was_on:
                gc.enable()
        if not found or found[-1].row <= self._row:  # they come in the order of rows
            return found
        return [part for part in found if part.row <= self._row]

    def steps(self, step_s: int) -> Steps:
        """The whole run in steps."""
        steps = self._steps.pop(step_s, None)
        if steps is None:
            steps = Steps(list(self.hosts), start_s=self.start_s, step_s=step_s)
            row = 0
            while parts := self.reader.parts(self.run.id, after_row=row, limit=CHUNK_ROWS):
                row = parts[-1].row
                steps.add([part for part in parts if part.row <= self._row])
        keep(self._steps, step_s, steps, KEPT_STEPS)
        return steps

    # --- what happened, and what scout saw ------------------------------------------------------------

    def happened(self, from_at: float, to_at: float) -> list[Event]:
        """What was noted and what scout saw during the run, by time, as far as it was known before `to_at`.

        A restart that was noted and seen stands once, as it was noted.
        """
        self._read_scrapes(self.start_s - SCRAPED_BEFORE_S)
        events = [each for each in without_steps(self.events) if from_at <= each.at < to_at]
        restarts = [(each.name, each.at) for each in events if each.kind == "restart"]
        for host in self.hosts.values():
            of_host = self._scrapes.get((host.name, host.url))
            for noticed_at, event in of_host.changes() if of_host else ():
                if noticed_at >= to_at or not max(from_at, self.start_s) <= event.at < to_at:
                    continue
                is_noted = event.kind == "restart" and any(
                    name == event.name and abs(event.at - at) <= SAME_RESTART_S
                    for name, at in restarts
                )
                if not is_noted:
                    events.append(event)
        return sorted(events, key=lambda each: each.at)

    def scrapes(self, from_at: float, to_at: float) -> dict[str, list[Scrape]]:
        """What scout saw of each host between two moments, by its name and in order of time."""
        self._read_scrapes(from_at)
        found = {
            host.name: self._scrapes.get((host.name, host.url)) for host in self.hosts.values()
        }
        return {
            name: of_host.between(from_at, to_at) if of_host else []
            for name, of_host in found.items()
        }

    def _read_scrapes(self, from_at: float) -> None:
        if from_at < self._scrapes_from:
            self._add_sightings(self.reader.sightings_between(from_at, self._scrapes_to()))
            self._scrapes_from = from_at

    def _scrapes_to(self) -> float:
        """Scout may go on for days after a run; what it sees then is none of the run's."""
        return inf if self.run.ended_at is None else self.run.ended_at + LOOK_BACK_S

    def _add_sightings(self, sightings: Sequence[Sighting]) -> bool:
        """Keep what is needed of them; say whether any is new."""
        is_new = False
        for sighting in sightings:
            key = (sighting.name, sighting.url)
            if key not in self._scrapes:
                self._scrapes[key] = HostScrapes(*key)
            is_new = self._scrapes[key].add(sighting) or is_new
            self._last_scrape = max(self._last_scrape, sighting.at)
        return is_new


def latest(one: int | None, other: int | None) -> int | None:
    """The later of two seconds, as far as they are known."""
    return max((each for each in (one, other) if each is not None), default=None)


def keep(kept: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """Put a value at the end, and let those go that were not put there for the longest."""
    kept.pop(key, None)
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]

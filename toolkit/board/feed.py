"""The board's memory: follows a run in the database, row by row, and answers every view from it. Threads may share one.

It reads through a Reader (the store is one) and holds nothing but numbers:

    parts --row by row--> late ones into the windows that hold their second
    windows: the sums of one stretch, moved by reading what enters and what leaves; far away ones are filled anew
    steps:   slabs of the whole run, made on first use, for everything that is drawn over time

What is visible is decided here once, for all views: nothing after a freeze, unless `everything` was asked for. It never
writes, never judges by itself (verdicts.py), and knows no clock: time is what the loader's seconds say.

Whatever the reader raises is the caller's to show; nothing is half applied then, and the next refresh goes on. A Feed is
of one file: a caller whose file was replaced opens it anew and makes another Feed.
"""

import threading
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import floor
from typing import Protocol, TypeVar

from toolkit.board.freeze import frozen_at_s
from toolkit.board.history import (
    Density,
    Heat,
    Ranks,
    Series,
    Steps,
    all_figures,
    density,
)
from toolkit.board.score import Figures, Place, places, scores
from toolkit.board.standings import WINDOW_S, Board, RankBy, Standing
from toolkit.board.window import E2E, TTFT, Sums
from toolkit.errors import ToolkitError
from toolkit.records import Event, Host, LoaderSecond, Part, Run, Shot, Sighting, Tally

LIVE_S = 5
"""A worker is live if it reported a second at most this much older than the newest: only those are waited for."""
LOOK_BACK_S = 30
"""Loader seconds that tell which workers are live."""
AGO_S = (60, 300)
"""Rank changes are told against a minute and five minutes ago."""
CHUNK_ROWS = 20_000
"""Parts read at once when a whole run is read: about 35 MB at 1,000 requests a second and host."""
KEPT_STEPS = 3
"""Widths of steps that are remembered."""
KEPT_WINDOWS = 8
KEPT_BOARDS = 64

_Value = TypeVar("_Value")
_Key = TypeVar("_Key")


class Reader(Protocol):
    """What the feed reads; `toolkit.store.Store` is one."""

    def run(self, run_id: str) -> Run | None: ...  # noqa: D102
    def hosts_of(self, run_id: str) -> dict[int, Host]: ...  # noqa: D102
    def last_second(self, run_id: str) -> int | None: ...  # noqa: D102
    def last_row(self, run_id: str) -> int: ...  # noqa: D102
    def parts(  # noqa: D102
        self,
        run_id: str,
        *,
        after_row: int = 0,
        from_s: int | None = None,
        to_s: int | None = None,
        limit: int | None = None,
    ) -> list[Part]: ...
    def loader_seconds(  # noqa: D102
        self, run_id: str, *, after_row: int = 0, from_s: int | None = None
    ) -> list[tuple[int, LoaderSecond]]: ...
    def events(self, run_id: str, *, after_row: int = 0) -> list[tuple[int, Event]]: ...  # noqa: D102
    def tallies(  # noqa: D102
        self,
        run_id: str,
        *,
        name: str | None = None,
        kind: str | None = None,
        from_s: int | None = None,
        to_s: int | None = None,
    ) -> list[Tally]: ...
    def shots_between(  # noqa: D102
        self, run_id: str, from_at: float, to_at: float, *, most_per_host: int = 200
    ) -> list[Shot]: ...
    def sightings_between(  # noqa: D102
        self, from_at: float, to_at: float, *, names: Sequence[str] | None = None
    ) -> list[Sighting]: ...


@dataclass(slots=True)
class _Window:
    """The sums of all parts, up to the last row read, of the seconds from `from_s` to `to_s`."""

    from_s: int
    to_s: int
    sums: Sums

    def holds(self, part: Part) -> bool:
        return self.from_s <= part.at_s <= self.to_s


class Feed:
    """One run, followed; every answer is of what the last refresh has seen."""

    def __init__(self, reader: Reader, run: Run, *, everything: bool = False) -> None:
        """Read nothing yet: the first refresh, or the first question, does."""
        self._reader = reader
        self._everything = everything
        self._lock = threading.RLock()
        self.run = run
        self._fresh = True
        self._hosts: dict[int, Host] = {}
        self._row = 0
        self._loader_row = 0
        self._loader_from_s: int | None = None
        self._event_row = 0
        self._events: list[Event] = []
        self._newest_of: dict[str, int] = {}
        self._limited: set[int] = set()
        self._last_s: int | None = None
        self._windows: dict[tuple[int, int], _Window] = {}
        self._steps: dict[int, Steps] = {}
        self._boards: dict[tuple[object, ...], Board] = {}

    # --- following --------------------------------------------------------------------------------

    def refresh(self) -> bool:
        """Read what is new; tell whether anything was. Raises ToolkitError, and keeps what it knew."""
        with self._lock:
            return self._refresh()

    def _refresh(self) -> bool:
        run_id = self.run.id
        run = self._reader.run(run_id)
        if run is None:
            raise ToolkitError(
                f"the run `{run_id}` is no longer in the database",
                "Was it pruned, or the file replaced? `toolkit runs` lists what is there",
            )
        events = self._reader.events(run_id, after_row=self._event_row)
        if self._fresh:
            parts: list[Part] = []
            row = self._reader.last_row(run_id)
            last_s = self._reader.last_second(run_id)
            from_s = None if last_s is None else last_s - LOOK_BACK_S
        else:
            parts = self._reader.parts(run_id, after_row=self._row)
            row = max((part.row for part in parts), default=self._row)
            last_s = max((part.at_s for part in parts), default=None)
            from_s = None
        seconds = self._reader.loader_seconds(run_id, after_row=self._loader_row, from_s=from_s)
        # last, so that no part that was read is of a host that is not known
        hosts = self._reader.hosts_of(run_id)
        # nothing below reads: all of it is applied, or none
        new = bool(parts or seconds or events) or run != self.run or hosts != self._hosts
        self.run = run
        if list(hosts) != list(self._hosts):
            self._windows.clear()
            self._steps.clear()
        self._hosts = hosts
        self._row = row
        self._last_s = _latest(self._last_s, last_s)
        self._take_seconds(seconds)
        if self._fresh:
            self._loader_from_s = from_s
        self._events += [event for _, event in events]
        self._event_row = max((row for row, _ in events), default=self._event_row)
        self._add(parts)
        if new:
            self._boards.clear()
        was_fresh, self._fresh = self._fresh, False
        return new or was_fresh

    def _take_seconds(self, seconds: Sequence[tuple[int, LoaderSecond]]) -> None:
        for row, second in seconds:
            self._loader_row = max(self._loader_row, row)
            self._newest_of[second.worker] = max(
                second.at_s, self._newest_of.get(second.worker, second.at_s)
            )
            if second.limited:
                self._limited.add(second.at_s)

    def _add(self, parts: Sequence[Part]) -> None:
        """Late parts belong to seconds that were counted already; later ones are read when a window reaches them."""
        if not parts:
            return
        for window in self._windows.values():
            window.sums.add([part for part in parts if window.holds(part)])
        for steps in self._steps.values():
            steps.add(parts)

    def _ensure(self) -> None:
        if self._fresh:
            self._refresh()

    # --- what is visible --------------------------------------------------------------------------

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All hosts of the run, also those that never answered."""
        with self._lock:
            self._ensure()
            return tuple(self._hosts.values())

    @property
    def start_s(self) -> int:
        """The run's first second."""
        return floor(self.run.started_at)

    @property
    def end_s(self) -> int | None:
        """The last second that may be seen and that every live worker has reported; None: there is none."""
        with self._lock:
            self._ensure()
            return self._end_s()

    @property
    def frozen_at_s(self) -> int | None:
        """The last second that the public may see; None: it is not frozen."""
        with self._lock:
            self._ensure()
            return frozen_at_s(self._events)

    def events(self) -> list[Event]:
        """What happened, as far as it may be seen, by time."""
        with self._lock:
            self._ensure()
            limit_s = self._limit_s()
            return sorted(
                (each for each in self._events if limit_s is None or each.at < limit_s + 1),
                key=lambda each: each.at,
            )

    def _limit_s(self) -> int | None:
        return None if self._everything else frozen_at_s(self._events)

    def _end_s(self) -> int | None:
        found = self._data_end_s()
        limit_s = self._limit_s()
        if found is not None and limit_s is not None:
            found = min(found, limit_s)
        return None if found is None or found < self.start_s else found

    def _data_end_s(self) -> int | None:
        if not self._newest_of or self.run.ended_at is not None:
            return _latest(self._last_s, max(self._newest_of.values(), default=None))
        newest = max(self._newest_of.values())
        return min(last for last in self._newest_of.values() if last >= newest - LIVE_S)

    # --- windows ----------------------------------------------------------------------------------

    def _sums(self, window_s: int, to_s: int, *, ago_s: int = 0) -> Sums:
        """The sums of the window that ends `ago_s` before `to_s`."""
        key = (window_s, ago_s)
        to_s -= ago_s
        known = self._windows.pop(key, None)
        if known is None or abs(to_s - known.to_s) * 2 > window_s:
            known = self._filled(window_s, to_s)
        else:
            self._move(known, to_s)
        _keep(self._windows, key, known, KEPT_WINDOWS * (1 + len(AGO_S)))
        return known.sums

    def _filled(self, window_s: int, to_s: int) -> _Window:
        sums = Sums(list(self._hosts), pulse_s=window_s)
        from_s = to_s - window_s + 1
        sums.add(self._parts(from_s, to_s))
        return _Window(from_s, to_s, sums)

    def _move(self, window: _Window, to_s: int) -> None:
        """Let seconds in at one end and out at the other; all is read before anything is changed."""
        by_s = to_s - window.to_s
        if by_s > 0:
            entering = self._parts(window.to_s + 1, to_s)
            leaving = self._parts(window.from_s, window.from_s + by_s - 1)
        elif by_s < 0:
            entering = self._parts(window.from_s + by_s, window.from_s - 1)
            leaving = self._parts(to_s + 1, window.to_s)
        else:
            return
        window.sums.drop(leaving)
        window.sums.add(entering)
        window.from_s += by_s
        window.to_s += by_s

    def _parts(self, from_s: int, to_s: int) -> list[Part]:
        """Parts of some seconds, of the rows that were read: later ones come with the next refresh."""
        found = self._reader.parts(self.run.id, from_s=from_s, to_s=to_s)
        return [part for part in found if part.row <= self._row]

    # --- the board --------------------------------------------------------------------------------

    def board(
        self,
        *,
        window_s: int = WINDOW_S,
        at_s: int | None = None,
        rank_by: RankBy = "rps",
        honest: bool = False,
        skip_limited: bool = False,
    ) -> Board:
        """Standings over the window that ends with second `at_s`, or with the last one that may be seen."""
        with self._lock:
            self._ensure()
            end_s = self._end_s()
            at_s = end_s if at_s is None or end_s is None else max(self.start_s, min(at_s, end_s))
            key = (window_s, at_s, rank_by, honest, skip_limited)
            board = self._boards.pop(key, None)
            if board is None:
                board = self._board(window_s, at_s, rank_by, honest, skip_limited)
            _keep(self._boards, key, board, KEPT_BOARDS)
            return board

    def _board(
        self, window_s: int, at_s: int | None, rank_by: RankBy, honest: bool, skip_limited: bool
    ) -> Board:
        elapsed_s = 0 if at_s is None else min(window_s, at_s - self.start_s + 1)
        limited = self._limited_in(at_s, window_s)
        skipped = limited if skip_limited else []
        counted_s = elapsed_s - len(skipped)
        seen = self._figures(window_s, at_s, counted_s, skipped)
        now = places(seen, rank_by)
        before = [self._places_before(window_s, at_s, ago_s, rank_by) for ago_s in AGO_S]
        standings = [
            _standing(host, seen[row], score, now[row], [_of(each, row) for each in before])
            for row, (host, score) in enumerate(
                zip(self._hosts.values(), scores(seen), strict=True)
            )
        ]
        at = self.start_s if at_s is None else at_s
        return Board(
            run=self.run.id,
            at_s=at_s,
            window_s=window_s,
            elapsed_s=elapsed_s,
            counted_s=counted_s,
            rank_by=rank_by,
            honest=honest,
            skip_limited=skip_limited,
            standings=tuple(
                replace(each, window_s=window_s, at=at) for each in sorted(standings, key=_order)
            ),
            left_out=(),
            limited_s=len(limited),
            frozen_at_s=frozen_at_s(self._events),
            ended=self.run.ended_at is not None,
            data_end_s=self._end_s(),
        )

    def _figures(
        self, window_s: int, at_s: int | None, counted_s: int, skipped: Sequence[int]
    ) -> list[Figures]:
        if at_s is None:
            return all_figures(Sums(list(self._hosts)), 0)
        sums = self._sums(window_s, at_s)
        if skipped:
            sums = sums.copy()
            gone = set(skipped)
            found = self._parts(min(gone), max(gone))
            sums.drop([part for part in found if part.at_s in gone])
        return all_figures(sums, counted_s)

    def _places_before(
        self, window_s: int, at_s: int | None, ago_s: int, rank_by: RankBy
    ) -> list[Place] | None:
        """Where the hosts stood some time ago; None: the run was not on yet."""
        if at_s is None or at_s - ago_s < self.start_s:
            return None
        counted_s = min(window_s, at_s - ago_s - self.start_s + 1)
        return places(all_figures(self._sums(window_s, at_s, ago_s=ago_s), counted_s), rank_by)

    def _limited_in(self, at_s: int | None, window_s: int) -> list[int]:
        """Seconds of a window in which the load generator was the limit."""
        if at_s is None:
            return []
        from_s = max(self.start_s, at_s - window_s + 1)
        if self._loader_from_s is None or from_s < self._loader_from_s:
            self._take_seconds(self._reader.loader_seconds(self.run.id, from_s=from_s))
            self._loader_from_s = from_s
        return sorted(each for each in self._limited if from_s <= each <= at_s)

    # --- over time --------------------------------------------------------------------------------

    def ranks(
        self,
        *,
        window_s: int = WINDOW_S,
        rank_by: RankBy = "rps",
        honest: bool = False,
        step_s: int = 10,
    ) -> Ranks:
        """Every host's rank at the end of every step, for the bump chart."""
        with self._lock:
            self._ensure()
            left_out: set[str] = set()
            kept = [
                (row, host.name)
                for row, host in enumerate(self._hosts.values())
                if not honest or host.name not in left_out
            ]
            return self._run_in(step_s).ranks(
                window_s=window_s,
                rank_by=rank_by,
                rows=[row for row, _ in kept],
                names=[name for _, name in kept],
                end_s=self._last_seen_s(),
            )

    def series(
        self, name: str, *, step_s: int = 10, from_s: int | None = None, to_s: int | None = None
    ) -> Series:
        """One host's figures in even steps; only complete ones."""
        with self._lock:
            self._ensure()
            steps = self._run_in(step_s)
            first, after = self._steps_between(steps, from_s, to_s)
            return steps.series(self._row_of(name), name, first=first, after=after)

    def sparkline(
        self, name: str, *, points: int = 30, step_s: int = 10, at_s: int | None = None
    ) -> list[float]:
        """One host's RPS in its last steps."""
        with self._lock:
            self._ensure()
            steps = self._run_in(step_s)
            _, after = self._steps_between(steps, None, at_s)
            return steps.rates(self._row_of(name), first=max(0, after - points), after=after)

    def heat(
        self, name: str, *, step_s: int = 10, from_s: int | None = None, to_s: int | None = None
    ) -> Heat:
        """How many of one host's answers took how long, in even steps; only complete ones."""
        with self._lock:
            self._ensure()
            steps = self._run_in(step_s)
            first, after = self._steps_between(steps, from_s, to_s)
            return steps.heat(self._row_of(name), name, first=first, after=after)

    def density(
        self, name: str, *, window_s: int = WINDOW_S, at_s: int | None = None, metric: str = "e2e"
    ) -> Density:
        """How one host's latencies (`e2e` or `ttft`) spread over a window."""
        with self._lock:
            self._ensure()
            row, end_s = self._row_of(name), self._last_seen_s()
            to_s = end_s if at_s is None else min(at_s, end_s)
            sums = self._sums(window_s, to_s)
            return density(name, metric, sums.histograms[row, TTFT if metric == "ttft" else E2E])

    def error_kinds(
        self, name: str, *, window_s: int = WINDOW_S, at_s: int | None = None
    ) -> dict[str, int]:
        """How often one host's requests failed in which way, the most frequent first."""
        with self._lock:
            self._ensure()
            end_s = self._last_seen_s()
            to_s = end_s if at_s is None else min(at_s, end_s)
            found = self._reader.tallies(
                self.run.id, name=name, kind="ranked", from_s=to_s - window_s + 1, to_s=to_s
            )
            kinds: dict[str, int] = {}
            for tally in found:
                for each in tally.error_kinds:
                    kinds[each.kind] = kinds.get(each.kind, 0) + each.count
            return dict(sorted(kinds.items(), key=lambda kind: -kind[1]))

    def _last_seen_s(self) -> int:
        """The last second that may be seen; the one before the start while there is none."""
        end_s = self._end_s()
        return self.start_s - 1 if end_s is None else end_s

    def _run_in(self, step_s: int) -> Steps:
        steps = self._steps.pop(step_s, None)
        if steps is None:
            steps = Steps(list(self._hosts), start_s=self.start_s, step_s=step_s)
            row = 0
            while parts := self._reader.parts(self.run.id, after_row=row, limit=CHUNK_ROWS):
                row = parts[-1].row
                steps.add([part for part in parts if part.row <= self._row])
        _keep(self._steps, step_s, steps, KEPT_STEPS)
        return steps

    def _steps_between(self, steps: Steps, from_s: int | None, to_s: int | None) -> tuple[int, int]:
        end_s = self._last_seen_s()
        after = steps.complete(end_s if to_s is None else min(to_s, end_s))
        first = 0 if from_s is None else max(0, (from_s - self.start_s) // steps.step_s)
        return min(first, after), after

    def _row_of(self, name: str) -> int:
        for row, host in enumerate(self._hosts.values()):
            if host.name == name:
                return row
        known = ", ".join(host.name for host in self._hosts.values()) or "none"
        raise ToolkitError(f"`{name}` is no host of run `{self.run.id}`", f"Its hosts: {known}")


def _standing(
    host: Host, seen: Figures, score: float | None, now: Place, before: Sequence[Place | None]
) -> Standing:
    changes = [None if then is None else then.rank - now.rank for then in before]
    return Standing(
        rank=now.rank,
        name=host.name,
        url=host.url,
        score=score,
        rps=seen.rps,
        output_tokens_per_s=seen.output_tokens_per_s,
        ttft_p50_ms=seen.ttft_p50_ms,
        ttft_p95_ms=seen.ttft_p95_ms,
        p50_ms=seen.p50_ms,
        p95_ms=seen.p95_ms,
        error_rate=seen.error_rate,
        ok=seen.ok,
        errors=seen.errors,
        streamed=seen.streamed,
        hit_share=seen.hit_share,
        hit_share_inferred=seen.cache_judged > 0,
        output_tokens_estimated=seen.output_tokens_estimated > 0,
        tied=now.tied,
        rank_change=changes[0],
        rank_change_5m=changes[1],
        verdicts=(),
        left_out=False,
        tainted_s=None,
        taints=(),
        window_s=0,
        at=0,
    )


def _of(everyone: Sequence[Place] | None, row: int) -> Place | None:
    return None if everyone is None else everyone[row]


def _order(standing: Standing) -> tuple[int, bool, bool, str]:
    """By rank; among tied hosts the one that stood there, or better, 5 minutes ago, else a minute ago."""
    change, change_5m = standing.rank_change, standing.rank_change_5m
    stood = change is not None and change <= 0
    stood_5m = stood and change_5m is not None and change_5m <= 0
    return standing.rank or 0, not stood_5m, not stood, standing.name


def _latest(one: int | None, other: int | None) -> int | None:
    known = [each for each in (one, other) if each is not None]
    return max(known, default=None)


def _keep(kept: dict[_Key, _Value], key: _Key, value: _Value, most: int) -> None:
    """Put the newest at the end, and let the one that was not asked for the longest go."""
    kept[key] = value
    while len(kept) > most:
        del kept[next(iter(kept))]

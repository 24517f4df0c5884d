"""What every view of a blast reads: standings, ranks over time, series, densities, events. Threads may share one.

What may be seen is decided here once, for all views: nothing after a freeze, unless `everything` was wanted. The
following, and all that is read, is follow.py's.

Whatever the reader raises is the caller's to show; nothing is half applied then, and the next refresh goes on. A Feed is
of one file: a caller whose file was replaced opens it anew and makes another Feed.

CPU, 20 hosts of 1,000 requests a second, two busy cores (tests/benchmarks/bench_board.py): a window of 15 minutes from
nothing 90 to 110 ms, the whole board 2 s later 2.5 to 4.5 ms, all ranks of 21 minutes 0.25 s and 35 ms for another
figure. Every 10 s verdicts are judged anew: 0.15 s with 200 canaries a host. Kept for what is drawn over time: 1.1 MB a
host and hour in steps of 10 s.
"""

import threading
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

import numpy as np

from toolkit.board.follow import AGO_S, Follow, keep
from toolkit.board.history import Density, Heat, HostSeries, Ranks, density, heat
from toolkit.board.outages import Outage, RunSeconds, affected_intervals, course, outages
from toolkit.board.ranking import figures, places, scores
from toolkit.board.reveal import Reveal, Terms, reveal_of
from toolkit.board.standings import (
    WINDOW_S,
    AffectedInterval,
    Board,
    RankBy,
    Standing,
    frozen_at_s,
    reasons,
    usual_window_s,
)
from toolkit.board.verdicts import Judge, Verdicts
from toolkit.board.window import COUNTS, E2E, Totals
from toolkit.errors import ToolkitError
from toolkit.records import Event, Host, Run
from toolkit.store import Store

KEPT_BOARDS = 64
LATE_S = 300
"""So long after a second a worker that was silent may still report what it counted in it."""


class Feed:
    """One run, followed; every answer is of what the last refresh has seen."""

    def __init__(self, reader: Store, run: Run, *, everything: bool = False) -> None:
        """Read nothing yet: the first refresh, or the first question, does."""
        self._follow = Follow(reader, run)
        self._judge = Judge(self._follow)
        self._everything = everything
        self._lock = threading.RLock()
        self._boards: dict[tuple[object, ...], Board] = {}
        self._settled: dict[str, RunSeconds] = {}
        """Of each host that was asked for, the run's seconds of which no worker has more to tell."""

    def refresh(self) -> bool:
        """Read what is new; say whether anything was. Raises ToolkitError, and keeps what it knew."""
        with self._lock:
            is_new = self._follow.refresh()
            if is_new:
                self._boards.clear()
            return is_new

    @contextmanager
    def _read(self) -> Iterator[Follow]:
        """What was read, for one thread at a time; the first question reads it."""
        with self._lock:
            if self._follow.is_fresh:
                self._follow.refresh()
            yield self._follow

    # --- what is visible --------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """As last read: its end may have been written since."""
        return self._follow.run

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All hosts of the run, also those that never answered."""
        with self._read() as follow:
            return tuple(follow.hosts.values())

    @property
    def start_s(self) -> int:
        """The run's first second."""
        return self._follow.start_s

    @property
    def end_s(self) -> int | None:
        """The last second that may be seen and that every live worker has reported; None: there is none."""
        with self._read() as follow:
            found, limit_s = follow.end_s(), self._limit_s()
            if found is not None and limit_s is not None:
                found = min(found, limit_s)
            return None if found is None or found < self.start_s else found

    @property
    def frozen_at_s(self) -> int | None:
        """The last second that the public may see; None: it is not frozen."""
        with self._read() as follow:
            return frozen_at_s(follow.events)

    @property
    def measured_s(self) -> int | None:
        """The last second that every live worker has reported, behind a freeze, too: how long a run is on is no secret."""
        with self._read() as follow:
            return follow.end_s()

    def reveal(self) -> Reveal | None:
        """The reveal that followed the last freeze, under way or over."""
        with self._read() as follow:
            return reveal_of(follow.events)

    def revealed(self, rank_by: RankBy | None = None, *, honest: bool | None = None) -> Board:
        """The run's end as the organizer has it revealed, or the same window ranked by something else."""
        reveal = self.reveal()
        terms = Terms() if reveal is None else reveal.terms
        return self.board(
            window_s=terms.window_s or usual_window_s(self.run),
            rank_by=rank_by or terms.rank_by,
            honest=terms.honest if honest is None else honest,
            skip_limited=terms.skip_limited,
        )

    def _limit_s(self) -> int | None:
        return None if self._everything else self.frozen_at_s

    def _seen_until(self, at_s: int | None) -> int:
        """The last second that may be seen, or an earlier one; the one before the start while there is none."""
        end_s = self.end_s
        if end_s is None:
            end_s = self.start_s - 1
        return end_s if at_s is None else min(at_s, end_s)

    def events(self) -> list[Event]:
        """What happened and may be seen, by time: as noted, and the restarts and changes that scout saw."""
        with self._read() as follow:
            limit_s = self._limit_s()
            to_at = float("inf") if limit_s is None else float(limit_s + 1)
            return follow.happened(float("-inf"), to_at)

    def outages(self, name: str, *, to_s: int | None = None) -> tuple[RunSeconds, list[Outage]]:
        """A host's seconds, from the run's first to `to_s` or the last that may be seen, and when it was down in them."""
        start_s, end_s = self.start_s, self._seen_until(to_s)
        self._row_of(name)
        # a host's tallies lie among those of all others: only what may have come since the last time is read
        settled = self._settled.get(name, RunSeconds(first_s=start_s, ok=(), errors=()))
        count = max(0, min(len(settled.ok), end_s + 1 - start_s))
        from_s = start_s + count
        parts = self._follow.reader.tallies(
            self.run.id, name=name, kind="ranked", from_s=from_s, to_s=end_s
        )
        new = course(parts, from_s=from_s, to_s=end_s + 1)
        ok, errors = settled.ok[:count] + new.ok, settled.errors[:count] + new.errors
        seconds = RunSeconds(first_s=start_s, ok=ok, errors=errors)
        count = max(0, self._seen_until(None) + 1 - LATE_S - start_s)
        if min(len(ok), count) > len(settled.ok):
            self._settled[name] = replace(seconds, ok=ok[:count], errors=errors[:count])
        known = [
            each.at
            for each in self.events()
            if (each.kind, each.name) == ("restart", name) and each.at < end_s + 1
        ]
        return seconds, outages(seconds, restarts=known)

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
        with self._read():
            end_s = self.end_s
            at_s = end_s if at_s is None or end_s is None else max(self.start_s, min(at_s, end_s))
            key = (window_s, at_s, rank_by, honest, skip_limited)
            board = self._boards.get(key)
            if board is None:
                board = self._board(
                    window_s, at_s, rank_by, honest=honest, skip_limited=skip_limited
                )
            keep(self._boards, key, board, KEPT_BOARDS)
            return board

    def _board(
        self,
        window_s: int,
        at_s: int | None,
        rank_by: RankBy,
        *,
        honest: bool,
        skip_limited: bool,
    ) -> Board:
        follow, start_s = self._follow, self._follow.start_s
        hosts = list(follow.hosts.values())
        agos_s = [] if at_s is None else [ago for ago in (0, *AGO_S) if at_s - ago >= start_s]
        if at_s is not None:
            # all of them in one reading, before verdicts of a moment ago move the first
            follow.windows(window_s, at_s, agos_s)
        verdicts = self._judge.verdicts(window_s, start_s - 1 if at_s is None else at_s)
        rows = self._ranked_rows(verdicts, honest=honest)

        windows = [Totals(list(follow.hosts))]
        elapsed_s = 0
        limited: list[int] = []
        affected: list[tuple[AffectedInterval, ...]] = [() for _ in hosts]
        if at_s is not None:
            affected = self._affected_intervals(window_s, at_s)
            elapsed_s = min(window_s, at_s - start_s + 1)
            limited = follow.limited(at_s - elapsed_s + 1, at_s)
            windows = follow.windows(window_s, at_s, agos_s)
        counted_s = elapsed_s
        if skip_limited:
            counted_s -= len(limited)
            windows[0] = self._without(limited, windows[0])

        # by row: where it stands now, a minute ago and five minutes ago
        now = figures(windows[0].counts, windows[0].histograms, counted_s)
        placed = [dict(zip(rows, places([now[row] for row in rows], rank_by), strict=True))]
        for ago_s, totals in zip(agos_s[1:], windows[1:], strict=True):
            lived_s = min(window_s, (at_s or 0) - ago_s - start_s + 1)
            then = figures(totals.counts, totals.histograms, lived_s)
            placed.append(
                dict(zip(rows, places([then[row] for row in rows], rank_by), strict=True))
            )
        score = dict(zip(rows, scores([now[row] for row in rows]), strict=True))

        standings = []
        for row, host in enumerate(hosts):
            place = placed[0].get(row)
            changes = [then[row].rank - place.rank if place else None for then in placed[1:]]
            changes += [None] * (len(AGO_S) - len(changes))
            standing = Standing(
                rank=place.rank if place else None,
                name=host.name,
                url=host.url,
                score=score.get(row),
                **now[row]._asdict(),
                tied=place.tied if place else False,
                rank_change=changes[0],
                rank_change_5m=changes[1],
                verdicts=tuple(verdicts.get(host.name, ())),
                left_out=place is None,
                tainted_s=sum(each.in_window_s for each in affected[row]) or None,
                taints=affected[row],
                window_s=window_s,
                at=start_s if at_s is None else at_s,
            )
            if standing.trouble:
                # its answers may well be, but who fails is not clean
                kept = tuple(each for each in standing.verdicts if each.code != "clean")
                standing = replace(standing, verdicts=kept)
            standings.append(standing)
        # by rank; tied hosts by name, as nothing else in the window tells them apart
        ranked = [each for each in standings if not each.left_out]
        ranked.sort(key=lambda each: (each.rank or 0, each.name))
        return Board(
            run=follow.run.id,
            at_s=at_s,
            window_s=window_s,
            elapsed_s=elapsed_s,
            counted_s=counted_s,
            rank_by=rank_by,
            honest=honest,
            skip_limited=skip_limited,
            standings=tuple(ranked),
            left_out=tuple(each for each in standings if each.left_out),
            limited_s=len(limited),
            frozen_at_s=self.frozen_at_s,
            ended=follow.run.ended_at is not None,
            data_end_s=self.end_s,
        )

    def _without(self, seconds: Sequence[int], totals: Totals) -> Totals:
        """The same without what ended in these of its seconds."""
        if not seconds:
            return totals
        found = self._follow.parts(min(seconds), max(seconds))
        rest, gone = totals.copy(), set(seconds)
        rest.add([part for part in found if part.at_s in gone], -1)
        return rest

    def _ranked_rows(self, verdicts: Verdicts, *, honest: bool) -> list[int]:
        return [
            row
            for row, host in enumerate(self._follow.hosts.values())
            if not (honest and reasons(verdicts.get(host.name, ())))
        ]

    def _affected_intervals(self, window_s: int, at_s: int) -> list[tuple[AffectedInterval, ...]]:
        """Each host's outages that are still in the window."""
        follow = self._follow
        ok, errors, *_ = follow.totals(window_s, at_s).by_second.swapaxes(0, 1)
        has_failed = (errors > ok).any(axis=1)
        stretches = follow.stretches(window_s, at_s)
        from_s = stretches[0][0]
        restarts: dict[str | None, list[float]] = defaultdict(list)
        for event in follow.happened(from_s, at_s + 1):
            if event.kind == "restart":
                restarts[event.name].append(event.at)
        found: list[tuple[AffectedInterval, ...]] = [() for _ in follow.hosts]
        for row, host in enumerate(follow.hosts.values()):
            # where in no second more failed than was answered and nobody restarted there is no outage
            if has_failed[row] or host.name in restarts:
                pieces = [totals.seconds(*span)[row, :2] for *span, totals in stretches]
                ok_s, errors_s = np.concatenate(pieces, axis=1).tolist()
                seconds = RunSeconds(first_s=from_s, ok=tuple(ok_s), errors=tuple(errors_s))
                found[row] = affected_intervals(
                    seconds, restarts.get(host.name, ()), window_s=window_s
                )
        return found

    # --- over time --------------------------------------------------------------------------------

    def ranks(
        self,
        *,
        window_s: int = WINDOW_S,
        rank_by: RankBy = "rps",
        honest: bool = False,
        step_s: int = 10,
        to_s: int | None = None,
    ) -> Ranks:
        """Every host's rank at the end of every step, for the bump chart, up to `to_s` or the last second that may be seen.

        The honest one lacks those who are left out then, all the way: nobody enters or leaves in the middle.
        """
        with self._read() as follow:
            end_s = self._seen_until(to_s)
            rows = self._ranked_rows(self._judge.verdicts(window_s, end_s), honest=honest)
            names = [host.name for host in follow.hosts.values()]
            ranked = {row: names[row] for row in rows}
            return follow.steps(step_s).ranks(window_s, rank_by, ranked, to_s=end_s)

    def series(self, name: str, *, step_s: int = 10, to_s: int | None = None) -> HostSeries:
        """One host's figures in even steps; only complete ones."""
        with self._read() as follow:
            steps, row = follow.steps(step_s), self._row_of(name)
            over = steps.over(self._seen_until(to_s))
            counts, histograms = steps.counts(row, over), steps.histograms(row, over)
            found = tuple(figures(counts, histograms, step_s))
            return HostSeries(name=name, times=steps.times(over), figures=found)

    def sparkline(
        self, name: str, *, points: int = 30, step_s: int = 10, at_s: int | None = None
    ) -> list[float]:
        """One host's RPS in its last steps."""
        with self._read() as follow:
            steps, row = follow.steps(step_s), self._row_of(name)
            counts = steps.counts(row, steps.over(self._seen_until(at_s))[-points:])
            rates: list[float] = (counts[:, COUNTS.index("ok")] / step_s).tolist()
            return rates

    def heat(self, name: str, *, step_s: int = 10, to_s: int | None = None) -> Heat:
        """How many of one host's answers took how long, in even steps; only complete ones."""
        with self._read() as follow:
            steps, row = follow.steps(step_s), self._row_of(name)
            over = steps.over(self._seen_until(to_s))
            return heat(name, step_s, steps.times(over), steps.histograms(row, over)[:, E2E])

    def density(
        self,
        name: str,
        *,
        window_s: int = WINDOW_S,
        at_s: int | None = None,
        skip_limited: bool = False,
    ) -> Density:
        """How one host's E2E spread over a window."""
        with self._read() as follow:
            row, to_s = self._row_of(name), self._seen_until(at_s)
            totals = follow.totals(window_s, to_s)
            if skip_limited:
                totals = self._without(follow.limited(to_s - window_s + 1, to_s), totals)
            return density(name, totals.histograms[row, E2E])

    def error_kinds(
        self,
        name: str,
        *,
        window_s: int = WINDOW_S,
        at_s: int | None = None,
        skip_limited: bool = False,
    ) -> dict[str, int]:
        """How often one host's requests failed in which way, the most frequent first."""
        with self._read() as follow:
            to_s = self._seen_until(at_s)
            from_s = to_s - window_s + 1
            found = follow.reader.tallies(
                self.run.id, name=name, kind="ranked", from_s=from_s, to_s=to_s
            )
            left_out = set(follow.limited(from_s, to_s)) if skip_limited else ()
            kinds: Counter[str] = Counter()
            for tally in found:
                for each in () if tally.at_s in left_out else tally.error_kinds:
                    kinds[each.kind] += each.count
            return dict(kinds.most_common())

    def _row_of(self, name: str) -> int:
        names = [host.name for host in self._follow.hosts.values()]
        if name not in names:
            known = ", ".join(names) or "none"
            raise ToolkitError(f"`{name}` is no host of run `{self.run.id}`", f"Its hosts: {known}")
        return names.index(name)

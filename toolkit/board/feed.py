"""What every view of a blast reads: standings, ranks over time, series, densities, events. Threads may share one.

What may be seen is decided here once, for all views: nothing after a freeze, unless `everything` was asked for. The
following, and all that is read, is follow.py's.

Whatever the reader raises is the caller's to show; nothing is half applied then, and the next refresh goes on. A Feed is
of one file: a caller whose file was replaced opens it anew and makes another Feed.

CPU, 20 hosts of 1,000 requests a second, two busy cores (tests/benchmarks/bench_board.py): a window of 15 minutes from
nothing 90 to 110 ms, the whole board 2 s later 2.5 to 4.5 ms, all ranks of 21 minutes 0.25 s and 35 ms for another
figure. Every 10 s verdicts are judged anew: 0.15 s with 200 canaries a host. Kept for what is drawn over time: 1.1 MB a
host and hour in steps of 10 s.
"""

import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace

from toolkit.board.follow import Follow, keep
from toolkit.board.history import Density, Heat, HostSeries, Ranks, Steps, all_figures, density
from toolkit.board.judging import AGO_S, Judging, Verdicts
from toolkit.board.outages import Outage, RunSeconds, course, outages
from toolkit.board.ranking import places, scores
from toolkit.board.standings import (
    WINDOW_S,
    AffectedInterval,
    Board,
    RankBy,
    Standing,
    frozen_at_s,
    reasons,
)
from toolkit.board.window import E2E, TTFT, Totals
from toolkit.errors import ToolkitError
from toolkit.records import Event, Host, Run
from toolkit.store import Store

KEPT_BOARDS = 64


class Feed:
    """One run, followed; every answer is of what the last refresh has seen."""

    def __init__(self, reader: Store, run: Run, *, everything: bool = False) -> None:
        """Read nothing yet: the first refresh, or the first question, does."""
        self._follow = Follow(reader, run)
        self._judging = Judging(self._follow)
        self._everything = everything
        self._lock = threading.RLock()
        self._boards: dict[tuple[object, ...], Board] = {}

    def refresh(self) -> bool:
        """Read what is new; tell whether anything was. Raises ToolkitError, and keeps what it knew."""
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

    def _limit_s(self) -> int | None:
        return None if self._everything else self.frozen_at_s

    def events(self) -> list[Event]:
        """What happened and may be seen, by time: as noted, and the restarts and changes that scout saw."""
        with self._read():
            limit_s = self._limit_s()
            to_at = float("inf") if limit_s is None else float(limit_s + 1)
            return self._judging.happened(float("-inf"), to_at)

    def outages(self, name: str) -> tuple[RunSeconds, list[Outage]]:
        """A host's seconds, from the run's first to the last that may be seen, and when it was down in them."""
        start_s, end_s = self.start_s, self.end_s
        if end_s is None:
            return RunSeconds(first_s=start_s, ok=(), errors=()), []
        parts = self._follow.reader.tallies(self.run.id, name=name, kind="ranked", to_s=end_s)
        told = course(parts, from_s=start_s, to_s=end_s + 1)
        known = [each.at for each in self.events() if (each.kind, each.name) == ("restart", name)]
        return told, outages(told, restarts=known)

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
        told = self._judging.verdicts(window_s, start_s - 1 if at_s is None else at_s)
        rows = self._ranked_rows(told, honest=honest)

        windows = [Totals(list(follow.hosts))]
        elapsed_s = 0
        limited: list[int] = []
        affected: Sequence[tuple[AffectedInterval, ...]] = [() for _ in hosts]
        if at_s is not None:
            affected = self._judging.affected_intervals(window_s, at_s)
            elapsed_s = min(window_s, at_s - start_s + 1)
            limited = follow.limited(at_s - elapsed_s + 1, at_s)
            windows = follow.windows(window_s, at_s, agos_s)
        counted_s = elapsed_s
        if skip_limited and limited:
            counted_s -= len(limited)
            windows[0], gone = windows[0].copy(), set(limited)
            found = follow.parts(min(gone), max(gone))
            windows[0].drop([part for part in found if part.at_s in gone])

        seen = all_figures(windows[0], counted_s)
        score = dict(zip(rows, scores([seen[row] for row in rows]), strict=True))
        # by row: where it stands now, a minute ago and five minutes ago
        figures = [seen]
        for ago_s, totals in zip(agos_s[1:], windows[1:], strict=True):
            lived_s = min(window_s, (at_s or 0) - ago_s - start_s + 1)
            figures.append(all_figures(totals, lived_s))
        placed = [
            dict(zip(rows, places([each[row] for row in rows], rank_by), strict=True))
            for each in figures
        ]

        standings = []
        for row, host in enumerate(hosts):
            now, own = placed[0].get(row), seen[row]
            changes = [then[row].rank - now.rank if now else None for then in placed[1:]]
            changes += [None] * (len(AGO_S) - len(changes))
            standing = Standing(
                rank=now.rank if now else None,
                name=host.name,
                url=host.url,
                score=score.get(row),
                rps=own.rps,
                output_tokens_per_s=own.output_tokens_per_s,
                ttft_p50_ms=own.ttft_p50_ms,
                ttft_p95_ms=own.ttft_p95_ms,
                p50_ms=own.p50_ms,
                p95_ms=own.p95_ms,
                error_rate=own.error_rate,
                ok=own.ok,
                errors=own.errors,
                streamed=own.streamed,
                hit_share=own.hit_share,
                hit_share_inferred=own.cache_judged > 0,
                output_tokens_estimated=own.output_tokens_estimated > 0,
                tied=now.tied if now else False,
                rank_change=changes[0],
                rank_change_5m=changes[1],
                verdicts=tuple(told.get(host.name, ())),
                left_out=now is None,
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

    def _ranked_rows(self, told: Verdicts, *, honest: bool) -> list[int]:
        return [
            row
            for row, host in enumerate(self._follow.hosts.values())
            if not (honest and reasons(told.get(host.name, ())))
        ]

    # --- over time --------------------------------------------------------------------------------

    def ranks(
        self,
        *,
        window_s: int = WINDOW_S,
        rank_by: RankBy = "rps",
        honest: bool = False,
        step_s: int = 10,
    ) -> Ranks:
        """Every host's rank at the end of every step, for the bump chart.

        The honest one lacks those who are left out now, all the way: nobody enters or leaves in the middle.
        """
        with self._read() as follow:
            end_s = self._seen_until(None)
            rows = self._ranked_rows(self._judging.verdicts(window_s, end_s), honest=honest)
            names = [host.name for host in follow.hosts.values()]
            return follow.steps(step_s).ranks(
                window_s=window_s,
                rank_by=rank_by,
                rows=rows,
                names=[names[row] for row in rows],
                end_s=end_s,
            )

    def series(
        self, name: str, *, step_s: int = 10, from_s: int | None = None, to_s: int | None = None
    ) -> HostSeries:
        """One host's figures in even steps; only complete ones."""
        with self._read() as follow:
            steps = follow.steps(step_s)
            first, after = self._steps_between(steps, from_s, to_s)
            return steps.series(self._row_of(name), name, first=first, after=after)

    def sparkline(
        self, name: str, *, points: int = 30, step_s: int = 10, at_s: int | None = None
    ) -> list[float]:
        """One host's RPS in its last steps."""
        with self._read() as follow:
            steps = follow.steps(step_s)
            _, after = self._steps_between(steps, None, at_s)
            return steps.rates(self._row_of(name), first=max(0, after - points), after=after)

    def heat(
        self, name: str, *, step_s: int = 10, from_s: int | None = None, to_s: int | None = None
    ) -> Heat:
        """How many of one host's answers took how long, in even steps; only complete ones."""
        with self._read() as follow:
            steps = follow.steps(step_s)
            first, after = self._steps_between(steps, from_s, to_s)
            return steps.heat(self._row_of(name), name, first=first, after=after)

    def density(
        self, name: str, *, window_s: int = WINDOW_S, at_s: int | None = None, metric: str = "e2e"
    ) -> Density:
        """How one host's latencies (`e2e` or `ttft`) spread over a window."""
        with self._read() as follow:
            row = self._row_of(name)
            totals = follow.totals(window_s, self._seen_until(at_s))
            return density(name, metric, totals.histograms[row, TTFT if metric == "ttft" else E2E])

    def error_kinds(
        self, name: str, *, window_s: int = WINDOW_S, at_s: int | None = None
    ) -> dict[str, int]:
        """How often one host's requests failed in which way, the most frequent first."""
        with self._read() as follow:
            to_s = self._seen_until(at_s)
            found = follow.reader.tallies(
                self.run.id, name=name, kind="ranked", from_s=to_s - window_s + 1, to_s=to_s
            )
            kinds: Counter[str] = Counter()
            for tally in found:
                for each in tally.error_kinds:
                    kinds[each.kind] += each.count
            return dict(kinds.most_common())

    def _seen_until(self, at_s: int | None) -> int:
        """The last second that may be seen, or an earlier one; the one before the start while there is none."""
        end_s = self.end_s
        if end_s is None:
            end_s = self.start_s - 1
        return end_s if at_s is None else min(at_s, end_s)

    def _steps_between(self, steps: Steps, from_s: int | None, to_s: int | None) -> tuple[int, int]:
        after = steps.complete(self._seen_until(to_s))
        first = 0 if from_s is None else max(0, (from_s - self._follow.start_s) // steps.step_s)
        return min(first, after), after

    def _row_of(self, name: str) -> int:
        names = [host.name for host in self._follow.hosts.values()]
        if name not in names:
            known = ", ".join(names) or "none"
            raise ToolkitError(f"`{name}` is no host of run `{self.run.id}`", f"Its hosts: {known}")
        return names.index(name)

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
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from toolkit.board.follow import Follow, keep
from toolkit.board.freeze import frozen_at_s
from toolkit.board.history import Density, Heat, HostSeries, Ranks, Steps, all_figures, density
from toolkit.board.judging import AGO_S, Judging, Verdicts
from toolkit.board.outages import Outage, RunSeconds, course, outages
from toolkit.board.ranking import Figures, RankPlace, places, scores
from toolkit.board.standings import WINDOW_S, AffectedInterval, Board, RankBy, Standing, reasons
from toolkit.board.window import E2E, TTFT, Totals
from toolkit.errors import ToolkitError
from toolkit.records import Event, Host, Run
from toolkit.store import Store

KEPT_BOARDS = 64


class _Asked(NamedTuple):
    window_s: int
    at_s: int | None
    rank_by: RankBy
    honest: bool
    skip_limited: bool


class Feed:
    """One run, followed; every answer is of what the last refresh has seen."""

    def __init__(self, reader: Store, run: Run, *, everything: bool = False) -> None:
        """Read nothing yet: the first refresh, or the first question, does."""
        self._follow = Follow(reader, run)
        self._judging = Judging(self._follow)
        self._everything = everything
        self._lock = threading.RLock()
        self._boards: dict[_Asked, Board] = {}

    def refresh(self) -> bool:
        """Read what is new; tell whether anything was. Raises ToolkitError, and keeps what it knew."""
        with self._lock:
            is_new = self._follow.refresh()
            if is_new:
                self._boards.clear()
            return is_new

    def _ensure(self) -> None:
        if self._follow.is_fresh:
            self._follow.refresh()

    # --- what is visible --------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """As last read: its end may have been written since."""
        return self._follow.run

    @property
    def hosts(self) -> tuple[Host, ...]:
        """All hosts of the run, also those that never answered."""
        with self._lock:
            self._ensure()
            return tuple(self._hosts())

    @property
    def start_s(self) -> int:
        """The run's first second."""
        return self._follow.start_s

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
            return frozen_at_s(self._follow.events)

    def events(self) -> list[Event]:
        """What happened and may be seen, by time: as noted, and the restarts and changes that scout saw."""
        with self._lock:
            self._ensure()
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

    def _hosts(self) -> list[Host]:
        return list(self._follow.hosts.values())

    def _limit_s(self) -> int | None:
        return None if self._everything else frozen_at_s(self._follow.events)

    def _end_s(self) -> int | None:
        found, limit_s = self._follow.end_s(), self._limit_s()
        if found is not None and limit_s is not None:
            found = min(found, limit_s)
        return None if found is None or found < self.start_s else found

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
            asked = _Asked(window_s, at_s, rank_by, honest, skip_limited)
            board = self._boards.pop(asked, None)
            if board is None:
                board = self._board(asked)
            keep(self._boards, asked, board, KEPT_BOARDS)
            return board

    def _board(self, asked: _Asked) -> Board:
        at_s, window_s = asked.at_s, asked.window_s
        if at_s is not None:
            agos_s = [ago_s for ago_s in (0, *AGO_S) if at_s - ago_s >= self.start_s]
            self._follow.windows(window_s, at_s, agos_s)
        told = self._judging.verdicts(window_s, self.start_s - 1 if at_s is None else at_s)
        rows = self._ranked_rows(told, honest=asked.honest)
        limited = [] if at_s is None else self._follow.limited(self._from_s(at_s, window_s), at_s)
        skipped = limited if asked.skip_limited else []
        elapsed_s = 0 if at_s is None else at_s - self._from_s(at_s, window_s) + 1
        seen = self._figures(asked, elapsed_s - len(skipped), skipped)
        standings = self._standings(asked, seen, rows, told)
        return Board(
            run=self.run.id,
            at_s=at_s,
            window_s=window_s,
            elapsed_s=elapsed_s,
            counted_s=elapsed_s - len(skipped),
            rank_by=asked.rank_by,
            honest=asked.honest,
            skip_limited=asked.skip_limited,
            standings=tuple(sorted((s for s in standings if not s.left_out), key=_order)),
            left_out=tuple(each for each in standings if each.left_out),
            limited_s=len(limited),
            frozen_at_s=frozen_at_s(self._follow.events),
            ended=self.run.ended_at is not None,
            data_end_s=self._end_s(),
        )

    def _from_s(self, at_s: int, window_s: int) -> int:
        """The first second of a window that the run has lived through."""
        return max(self.start_s, at_s - window_s + 1)

    def _ranked_rows(self, told: Verdicts, *, honest: bool) -> list[int]:
        return [
            row
            for row, host in enumerate(self._hosts())
            if not (honest and reasons(told.get(host.name, ())))
        ]

    def _figures(self, asked: _Asked, counted_s: int, skipped: Sequence[int]) -> list[Figures]:
        if asked.at_s is None:
            return all_figures(Totals(list(self._follow.hosts)), 0)
        totals = self._follow.totals(asked.window_s, asked.at_s)
        if skipped:
            totals, gone = totals.copy(), set(skipped)
            found = self._follow.parts(min(gone), max(gone))
            totals.drop([part for part in found if part.at_s in gone])
        return all_figures(totals, counted_s)

    def _standings(
        self, asked: _Asked, seen: Sequence[Figures], rows: Sequence[int], told: Verdicts
    ) -> list[Standing]:
        """Everybody's, in the order of the plan."""
        now = dict(zip(rows, places([seen[row] for row in rows], asked.rank_by), strict=True))
        score = dict(zip(rows, scores([seen[row] for row in rows]), strict=True))
        before = [self._places_before(asked, ago_s, rows) for ago_s in AGO_S]
        at = self.start_s if asked.at_s is None else asked.at_s
        tainted: list[tuple[AffectedInterval, ...]] = [() for _ in seen]
        if asked.at_s is not None:
            tainted = self._judging.affected_intervals(asked.window_s, asked.at_s)
        return [
            _standing(
                host,
                seen[row],
                now.get(row),
                [each.get(row) for each in before],
                score=score.get(row),
                verdicts=told.get(host.name, ()),
                tainted_s=sum(each.in_window_s for each in tainted[row]) or None,
                taints=tainted[row],
                window_s=asked.window_s,
                at=at,
            )
            for row, host in enumerate(self._hosts())
        ]

    def _places_before(
        self, asked: _Asked, ago_s: int, rows: Sequence[int]
    ) -> dict[int, RankPlace]:
        """Where the same hosts stood some time ago; empty if the run was not on yet."""
        if asked.at_s is None or asked.at_s - ago_s < self.start_s:
            return {}
        then_s = asked.at_s - ago_s
        counted_s = then_s - self._from_s(then_s, asked.window_s) + 1
        seen = all_figures(self._follow.windows(asked.window_s, asked.at_s, [ago_s])[0], counted_s)
        return dict(zip(rows, places([seen[row] for row in rows], asked.rank_by), strict=True))

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
        with self._lock:
            self._ensure()
            end_s = self._last_seen_s()
            rows = self._ranked_rows(self._judging.verdicts(window_s, end_s), honest=honest)
            names = [host.name for host in self._hosts()]
            return self._follow.steps(step_s).ranks(
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
        with self._lock:
            self._ensure()
            steps = self._follow.steps(step_s)
            first, after = self._steps_between(steps, from_s, to_s)
            return steps.series(self._row_of(name), name, first=first, after=after)

    def sparkline(
        self, name: str, *, points: int = 30, step_s: int = 10, at_s: int | None = None
    ) -> list[float]:
        """One host's RPS in its last steps."""
        with self._lock:
            self._ensure()
            steps = self._follow.steps(step_s)
            _, after = self._steps_between(steps, None, at_s)
            return steps.rates(self._row_of(name), first=max(0, after - points), after=after)

    def heat(
        self, name: str, *, step_s: int = 10, from_s: int | None = None, to_s: int | None = None
    ) -> Heat:
        """How many of one host's answers took how long, in even steps; only complete ones."""
        with self._lock:
            self._ensure()
            steps = self._follow.steps(step_s)
            first, after = self._steps_between(steps, from_s, to_s)
            return steps.heat(self._row_of(name), name, first=first, after=after)

    def density(
        self, name: str, *, window_s: int = WINDOW_S, at_s: int | None = None, metric: str = "e2e"
    ) -> Density:
        """How one host's latencies (`e2e` or `ttft`) spread over a window."""
        with self._lock:
            self._ensure()
            row = self._row_of(name)
            totals = self._follow.totals(window_s, self._seen_until(at_s))
            return density(name, metric, totals.histograms[row, TTFT if metric == "ttft" else E2E])

    def error_kinds(
        self, name: str, *, window_s: int = WINDOW_S, at_s: int | None = None
    ) -> dict[str, int]:
        """How often one host's requests failed in which way, the most frequent first."""
        with self._lock:
            self._ensure()
            to_s = self._seen_until(at_s)
            found = self._follow.reader.tallies(
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
        return self._follow.start_s - 1 if end_s is None else end_s

    def _seen_until(self, at_s: int | None) -> int:
        end_s = self._last_seen_s()
        return end_s if at_s is None else min(at_s, end_s)

    def _steps_between(self, steps: Steps, from_s: int | None, to_s: int | None) -> tuple[int, int]:
        after = steps.complete(self._seen_until(to_s))
        first = 0 if from_s is None else max(0, (from_s - self._follow.start_s) // steps.step_s)
        return min(first, after), after

    def _row_of(self, name: str) -> int:
        for row, host in enumerate(self._hosts()):
            if host.name == name:
                return row
        known = ", ".join(host.name for host in self._hosts()) or "none"
        raise ToolkitError(f"`{name}` is no host of run `{self.run.id}`", f"Its hosts: {known}")


def _standing(
    host: Host,
    seen: Figures,
    now: RankPlace | None,
    before: Sequence[RankPlace | None],
    **told: Any,
) -> Standing:
    """What the figures say, beside what is told; without a place it is left out."""
    changes = [then.rank - now.rank if then and now else None for then in before]
    standing = Standing(
        rank=now.rank if now else None,
        name=host.name,
        url=host.url,
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
        tied=now.tied if now else False,
        rank_change=changes[0],
        rank_change_5m=changes[1],
        left_out=now is None,
        **told,
    )
    if standing.trouble:
        # its answers may well be, but who fails is not clean
        kept = tuple(each for each in standing.verdicts if each.code != "clean")
        standing = replace(standing, verdicts=kept)
    return standing


def _order(standing: Standing) -> tuple[int, str]:
    """By rank; tied hosts by name, as nothing else in the window tells them apart."""
    return standing.rank or 0, standing.name

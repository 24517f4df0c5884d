"""What one viewer sees at one moment: settings and feed in, the HTML of each part of the page out.

All viewers with the same settings get the same bytes, built once. It draws with the other modules here, ranks nothing,
and lets ToolkitError through when a part was never built and the database is in trouble.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from leaderboard_page.address import Address
from leaderboard_page.badges import evidence
from leaderboard_page.colours import looks, solid
from leaderboard_page.host_charts import density_chart, heat_strip, series_chart
from leaderboard_page.rank_chart import rank_chart
from leaderboard_page.reveal import covered_places, frozen_before
from leaderboard_page.sections import (
    bench_results,
    differences,
    host_facts,
    method,
    workload,
)
from leaderboard_page.source import DatabaseSource, ReadResult
from leaderboard_page.standings_table import table
from leaderboard_page.strip import StripState, kpis, planned_s, setting, strip
from leaderboard_page.tradeoff_chart import tradeoff_chart
from toolkit.bench.summary import HostSummary, summary
from toolkit.board.feed import Feed
from toolkit.board.history import Ranks
from toolkit.board.standings import WINDOW_S, Board, Standing
from toolkit.records import Event, RequestRecord, Run, Sighting
from toolkit.report.charts import LineStyle
from toolkit.report.html import Markup, tag

SLOW_S = 5.0
"""A part that is redrawn every 10 s may be half as old for the viewer who comes next."""
SPARK_POINTS = 30
SIGHTED_BEFORE_S = 3600
"""Looks in the hour before a blast tell its hosts' settings, too."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One viewer's settings, held against one look at the database."""

    source: DatabaseSource
    look: ReadResult
    feed: Feed
    address: Address
    now: float
    """Wall clock of the serving machine."""

    # --- what is looked at ------------------------------------------------------------------------

    @property
    def run(self) -> Run:
        """The run that is shown."""
        return self.feed.run

    @cached_property
    def window_s(self) -> int:
        """The window: the viewer's, else the run's own, else 15 minutes."""
        return self.address.window_s or usual_window_s(self.run)

    @cached_property
    def board(self) -> Board:
        """The standings that every part shows; during a reveal none later than the freeze."""
        at_s, frozen_s = self.address.t, self._veiled_after_s
        if frozen_s is not None:
            at_s = frozen_s if at_s is None else min(at_s, frozen_s)
        return self._board(at_s)

    def _board(self, at_s: int | None) -> Board:
        return self.feed.board(
            window_s=self.window_s,
            at_s=at_s,
            rank_by=self.address.rank,
            honest=self.address.honest,
        )

    @cached_property
    def _events(self) -> list[Event]:
        return self.feed.events()

    @cached_property
    def _still_covered(self) -> range:
        """The places that a reveal under way has not come to."""
        told = frozen_before(self._events)
        if told is None:
            return range(0)
        return covered_places(told[1], self.now, len(self._board(None).standings))

    @cached_property
    def _veiled_after_s(self) -> int | None:
        """The second of the freeze, while a reveal is under way: only uncovered rows show what came after it."""
        told = frozen_before(self._events) if self._still_covered else None
        return None if told is None else told[0]

    @property
    def covered(self) -> range:
        """The table's covered places; a past moment has none, as it lies before the freeze."""
        return self._still_covered if self.address.t is None else range(0)

    @cached_property
    def looks(self) -> dict[str, LineStyle]:
        """Each host's colour and stroke."""
        return dict(looks(host.name for host in self.feed.hosts))

    @cached_property
    def step_s(self) -> int:
        """The step of everything drawn over time: finer for a short blast, and the same all through it."""
        end_s = self.feed.end_s or self.feed.start_s
        length_s = max(planned_s(self.run) or 0.0, end_s - self.feed.start_s)
        return 2 if length_s <= 300 else 5 if length_s <= 1800 else 10

    @cached_property
    def events(self) -> list[Event]:
        """What had happened by the moment that is looked at."""
        at_s = self.board.at_s
        hidden = set() if self._veiled_after_s is None else {"reveal"}
        return [
            event
            for event in self._events
            if (at_s is None or event.at < at_s + 1) and event.kind not in hidden
        ]

    def _once(self, part: str, build: Callable[[], bytes], *, keep_s: float = 0.0) -> bytes:
        address = self.address
        key = (
            part,
            self.run.id,
            self.window_s,
            address.rank,
            address.honest,
            address.t,
            address.rows,
            address.kiosk,
            address.host if part == "host" else None,
            address.compare if part == "compare" else None,
            len(self._still_covered),
            # a freeze hides at once what was drawn before it
            self.board.frozen_at_s,
        )
        return self.source.once(key, self.look.version, build, keep_s=keep_s)

    # --- the parts --------------------------------------------------------------------------------

    def fast(self, viewers: int) -> bytes:
        """Strip, figures and leaderboard; in a kiosk the rank chart beside it."""
        moment = StripState(
            run=self.run,
            now=self.now,
            events=self.events,
            viewers=viewers,
            replayed=self.address.t is not None,
            trouble=self.look.trouble,
            revealing=bool(self.covered),
            titled=self.address.kiosk,
        )
        return b"".join(
            (
                _bytes(strip(self.board, moment)),
                self._once("kiosk" if self.address.kiosk else "board", self._board_part),
            )
        )

    def _board_part(self) -> bytes:
        # under a reveal the uncovered rows are the end's, and no row is of a replay into the veiled time
        board = self._board(None) if self.covered else self.board
        cards = kpis(board, covered=bool(self.covered))
        stands_still = board.ended or board.frozen_at_s is not None or self.address.t is not None
        if board.at_s is not None and not stands_still and not self.covered:
            followed = (self.run.id, self.window_s, self.address.rank, self.address.honest)
            by_name = {one.name: one for one in board.standings}
            ranks = {one.name: one.rank or 0 for one in board.standings}
            order = self.source.rows(followed, board.at_s, ranks)
            board = replace(board, standings=tuple(by_name[name] for name in order))
        points = max(2, min(SPARK_POINTS, self.window_s // self.step_s))
        lines = {
            one.name: self.feed.sparkline(
                one.name, points=points, step_s=self.step_s, at_s=board.at_s
            )
            for one in board.standings[: self.address.rows]
        }
        standings = table(
            board,
            looks=self.looks,
            sparklines=lines,
            rows=self.address.rows,
            covered=self.covered,
        )
        more = len(board.standings) - self.address.rows
        below = tag("p", f"and {more} more", class_="nothing") if more > 0 else None
        if self.address.kiosk:
            both = tag("div", self._rank_chart("Rank over time"), standings, class_="side-by-side")
            rows = max(1, min(len(board.standings), self.address.rows))
            parts = (cards, both)
            return _bytes(tag("div", parts, class_="kiosk", style=f"--rows:{rows}"))
        shown = [
            one
            for place, one in enumerate((*board.standings[: self.address.rows], *board.left_out), 1)
            if place not in self.covered
        ]
        return _bytes(Markup.joined((cards, standings, below, evidence(shown))))

    def slow(self) -> bytes:
        """Ranks over time, and the trade-off."""
        return self._once("slow", self._slow_part, keep_s=SLOW_S)

    def _slow_part(self) -> bytes:
        shown = self.board.standings[: self.address.rows]
        trade = tradeoff_chart(shown, looks=self.looks)
        return _bytes(tag("div", self._rank_chart("Rank over time"), trade, class_="pair"))

    def _rank_chart(self, title: str) -> Markup:
        ranks = until(
            self.feed.ranks(
                window_s=self.window_s,
                rank_by=self.address.rank,
                honest=self.address.honest,
                step_s=self.step_s,
            ),
            self.board.at_s,
        )
        names = [one.name for one in self.board.standings[: self.address.rows]]
        return rank_chart(ranks, self.events, names=names, looks=self.looks, title=title)

    def compare(self) -> bytes:
        """A few hosts side by side."""
        return self._once("compare", self._compare_part, keep_s=SLOW_S)

    def _compare_part(self) -> bytes:
        chosen = self._chosen(self.address.compare)
        if not chosen:
            return b""
        names = [one.name for one in chosen]
        drawn = solid(self.looks, names)
        densities = [
            self.feed.density(name, window_s=self.window_s, at_s=self.board.at_s) for name in names
        ]
        series = [
            self.feed.series(name, step_s=self.step_s, to_s=self.board.at_s) for name in names
        ]
        charts = [
            density_chart(densities, looks=drawn, key="densities"),
            series_chart(series, metric="rps", title="Requests/s", looks=drawn),
            series_chart(series, metric="p95_ms", title="Latency p95", looks=drawn),
        ]
        return _bytes(
            Markup.joined((tag("div", charts, class_="triple"), differences(chosen, self.looks)))
        )

    def host(self) -> bytes:
        """One host in full."""
        return self._once("host", self._host_part, keep_s=SLOW_S)

    def _host_part(self) -> bytes:
        chosen = self._chosen((self.address.host or "",))
        if not chosen:
            return b""
        (one,) = chosen
        at_s = self.board.at_s
        heat = self.feed.heat(one.name, step_s=self.step_s, to_s=at_s)
        density = self.feed.density(one.name, window_s=self.window_s, at_s=at_s)
        facts = host_facts(
            one,
            kinds=self.feed.error_kinds(one.name, window_s=self.window_s, at_s=at_s),
            sightings=self._sightings(one.name),
            events=self.events,
        )
        charts = (
            heat_strip(heat),
            density_chart([density], looks=solid(self.looks, [one.name]), key="density"),
        )
        return _bytes(Markup.joined((tag("div", charts, class_="pair"), facts)))

    def _sightings(self, name: str) -> Sequence[Sighting]:
        """Scout's looks at a host, none later than what may be seen."""
        store, at_s = self.source.store, self.board.at_s
        if store is None or at_s is None:
            return ()
        begin = self.feed.start_s - SIGHTED_BEFORE_S
        return store.sightings_between(begin, at_s + 1, names=[name])

    def _chosen(self, names: Sequence[str]) -> list[Standing]:
        """The standings of hosts by name; who is not in this run is left out."""
        known = {one.name: one for one in (*self.board.standings, *self.board.left_out)}
        return [known[name] for name in names if name in known]

    def rest(self) -> bytes:
        """The bench's word, the workload, the method."""
        return self._once("rest", self._rest_part, keep_s=SLOW_S)

    def _rest_part(self) -> bytes:
        run, summaries = self._bench()
        pair = tag(
            "div",
            bench_results(run, summaries, self.board, self.looks),
            workload(self.board, told_setting(self.run, "profile"), self._capture()),
            class_="pair",
        )
        return _bytes(Markup.joined((pair, method(self.board))))

    def _begun(self, verb: str) -> list[Run]:
        """Runs of another verb that had begun by the moment looked at, the newest first."""
        store, at_s = self.source.store, self.board.at_s
        limit = self.now if at_s is None or self.address.t is None else at_s
        if self._is_veiled:
            limit = min(limit, at_s or limit)
        found = [] if store is None else store.runs(verb=verb, limit=10)
        return [one for one in found if one.started_at <= limit]

    @property
    def _is_veiled(self) -> bool:
        return self.board.frozen_at_s is not None or self._veiled_after_s is not None

    def _capture(self) -> Mapping[str, Any] | None:
        """What the newest capture says of itself; behind a freeze only one that saw nothing later."""
        store = self.source.store
        for run in self._begun("capture"):
            told = None if store is None else store.capture(run.id)
            if told and not (self._is_veiled and (told.get("to_ts") or 0) > (self.board.at_s or 0)):
                return told
        return None

    def _bench(self) -> tuple[Run | None, list[HostSummary]]:
        """The newest bench that had begun by the moment looked at, host by host."""
        store = self.source.store
        run = next(iter(self._begun("bench")), None)
        if store is None or run is None:
            return None, []
        key = ("bench", run.id)
        told = self.source.once(key, run.ended_at, lambda: _summaries(store.shots(run.id), run))
        return run, told


def _summaries(shots: Sequence[RequestRecord], run: Run) -> list[HostSummary]:
    by_host: dict[tuple[str, str], list[RequestRecord]] = {}
    for shot in shots:
        by_host.setdefault((shot.name, shot.url), []).append(shot)
    return [
        summary(of_host, name=name, url=url, run=run.id) for (name, url), of_host in by_host.items()
    ]


def until(ranks: Ranks, at_s: int | None) -> Ranks:
    """Ranks up to a moment."""
    if at_s is None:
        return ranks
    count = sum(at <= at_s for at in ranks.times)
    return Ranks(
        times=ranks.times[:count],
        ranks={name: of_host[:count] for name, of_host in ranks.ranks.items()},
    )


def told_setting(run: Run, name: str) -> str | None:
    """One of a run's settings as text; None: it does not tell."""
    value = setting(run, name)
    return None if value is None else str(value)


def usual_window_s(run: Run) -> int:
    """The window a run asks to be ranked by (`window_s` of its settings), else 15 minutes."""
    told = told_setting(run, "window_s") or ""
    return int(told) if told.isdecimal() and int(told) > 0 else WINDOW_S


def _bytes(html: Markup) -> bytes:
    """For the wire; a lone surrogate of a host's is no reason to show nothing."""
    return html.encode("utf-8", "replace")


def scene_of(source: DatabaseSource, address: Address, now: float) -> Scene | str | None:
    """What can be shown: a scene, else a sentence why not, else nothing at all yet."""
    look = source.look(address.run)
    if look.feed is None:
        return look.trouble
    return Scene(source=source, look=look, feed=look.feed, address=address, now=now)

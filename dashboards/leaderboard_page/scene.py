"""What one viewer sees at one moment: settings and feed in, the HTML of each part of the page out.

All viewers with the same settings get the same bytes, built once. It draws with the other modules here, ranks nothing,
and lets ToolkitError through when a part was never built and the database is in trouble. A *freeze* holds the standings
still until a *reveal* uncovers their rows, the last first (toolkit/board/reveal.py), and ends with who won.
"""

import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from math import floor

from leaderboard_page.address import Address, with_view
from leaderboard_page.badges import evidence
from leaderboard_page.charts import (
    density_chart,
    heat_strip,
    line_styles,
    rank_chart,
    series_chart,
    solid,
    tradeoff_chart,
)
from leaderboard_page.finale import CATEGORIES, finale
from leaderboard_page.hosts_view import newest_bench, newest_capture
from leaderboard_page.provenance import provenance
from leaderboard_page.sections import (
    bench_results,
    differences,
    host_panel,
    method,
    panel,
    story,
    workload,
)
from leaderboard_page.source import DatabaseSource, ReadResult
from leaderboard_page.standings_table import table
from leaderboard_page.strip import kpis, planned_s, strip, title
from toolkit.bench.evidence import over_at
from toolkit.bench.summary import HostSummary, summary
from toolkit.board.feed import Feed
from toolkit.board.history import Ranks
from toolkit.board.ranking import may_lead
from toolkit.board.reveal import Reveal
from toolkit.board.standings import Board, Standing, reasons, usual_window_s
from toolkit.records import Event, RequestRecord, Run, Sighting
from toolkit.report.charts import LineStyle
from toolkit.report.html import Markup, tag
from toolkit.units import UNKNOWN

SLOW_S = 5.0
"""A part that is redrawn every 10 s may be half as old for the viewer who comes next."""
KINDS_S = 20.0
"""Of which kinds a host's errors are may be so old while a run goes on."""
REST_S = 30.0
"""Between two drawings of the bench, the workload and the method below the board."""
SPARK_POINTS = 30
TURN_S = 12.0
"""A television shows one page of the table so long: ten rows can be read, and two dozen hosts come by in half a minute."""
SIGHTED_BEFORE_S = 3600
"""Sightings of the hour before a blast show its hosts' settings, too."""


@dataclass(frozen=True, kw_only=True)
class Scene:
    """One viewer's settings, held against one reading of the database."""

    source: DatabaseSource
    read: ReadResult
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
        at_s = self.address.t
        if self.reveal is not None and self._still_covered:
            at_s = self.reveal.frozen_s if at_s is None else min(at_s, self.reveal.frozen_s)
        return self.feed.board(
            window_s=self.window_s,
            at_s=at_s,
            rank_by=self.address.rank,
            honest=self.address.honest,
            skip_limited=self.address.skip_limited,
        )

    @cached_property
    def reveal(self) -> Reveal | None:
        """The reveal that followed the last freeze, under way or over."""
        return self.feed.reveal()

    @cached_property
    def _still_covered(self) -> range:
        if self.reveal is None:
            return range(0)
        return self.reveal.covered(self.now, len(self.feed.revealed().standings))

    @cached_property
    def _public_until(self) -> float:
        return self.source.public_until(self.now, self.run.id)

    @property
    def covered(self) -> range:
        """The table's covered places; a past moment has none, as it lies before the freeze."""
        return self._still_covered if self.address.t is None else range(0)

    @property
    def shows_winner(self) -> bool:
        """Whether the cards name who won: a reveal has come to its end."""
        has_more = self._still_covered or self.address.t is not None
        return self.reveal is not None and not has_more

    @cached_property
    def pages(self) -> tuple[int, int]:
        """Which page of the table is shown, from 0, and of how many: they turn on a television, and go with a reveal."""
        shown = self.feed.revealed() if self.covered else self.board
        hosts = len(shown.standings) + (0 if self.covered else len(shown.left_out))
        count = max(1, -(-hosts // self.address.rows))
        if self.covered:
            # where the place stands that was uncovered last
            return min(len(self.covered), hosts - 1) // self.address.rows, count
        return (int(self.now / TURN_S) % count if self.address.kiosk else 0), count

    @cached_property
    def in_row_order(self) -> tuple[Standing, ...]:
        """The standings as the table shows them: while the run goes on, rows swap only when a better rank has lasted."""
        board = self.board
        stands_still = board.ended or board.frozen_at_s is not None or self.address.t is not None
        if board.at_s is None or stands_still or self.covered:
            return board.standings
        view = self.address
        followed = (self.run.id, self.window_s, view.rank, view.honest, view.skip_limited)
        by_name = {one.name: one for one in board.standings}
        ranks = {one.name: one.rank or 0 for one in board.standings}
        order = self.source.rows(followed, board.at_s, ranks)
        return tuple(by_name[name] for name in order)

    @cached_property
    def styles(self) -> Mapping[str, LineStyle]:
        """Each host's colour and stroke."""
        return line_styles(one.name for one in (*self.in_row_order, *self.board.left_out))

    @cached_property
    def down_since(self) -> dict[str, float]:
        """Since when hosts answer nothing; one that never answered is not in it."""
        found: dict[str, float] = {}
        for one in (*self.board.standings, *self.board.left_out):
            if one.taints and one.taints[-1].to_s is None:
                found[one.name] = one.taints[-1].from_s
            elif one.trouble == "down":  # for longer than the window knows
                rates = self.feed.sparkline(
                    one.name, points=sys.maxsize, step_s=self.step_s, at_s=self.board.at_s
                )
                answered = [step for step, rps in enumerate(rates) if rps]
                if answered:
                    found[one.name] = self.feed.start_s + (answered[-1] + 1) * self.step_s
        return found

    @cached_property
    def step_s(self) -> int:
        """The step of everything drawn over time: finer for a short blast, and the same all through it."""
        end_s = self.feed.end_s or self.feed.start_s
        length_s = max(planned_s(self.run) or 0.0, end_s - self.feed.start_s)
        return 2 if length_s <= 300 else 5 if length_s <= 1800 else 10

    @cached_property
    def events(self) -> list[Event]:
        """What had happened by the moment that is looked at; a reveal only once it is over."""
        at_s = self.board.at_s
        return [
            event
            for event in self.feed.events()
            if (at_s is None or event.at < at_s + 1)
            and not (self._still_covered and event.kind == "reveal")
        ]

    # --- the parts --------------------------------------------------------------------------------

    def fast(self, viewers: int, name: str) -> bytes:
        """Strip, figures and leaderboard; in a kiosk under the page's name, with the rank chart beside it."""
        head = strip(
            self.board,
            self.run,
            now=self.now,
            measured_s=self.feed.measured_s,
            events=self.events,
            viewers=viewers,
            replayed=self.address.t is not None,
            trouble=self.read.trouble,
            revealing=len(self.covered),
            heading=title(self.run, name) if self.address.kiosk else None,
        )
        return head.to_bytes() + self.part("board", keep_s=0.0)

    def part(self, name: str, *, keep_s: float = SLOW_S) -> bytes:
        """One part of the page, built once for all viewers with the same settings."""
        address = self.address
        key = (
            name,
            self.run.id,
            self.window_s,
            address.rank,
            address.honest,
            address.skip_limited,
            address.t,
            address.rows,
            address.kiosk,
            (address.host, address.event) if name == "panel" else None,
            address.compare if name in {"panel", "compare"} else None,
            len(self._still_covered),
            self.shows_winner,
            self.pages if name == "board" else None,
            # a freeze hides at once what was drawn before it
            self.board.frozen_at_s,
            self._public_until if name == "rest" else None,
        )
        markup = {
            "board": self._leaderboard,
            "slow": self._slow,
            "compare": self._compare,
            "panel": self._panel,
            "rest": self._rest,
        }[name]
        # a bench or a capture goes on while the run's own rows stay as they are
        version = (self.read.version, floor(self.now / REST_S) if name == "rest" else None)
        built = self.source.once(key, version, lambda: markup().to_bytes(), keep_s=keep_s)
        return with_view(built, address)

    def _leaderboard(self) -> Markup:
        """Provenance, cards, and the table of standings; in a kiosk the rank chart beside it."""
        # During a reveal the uncovered rows show the run's end, ranked as the organizer said: a viewer's own ranking would
        # uncover another host first, and with it what is still covered for others.
        board = self.feed.revealed() if self.covered else self.board
        if self.shows_winner:
            cards = finale(
                self.feed.revealed(),
                best_honest=self.feed.revealed(honest=True),
                categories={
                    rank_by: self.feed.revealed(rank_by, honest=False) for rank_by in CATEGORIES
                },
            )
        else:
            cards = kpis(board, covered=bool(self.covered))
        line = provenance(board, self.run, self.events, can_switch=not self.address.kiosk)
        above = (line, cards)

        if not self.covered:
            board = replace(board, standings=self.in_row_order)

        rows, (page, pages) = self.address.rows, self.pages
        first = page * rows
        shown = board.standings[first : first + rows]
        points = max(2, min(SPARK_POINTS, self.window_s // self.step_s))
        lines = {
            one.name: self.feed.sparkline(
                one.name, points=points, step_s=self.step_s, at_s=board.at_s
            )
            for one in shown
        }
        standings = table(
            board,
            styles=self.styles,
            sparklines=lines,
            rows=rows,
            first=first,
            pages=self.address.kiosk,
            covered=self.covered,
            down_since=self.down_since,
        )
        if self.address.kiosk:
            hosts = len(board.standings) + (0 if self.covered else len(board.left_out))
            turning = None
            if pages > 1:
                others = f"{hosts - min(rows, hosts - first)} more"
                turning = tag(
                    "p", tag("b", others), f" · page {page + 1} of {pages}", class_="turning"
                )
            both = tag("div", self._rank_chart(first), standings, class_="side-by-side")
            style = f"--rows:{max(1, min(rows, hosts))};--shown:{max(1, len(shown))}"
            return tag("div", above, both, turning, class_="kiosk", style=style)

        more = len(board.standings) - len(shown)
        below = tag("p", f"and {more} more", class_="nothing") if more > 0 else None
        listed = shown if self.covered else (*shown, *board.left_out)
        places = enumerate(listed, first + 1)
        uncovered = [one for place, one in places if place not in self.covered]
        return Markup.joined((above, standings, below, evidence(uncovered)))

    def _slow(self) -> Markup:
        """Ranks over time, and the trade-off."""
        may = (
            one.name
            for one in self.board.standings
            if may_lead(one, self.address.rank) and not reasons(one.verdicts)
        )
        tradeoff = tradeoff_chart(
            self.board.standings[: self.address.rows],
            styles=self.styles,
            honest_leader=next(may, None),
            down_since=self.down_since,
        )
        return tag("div", self._rank_chart(), tradeoff, class_="pair")

    @cached_property
    def _ranks(self) -> Ranks:
        """Ranks over time, up to the moment that is looked at."""
        return self.feed.ranks(
            window_s=self.window_s,
            rank_by=self.address.rank,
            honest=self.address.honest,
            step_s=self.step_s,
            to_s=self.board.at_s,
        )

    def _rank_chart(self, first: int = 0) -> Markup:
        """Of the hosts whose rows stand behind the `first` ones."""
        names = [one.name for one in self.board.standings[: first + self.address.rows]]
        # steps of many seconds cannot leave out single ones
        skips = self.address.skip_limited and self.board.limited_s
        note = "seconds at the limit count here" if skips else ""
        return rank_chart(
            self._ranks, self.events, names=names, styles=self.styles, note=note, above=first
        )

    def _chosen(self, names: Sequence[str]) -> list[Standing]:
        """The standings of hosts by name; who is not in this run is left out."""
        known = {one.name: one for one in (*self.board.standings, *self.board.left_out)}
        return [known[name] for name in names if name in known]

    def _compare(self) -> Markup:
        """A few hosts side by side."""
        chosen = self._chosen(self.address.compare)
        if not chosen:
            return Markup()
        feed, at_s, names = self.feed, self.board.at_s, [one.name for one in chosen]
        drawn = solid(self.styles, names)
        skips = self.address.skip_limited
        densities = [
            feed.density(name, window_s=self.window_s, at_s=at_s, skip_limited=skips)
            for name in names
        ]
        series = [feed.series(name, step_s=self.step_s, to_s=at_s) for name in names]
        charts = (
            density_chart(densities, styles=drawn, key="densities"),
            series_chart(series, metric="rps", title="Requests/s", styles=drawn),
            series_chart(series, metric="p95_ms", title="Latency p95", styles=drawn),
        )
        below = differences(chosen, self.styles)
        return Markup.joined((tag("div", charts, class_="triple"), below))

    def _panel(self) -> Markup:
        """What a click opened: an event's story, and one host in full, whose sightings are none later than what may be seen."""
        feed, store, at_s = self.feed, self.source.store, self.board.at_s
        window_s, skips = self.window_s, self.address.skip_limited
        chosen = self._chosen((self.address.host or "",))
        name = chosen[0].name if chosen else None
        event_story = None
        events = [
            event
            for event in self.events
            if floor(event.at) == self.address.event
            and (name is None or event.name in {name, None})
        ]
        if events:
            seconds, down = (None, []) if name is None else feed.outages(name, to_s=at_s)
            event_story = story(
                events, self._ranks, name=name, seconds=seconds, down=down, window_s=window_s
            )
        if name is None:
            if event_story is None:
                return Markup()
            return panel("All hosts", tag("h2", "All hosts"), event_story)

        sightings: Sequence[Sighting] = ()
        if store is not None and at_s is not None:
            begin = feed.start_s - SIGHTED_BEFORE_S
            sightings = store.sightings_between(begin, at_s + 1, names=[name])
        density = feed.density(name, window_s=window_s, at_s=at_s, skip_limited=skips)
        # all hosts' rows of the window are read for it
        seen = (self.address.t, self.board.frozen_at_s, bool(self._still_covered))
        kinds = self.source.once(
            ("kinds", self.run.id, name, window_s, skips, seen),
            (at_s, self.read.version),
            lambda: feed.error_kinds(name, window_s=window_s, at_s=at_s, skip_limited=skips),
            keep_s=KINDS_S if at_s is None or at_s == self.feed.end_s else 0.0,
        )
        charts = (
            heat_strip(feed.heat(name, step_s=self.step_s, to_s=at_s)),
            density_chart([density], styles=solid(self.styles, [name]), key="density"),
        )
        facts = host_panel(
            chosen[0],
            styles=self.styles,
            compared=self.address.compare,
            event_story=event_story,
            charts=charts,
            kinds=kinds,
            sightings=sightings,
            events=self.events,
        )
        return panel(name, facts)

    def _rest(self) -> Markup:
        """The newest bench and the newest capture that had begun by the moment looked at, and the method.

        Behind a freeze stand a bench's requests of until then, and only a capture that saw nothing later.
        """
        store, at_s, until = self.source.store, self.board.at_s, self._public_until
        latest = min(self.now if at_s is None or self.address.t is None else at_s, until)
        bench, summaries, captured = None, [], None
        if store is not None:
            bench = newest_bench(store, latest)
            if bench is not None:
                key = ("bench", bench.id, until)
                version = bench.ended_at or floor(self.now / REST_S)
                summaries = self.source.once(
                    key,
                    version,
                    lambda: _summaries(
                        [shot for shot in store.shots(bench.id) if over_at(shot) < until], bench
                    ),
                )
            captured = newest_capture(store, latest, until)
        profile = str(self.run.plan.get("profile") or UNKNOWN)
        beside = bench_results(bench, summaries, self.board, self.styles)
        pair = tag("div", beside, workload(self.board, profile, captured), class_="pair")
        return Markup.joined((pair, method(self.board)))


def _summaries(shots: Sequence[RequestRecord], run: Run) -> list[HostSummary]:
    """Each host's figures in a bench."""
    by_host: dict[tuple[str, str], list[RequestRecord]] = {}
    for shot in shots:
        by_host.setdefault((shot.name, shot.url), []).append(shot)
    return [
        summary(of_host, name=name, url=url, run=run.id) for (name, url), of_host in by_host.items()
    ]


def scene_of(source: DatabaseSource, address: Address, now: float) -> Scene | str | None:
    """What can be shown: a scene, else a sentence why not, else nothing at all yet."""
    found = source.read(address.run)
    if found.feed is None:
        return found.trouble
    return Scene(source=source, read=found, feed=found.feed, address=address, now=now)

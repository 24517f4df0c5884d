"""What explains the figures of a window: verdicts, outages, restarts; gathered for the rules that judge them.

The rules are verdicts.py's, counter_deltas.py's, outages.py's and scrapes.py's. It reads through the feed's following, and keeps
verdicts, for they cost 0.15 s of CPU at 20 hosts of 200 canaries.
"""

from collections.abc import Mapping, Sequence
from functools import partial

import numpy as np

from toolkit.board.counter_deltas import (
    CounterDeltas,
    CounterStretch,
    Ours,
    are_one_engine,
    counted,
    stretch,
    surplus,
    together,
)
from toolkit.board.follow import Follow, keep
from toolkit.board.outages import RunSeconds, affected_intervals
from toolkit.board.scrapes import Scrape
from toolkit.board.scrapes import together as merged
from toolkit.board.standings import AffectedInterval
from toolkit.board.verdicts import NOT_BEGUN, ended_by, judged
from toolkit.board.window import COUNTS
from toolkit.records import Event, RequestRecord, Verdict

AGO_S = (60, 300)
"""Rank changes are told against a minute and five minutes ago."""
JUDGED_EVERY_S = 10
"""Verdicts are those of the last moment on this grid: they rest on a few canaries a minute, and judging costs more
than counting."""
LEAST_JUDGED_S = 120
"""A shorter window holds too few canaries and looks to tell anything: answers and counters of the last two minutes are
judged with it, though no failures, which are the window's own."""
LOOKED_BEFORE_S = 900
"""What a host was before the run, as far back as that: a change needs a look before it."""
KEPT_VERDICTS = 64

Verdicts = Mapping[str, tuple[Verdict, ...]]
"""By host name."""


class Judging:
    """What explains the figures of one run's windows. Not for several threads at once: the feed has the lock."""

    def __init__(self, follow: Follow) -> None:
        """Know nothing yet."""
        self._follow = follow
        self._verdicts: dict[tuple[int, int], Verdicts] = {}

    def changes(self, from_s: float, to_at: float) -> list[Event]:
        """Restarts and other settings from a second on, as far as scout knew of them before a moment."""
        return [
            change.event
            for change in self._follow.changes(self._follow.start_s - LOOKED_BEFORE_S)
            if change.noticed_at < to_at and from_s <= change.event.at < to_at
        ]

    def happened(self, from_s: float, to_at: float) -> list[Event]:
        """What was noted and what scout saw during the run, by time."""
        noted = [each for each in self._follow.events if from_s <= each.at < to_at]
        return merged(noted, self.changes(max(from_s, self._follow.start_s), to_at))

    def affected_intervals(self, window_s: int, at_s: int) -> list[tuple[AffectedInterval, ...]]:
        """Each host's outages that are still in the window."""
        from_s = self._course_from_s(window_s, at_s)
        restarts: dict[str, list[float]] = {}
        for event in self.happened(from_s, at_s + 1):
            if event.kind == "restart" and event.name is not None:
                restarts.setdefault(event.name, []).append(event.at)
        failed = self._follow.totals(window_s, at_s).failed_down()
        return [
            affected_intervals(
                self._course(row, window_s, from_s, at_s),
                restarts.get(host.name, ()),
                window_s=window_s,
            )
            # where no second was lost and nobody restarted there is no outage
            if failed[row] or host.name in restarts
            else ()
            for row, host in enumerate(self._follow.hosts.values())
        ]

    def _course_from_s(self, window_s: int, at_s: int) -> int:
        """The first second that the windows of now and before hold without a gap: outages begin before the window."""
        from_s = at_s - window_s + 1
        for ago_s in AGO_S:
            if at_s - ago_s >= from_s - 1:
                from_s = at_s - ago_s - window_s + 1
        return max(self._follow.start_s, from_s)

    def _course(self, row: int, window_s: int, from_s: int, at_s: int) -> RunSeconds:
        ok: list[int] = []
        errors: list[int] = []
        for ago_s in (*reversed(AGO_S), 0):
            to_s = at_s - ago_s
            if to_s < from_s:
                continue
            totals = self._follow.windows(window_s, at_s, [ago_s])[0]
            more = totals.seconds(row, max(from_s + len(ok), to_s - window_s + 1), to_s)
            ok += more[0].tolist()
            errors += more[1].tolist()
        return RunSeconds(first_s=from_s, ok=tuple(ok), errors=tuple(errors))

    def verdicts(self, window_s: int, at_s: int) -> Verdicts:
        """Verdicts on the window at the last moment of the grid, kept."""
        is_last = self._follow.run.ended_at is not None and at_s == self._follow.end_s()
        if not is_last:
            at_s -= (at_s + 1 - self._follow.start_s) % JUDGED_EVERY_S
        if at_s < self._follow.start_s:
            return {host.name: (NOT_BEGUN,) for host in self._follow.hosts.values()}
        key = (window_s, at_s)
        told = self._verdicts.pop(key, None)
        if told is None:
            told = self._verdicts_at(window_s, at_s)
        keep(self._verdicts, key, told, KEPT_VERDICTS)
        return told

    def _verdicts_at(self, window_s: int, at_s: int) -> Verdicts:
        from_s = max(self._follow.start_s, at_s - window_s + 1)
        shots = self._canaries(from_s, at_s)
        books, engines = self._counters(
            max(window_s, LEAST_JUDGED_S), at_s, [each for each in shots if ended_by(each, at_s)]
        )
        looks = self._follow.scrapes(from_s, at_s + 1)
        return judged(
            shots,
            {host.name: found for host, found in looks.items()},
            self.happened(from_s, at_s + 1),
            hosts=list(self._follow.hosts.values()),
            run=self._follow.run.id,
            at_s=at_s,
            counted=books,
            engines=engines,
        )

    def _counters(
        self, window_s: int, at_s: int, canaries: Sequence[RequestRecord]
    ) -> tuple[dict[str, CounterDeltas], dict[str, tuple[str, ...]]]:
        """What each host's counters say of its answers, and which hosts are addresses of one engine."""
        from_s = max(self._follow.start_s, at_s - window_s + 1)
        looks = {h.name: found for h, found in self._follow.scrapes(from_s, at_s + 1).items()}
        from_start = from_s == self._follow.start_s
        to_end = self._follow.run.ended_at is not None and at_s == self._follow.end_s()
        told: dict[str, CounterDeltas] = {}
        known: dict[str, tuple[CounterStretch, Ours]] = {}
        for row, host in enumerate(self._follow.hosts.values()):
            of_host = looks[host.name]
            seen = stretch(of_host, from_s, at_s, from_start=from_start, to_end=to_end)
            ours = self._ours(row, from_s, at_s, window_s, canaries)
            if seen and ours:
                known[host.name] = (seen, ours)
            else:
                told[host.name] = CounterDeltas(
                    gap=_no_counters(of_host, is_known=ours is not None)
                )
        # two engines may be set and started alike, so one's counters must also move by more than was sent to it
        moved = {name: looks[name] for name, pair in known.items() if surplus(*pair) > 0}
        engines = {
            name: others
            for name, own in moved.items()
            if (others := tuple(n for n in moved if n != name and are_one_engine(own, moved[n])))
        }
        for name, (seen, ours) in known.items():
            names = (name, *engines.get(name, ()))
            books = together([known[each][1] for each in names]) if len(names) > 1 else ours
            own = [shot for shot in canaries if shot.name in names]
            told[name] = counted(seen, books, own, partial(self._canaries_around, seen, names))
        return told, engines

    def _canaries_around(self, seen: CounterStretch, names: Sequence[str]) -> int:
        first_s, last_s = seen.around
        found = (
            each
            for name in names
            for each in self._follow.reader.tallies(
                self._follow.run.id, name=name, kind="canary", from_s=first_s, to_s=last_s
            )
        )
        return sum(each.ok + each.errors for each in found)

    def _canaries(self, from_s: int, at_s: int) -> list[RequestRecord]:
        first_s = min(from_s, max(self._follow.start_s, at_s - LEAST_JUDGED_S + 1))
        shots = self._follow.reader.shots_between(self._follow.run.id, first_s, at_s + 1)
        return [shot for shot in shots if shot.ok or (shot.sent_at or 0.0) >= from_s]

    def _ours(
        self, row: int, from_s: int, at_s: int, window_s: int, canaries: Sequence[RequestRecord]
    ) -> Ours | None:
        """What the blast counted of a host; None where nobody told how many users there were."""
        users = self._follow.most_users(from_s, at_s)
        if users is None or not canaries:
            return None
        totals = self._follow.totals(window_s, at_s)
        ok, errors, tokens, estimated = totals.seconds(row, from_s, at_s)
        of_host = dict(zip(COUNTS, totals.counts[row].tolist(), strict=True))
        return Ours(
            from_s=from_s,
            seconds=np.stack((ok, errors, tokens - estimated)),
            cache_known=of_host["cache_told"] + of_host["cache_judged"],
            cache_hits=of_host["cache_hits"] + of_host["cache_inferred"],
            in_flight=-(-users // len(self._follow.hosts)),
            max_tokens=max(shot.max_tokens for shot in canaries),
        )


def _no_counters(looks: Sequence[Scrape], *, is_known: bool) -> str:
    """Why there is nothing to compare."""
    if not any(not each.is_down for each in looks):
        return "nobody has looked at its counters"
    if all(each.requests is None or each.generation_tokens is None for each in looks):
        return "its `/metrics` tells no requests and tokens"
    return "too few looks at its counters so far" if is_known else "nobody noted who sent how much"

"""Crowds of requests against an Admission, event by event, in simulated time: who was served when, and how honest a Retry-After was.

The clock, the arrivals, the service times and the order of events are this file's own; of the Admission it asks only what a caller
would, so that what it finds can contradict it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from random import Random

from toolkit.proxy.admission import Admission, Place
from toolkit.proxy.errors import Rejection

TICK_S = 0.1

Service = Callable[[Random], float]


def exponential(mean_s: float) -> Service:
    return lambda chance: chance.expovariate(1 / mean_s)


def constant(seconds: float) -> Service:
    return lambda _: seconds


@dataclass(frozen=True, kw_only=True)
class Stream:
    """One team's requests, at random moments (Poisson)."""

    rate_per_s: float
    service: Service
    team: str = "a"
    priority: int = 0
    from_s: float = 0.0


@dataclass(eq=False, kw_only=True)
class Fate:
    """What became of one request."""

    team: str
    priority: int
    arrived_s: float
    service_s: float
    started_s: float | None = None
    ended_s: float | None = None
    rejection: Rejection | None = None
    rejected_s: float | None = None
    turn: int | None = None
    """Of a rejected one: it would have been served as its team's such-and-such, the first being 0, had it joined the queue."""

    @property
    def wait_s(self) -> float | None:
        return None if self.started_s is None else self.started_s - self.arrived_s

    @property
    def latency_s(self) -> float | None:
        return None if self.ended_s is None else self.ended_s - self.arrived_s


@dataclass(eq=False)
class Crowd:
    """One simulated run."""

    admission: Admission
    fates: list[Fate] = field(default_factory=list)
    served_s: dict[str, list[float]] = field(default_factory=dict)
    """When each team's requests were served, in order."""
    queued: dict[str, int] = field(default_factory=dict)
    """As counted here."""
    _events: list[tuple[float, int, str, object]] = field(default_factory=list)
    _numbers: count = field(default_factory=count)  # type: ignore[type-arg]
    _waits: dict[int, Fate] = field(default_factory=dict)

    def run(self, streams: Sequence[Stream], *, seconds: float, seed: int) -> "Crowd":
        for number, stream in enumerate(streams):
            self._arrivals(stream, seconds, Random(f"{seed} {number}"))
        for tick in range(int(seconds / TICK_S)):
            self._at(tick * TICK_S, "tick", None)
        while self._events:
            now, _, kind, what = heappop(self._events)
            if kind == "arrival":
                assert isinstance(what, Fate)
                self._arrive(what, now)
            elif kind == "end":
                slot, fate = what  # type: ignore[misc]
                fate.ended_s = now
                self.admission.release(slot, now)
            self._settle(now)
        return self

    def _arrivals(self, stream: Stream, seconds: float, chance: Random) -> None:
        now = stream.from_s
        while (now := now + chance.expovariate(stream.rate_per_s)) < seconds:
            fate = Fate(
                team=stream.team,
                priority=stream.priority,
                arrived_s=now,
                service_s=stream.service(chance),
            )
            self.fates.append(fate)
            self._at(now, "arrival", fate)

    def _at(self, when: float, kind: str, what: object) -> None:
        heappush(self._events, (when, next(self._numbers), kind, what))

    def _arrive(self, fate: Fate, now: float) -> None:
        team = fate.team
        turn = len(self.served_s.get(team, ())) + self.queued.get(team, 0)
        answer = self.admission.ask(team, now, arrived_s=now, priority=fate.priority)
        if isinstance(answer, Rejection):
            fate.rejection, fate.rejected_s, fate.turn = answer, now, turn
        elif answer.waits:
            self.queued[team] = self.queued.get(team, 0) + 1
            self._waits[id(answer)] = fate
        else:
            self._serve(fate, answer, now)

    def _settle(self, now: float) -> None:
        for place, rejection in self.admission.due(now):
            fate = self._waits.pop(id(place))
            self.queued[fate.team] -= 1
            if rejection is None:
                self._serve(fate, place, now)
            else:
                fate.rejection, fate.rejected_s = rejection, now

    def _serve(self, fate: Fate, slot: Place, now: float) -> None:
        fate.started_s = now
        self.served_s.setdefault(fate.team, []).append(now)
        self._at(now + fate.service_s, "end", (slot, fate))

    def honesty(self, *, from_s: float) -> list[float]:
        """Retry-After / what the wait would have been, for each that was turned away at the door after `from_s`."""
        ratios = []
        for fate in self.fates:
            if fate.turn is None or fate.rejected_s is None or fate.rejected_s < from_s:
                continue
            served = self.served_s[fate.team]
            if fate.turn < len(served):  # else the run ended before its turn
                assert fate.rejection is not None
                told_s = fate.rejection.retry_after_s
                assert told_s is not None
                ratios.append(told_s / (served[fate.turn] - fate.rejected_s))
        return ratios


def percentile(values: Sequence[float], share: float) -> float:
    """Nearest rank."""
    ordered = sorted(values)
    return ordered[max(0, -(-int(share * 1000) * len(ordered) // 1000) - 1)]

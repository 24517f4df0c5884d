"""Admission control: which request may go upstream now, which waits, which is refused at once. Slots and queues, per team and in all.

It reads no clock and does no I/O: `ask` for a slot, `release` it, and call `due` after each release and about ten times a
second. Only a call's leader comes here: no hit, and no request that joined. Who goes next when a slot is free:

1. The highest priority of those that wait; but a priority that was passed over `PASSES` times goes first, so that none
   starves. (Turns are counted and not seconds: whether a slot is free each ms or each minute, the lower one gets one
   turn in nine.)
2. Among its teams the one with the fewest slots in use relative to its limit, then the one served longest ago. What
   else the others have queued does not count: a team's flood makes its own requests wait.
3. Inside a team and priority, who came first.

A full queue makes room for a higher priority, or for a team with fewer in it, by turning away whoever joined the longest
queue last. A request that can't be served before its deadline is refused at once, with the time the queue will take.
"""

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count
from math import inf

from toolkit.proxy.config import AdmissionSetting, TeamSetting
from toolkit.proxy.errors import Rejection, rejection_of

PASSES = 8
"""A priority that was passed over so often goes next."""
RECENT = 64
"""The mean service time is over about so many: with exponential ones it is then 12 % off (1/sqrt(64)), and 64 answers after a change
two thirds of its weight are new."""
FEW = 8
"""Service times that make a team's own mean; before that the mean of all counts."""
SILENT = 6.0
"""No request ended for so many times the usual gap: by chance in one case of 400 (e^-6); a longer silence means that service became
slower than the mean. (At 3 times, chance alone put every tenth Retry-After beyond a factor of 2.)"""
SURE = 1.25
"""A request may queue if its estimated wait is so many times shorter than the time it has left: estimates are off by as much."""


@dataclass(slots=True, kw_only=True, eq=False)
class Place:
    """One request's place in the queue, and later its slot: the right to one call upstream until `release`."""

    team: str
    priority: int
    number: int
    """In the order of asking."""
    ends_s: float
    """When it is rejected if it still waits."""
    waits: bool = False
    """It is in the queue; False: it has or had a slot, was turned away, or left."""
    began_s: float = inf
    """When it got its slot."""


class _Load:
    """Counts that are kept for the whole proxy and for each team."""

    in_use = waiting = ended = 0
    """Slots, places in the queue, calls that are over."""
    mean_s = 0.0
    """How long slots are held: the plain mean first, then one that forgets."""


@dataclass(kw_only=True, eq=False)
class _Team(_Load):
    """One team's limits, each infinite where there is none, its slots and its queue."""

    name: str
    limit: float = inf
    queue: float = inf
    weight: float = 1
    """Fair shares are in proportion to it: the team with the fewest slots in use per weight goes first."""
    max_prompt_tokens: float = inf
    max_output_tokens: float = inf
    turn: int = 0
    """When it was served last, in turns."""
    lanes: dict[int, dict[Place, None]] = field(default_factory=dict)
    """Waiting requests by priority, in order; an empty lane is removed."""


class Admission(_Load):
    """Slots and queues of one proxy. All times are seconds of the caller's one clock."""

    def __init__(self, setting: AdmissionSetting, teams: Iterable[TeamSetting] = ()) -> None:
        self._teams: dict[str, _Team] = {}
        self._running: dict[Place, None] = {}
        """The oldest first."""
        self._released_s = 0.0
        """When a slot was released last."""
        self._numbers = count(1)
        self._passes: dict[int, int] = {}
        """How often each priority was passed over."""
        self._ends: list[tuple[float, int, Place]] = []
        """A heap of deadlines; places that no longer wait are removed later."""
        self._pushed: list[tuple[Place, Rejection]] = []
        """Turned away by `_push_out`, and not yet returned by `due`."""
        self.take_settings(setting, teams)

    def take_settings(self, setting: AdmissionSetting, teams: Iterable[TeamSetting]) -> None:
        """Use these limits from now on; slots and places in the queue stay."""
        self._setting = setting
        self._slots: float = setting.concurrency or inf
        self._settings = {team.name: team for team in teams}
        for name in {*self._settings, *self._teams}:
            self._limit(self._team(name))

    def ask(
        self,
        name: str,
        now: float,
        *,
        arrived_s: float,
        priority: int = 0,
        prompt_tokens: int | None = None,
        output_tokens: int | None = None,
    ) -> Place | Rejection:
        """Return a slot for a team's request, a place in the queue, or the reason why it gets neither.

        `arrived_s`: when its first byte was read; reading and understanding it count as waiting, too. A higher `priority` goes first.
        """
        team = self._teams.get(name) or self._team(name)
        if prompt_tokens is not None and prompt_tokens > team.max_prompt_tokens:
            text = f"the prompt has about {prompt_tokens:,} tokens, allowed are {team.max_prompt_tokens:,}"
            return Rejection(reason="prompt_too_long", status=413, message=text)
        if output_tokens is not None and output_tokens > team.max_output_tokens:
            text = f"{output_tokens:,} output tokens are asked for, allowed are {team.max_output_tokens:,}"
            return Rejection(reason="output_too_long", status=400, message=text)
        ends_s = arrived_s + self._setting.wait_s
        place = Place(team=name, priority=priority, number=next(self._numbers), ends_s=ends_s)
        has_room = self.in_use < self._slots and team.in_use < team.limit
        if has_room and not (self.waiting and self._next()):
            self._give(team, place, now)
            return place

        after_s, is_own = self.estimate(name, priority, now)
        if team.waiting >= team.queue:
            return rejection_of("team_queue_full", name, after_s)
        if after_s is not None and now + SURE * after_s > ends_s:
            return rejection_of("team_too_slow" if is_own else "too_slow", name, after_s)
        if self.waiting >= self._setting.queue and not self._push_out(team, priority, now):
            return rejection_of("queue_full", name, after_s)
        place.waits = True
        team.lanes.setdefault(priority, {})[place] = None
        team.waiting += 1
        self.waiting += 1
        heappush(self._ends, (ends_s, place.number, place))
        if len(self._ends) > 2 * self.waiting + 64:
            self._ends = [each for each in self._ends if each[2].waits]
            heapify(self._ends)
        return place

    def release(self, place: Place, now: float) -> None:
        """Give a slot or a place in the queue back; a second time nothing happens. `due` then says who is served next."""
        if place.waits:
            self._leave(place)
        elif place not in self._running:
            self._pushed = [each for each in self._pushed if each[0] is not place]
        else:
            del self._running[place]
            self._released_s, took_s = now, now - place.began_s
            for each in (self, self._teams[place.team]):
                each.in_use -= 1
                each.ended += 1
                each.mean_s += (took_s - each.mean_s) / min(each.ended, RECENT)

    def due(self, now: float) -> list[tuple[Place, Rejection | None]]:
        """Return those whose wait is over, each with the reason of its refusal, or None where it has a slot now."""
        if not (self.waiting or self._pushed):
            return []
        rejected, self._pushed = self._pushed, []
        while self._ends and self._ends[0][0] <= now:
            place = heappop(self._ends)[2]
            if place.waits:
                team = self._leave(place)
                after_s, _ = self.estimate(team.name, place.priority, now)
                is_own = team.in_use >= team.limit
                why = rejection_of("team_expired" if is_own else "expired", team.name, after_s)
                rejected.append((place, why))

        served: list[tuple[Place, None]] = []
        while self.in_use < self._slots and (found := self._next()):
            team, chosen, able = found
            # a turn is counted for each priority that could have had it; one that nobody waits in any more begins anew
            self._passes = {
                each: self._passes.get(each, 0) + (each in able)
                for one in self._teams.values()
                for each in one.lanes
            }
            self._passes[chosen] = 0
            place = next(iter(team.lanes[chosen]))
            self._leave(place)
            self._give(team, place, now)
            served.append((place, None))
        return [*served, *rejected]

    def estimate(self, name: str, priority: int, now: float) -> tuple[float | None, bool]:
        """Seconds until a newcomer would have its slot, and whether its team's own limit makes it wait; None: nothing ended yet.

        A team below its fair share of all slots gets every one that is freed until it has it; from then on it gets its own back.
        """
        if not self.ended:
            return None, False
        team, slots = self._team(name), self._slots
        stall_s = 0.0
        if self._running:
            # a lower bound from what has not ended: the mean knows nothing of a server that stands still
            oldest_s = now - next(iter(self._running)).began_s
            stall_s = min(oldest_s, (now - self._released_s) * self.in_use / SILENT)
        service_s = own_s = max(self.mean_s, stall_s)
        if team.ended >= FEW:
            own_s = max(team.mean_s, stall_s)

        turns = 1 + sum(len(lane) for each, lane in team.lanes.items() if each >= priority)
        by_team_s = max(0.0, turns - (team.limit - team.in_use)) * own_s / max(1, team.limit)

        # teams without a queue keep the slots they have; the others share the rest
        share, higher, queued = slots - self.in_use + team.in_use, 0, team.weight
        for other in self._teams.values():
            if other.lanes and other is not team:
                share += other.in_use
                higher += sum(len(lane) for each, lane in other.lanes.items() if each > priority)
                queued += other.weight * (priority in other.lanes)
        share = max(share, 1.0) * team.weight / queued
        quick = min(turns, max(0.0, share - team.in_use))
        before = max(0.0, quick - (slots - self.in_use)) + min(higher, PASSES * turns)
        by_all_s = before * service_s / slots + (turns - quick) * own_s / share
        return max(by_team_s, by_all_s), by_team_s >= by_all_s

    def team_use(self, name: str) -> tuple[int, int]:
        """How many slots a team has in use, and how many of its requests wait."""
        team = self._team(name)
        return team.in_use, team.waiting

    def limit_team(self, name: str, slots: int) -> None:
        """From now on a team has so many slots here; those in use beyond them stay until they are released."""
        self._team(name).limit = slots

    def queued(self) -> dict[str, int]:
        """How many wait of each team that asked or was named."""
        return {name: team.waiting for name, team in self._teams.items()}

    def may_wait(self, name: str, others: int, of_team: int) -> Rejection | None:
        """Why a request may not wait for a restart, where `others` do already, `of_team` of them its team's; None: it may."""
        team = self._team(name)
        if team.waiting + of_team >= team.queue:
            return rejection_of("team_queue_full", name)
        if self.waiting + others >= self._setting.queue:
            return rejection_of("queue_full", name)
        return None

    def _team(self, name: str) -> _Team:
        team = self._teams.get(name)
        if team is None:
            team = self._teams[name] = _Team(name=name)
            self._limit(team)
        return team

    def _limit(self, team: _Team) -> None:
        """Give a team the limits of the settings."""
        setting, own = self._setting, self._settings.get(team.name) or TeamSetting(name=team.name)
        team.limit = own.concurrency or inf
        team.queue = inf if own.queue is None else own.queue
        team.weight = own.concurrency or setting.concurrency or 1
        team.max_prompt_tokens = min(own.max_prompt_tokens or inf, setting.max_prompt_tokens or inf)
        team.max_output_tokens = min(own.max_output_tokens or inf, setting.max_output_tokens or inf)

    def _give(self, team: _Team, place: Place, now: float) -> None:
        """Turn a place into a slot."""
        place.began_s, team.turn = now, next(self._numbers)
        self._running[place] = None
        self.in_use += 1
        team.in_use += 1

    def _leave(self, place: Place) -> _Team:
        """Take it out of its queue."""
        team = self._teams[place.team]
        lane = team.lanes[place.priority]
        del lane[place]
        if not lane:
            del team.lanes[place.priority]
        place.waits = False
        self.waiting -= 1
        team.waiting -= 1
        return team

    def _next(self) -> tuple[_Team, int, set[int]] | None:
        """The team and priority whose turn it is, and all priorities that could have it; None: nobody's team may have a slot."""
        able = [team for team in self._teams.values() if team.in_use < team.limit]
        priorities = {priority for team in able for priority in team.lanes}
        if not priorities:
            return None
        passes = self._passes
        chosen = max(priorities, key=lambda priority: (passes.get(priority, 0), priority))
        if passes.get(chosen, 0) < PASSES:
            chosen = max(priorities)
        team = min(
            (team for team in able if chosen in team.lanes),
            key=lambda team: (team.in_use / team.weight, team.turn),
        )
        return team, chosen, priorities

    def _push_out(self, team: _Team, priority: int, now: float) -> bool:
        """Make room in a full queue: of the lowest priority that yields to this one, turn away the last of the longest lane.

        False: nobody yields, the newcomer is refused.

        A priority that would get one turn in nine keeps a ninth of the places, or it would starve at the door.
        """
        kept = self._setting.queue // (PASSES + 1)
        lanes = [
            (each, lane, other)
            for other in self._teams.values()
            for each, lane in other.lanes.items()
        ]
        numbers: Counter[int] = Counter()
        for each, lane, _ in lanes:
            numbers[each] += len(lane)
        poor = numbers[priority] < kept
        yielding = [
            each
            for each, number in numbers.items()
            if number > kept and (each < priority or (poor and each > priority))
        ]
        lowest = min(yielding, default=priority)
        longest = [
            (len(lane) / other.weight, next(reversed(lane)).number, next(reversed(lane)), other)
            for each, lane, other in lanes
            if each == lowest
        ]
        if not longest:
            return False
        length, _, place, other = max(longest)
        mine = (len(team.lanes.get(priority, ())) + 1) / team.weight
        if lowest == priority and length <= mine:
            return False
        self._leave(place)
        after_s, _ = self.estimate(other.name, lowest, now)
        self._pushed.append((place, rejection_of("queue_full", other.name, after_s)))
        return True

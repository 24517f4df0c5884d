"""Who may ask upstream now, who waits, and who is turned away at once: slots and queues, per team and in all.

It reads no clock, moves no byte and starts nothing: `ask` for a slot, `release` it, and call `due` after each release and
some ten times a second. Hits and joined streams never come here. Who goes next when a slot is free:

1. The highest priority of those that wait; but a priority that was passed over `PASSES` times goes first, so that none
   starves. (Turns are counted and not seconds: whether a slot is free each ms or each minute, the lower one gets one
   turn in nine.)
2. Among its teams the one with the fewest slots in use relative to its limit, then the one served longest ago. What
   else the others have queued does not count: a team's flood makes its own requests wait.
3. Inside a team and priority, who came first.

A full queue makes room for a higher priority, or for a team with fewer in it, by turning away whoever joined the longest
queue last. Who can't be served before its deadline is turned away before it waits, with the time the queue will take.
"""

from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field
from heapq import heapify, heappop, heappush
from itertools import count

from toolkit.proxy.calls.rejections import Reason, rejection_of, too_long
from toolkit.proxy.exchange import Job, Rejection
from toolkit.proxy.settings import AdmissionSetting, TeamSetting

PASSES = 8
"""A priority that was passed over so often goes next."""
RECENT = 64
"""Service times that the mean remembers: of exponential ones it is then 12 % off (1/sqrt(64)), and 64 answers after a change it has
forgotten two thirds of the past."""
FEW = 8
"""Service times that make a team's own mean; before that the mean of all counts."""
SILENT = 6.0
"""As many times the usual gap between two ends is chance in one case of 400 (e^-6); a longer silence says that service became
slower than the mean remembers. (At 3 times, chance alone put every tenth Retry-After beyond a factor of 2.)"""
SURE = 1.25
"""A place in the queue is given where the wait is so many times shorter than the time left: estimates are off by as much."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """What one request wants."""

    arrived_s: float
    """When its first byte was read: reading and understanding it count as waiting, too."""
    team: str = ""
    priority: int = 0
    """Higher goes first."""
    ends_s: float | None = None
    """It waits no longer than this; None: `wait_s` from its arrival. The sooner of both counts."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class Slot:
    """The right to one call upstream, until it is released."""

    team: str
    began_s: float
    waited_s: float
    """Since its request arrived."""
    is_released: bool = False


@dataclass(slots=True, kw_only=True, eq=False)
class Waiting:
    """One request's place in the queue."""

    ask: Ask
    ends_s: float
    number: int
    """In the order of asking."""
    slot: Slot | None = None
    is_over: bool = False
    """It waits no more: served, turned away, or it left."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Due:
    """What became of those that waited."""

    served: tuple[tuple[Waiting, Slot], ...] = ()
    rejected: tuple[tuple[Waiting, Rejection], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class TeamUse:
    """One team's slots and queue."""

    team: str
    in_use: int
    waiting: int
    limit: int | None
    queue: int | None
    """Most of its own that wait; None: as many as in all."""


@dataclass(slots=True, eq=False)
class _Pace:
    """How long slots are held: the plain mean first, then one that forgets."""

    mean_s: float = 0.0
    ended: int = 0

    def took(self, seconds: float) -> None:
        self.ended += 1
        self.mean_s += (seconds - self.mean_s) / min(self.ended, RECENT)


@dataclass(slots=True, kw_only=True, eq=False)
class _Team:
    name: str
    limit: int | None
    queue: int | None
    weight: float
    """What its slots in use are compared with."""
    max_prompt_tokens: int | None
    max_output_tokens: int | None
    in_use: int = 0
    waiting: int = 0
    turn: int = 0
    """When it was served last, in turns."""
    pace: _Pace = field(default_factory=_Pace)
    lanes: dict[int, OrderedDict[Waiting, None]] = field(default_factory=dict)
    """By priority; none is empty."""

    @property
    def is_full(self) -> bool:
        return self.limit is not None and self.in_use >= self.limit

    def ahead(self, priority: int) -> int:
        return sum(len(lane) for each, lane in self.lanes.items() if each >= priority)

    def add(self, waiting: Waiting) -> None:
        self.lanes.setdefault(waiting.ask.priority, OrderedDict())[waiting] = None
        self.waiting += 1

    def remove(self, waiting: Waiting) -> None:
        lane = self.lanes[waiting.ask.priority]
        del lane[waiting]
        if not lane:
            del self.lanes[waiting.ask.priority]
        self.waiting -= 1
        waiting.is_over = True


class Admission:
    """Slots and queues of one proxy. All times are seconds of the caller's one clock."""

    def __init__(self, setting: AdmissionSetting, teams: Iterable[TeamSetting] = ()) -> None:
        self.setting = setting
        self.in_use = 0
        self.waiting = 0
        self.served = 0
        """Slots given, with and without waiting."""
        self.rejected: dict[tuple[str, str], int] = {}
        """By reason and team."""
        self._settings = {team.name: team for team in teams}
        self._teams: dict[str, _Team] = {}
        self._queued: dict[str, _Team] = {}
        """Those of them that wait."""
        self._running: OrderedDict[Slot, None] = OrderedDict()
        self._pace = _Pace()
        self._released_s: float | None = None
        self._turns = count(1)
        self._passes: dict[int, int] = {}
        self._ends: list[tuple[float, int, Waiting]] = []
        self._numbers = count()
        self._pushed: list[tuple[Waiting, Rejection]] = []
        for name in self._settings:
            self._team(name)

    def ask(self, ask: Ask, now: float) -> Slot | Waiting | Rejection:
        """A slot at once, a place in the queue, or why not."""
        team = self._team(ask.team)
        too_much = too_long(
            prompt_tokens=ask.prompt_tokens,
            output_tokens=ask.output_tokens,
            most_prompt=team.max_prompt_tokens,
            most_output=team.max_output_tokens,
        )
        if too_much is not None:
            return self._count(too_much, team)
        if self._has_room and not team.is_full and not self._is_someone_next():
            return self._give(team, ask.arrived_s, now)
        ends_s = ask.arrived_s + self.setting.wait_s
        if ask.ends_s is not None:
            ends_s = min(ends_s, ask.ends_s)
        waiting = Waiting(ask=ask, ends_s=ends_s, number=next(self._numbers))
        rejection = self._no_place(team, waiting, now)
        if rejection is not None:
            waiting.is_over = True
            return self._count(rejection, team)
        self._enter(team, waiting)
        return waiting

    def release(self, slot: Slot, now: float) -> None:
        """The call is over; a second time nothing happens. `due` says who is served next."""
        if slot.is_released:
            return
        slot.is_released = True
        del self._running[slot]
        team = self._teams[slot.team]
        team.in_use -= 1
        self.in_use -= 1
        self._released_s = now
        took_s = max(0.0, now - slot.began_s)
        self._pace.took(took_s)
        team.pace.took(took_s)

    def cancel(self, waiting: Waiting) -> None:
        """Its client left. One that got its slot keeps it until that is released."""
        if not waiting.is_over:
            self._leave(waiting)
        elif waiting.slot is None:
            self._pushed = [each for each in self._pushed if each[0] is not waiting]

    def due(self, now: float) -> Due:
        """Who is served now, and who waited in vain."""
        rejected = self._pushed
        self._pushed = []
        rejected += self._expire(now)
        served: list[tuple[Waiting, Slot]] = []
        while self._has_room and (found := self._next()) is not None:
            team, priority = found
            waiting = next(iter(team.lanes[priority]))
            self._pass_over(priority)
            self._leave(waiting)
            waiting.slot = self._give(team, waiting.ask.arrived_s, now)
            served.append((waiting, waiting.slot))
        return Due(served=tuple(served), rejected=tuple(rejected))

    def wait_s(self, team: str, priority: int, now: float) -> float | None:
        """How long a newcomer would wait for its slot; None as long as nothing ended from which to tell."""
        found = self._estimate(self._team(team), priority, now)
        return None if found is None else max(found)

    def teams(self) -> tuple[TeamUse, ...]:
        """The slots and queue of every team that asked or was named."""
        return tuple(
            TeamUse(
                team=team.name,
                in_use=team.in_use,
                waiting=team.waiting,
                limit=team.limit,
                queue=team.queue,
            )
            for team in self._teams.values()
        )

    def refuse(self, rejection: Rejection, team: str) -> Rejection:
        """A rejection of another part's (e.g., `restarting`), counted among these."""
        return self._count(rejection, self._team(team))

    def may_wait(self, team: str, others: int, of_team: int) -> Rejection | None:
        """Why a request may not wait elsewhere, where so many do, and so many of its team; None: there is a place."""
        queue = self._team(team).queue
        if queue is not None and self._team(team).waiting + of_team >= queue:
            return rejection_of("team_queue_full", team)
        return (
            rejection_of("queue_full", team)
            if self.waiting + others >= self.setting.queue
            else None
        )

    @property
    def _has_room(self) -> bool:
        return self.setting.concurrency is None or self.in_use < self.setting.concurrency

    def _team(self, name: str) -> _Team:
        team = self._teams.get(name)
        if team is None:
            team = self._teams[name] = _made(self.setting, self._settings.get(name), name)
        return team

    def _give(self, team: _Team, arrived_s: float, now: float) -> Slot:
        slot = Slot(team=team.name, began_s=now, waited_s=max(0.0, now - arrived_s))
        self._running[slot] = None
        self.in_use += 1
        self.served += 1
        team.in_use += 1
        team.turn = next(self._turns)
        return slot

    def _count(self, rejection: Rejection, team: _Team) -> Rejection:
        key = (rejection.reason, team.name)
        self.rejected[key] = self.rejected.get(key, 0) + 1
        return rejection

    # the queue

    def _enter(self, team: _Team, waiting: Waiting) -> None:
        team.add(waiting)
        self._queued[team.name] = team
        self.waiting += 1
        heappush(self._ends, (waiting.ends_s, waiting.number, waiting))
        if len(self._ends) > 2 * self.waiting + 64:  # those that left are taken out only here
            self._ends = [each for each in self._ends if not each[2].is_over]
            heapify(self._ends)

    def _leave(self, waiting: Waiting) -> None:
        team = self._teams[waiting.ask.team]
        team.remove(waiting)
        if not team.waiting:
            del self._queued[team.name]
        self.waiting -= 1

    def _no_place(self, team: _Team, waiting: Waiting, now: float) -> Rejection | None:
        """Why it may not wait; makes room where others have to yield."""
        priority = waiting.ask.priority
        found = self._estimate(team, priority, now)
        after_s = None if found is None else max(found)
        if team.queue is not None and team.waiting >= team.queue:
            return rejection_of("team_queue_full", team.name, after_s)
        if found is not None and now + SURE * max(found) > waiting.ends_s:
            return rejection_of(
                "team_too_slow" if found[0] >= found[1] else "too_slow", team.name, after_s
            )
        if self.waiting >= self.setting.queue and not self._push_out(team, priority, now):
            return rejection_of("queue_full", team.name, after_s)
        return None

    def _push_out(self, team: _Team, priority: int, now: float) -> bool:
        """Turn away whoever joined the longest queue last, if that one has to yield."""
        victim = self._victim(team, priority)
        if victim is None:
            return False
        other, lane = victim
        self._leave(waiting := next(reversed(other.lanes[lane])))
        found = self._estimate(other, lane, now)
        rejection = rejection_of("queue_full", other.name, None if found is None else max(found))
        self._pushed.append((waiting, self._count(rejection, other)))
        return True

    def _victim(self, team: _Team, priority: int) -> tuple[_Team, int] | None:
        """The longest lane of the lowest priority that yields to this one. None: the newcomer has to go.

        A priority that would get one turn in nine keeps a ninth of the places, or it would starve at the door.
        """
        kept = self.setting.queue // (PASSES + 1)
        waiting: dict[int, int] = {}
        for other in self._queued.values():
            for each, lane in other.lanes.items():
                waiting[each] = waiting.get(each, 0) + len(lane)
        poor = waiting.get(priority, 0) < kept
        yielding = [
            each
            for each, number in waiting.items()
            if number > kept and (each < priority or (poor and each > priority))
        ]
        lowest = min(yielding, default=priority)
        lanes = [other for other in self._queued.values() if lowest in other.lanes]
        if not lanes:
            return None
        longest = max(
            lanes,
            key=lambda other: (
                len(lane := other.lanes[lowest]) / other.weight,
                next(reversed(lane)).number,
            ),
        )
        mine = len(team.lanes.get(priority, ())) + 1
        if lowest == priority and len(longest.lanes[lowest]) / longest.weight <= mine / team.weight:
            return None
        return longest, lowest

    def _expire(self, now: float) -> list[tuple[Waiting, Rejection]]:
        expired = []
        while self._ends and self._ends[0][0] <= now:
            waiting = heappop(self._ends)[2]
            if waiting.is_over:
                continue
            team = self._teams[waiting.ask.team]
            self._leave(waiting)
            found = self._estimate(team, waiting.ask.priority, now)
            reason: Reason = "team_expired" if team.is_full else "expired"
            rejection = rejection_of(reason, team.name, None if found is None else max(found))
            expired.append((waiting, self._count(rejection, team)))
        return expired

    # who is next

    def _is_someone_next(self) -> bool:
        return self.waiting > 0 and self._next() is not None

    def _next(self) -> tuple[_Team, int] | None:
        """The team and priority whose turn it is, of those that may have a slot."""
        able = [team for team in self._queued.values() if not team.is_full]
        priorities = {priority for team in able for priority in team.lanes}
        if not priorities:
            return None
        passed = max(priorities, key=lambda priority: (self._passes.get(priority, 0), priority))
        chosen = passed if self._passes.get(passed, 0) >= PASSES else max(priorities)
        team = min(
            (team for team in able if chosen in team.lanes),
            key=lambda team: (team.in_use / team.weight, team.turn),
        )
        return team, chosen

    def _pass_over(self, chosen: int) -> None:
        """Count a turn for each priority that could have had it; one that nobody waits in any more begins anew."""
        passes = {
            each: self._passes.get(each, 0) for one in self._queued.values() for each in one.lanes
        }
        able = {each for one in self._queued.values() if not one.is_full for each in one.lanes}
        for each in able:
            passes[each] += 1
        passes[chosen] = 0
        self._passes = passes

    # how long it takes

    def _estimate(self, team: _Team, priority: int, now: float) -> tuple[float, float] | None:
        """Seconds until a newcomer has its slot, for its team's limit and for the system's; None: nothing ended yet."""
        service_s = self._service_s(now)
        if service_s is None:
            return None
        own_s = max(team.pace.mean_s, self._stall_s(now)) if team.pace.ended >= FEW else service_s
        turns = team.ahead(priority) + 1
        by_team = by_all = 0.0
        if team.limit:
            by_team = max(0, turns - (team.limit - team.in_use)) * own_s / team.limit
        if self.setting.concurrency:
            by_all = self._system_s(team, priority, turns, (service_s, own_s))
        return by_team, by_all

    def _system_s(
        self, team: _Team, priority: int, turns: int, means: tuple[float, float]
    ) -> float:
        """Until it has one of the slots that all share.

        A team below its fair share gets every slot that is freed until it has it; from then on it gets its own back.
        """
        service_s, own_s = means
        slots = self.setting.concurrency or 1
        # teams without a queue keep the slots they have; the others share the rest
        share, higher, queued = float(slots - self.in_use + team.in_use), 0, team.weight
        for other in self._queued.values():
            if other is team:
                continue
            share += other.in_use
            for each, lane in other.lanes.items():
                if each > priority:
                    higher += len(lane)
                elif each == priority:
                    queued += other.weight
        share = max(share, 1.0) * team.weight / queued
        quick = min(turns, max(0.0, share - team.in_use))
        free = slots - self.in_use
        before = min(higher, PASSES * turns)
        return (max(0.0, quick - free) + before) * service_s / slots + (
            turns - quick
        ) * own_s / share

    def _service_s(self, now: float) -> float | None:
        if not self._pace.ended:
            return None
        return max(self._pace.mean_s, self._stall_s(now))

    def _stall_s(self, now: float) -> float:
        """A lower bound of the service time from what has not ended: the mean knows nothing of a server that stands still."""
        if not self._running or self._released_s is None:
            return 0.0
        oldest_s = now - next(iter(self._running)).began_s
        return min(oldest_s, (now - self._released_s) * self.in_use / SILENT)


def ask_of(job: Job) -> Ask:
    """What a job wants."""
    return Ask(
        arrived_s=job.arrived_s,
        team=job.team,
        priority=job.priority,
        prompt_tokens=job.prompt_tokens,
        output_tokens=job.output_tokens,
    )


def _made(setting: AdmissionSetting, team: TeamSetting | None, name: str) -> _Team:
    team = team or TeamSetting(name=name)
    return _Team(
        name=name,
        limit=team.concurrency,
        queue=team.queue,
        weight=float(team.concurrency or setting.concurrency or 1),
        max_prompt_tokens=_smaller(team.max_prompt_tokens, setting.max_prompt_tokens),
        max_output_tokens=_smaller(team.max_output_tokens, setting.max_output_tokens),
    )


def _smaller(one: int | None, other: int | None) -> int | None:
    known = [each for each in (one, other) if each is not None]
    return min(known) if known else None

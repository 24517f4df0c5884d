"""Admission against a model of the same rules: one list of those that wait, searched from end to end, and no sums kept."""

import random
from dataclasses import dataclass, field

import pytest

from toolkit.proxy.admission import PASSES, SURE, Admission, Place
from toolkit.proxy.config import AdmissionSetting, TeamSetting
from toolkit.proxy.errors import Rejection


@dataclass(eq=False)
class One:
    """A request, as the model knows it."""

    team: str
    priority: int
    ends_s: float
    place: Place | None = None


@dataclass(eq=False)
class Model:
    """What should happen."""

    setting: AdmissionSetting
    teams: dict[str, TeamSetting]
    waiting: list[One] = field(default_factory=list)
    """In the order of arrival."""
    running: list[One] = field(default_factory=list)
    pushed: list[One] = field(default_factory=list)
    passes: dict[int, int] = field(default_factory=dict)
    turns: list[str] = field(default_factory=list)
    """Whose turns there were."""

    def limit(self, team: str) -> int | None:
        return self.teams[team].concurrency if team in self.teams else None

    def weight(self, team: str) -> float:
        return self.limit(team) or self.setting.concurrency or 1

    def used(self, team: str) -> int:
        return sum(one.team == team for one in self.running)

    def may_run(self, team: str) -> bool:
        limit, most = self.limit(team), self.setting.concurrency
        return (limit is None or self.used(team) < limit) and (
            most is None or len(self.running) < most
        )

    def next(self) -> One | None:
        able = [one for one in self.waiting if self.may_run(one.team)]
        if not able:
            return None
        priorities = {one.priority for one in able}
        patient = [each for each in priorities if self.passes.get(each, 0) >= PASSES]
        chosen = max(priorities)
        if patient:
            chosen = max(patient, key=lambda each: (self.passes[each], each))
        return min(
            (one for one in able if one.priority == chosen),
            key=lambda one: (self.used(one.team) / self.weight(one.team), self.last(one.team)),
        )

    def last(self, team: str) -> int:
        return max((turn for turn, each in enumerate(self.turns) if each == team), default=-1)

    def start(self, one: One) -> None:
        self.turns.append(one.team)
        self.running.append(one)

    def serve(self) -> list[One]:
        served = []
        while (one := self.next()) is not None:
            able = {each.priority for each in self.waiting if self.may_run(each.team)}
            self.passes = {
                each.priority: self.passes.get(each.priority, 0) + (each.priority in able)
                for each in self.waiting
            }
            self.passes[one.priority] = 0
            self.waiting.remove(one)
            self.start(one)
            served.append(one)
        return served

    def ask(self, one: One, now: float, wait_s: float | None) -> str:
        if self.may_run(one.team) and self.next() is None:
            self.start(one)
            return "slot"
        own = [each for each in self.waiting if each.team == one.team]
        team = self.teams.get(one.team)
        if team is not None and team.queue is not None and len(own) >= team.queue:
            return "team_queue_full"
        if wait_s is not None and now + SURE * wait_s > one.ends_s:
            return "too_slow"
        if len(self.waiting) >= self.setting.queue:
            victim = self.victim(one)
            if victim is None:
                return "queue_full"
            self.waiting.remove(victim)
            self.pushed.append(victim)
        self.waiting.append(one)
        return "waiting"

    def victim(self, one: One) -> One | None:
        kept = self.setting.queue // (PASSES + 1)
        number = {
            each: sum(other.priority == each for other in self.waiting)
            for each in {other.priority for other in self.waiting}
        }
        poor = number.get(one.priority, 0) < kept
        lower = [each for each in number if each < one.priority and number[each] > kept]
        higher = [each for each in number if each > one.priority and number[each] > kept and poor]
        chosen = min(lower + higher, default=one.priority)
        lanes: dict[str, list[One]] = {}
        for each in self.waiting:
            if each.priority == chosen:
                lanes.setdefault(each.team, []).append(each)
        if not lanes:
            return None
        longest = max(len(lane) / self.weight(team) for team, lane in lanes.items())
        if chosen == one.priority:
            mine = (len(lanes.get(one.team, ())) + 1) / self.weight(one.team)
            if longest <= mine:
                return None
        last = [
            lane[-1] for team, lane in lanes.items() if len(lane) / self.weight(team) == longest
        ]
        return max(last, key=self.waiting.index)

    def expire(self, now: float) -> list[One]:
        expired = [one for one in self.waiting if one.ends_s <= now]
        self.waiting = [one for one in self.waiting if one.ends_s > now]
        return expired


TEAMS = (
    TeamSetting(name="a", concurrency=2, queue=6),
    TeamSetting(name="b", concurrency=3),
    TeamSetting(name="c"),
)


class Both:
    """The same steps for both, and what must be equal after each."""

    def __init__(self, setting: AdmissionSetting, teams: tuple[TeamSetting, ...]) -> None:
        self.admission = Admission(setting, teams)
        self.model = Model(setting, {team.name: team for team in teams})
        self.now = 0.0

    def ask(self, team: str, priority: int, patience_s: float) -> None:
        """`patience_s`: what is left of its time to wait, where that is less than all."""
        now = self.now
        whole_s = self.model.setting.wait_s
        arrived_s = now + min(patience_s, whole_s) - whole_s
        one = One(team=team, priority=priority, ends_s=arrived_s + whole_s)
        wait_s, _ = self.admission.estimate(team, priority, now)
        got = self.admission.ask(team, now, arrived_s=arrived_s, priority=priority)
        expected = self.model.ask(one, now, wait_s)
        if isinstance(got, Place):
            one.place = got
        assert kind(got) == expected

    def release(self, number: int) -> None:
        if self.model.running:
            one = self.model.running.pop(number % len(self.model.running))
            assert one.place is not None
            self.admission.release(one.place, self.now)
            self.admission.release(one.place, self.now)

    def cancel(self, number: int) -> None:
        everyone = self.model.waiting + self.model.pushed
        if everyone:
            one = everyone[number % len(everyone)]
            assert one.place is not None
            self.admission.release(one.place, self.now)
            for those in (self.model.waiting, self.model.pushed):
                if one in those:
                    those.remove(one)

    def due(self) -> None:
        due = self.admission.due(self.now)
        turned = self.model.pushed + self.model.expire(self.now)
        self.model.pushed = []
        rejected = {id(place) for place, why in due if why is not None}
        assert rejected == {id(one.place) for one in turned}
        served = [place for place, why in due if why is None]
        assert served == [one.place for one in self.model.serve()]

    def check(self) -> None:
        admission, model = self.admission, self.model
        assert admission.in_use == len(model.running)
        assert admission.waiting == len(model.waiting) <= model.setting.queue
        if model.setting.concurrency is not None:
            assert admission.in_use <= model.setting.concurrency
        for team, waiting in admission.queued().items():
            assert waiting == sum(one.team == team for one in model.waiting)
            assert model.limit(team) is None or model.used(team) <= model.limit(team)
            queue = model.teams[team].queue if team in model.teams else None
            assert queue is None or waiting <= queue
        assert all(one.place and one.place.waits for one in model.waiting)
        assert all(one.place and not one.place.waits for one in model.running)


def kind(got: Place | Rejection) -> str:
    if isinstance(got, Place):
        return "waiting" if got.waits else "slot"
    return got.reason.removeprefix("team_") if got.reason.endswith("too_slow") else got.reason


STEPS = ["ask"] * 8 + ["release"] * 4 + ["due"] * 4 + ["cancel"] + ["time"] * 2


@pytest.mark.parametrize("seed", range(12))
def test_a_thousand_steps_give_what_the_model_gives(seed: int) -> None:
    chance = random.Random(seed)
    setting = AdmissionSetting(
        concurrency=chance.choice([None, 1, 4, 6]),
        queue=chance.choice([1, 8, 20, 40]),
        wait_s=chance.choice([5.0, 1000.0]),
    )
    both = Both(setting, TEAMS)
    names = chance.choice(["aab", "abcd", "aaaaaaab"])
    priorities = chance.choice([[0], [0, 0, 1], [-1, 0, 5, 5, 5]])
    for _ in range(1000):
        step = chance.choice(STEPS)
        if step == "ask":
            patience_s = chance.choice([1.0, 100.0, 1000.0])
            both.ask(chance.choice(names), chance.choice(priorities), patience_s)
        elif step == "release":
            both.release(chance.randrange(1000))
        elif step == "cancel":
            both.cancel(chance.randrange(1000))
        elif step == "due":
            both.due()
        else:
            both.now += chance.choice([0.0, 0.1, 1.0, 3.0])
        both.check()

"""Fairness between teams and priorities, in simulated crowds (support/crowds.py)."""

import pytest
from support.crowds import Crowd, Stream, constant, exponential, percentile

from toolkit.proxy.admission import PASSES, Admission
from toolkit.proxy.config import AdmissionSetting, TeamSetting

SEEDS = range(2)


def of_team(crowd: Crowd, team: str) -> list[float]:
    """Each request's time from arrival to end; all must have ended."""
    fates = [fate for fate in crowd.fates if fate.team == team]
    assert all(fate.latency_s is not None for fate in fates)
    return [fate.latency_s for fate in fates if fate.latency_s is not None]


def run(
    setting: AdmissionSetting, teams: tuple[TeamSetting, ...], *streams: Stream, seed: int
) -> Crowd:
    return Crowd(Admission(setting, teams)).run(streams, seconds=120.0, seed=seed)


@pytest.mark.parametrize("seed", SEEDS)
def test_where_the_teams_limits_fit_a_flood_changes_nothing_for_another_team(seed: int) -> None:
    setting = AdmissionSetting(concurrency=8, wait_s=60.0)
    teams = (TeamSetting(name="calm", concurrency=4), TeamSetting(name="flood", concurrency=4))
    # at 90 % of its own 4 slots it has a queue of its own making
    calm = Stream(team="calm", rate_per_s=3.6, service=exponential(1.0))
    flood = Stream(team="flood", rate_per_s=100.0, service=exponential(3.0))
    alone = of_team(run(setting, teams, calm, seed=seed), "calm")
    beside = of_team(run(setting, teams, calm, flood, seed=seed), "calm")
    assert beside == alone
    assert percentile(alone, 0.95) > 3.0


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("priority", [0, 1])
def test_where_all_slots_are_shared_a_flood_leaves_anothers_p95_within_a_fifth(
    seed: int, priority: int
) -> None:
    setting = AdmissionSetting(concurrency=16, queue=200, wait_s=30.0)
    calm = Stream(team="calm", rate_per_s=4.0, service=exponential(1.0), priority=priority)
    # 5 times what is there: the queue of 200 is full all the time, and a slot is free each 1/16 s
    flood = Stream(team="flood", rate_per_s=80.0, service=exponential(1.0))
    alone = of_team(run(setting, (), calm, seed=seed), "calm")
    beside = of_team(run(setting, (), calm, flood, seed=seed), "calm")
    assert percentile(beside, 0.95) < 1.2 * percentile(alone, 0.95)


@pytest.mark.parametrize("seed", SEEDS)
def test_two_floods_share_the_slots_by_their_limits_whoever_asks_more(seed: int) -> None:
    setting = AdmissionSetting(concurrency=8, queue=1000, wait_s=1000.0)
    teams = (TeamSetting(name="small", concurrency=4), TeamSetting(name="large", concurrency=12))
    small = Stream(team="small", rate_per_s=60.0, service=constant(1.0))
    large = Stream(team="large", rate_per_s=30.0, service=constant(1.0))
    crowd = run(setting, teams, small, large, seed=seed)
    shares = {
        team: sum(50.0 <= at < 110.0 for at in times) / (8 * 60.0)
        for team, times in crowd.served_s.items()
    }
    # 4 to 12: a quarter and three quarters of the 8 slots
    assert shares["small"] == pytest.approx(0.25, abs=0.02)
    assert shares["large"] == pytest.approx(0.75, abs=0.02)


@pytest.mark.parametrize("seed", SEEDS)
def test_a_flood_of_lower_priority_costs_a_higher_one_less_than_a_turn_in_nine(seed: int) -> None:
    setting = AdmissionSetting(concurrency=8, queue=200, wait_s=1000.0)
    high = Stream(team="high", rate_per_s=80.0, service=constant(1.0), priority=1)
    low = Stream(team="low", rate_per_s=80.0, service=constant(1.0))
    crowd = run(setting, (), high, low, seed=seed)
    # from 5 s on the queue is full of high ones; 8 turns a second
    served = sum(5.0 <= at < 115.0 for at in crowd.served_s["high"])
    assert served == pytest.approx(110 * 8 * PASSES / (PASSES + 1), rel=0.02)

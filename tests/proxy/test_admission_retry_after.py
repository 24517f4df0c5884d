"""Retry-After against what the wait would have been, in simulated crowds at 1.5 to 5 times capacity.

The truth of a request turned away: had it joined the queue, it would have been served when its team's q + 1 next were
(q of its team waited). The crowd counts that by itself (support/crowds.py), from when others were in fact served.
"""

from collections import Counter
from dataclasses import replace
from itertools import count
from random import Random
from statistics import median

import pytest
from support.crowds import Crowd, Service, Stream, constant, exponential

from toolkit.proxy.admission import Admission
from toolkit.proxy.config import AdmissionSetting, TeamSetting

LEARNT_S = 20.0
"""Services of 1 s at 8 slots: by then 160 have ended."""
LOADS = (1.5, 3.0, 5.0)
SERVICES = {"exponential": exponential(1.0), "constant": constant(1.0)}
FULL = AdmissionSetting(concurrency=8, queue=32, wait_s=1000.0)
SLOW = AdmissionSetting(concurrency=8, queue=1024, wait_s=6.0)
BIG = AdmissionSetting(concurrency=64, queue=1024, wait_s=1000.0)
TEAM = TeamSetting(name="a", concurrency=8, queue=32)


def told(
    setting: AdmissionSetting,
    teams: tuple[TeamSetting, ...],
    *streams: Stream,
    seed: int,
    seconds: float = 60.0,
) -> tuple[list[float], set[str]]:
    """What was told / what was true, and the reasons given."""
    crowd = Crowd(Admission(setting, teams)).run(streams, seconds=seconds, seed=seed)
    return crowd.honesty(from_s=LEARNT_S), set(reasons(crowd))


def reasons(crowd: Crowd) -> Counter[str]:
    return Counter(fate.rejection.reason for fate in crowd.fates if fate.rejection is not None)


def check(ratios: list[float]) -> None:
    """33 exponential services have a spread of 1/sqrt(33) = 17 %, the mean of 64 has 12 %: a factor of 2 is three times both.

    So of some hundreds one may lie beyond it by chance; the middle may not be off by a quarter.
    """
    assert len(ratios) > 100
    assert 0.8 < median(ratios) < 1.25
    assert sum(0.5 <= ratio <= 2.0 for ratio in ratios) >= 0.98 * len(ratios)


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("seed", range(2))
def test_a_full_queue_tells_how_long_it_takes(load: float, service: Service, seed: int) -> None:
    ratios, given = told(FULL, (), Stream(rate_per_s=8 * load, service=service), seed=seed)
    check(ratios)
    assert given == {"queue_full"}


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("seed", range(2))
def test_a_queue_that_is_too_slow_tells_how_slow(load: float, service: Service, seed: int) -> None:
    ratios, given = told(SLOW, (), Stream(rate_per_s=8 * load, service=service), seed=seed)
    check(ratios)
    assert "too_slow" in given


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
@pytest.mark.parametrize("load", LOADS)
def test_a_teams_own_full_queue_tells_how_long_it_takes(load: float, service: Service) -> None:
    ratios, given = told(BIG, (TEAM,), Stream(rate_per_s=8 * load, service=service), seed=4)
    check(ratios)
    assert given == {"team_queue_full"}


@pytest.mark.parametrize("service", SERVICES.values(), ids=SERVICES)
@pytest.mark.parametrize("load", LOADS)
def test_teams_that_share_the_slots_are_told_their_own_queues_time(
    load: float, service: Service
) -> None:
    # b asks three times as often, so that its queue is the longer one until both are cut at the same wait
    streams = (
        Stream(rate_per_s=4 * load, service=service),
        Stream(rate_per_s=12 * load, service=service, team="b"),
    )
    setting = replace(SLOW, wait_s=16.0)  # of a's share, 4 slots, that is some 50 services
    ratios, _ = told(setting, (), *streams, seed=5, seconds=120.0)
    check(ratios)


def test_after_the_service_has_become_four_times_slower_the_time_told_follows() -> None:
    drawn = count()  # in the order of arrival: at 24 a second number 720 comes at about 30 s

    def slower(_: Random) -> float:
        return 1.0 if next(drawn) < 720 else 4.0

    crowd = Crowd(Admission(FULL))
    crowd.run([Stream(rate_per_s=24.0, service=slower)], seconds=150.0, seed=1)
    # from then on 8 slots end 2 a second: the mean's 64 in 32 s, after the 8 s that the old queue takes
    check(crowd.honesty(from_s=30.0 + 8.0 + 32.0))


def test_few_of_those_that_were_let_in_wait_in_vain() -> None:
    crowd = Crowd(Admission(SLOW)).run(
        [Stream(rate_per_s=24.0, service=exponential(1.0))], seconds=120.0, seed=2
    )
    served = [fate for fate in crowd.fates if fate.started_s is not None]
    assert reasons(crowd)["expired"] < 0.1 * len(served)
    # and nobody is turned away while slots stand empty: 8 slots for 120 s of 1 s each
    assert len(served) > 0.95 * 8 * 120

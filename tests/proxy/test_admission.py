"""Admission: how long a wait is thought to be, and who is turned away at once.

Who goes next and who must leave a full queue is held against a model in test_admission_model.py; whether a Retry-After is what the wait
would have been tests/long/test_proxy_crowd.py shows.
"""

import gc

import pytest

from toolkit.proxy.admission import Admission, Place
from toolkit.proxy.config import AdmissionSetting, TeamSetting
from toolkit.proxy.errors import Rejection


def admission(*teams: TeamSetting, **setting: object) -> Admission:
    return Admission(AdmissionSetting(**setting), teams)  # type: ignore[arg-type]


def slot(of: Admission, team: str = "a", now: float = 0.0) -> Place:
    got = of.ask(team, now, arrived_s=now)
    assert isinstance(got, Place)
    assert not got.waits
    return got


def place(of: Admission, now: float = 0.0) -> Place:
    got = of.ask("a", now, arrived_s=now)
    assert isinstance(got, Place)
    assert got.waits
    return got


def hold(of: Admission, seconds: float) -> None:
    """A service time for it to remember."""
    of.release(slot(of), seconds)


def test_a_server_that_stands_still_makes_the_wait_longer_than_what_it_was() -> None:
    one = admission(concurrency=4, queue=100, wait_s=1e6)
    for _ in range(10):
        hold(one, 1.0)
    for _ in range(4):
        slot(one, now=1.0)
    place(one, now=1.0)
    assert one.estimate("a", 0, 1.0)[0] == pytest.approx(2 / 4)
    # nothing ended for 60 s, where 4 slots should have ended 240: at least 60 * 4 / 6 = 40 s each
    assert one.estimate("a", 0, 61.0)[0] == pytest.approx(2 * 40 / 4)
    # nothing that runs is older than the 60 s, however long nothing ended
    assert one.estimate("a", 0, 601.0)[0] == pytest.approx(2 * 400 / 4)


def test_hours_without_work_are_no_standstill() -> None:
    one = admission(concurrency=1, queue=100, wait_s=1e6)
    hold(one, 1.0)
    slot(one, now=10_000.0)
    place(one, now=10_000.5)
    assert one.estimate("a", 0, 10_000.5)[0] == pytest.approx(2.0)


@pytest.mark.parametrize(
    ("team", "prompt", "output", "reason", "status"),
    [
        ("a", 101, None, "prompt_too_long", 413),
        ("a", 100, 51, "output_too_long", 400),
        ("b", 1001, None, "prompt_too_long", 413),
        ("b", None, 501, "output_too_long", 400),
        ("c", 1001, None, "prompt_too_long", 413),
    ],
)
def test_what_is_too_long_for_team_or_system_is_refused_whatever_is_free(
    team: str, prompt: int | None, output: int | None, reason: str, status: int
) -> None:
    house = admission(
        TeamSetting(name="a", max_prompt_tokens=100, max_output_tokens=50),
        TeamSetting(name="b", max_prompt_tokens=5000),
        max_prompt_tokens=1000,
        max_output_tokens=500,
    )
    rejection = house.ask(team, 0.0, arrived_s=0.0, prompt_tokens=prompt, output_tokens=output)
    assert isinstance(rejection, Rejection)
    assert (rejection.reason, rejection.status) == (reason, status)
    assert rejection.retry_after_s is None


def test_requests_that_come_and_leave_while_nothing_moves_leave_nothing_behind() -> None:
    one = admission(concurrency=1, queue=10)
    slot(one)
    for _ in range(5000):
        one.release(place(one), 0.0)
    assert sum(isinstance(each, Place) for each in gc.get_objects()) < 200


def test_what_waits_elsewhere_takes_places_of_its_team_s_queue_and_of_all() -> None:
    house = admission(TeamSetting(name="a", queue=3), concurrency=1, queue=5)
    slot(house), place(house)
    assert house.may_wait("a", others=1, of_team=1) is None
    mine = house.may_wait("a", others=2, of_team=2)
    assert mine is not None
    assert mine.reason == "team_queue_full"
    all_ = house.may_wait("b", others=4, of_team=0)
    assert all_ is not None
    assert all_.reason == "queue_full"

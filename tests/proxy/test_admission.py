"""Admission: who gets a slot, who waits, who is turned away and with what, request by request."""

import gc

import pytest

from toolkit.proxy.admission import Admission, Place
from toolkit.proxy.config import AdmissionSetting, TeamSetting
from toolkit.proxy.errors import Rejection


def admission(*teams: TeamSetting, **setting: object) -> Admission:
    return Admission(AdmissionSetting(**setting), teams)  # type: ignore[arg-type]


def slot(of: Admission, team: str = "a", now: float = 0.0, priority: int = 0) -> Place:
    got = of.ask(team, now, arrived_s=now, priority=priority)
    assert isinstance(got, Place)
    assert not got.waits
    return got


def place(
    of: Admission,
    team: str = "a",
    now: float = 0.0,
    priority: int = 0,
    arrived_s: float | None = None,
) -> Place:
    arrived_s = now if arrived_s is None else arrived_s
    got = of.ask(team, now, arrived_s=arrived_s, priority=priority)
    assert isinstance(got, Place)
    assert got.waits
    return got


def served(of: Admission, now: float) -> list[Place]:
    """Who gets a slot now."""
    return [who for who, why in of.due(now) if why is None]


def rejected(of: Admission, now: float) -> list[tuple[Place, Rejection]]:
    """Who waited in vain."""
    return [(who, why) for who, why in of.due(now) if why is not None]


def no(of: Admission, now: float = 0.0, **more: int) -> Rejection:
    got = of.ask("a", now, arrived_s=now, **more)
    assert isinstance(got, Rejection)
    return got


def hold(of: Admission, seconds: float, team: str = "a", now: float = 0.0) -> None:
    """A service time for it to remember."""
    of.release(slot(of, team, now), now + seconds)


def test_a_higher_priority_goes_first_and_a_lower_one_after_eight_turns_at_the_latest() -> None:
    one = admission(concurrency=1)
    held = slot(one)
    low = [place(one, priority=-1) for _ in range(3)]
    high = [place(one, priority=3) for _ in range(20)]
    order = []
    for now in range(1, 24):
        one.release(held, float(now))
        (held,) = served(one, float(now))
        order.append(held)
    # 8 high, 1 low, 8 high, 1 low, the last 4 high, the last low
    assert order == [*high[:8], low[0], *high[8:16], low[1], *high[16:], low[2]]


def test_of_a_full_queue_a_ninth_is_kept_for_each_priority_also_for_the_lowest() -> None:
    house = admission(concurrency=1, queue=18)
    slot(house)
    high = [place(house, priority=1) for _ in range(18)]
    low = [place(house, priority=0), place(house, priority=0)]
    assert [who for who, _ in rejected(house, 0.0)] == [high[17], high[16]]
    assert no(house, priority=0).reason == "queue_full"
    # nor does a high one take the places of these two: 2 is a ninth of 18
    assert no(house, priority=1).reason == "queue_full"
    assert all(each.waits for each in low)
    house.release(high[0], 0.0)
    place(house, priority=0)
    place(house, priority=1)  # but the third is one too many
    assert len(rejected(house, 0.0)) == 1
    assert all(each.waits for each in low)


def test_a_wait_that_ended_for_the_teams_own_limit_says_so() -> None:
    house = admission(TeamSetting(name="a", concurrency=1), concurrency=9, wait_s=10.0)
    slot(house)
    place(house)
    ((_, rejection),) = rejected(house, 10.0)
    assert (rejection.reason, rejection.status) == ("team_expired", 429)


def test_a_team_whose_own_slots_are_too_slow_gets_its_own_status() -> None:
    house = admission(TeamSetting(name="a", concurrency=2), concurrency=100, wait_s=9.0)
    hold(house, 8.0)
    slot(house, now=8.0), slot(house, now=8.0)
    place(house, now=8.0)  # 8 s / 2 slots = 4 s, the next one 8 s: with a quarter more 10
    rejection = no(house, now=8.0)
    assert (rejection.reason, rejection.status) == ("team_too_slow", 429)
    assert rejection.retry_after_s == pytest.approx(8.0)
    slot(house, "b", now=8.0)


def test_before_anything_ended_nothing_is_foretold() -> None:
    one = admission(concurrency=1, queue=2, wait_s=1.0)
    slot(one)
    place(one), place(one)
    assert one.estimate("a", 0, 0.0) == (None, False)
    assert no(one).retry_after_s is None


def test_a_newcomer_waits_for_its_own_queue_and_its_share_and_not_for_anothers_flood() -> None:
    house = admission(concurrency=4, queue=1000, wait_s=1e6)
    hold(house, 8.0)
    for _ in range(4):
        slot(house, "flood", now=8.0)
    for _ in range(100):
        place(house, "flood", now=8.0)
    # the small team's share is 2 of the 4 slots, and it has none: the next slot is its own, in 8 / 4 = 2 s
    assert house.estimate("small", 0, 8.0)[0] == pytest.approx(2.0)
    # the flood alone: 101 turns at 4 slots in 8 s
    assert house.estimate("flood", 0, 8.0)[0] == pytest.approx(202.0)
    assert house.estimate("small", 1, 8.0)[0] == pytest.approx(2.0)
    # below the flood it goes after eight of it, with the turn after them: 8 + 1 turns of 2 s
    assert house.estimate("small", -1, 8.0)[0] == pytest.approx(18.0)


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

"""How many users a host has, and an open loop's slots: absolute, and charged when nobody took them."""

import pytest

from toolkit.blast.pacing import HostPace, stage_at, users_for
from toolkit.errors import ToolkitError
from toolkit.profiles import Phase

RAMP = Phase(name="ramp", length_s=60.0, users=(1, 31))
HOLD = Phase(name="hold", length_s=120.0, users=(31, 31), spawn_rate=4.0)
DOWN = Phase(name="down", length_s=10.0, users=(31, 0))
ALL = (RAMP, HOLD, DOWN)


def test_users_are_rounded_up_to_a_multiple_of_the_hosts_and_that_is_said() -> None:
    for users, hosts in ((8, 4), (1, 1), (400, 8)):
        assert users_for(users, hosts) == (users, None)
    assert users_for(10, 4) == (12, "10 users were rounded up to 12: 3 for each of 4 hosts")
    assert users_for(1, 19)[0] == 19
    for users, hosts in ((0, 3), (-1, 3), (3, 0)):
        with pytest.raises(ToolkitError) as caught:
            users_for(users, hosts)
        assert caught.value.hint


@pytest.mark.parametrize(
    ("t_s", "name", "users"),
    [
        (-1.0, "ramp", 1),  # a clock that was read a little early
        (0.0, "ramp", 1),
        (1.0, "ramp", 2),  # 1 + 30 x 1/60 = 1.5, and a half user is a whole one
        (30.0, "ramp", 16),  # 1 + 30 x 30/60
        (59.9, "ramp", 31),
        (60.0, "hold", 31),
        (179.99, "hold", 31),
        (185.0, "down", 16),  # 31 x 0.5 = 15.5
    ],
)
def test_a_moment_has_its_phase_and_its_users(t_s: float, name: str, users: int) -> None:
    stage = stage_at(ALL, t_s)
    assert stage is not None
    assert (stage.name, stage.users) == (name, users)
    assert stage_at(ALL, 190.0) is stage_at((), 0.0) is None


def test_users_start_as_fast_as_the_profile_says_else_fast_enough() -> None:
    assert stage_at(ALL, 60.0) == ("hold", 31, 4.0)
    # 20 within a second; twice 100/10; at least 1
    for length_s, users, rate in (
        (5.0, (20, 20), 20.0),
        (10.0, (0, 100), 20.0),
        (1e3, (0, 1), 1.0),
    ):
        stage = stage_at((Phase(name="a", length_s=length_s, users=users),), 0.0)
        assert stage is not None
        assert stage.spawn_rate == rate


# --- an open loop ---------------------------------------------------------------------------------------


def test_slots_are_a_rates_multiples_from_the_start_and_do_not_drift() -> None:
    pace = HostPace(4.0, start_s=100.0)
    assert [pace.claim() for _ in range(5)] == [100.0, 100.25, 100.5, 100.75, 101.0]
    third = HostPace(3.0, start_s=0.0)
    assert [third.claim() for _ in range(30_001)][-1] == 10_000.0


def test_what_nobody_took_in_time_is_given_up_once() -> None:
    pace = HostPace(2.0, start_s=0.0)
    assert pace.missed(0.0) == pace.missed(-3.0) == []
    assert pace.claim() == 0.0
    assert pace.missed(2.0, patience_s=1.0) == [0.5]  # 1.0 is due just a second ago: still in time
    assert pace.missed(2.0, patience_s=1.0) == []
    assert pace.claim() == 1.0
    assert pace.missed(3.1) == [1.5, 2.0, 2.5, 3.0]
    assert pace.claim() == 3.5
    pace.go_on_at(1.0)  # going on never goes back
    assert pace.claim() == 4.0


@pytest.mark.parametrize(("now_s", "first"), [(-1.0, 0.0), (0.1, 0.5), (0.5, 0.5), (0.51, 1.0)])
def test_after_a_rest_nothing_is_made_up_for(now_s: float, first: float) -> None:
    pace = HostPace(2.0, start_s=0.0)  # 0.0, 0.5, 1.0 ...
    pace.go_on_at(now_s)
    assert pace.claim() == first


@pytest.mark.parametrize("rate", [0.0, -1.0, float("nan"), float("inf"), 100_001.0])
def test_a_rate_that_nobody_can_send_is_refused(rate: float) -> None:
    with pytest.raises(ToolkitError, match="no blast can have a rate of") as caught:
        HostPace(rate, start_s=0.0)
    assert caught.value.hint

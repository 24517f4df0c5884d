"""How many users a host has, moment by moment."""

import pytest

from toolkit.blast.phases import LoadStage, at, length_s, most_users
from toolkit.profiles import Phase

RAMP = Phase(name="ramp", length_s=60.0, users=(1, 31))
HOLD = Phase(name="hold", length_s=120.0, users=(31, 31), spawn_rate=4.0)
DOWN = Phase(name="down", length_s=10.0, users=(31, 0))
ALL = (RAMP, HOLD, DOWN)


@pytest.mark.parametrize(
    ("t_s", "name", "users"),
    [
        (0.0, "ramp", 1),
        (1.0, "ramp", 2),  # 1 + 30 x 1/60 = 1.5, and a half user is a whole one
        (30.0, "ramp", 16),  # 1 + 30 x 30/60
        (59.9, "ramp", 31),
        (60.0, "hold", 31),
        (179.99, "hold", 31),
        (180.0, "down", 31),
        (185.0, "down", 16),  # 31 x 0.5 = 15.5
        (-1.0, "ramp", 1),  # a clock that was read a little early
    ],
)
def test_a_moment_has_its_phase_and_its_users(t_s: float, name: str, users: int) -> None:
    stage = at(ALL, t_s)
    assert stage is not None
    assert (stage.name, stage.users) == (name, users)


def test_after_the_last_phase_it_is_over() -> None:
    assert at(ALL, 190.0) is None
    assert at((), 0.0) is None


def test_all_phases_and_the_most_users_are_known_before() -> None:
    assert (length_s(ALL), most_users(ALL)) == (190.0, 31)
    assert (length_s(()), most_users(())) == (0.0, 0)


def test_users_start_as_fast_as_the_profile_says_else_fast_enough() -> None:
    assert at(ALL, 60.0) == LoadStage(name="hold", users=31, spawn_rate=4.0)
    level = Phase(name="a", length_s=5.0, users=(20, 20))
    ramp = Phase(name="a", length_s=10.0, users=(0, 100))
    slow = Phase(name="a", length_s=1000.0, users=(0, 1))
    rates = [stage.spawn_rate for one in (level, ramp, slow) if (stage := at((one,), 0.0))]
    assert rates == [20.0, 20.0, 1.0]  # 20 within a second; twice 100/10; at least 1

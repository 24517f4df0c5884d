"""The same number of users for every host."""

import pytest

from toolkit.blast.rounding import users_for
from toolkit.errors import ToolkitError


@pytest.mark.parametrize(("users", "hosts"), [(8, 4), (1, 1), (20, 20), (400, 8)])
def test_a_multiple_of_the_hosts_stays_and_nothing_is_said(users: int, hosts: int) -> None:
    assert users_for(users, hosts) == (users, None)


def test_users_are_rounded_up_and_that_is_said() -> None:
    assert users_for(10, 4) == (12, "10 users were rounded up to 12: 3 for each of 4 hosts")
    assert users_for(1, 19)[0] == 19


@pytest.mark.parametrize(("users", "hosts"), [(0, 3), (-1, 3), (3, 0)])
def test_no_users_and_no_hosts_are_refused(users: int, hosts: int) -> None:
    with pytest.raises(ToolkitError) as caught:
        users_for(users, hosts)
    assert caught.value.hint

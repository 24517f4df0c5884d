"""How many users does a host have at a moment, and when does each request of an open loop leave? Pure: no clock, no wait."""

import math
from typing import TYPE_CHECKING, NamedTuple

from toolkit.errors import ToolkitError

if TYPE_CHECKING:
    # pydantic takes 0.1 s, and `toolkit --help` wants two numbers of this file
    from collections.abc import Sequence

    from toolkit.profiles import Phase

MOST_RATE = 100_000.0
"""Requests a second and host; more than any loader core sends."""
MOST_TIMEOUT_S = 3600.0
"""Of one request."""


def users_for(users: int, hosts: int) -> tuple[int, str | None]:
    """Round up to the same number of users for every host, and say so in a sentence where it was needed."""
    if hosts < 1:
        raise ToolkitError("there is no host to load", "Name one, e.g., in `hosts.txt`")
    if users < 1:
        raise ToolkitError(f"a blast cannot have `{users}` users", "Give at least 1 for each host")
    each = -(-users // hosts)
    if each * hosts == users:
        return users, None
    said = f"{users} users were rounded up to {each * hosts}: {each} for each of {hosts} hosts"
    return each * hosts, said


class LoadStage(NamedTuple):
    """What a profile's phases want at one moment."""

    name: str
    users: int
    """Per host."""
    spawn_rate: float
    """Users started a second and host, at most."""


def stage_at(phases: "Sequence[Phase]", t_s: float) -> LoadStage | None:
    """What is wanted `t_s` seconds after the start; None: it is over."""
    start_s = 0.0
    for phase in phases:
        if t_s >= start_s + phase.length_s:
            start_s += phase.length_s
            continue
        change = phase.users_to - phase.users_from
        users = phase.users_from + change * max(0.0, t_s - start_s) / phase.length_s
        spawn_rate = phase.spawn_rate
        if spawn_rate is None and change:
            # twice a ramp's own slope, and its first users come at once, too
            slope = 2.0 * abs(change) / phase.length_s
            spawn_rate = max(1.0, slope, float(phase.users_from))
        # a level's users come within a second; a half user is a whole one
        return LoadStage(
            phase.name, math.floor(users + 0.5), spawn_rate or float(max(1, phase.users_to))
        )
    return None


class HostPace:
    """One host's slots on one worker: absolute times, claimed by whoever is free. Seconds of the clock of `start_s`.

    The rate belongs to the host and not to its users: slot n of a host is due n/rate seconds after the start, and the user
    that is free first takes the next slot. So a late answer moves no later request, every host is asked at the same rate
    whatever it answers, and a host that is too slow for its users is charged for what could not be sent.
    """

    def __init__(self, rate: float, *, start_s: float) -> None:
        if not 0 < rate <= MOST_RATE:
            raise ToolkitError(
                f"no blast can have a rate of `{rate:g}` requests a second and host",
                f"Give a number above 0 and up to {MOST_RATE:,.0f}",
            )
        self._rate = rate
        self._start_s = start_s
        self._next = 0

    def claim(self) -> float:
        """Take the next slot: when its request is due. In the past: all users were busy, and it leaves at once."""
        due_s = self._due_s(self._next)
        self._next += 1
        return due_s

    def missed(self, now_s: float, patience_s: float = 0.0) -> list[float]:
        """Give up the slots that nobody took within `patience_s` after they were due: when each was due.

        They are errors of the host (`not_sent`). A slot that was given up is not claimed any more.
        """
        given_up = []
        while (due_s := self._due_s(self._next)) < now_s - patience_s:
            given_up.append(due_s)
            self._next += 1
        return given_up

    def go_on_at(self, now_s: float) -> None:
        """Skip the slots before `now_s`, which are nobody's fault: no user was there, or the blast stood still."""
        self._next = max(self._next, math.ceil((now_s - self._start_s) * self._rate))

    def _due_s(self, number: int) -> float:
        # from the start each time: a sum of gaps would drift
        return self._start_s + number / self._rate

"""When does each request of an open loop leave? Slots of absolute time, dealt to whoever is free. No clock, no wait.

The rate belongs to the host and not to its users: slot n of a host is due n/rate seconds after the start, and the user
that is free first takes the next slot. So a late answer moves no later request, every host is asked at the same rate
whatever it answers, and a host that is too slow for its users is charged for what could not be sent.

Workers share a rate by dealing: of 3 workers the second one has slots 1, 4, 7 ... of every host.
"""

import math

from toolkit.errors import ToolkitError

MOST_RATE = 100_000.0
"""Requests a second and host; more than any loader core sends."""
MOST_TIMEOUT_S = 3600.0
"""Of one request."""


class HostPace:
    """One host's slots on one worker. Times are seconds of whatever clock `start_s` was read from."""

    def __init__(self, rate: float, *, start_s: float, part: int = 0, parts: int = 1) -> None:
        if not 0 < rate <= MOST_RATE:
            raise ToolkitError(
                f"no blast can have a rate of `{rate:g}` requests a second and host",
                f"Give a number above 0 and up to {MOST_RATE:,.0f}",
            )
        if not 0 <= part < parts:
            raise ValueError(f"there is no part {part} of {parts}")
        self._rate = rate
        self._start_s = start_s
        self._part = part
        self._parts = parts
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
        first = math.ceil(((now_s - self._start_s) * self._rate - self._part) / self._parts)
        self._next = max(self._next, first)

    def _due_s(self, number: int) -> float:
        # from the start each time: a sum of gaps would drift
        return self._start_s + (self._part + number * self._parts) / self._rate

"""What all connections of a front share: the desk, the limits, the clock, and how much of what is under way.

It reads the clock, and touches no socket.
"""

import math
import time
from collections.abc import Callable
from typing import Protocol

from toolkit.proxy.exchange import Reply, Request
from toolkit.proxy.http import answer_heads as heads
from toolkit.proxy.settings import FrontSetting

SILENT = 256
"""So many of the longest silent connections are noted at a time."""
IDLE, HEAD, BODY, DESK, CLIENT, END = "idle", "head", "body", "desk", "client", "end"
"""What a connection waits for: a request, the rest of its head or body, its answer, the client to read, the end."""


class Desk(Protocol):
    """Who answers."""

    def recall(self, data: bytes) -> bytes | list[bytes] | None:
        """The whole answer, head included, to the request of these very bytes, where it is known by them."""

    def admits(self, request: Request) -> bool:
        """Whether the body of this head should be waited for; if not, `take` answers it without."""

    def take(self, request: Request, reply: Reply) -> None:
        """Answer a request, now or later."""

    def refused(self, status: int, reason: str, peer: str) -> None:
        """Hear of a request that was refused unread; `reason` is one of framing.REASONS."""


class Watched(Protocol):
    """A connection, as far as the whole front deals with it."""

    @property
    def silent_since_s(self) -> float | None:
        """Since when it has sent no whole head, where nothing else is under way; None: something is."""

    @property
    def stalled_bytes(self) -> int:
        """What it has sent of an unfinished request that has come to a stand, or nearly so."""

    def shed(self) -> None:
        """End what is not under way, to make room for others."""

    def look(self, now: float) -> None:
        """Once a second: end what waits too long."""

    def drain(self) -> None:
        """Answer no further request but those that have begun to come."""


class FrontState:
    """What all connections share."""

    def __init__(
        self, desk: Desk, limits: FrontSetting, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self.desk = desk
        self.limits = limits
        self.clock = clock
        self.recall: Callable[[bytes], bytes | list[bytes] | None] = desk.recall
        self.busy = 0
        """Connections with a request under way."""
        self.held_bytes = 0
        """Of requests that are not whole yet, and the bodies of those under way."""
        self.is_draining = False
        self._longest_s = {
            IDLE: limits.idle_s,
            HEAD: limits.header_s,
            BODY: limits.body_s,
            DESK: math.inf,
            CLIENT: limits.stall_s,
            END: limits.stall_s,
        }
        self._open: set[Watched] = set()
        self._shed: set[Watched] = set()
        """Told to end, and open for a moment still."""
        self._silent: list[tuple[Watched, float | None]] = []
        """Those to be ended next, the longest silent last."""
        self._second, self._date = 0, b""

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._open)

    def admit(self, connection: Watched) -> int:
        """Count one more; where they are too many, the longest silent makes room. By how many they are too many then."""
        over = len(self._open) + 1 - self.limits.connections - len(self._shed)
        if over > 0 and self._shed_silent():
            over -= 1
        self._open.add(connection)
        return max(0, over)

    def _shed_silent(self) -> bool:
        if not self._silent:
            # looked for once in a while: with 10,000 open it takes 2 ms
            silent = [each for each in self._open if each.silent_since_s is not None]
            silent.sort(key=lambda each: each.silent_since_s or 0.0, reverse=True)
            self._silent = [(each, each.silent_since_s) for each in silent[-SILENT:]]
        while self._silent:
            each, since_s = self._silent.pop()
            if each in self._open and each not in self._shed and each.silent_since_s == since_s:
                self._shed.add(each)
                each.shed()
                return True
        return False

    def hold(self, more: int) -> bool:
        """Account for bytes of bodies; where they are too many, those that have come to a stand make room. False: too many still."""
        self.held_bytes += more
        while more > 0 and self.held_bytes > self.limits.held_bytes:
            victim = max(self._open, key=lambda each: each.stalled_bytes, default=None)
            if victim is None or not victim.stalled_bytes:
                return False
            victim.shed()
        return True

    def forget(self, connection: Watched) -> None:
        """It is closed."""
        self._open.discard(connection)
        self._shed.discard(connection)

    def date(self) -> bytes:
        """The Date line of this second."""
        second = int(time.time())
        if second != self._second:
            self._second, self._date = second, heads.date_line(second)
        return self._date

    def deadline_s(self, waits_for: str) -> float:
        """Until when a wait that begins now may last."""
        return self.clock() + self._longest_s[waits_for]


def never(data: bytes) -> None:
    """No answer is known."""
    del data

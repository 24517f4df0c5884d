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

IDLE, HEAD, BODY, DESK, CLIENT, END = "idle", "head", "body", "desk", "client", "end"
"""What a connection waits for: a request, the rest of its head or body, its answer, the client to read, the end."""


class Desk(Protocol):
    """Who answers."""

    def recall(self, data: bytes) -> bytes | list[bytes] | None:
        """The whole answer, head included, to the request of these very bytes, where it is known by them."""

    def take(self, request: Request, reply: Reply) -> None:
        """Answer a request, now or later."""

    def refused(self, status: int, reason: str, peer: str) -> None:
        """Hear of a request that was refused unread; `reason` is one of framing.REASONS."""


class Watched(Protocol):
    """A connection, as far as the whole front deals with it."""

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
        """Of unfinished requests."""
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
        self._second, self._date = 0, b""

    @property
    def connections(self) -> int:
        """Open ones."""
        return len(self._open)

    def admit(self, connection: Watched) -> int:
        """Count one more, and tell by how many they are too many."""
        self._open.add(connection)
        return max(0, len(self._open) - self.limits.connections)

    def forget(self, connection: Watched) -> None:
        """It is closed."""
        self._open.discard(connection)

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

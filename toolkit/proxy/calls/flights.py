"""Which requests share one call upstream: the first of its kind leads, equal ones that come while it is under way join it.

It knows no sockets and reads no clock: it says who leads, who joins, and whose leaving ends the call.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Generic, TypeVar

K = TypeVar("K", bound=Hashable)
C = TypeVar("C")


@dataclass(slots=True, kw_only=True, eq=False)
class Flight(Generic[K, C]):
    """One call upstream, and how many clients wait for it; whoever led it is one of them and no more."""

    key: K
    began_s: float
    cargo: C | None = None
    """What its owner keeps with it: the answer's beginning for those who join late, how to end the call."""
    aboard: int = 1
    open: bool = True
    """It can be joined."""
    over: bool = False
    """It has landed, or its last client left it."""


@dataclass(slots=True, kw_only=True)
class Flights(Generic[K, C]):
    """The calls under way, by key. All times are seconds of the caller's one clock."""

    longest_s: float | None = None
    """A call under way for so long is joined no more: if it hangs, it takes no newcomer with it."""
    led: int = 0
    joined: int = 0
    failed: int = 0
    """Calls that landed without a whole answer."""
    aborted: int = 0
    """Calls that nobody waited for any more."""
    _open: dict[K, Flight[K, C]] = field(default_factory=dict)

    def __len__(self) -> int:
        """Calls that can be joined."""
        return len(self._open)

    def open_at(self, key: K) -> Flight[K, C] | None:
        """The call that an equal request would join, if there is one."""
        return self._open.get(key)

    def begin(self, key: K, now: float) -> tuple[Flight[K, C], bool]:
        """The call that a request waits for, and whether it leads: then it makes the call, and must land it."""
        flight = self._open.get(key)
        if flight is not None:
            if self.longest_s is None or now - flight.began_s < self.longest_s:
                flight.aboard += 1
                self.joined += 1
                return flight, False
            self.close(flight)
        flight = self._open[key] = Flight(key=key, began_s=now)
        self.led += 1
        return flight, True

    def close(self, flight: Flight[K, C]) -> None:
        """Let nobody join any more, e.g., once the answer's beginning is no longer kept; who is aboard stays."""
        if flight.open:
            flight.open = False
            del self._open[flight.key]

    def finish(self, flight: Flight[K, C], *, ok: bool) -> None:
        """The call has landed. Store a whole answer before this, so that no equal request finds neither it nor the call.

        A failure is told to those aboard and to nobody else: the next equal request leads a call of its own.
        """
        if flight.over:
            return
        self.close(flight)
        flight.over = True
        self.failed += not ok

    def leave(self, flight: Flight[K, C]) -> bool:
        """A client goes away. True: it was the last, so end the call upstream; until then the call goes on without its leader."""
        flight.aboard -= 1
        assert flight.aboard >= 0, "more clients left a call than waited for it"
        if flight.over or flight.aboard:
            return False
        self.close(flight)
        flight.over = True
        self.aborted += 1
        return True

"""In which second of the master's clock did a worker's second lie? Estimated from when its messages came. No clock.

A message bears the worker's wall clock when it left; the master notes its own when it came. Their difference is the
clocks' offset plus the way, which only adds: the least of the last messages is nearest to the offset. A worker within a
second of the master stays as it is, for neighbouring clocks are better than a guess; one that is off by more is shifted by
whole seconds, and keeps its shift while it is within a second of the estimate, so that no second is counted twice.
"""

from collections import deque

MOST_MESSAGES = 30
"""Half a minute of them: one that met no queue is among them."""
MOST_OFF_S = 1.0


class Placing:
    """The master's view of its workers' clocks."""

    def __init__(self) -> None:
        self._ways: dict[str, deque[float]] = {}
        self._shifts: dict[str, int] = {}

    def note(self, worker: str, sent_at: float, received_at: float) -> None:
        """Note one message: the worker's wall clock when it left, the master's when it came."""
        ways = self._ways.setdefault(worker, deque(maxlen=MOST_MESSAGES))
        ways.append(received_at - sent_at)
        if abs(min(ways) - self.shift_s(worker)) > MOST_OFF_S:
            self._shifts[worker] = round(min(ways))

    def shift_s(self, worker: str) -> int:
        """Whole seconds to add to what this worker says."""
        return self._shifts.get(worker, 0)

"""How long to wait before an engine is started again, and when never again. Times in, times out: it waits for nothing."""

from collections import deque


class Backoff:
    """One engine's restarts: each wait is twice the one before, up to a cap; too many within a window are a crash loop.

    After a stretch of being well as long as the cap, the waits begin anew; the window does not forget so soon. All times are
    seconds of the caller's one clock.
    """

    def __init__(self, *, first_s: float, most_s: float, restarts: int, within_s: float) -> None:
        """`restarts` within `within_s` are let happen; the next one is not."""
        self._first_s, self._most_s = first_s, max(first_s, most_s)
        self._restarts, self._within_s = restarts, within_s
        self._at_s: deque[float] = deque()
        self._in_a_row = 0
        self._well_s: float | None = None

    def next(self, now: float) -> float | None:
        """Count one restart and say how long to wait before it; None: it is a crash loop, and not to be started again."""
        while self._at_s and now - self._at_s[0] >= self._within_s:
            self._at_s.popleft()
        if len(self._at_s) >= self._restarts:
            return None
        if self._well_s is not None and now - self._well_s >= self._most_s:
            self._in_a_row = 0
        self._well_s = None
        self._at_s.append(now)
        wait_s = min(self._most_s, self._first_s * 2.0 ** min(self._in_a_row, 60))
        self._in_a_row += 1
        return wait_s

    def came_back(self, now: float) -> None:
        """It is well from now on."""
        self._well_s = now

    def refusal(self) -> str:
        """Why it is not started again."""
        if not self._restarts:
            return "no restart is allowed"
        return f"{len(self._at_s)} restarts within {self._within_s:g} s: a crash loop"

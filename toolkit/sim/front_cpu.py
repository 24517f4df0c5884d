"""When does a request get through an API process that has one core? In the order of arrival; the caller owns the clock."""


class FrontCpu:
    """The one core of the API process."""

    def __init__(self) -> None:
        self.used_s = 0.0
        """CPU time that requests have cost so far, those in the queue included."""
        self._free_at = 0.0

    def through_at(self, now: float, cost_s: float) -> float:
        """Take a turn that costs so much; the moment at which it is over."""
        self._free_at = max(now, self._free_at) + cost_s
        self.used_s += cost_s
        return self._free_at

    def spent_s(self, now: float) -> float:
        """CPU time until now: a turn that is still to come has cost nothing yet."""
        return self.used_s - max(0.0, self._free_at - now)

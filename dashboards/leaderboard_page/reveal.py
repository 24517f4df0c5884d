"""The end of a freeze, place by place from the last to the first: every viewer sees the same step at the same time.

It follows from the reveal's own moment and the clock, so nobody presses a button and a page opened late is in step.
"""

from collections.abc import Iterable
from math import floor

from toolkit.records import Event

STEP_S = 4.0
"""Between two places: long enough to read a row aloud."""


def frozen_before(events: Iterable[Event]) -> tuple[int, float] | None:
    """The second at which the board stood still, and when it was revealed; None: it is, or was never, frozen."""
    frozen: int | None = None
    found: tuple[int, float] | None = None
    for event in sorted(events, key=lambda event: event.at):
        if event.kind == "freeze":
            frozen = floor(event.at) if frozen is None else frozen
            found = None
        elif event.kind == "reveal" and frozen is not None:
            found, frozen = (frozen, event.at), None
    return found


def covered_places(revealed_at: float, now: float, places: int) -> range:
    """The places, from 1, that are still covered: the last one is uncovered at once, the first at the very end."""
    steps = 1 + floor(max(0.0, now - revealed_at) / STEP_S)
    return range(1, max(0, places - steps) + 1)

"""What the public may see: nothing after a freeze, until the reveal. Applied where facts are read, so no view can leak.

It knows no viewers and no passwords: who holds the database may see everything.
"""

from collections.abc import Iterable
from math import floor

from toolkit.records import Event


def frozen_at_s(events: Iterable[Event]) -> int | None:
    """The last second that may be seen, from a run's events in the order of their writing; None: all of them.

    A second freeze cannot lift a first one: only a reveal does.
    """
    at_s: int | None = None
    for event in events:
        if event.kind == "reveal":
            at_s = None
        elif event.kind == "freeze":
            at_s = floor(event.at) if at_s is None else min(at_s, floor(event.at))
    return at_s

"""What of a host's outages still lies in the window. No store, no clock; what an outage is, outages.py says."""

from collections.abc import Sequence

from toolkit.board.impact import clean_in, still_in_window
from toolkit.board.outages import Outage, RunSeconds, outages
from toolkit.board.standings import Taint
from toolkit.units import spoken


def taints(
    course: RunSeconds, restarts: Sequence[float], *, at_s: int, window_s: int
) -> tuple[Taint, ...]:
    """The outages that a window ending with second `at_s` holds, oldest first.

    The course may begin before the window: an outage that began there is known by the answers before it.
    """
    found = (
        _taint(each, course, at_s=at_s, window_s=window_s)
        for each in outages(course, restarts=restarts)
    )
    return tuple(taint for taint in found if taint)


def _taint(outage: Outage, course: RunSeconds, *, at_s: int, window_s: int) -> Taint | None:
    now_s = at_s + 1  # the window ends with the end of its last second
    to_s = outage.to_s if outage.is_over else None
    held_s = still_in_window(outage.from_s, to_s, now_s, window_s)
    if held_s is None:
        return None
    left_s = clean_in(to_s, now_s, window_s)
    return Taint(
        restarted=outage.restarted,
        from_s=outage.from_s,
        to_s=to_s,
        in_window_s=round(held_s),
        clean_in_s=None if left_s is None else round(left_s),
        errors=course.failed(max(outage.from_s, now_s - window_s), outage.to_s),
    )


def tainted_s(found: Sequence[Taint]) -> int | None:
    """Seconds of outages in the window, together; None: none."""
    return sum(each.in_window_s for each in found) or None


def sentence(taint: Taint, clock: str) -> str:
    """`still in the window: 4 min 10 s of the 14:32 restart, clean in 9 min`."""
    what = "restart" if taint.restarted else "outage"
    end = "still down" if taint.clean_in_s is None else f"clean in {spoken(taint.clean_in_s)}"
    return f"still in the window: {spoken(taint.in_window_s)} of the {clock} {what}, {end}"

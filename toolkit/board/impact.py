"""What a restart costs: how far the errors stand out in the rolling window, how long, and when the change pays back.

Times count from the first second of the downtime. It plans a change from its rates, or reckons one that a run saw;
it never looks at a clock and never reads a store.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate

from toolkit.board.outages import Outage, RunSeconds
from toolkit.units import short, spoken


@dataclass(frozen=True, slots=True, kw_only=True)
class BoardMoment:
    """What a board shows, so long after the host went down."""

    t_s: float
    error_rate: float | None
    """None: the window holds no request."""
    rps: float


@dataclass(slots=True, kw_only=True)
class Impact:
    """What a restart costs. Field names are the keys of `toolkit impact --json`."""

    downtime_s: float
    window_s: float
    peak_error_rate: float
    tainted_s: float = field(init=False)
    """Until no error is left in the window: downtime + window."""
    breakeven_s: float | None = field(init=False, default=None)
    """Until as many requests were answered as without the change; None: never."""
    series: tuple[BoardMoment, ...]
    rps: float | None
    """Answered a second before it."""
    error_rps: float
    """Requests that fail a second while it is down."""
    gain: float | None
    """Answered a second after it / before it; None: nobody knows one of the two."""
    recovered_s: float | None = field(init=False, default=None)
    """Until the board shows the RPS of before again; None: never."""

    def __post_init__(self) -> None:
        """Work out what follows from the rates."""
        self.tainted_s = self.downtime_s + self.window_s if self.error_rps else 0.0
        if self.gain is None or self.gain < 1:
            return
        # While the window still holds some of before it holds as many answers as before at the break-even; later
        # (gain * rps * (t - downtime) = rps * window) only answers of after are in it.
        self.recovered_s = self.downtime_s + self.window_s / self.gain
        if self.gain > 1:
            # gain * rps * (t - downtime) = rps * t
            self.breakeven_s = self.gain * self.downtime_s / (self.gain - 1)
            if self.breakeven_s <= self.window_s:
                self.recovered_s = self.breakeven_s


# --- a change that somebody plans -------------------------------------------------------------------


def planned(
    *, downtime_s: float, window_s: float, rps: float, error_rps: float, gain: float = 1.0
) -> Impact:
    """What it would cost, second by second until the window is clean. All numbers but `error_rps` are above 0."""
    # the share of errors rises until the host is back or the window is full of its downtime, then moves
    # one way (as more or fewer are answered than before) until the downtime begins to leave the window
    turns = (min(downtime_s, window_s), max(downtime_s, window_s))
    moments = []
    for t_s in (*map(float, range(math.ceil(downtime_s + window_s) + 1)), *turns):
        # the window that ends then: (t - window, t]
        before_s = max(0.0, window_s - t_s)
        down_s = max(0.0, min(t_s, downtime_s) - max(t_s - window_s, 0.0))
        after_s = max(0.0, t_s - max(t_s - window_s, downtime_s))
        answered = rps * (before_s + gain * after_s)
        moments.append(
            BoardMoment(
                t_s=t_s,
                error_rate=_share(error_rps * down_s, answered),
                rps=answered / window_s,
            )
        )
    return Impact(
        downtime_s=downtime_s,
        window_s=window_s,
        peak_error_rate=max(each.error_rate or 0.0 for each in moments[-len(turns) :]),
        series=tuple(moments[: -len(turns)]),
        rps=rps,
        error_rps=error_rps,
        gain=gain,
    )


def _share(errors: float, ok: float) -> float | None:
    return errors / (ok + errors) if ok + errors else None


def ahead(impact: Impact, t_s: float) -> float | None:
    """Requests answered until then, less those without the change; below 0 it has not paid back yet."""
    if impact.rps is None or impact.gain is None:
        return None
    return impact.rps * (impact.gain * max(0.0, t_s - impact.downtime_s) - t_s)


def turning_points(impact: Impact) -> list[tuple[float, str]]:
    """The moments at which something changes, in order, and what."""
    down_s, window_s = impact.downtime_s, impact.window_s
    leaves = "no answer in the window"
    if down_s < window_s:
        leaves = "the downtime begins to leave the window"
    points: list[tuple[float | None, str]] = [
        (0.0, "goes down"),
        (down_s, "is back"),
        (window_s, leaves),
        (impact.recovered_s, "the board shows the old RPS"),
        (impact.tainted_s or None, "no error left in the window"),
        (impact.breakeven_s, "paid back"),
    ]
    return sorted((at_s, what) for at_s, what in points if at_s is not None)


def shown_at(impact: Impact, t_s: float) -> BoardMoment | None:
    """What the board shows then, None where the series does not reach; past a whole series nothing changes."""
    if not impact.series:
        return None
    last_s = impact.series[-1].t_s
    if last_s < t_s and last_s < impact.downtime_s + impact.window_s:
        return None
    return next(each for each in reversed(impact.series) if each.t_s <= t_s)


# --- a restart that a run saw -----------------------------------------------------------------------


def recorded(
    seconds: RunSeconds, outage: Outage, window_s: float, others: Sequence[Outage] = ()
) -> Impact:
    """What it cost, in whole seconds. The series ends with the run's: nothing is made up.

    Rates before and after are means over at most a window, up to the next of the `others`; before it, from the
    first answer on.
    """
    span_s = math.ceil(window_s)
    low_s = max(
        outage.from_s - span_s,
        seconds.first_answer_s,
        *(each.to_s for each in others if each.to_s <= outage.from_s),
    )
    high_s = min(
        outage.to_s + span_s,
        seconds.end_s,
        *(each.from_s for each in others if each.from_s >= outage.to_s),
    )
    before, after = (
        seconds.answered(from_s, to_s) / (to_s - from_s) if to_s > from_s else None
        for from_s, to_s in ((low_s, outage.from_s), (outage.to_s, high_s))
    )

    # the window at each second until it is clean, as far as the run goes
    ok, errors = [0, *accumulate(seconds.ok)], [0, *accumulate(seconds.errors)]
    series = []
    for end_s in range(outage.from_s, min(seconds.end_s, outage.to_s + span_s) + 1):
        high = end_s - seconds.first_s
        low = max(0, high - span_s)
        answered = ok[high] - ok[low]
        shown = BoardMoment(
            t_s=float(end_s - outage.from_s),
            error_rate=_share(errors[high] - errors[low], answered),
            rps=answered / (high - low) if high > low else 0.0,
        )
        series.append(shown)

    downtime_s = float(outage.to_s - outage.from_s)
    return Impact(
        downtime_s=downtime_s,
        window_s=float(span_s),
        peak_error_rate=max((each.error_rate or 0.0 for each in series), default=0.0),
        series=tuple(series),
        rps=before,
        error_rps=outage.errors / downtime_s,
        gain=after / before if before and after is not None else None,
    )


# --- in words ---------------------------------------------------------------------------------------


def explained(impact: Impact) -> list[str]:
    """What the figures say, one sentence each."""
    window = spoken(impact.window_s)
    errors = (
        f"Error rate: up to {impact.peak_error_rate:.1%} over the last {window}, as "
        f"{short(impact.error_rps)} requests a second fail for {spoken(impact.downtime_s)}."
    )
    tainted = "Tainted: never, as no request fails."
    if impact.tainted_s:
        tainted = (
            f"Tainted: for {spoken(impact.tainted_s)} from the first second down, the last "
            f"{window} of them while the host is well."
        )
    lines = [errors, tainted]

    if impact.rps is not None and impact.gain is not None:
        old, new = f"{short(impact.rps)} RPS", short(impact.rps * impact.gain)
        lines.append(
            f"On the board: never back at {old}, but at {new}."
            if impact.recovered_s is None
            else f"On the board: back at {old} after {spoken(impact.recovered_s)}."
        )

    if impact.gain is None:
        paid = "nobody knows, as the run has no answers from before it or from after it."
    elif impact.breakeven_s is None:
        paid = f"never, at {impact.gain:.3g} times the RPS of before."
    else:
        even = spoken(impact.breakeven_s)
        paid = f"after {even}; then as many requests are answered as without the change."
    return [*lines, f"Pays back: {paid}"]


def decision(impact: Impact, left_s: float | None = None) -> str:
    """Whether to do it: with `left_s` from the first second down to the contest's end, if that is known."""
    if impact.breakeven_s is None:
        return "Don't do it for speed: it wins no requests."
    won = ahead(impact, left_s) if left_s is not None else None
    if left_s is None or won is None:
        return f"Do it only with more than {spoken(impact.breakeven_s)} left."
    if won <= 0:
        return f"Don't: {spoken(left_s)} are too few, after them it is {-won:,.0f} requests behind."
    return f"Do it: after {spoken(left_s)} it has answered {won:,.0f} requests more."


def outcome(impact: Impact, until_s: float) -> str:
    """What a restart had won or lost `until_s` after the first second down."""
    won = ahead(impact, until_s)
    if won is None:
        return "Nobody can say what it won or lost."
    word = "fewer" if won < 0 else "more"
    return (
        f"{spoken(until_s)} after it went down it had answered about {abs(won):,.0f} requests {word} than without "
        "the restart."
    )

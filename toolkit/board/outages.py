"""When a host was down in a run: the spells in which it answered nothing or failed more than it answered.

And what of these a board's window still holds. No clock, no store: the seconds are an argument.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from toolkit.board.standings import AffectedInterval
from toolkit.records import Tally

NOTICED_S = 30.0
"""A restart is noticed at the next scrape, up to so long after the host is back."""
CLOCKS_S = 5.0
"""And so far before its downtime, by a clock that is not the load generator's."""
MISSED = 8.0
"""Without a known restart, an outage swallows at least so many answers of the host's usual rate: chance alone leaves
out as many once in exp(8) = 3,000 spells."""
FAILED = 3
"""And so many requests fail in it at least."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSeconds:
    """What one host did in each second of a run; seconds of which nobody reported are zeros."""

    first_s: int
    """Wall clock of the load generator, since 1970."""
    ok: tuple[int, ...]
    errors: tuple[int, ...]

    @property
    def end_s(self) -> int:
        """The first second that is not in it."""
        return self.first_s + len(self.ok)

    @property
    def first_answer_s(self) -> int:
        """The second of its first ok answer; `end_s` if there is none."""
        return next((self.first_s + at for at, ok in enumerate(self.ok) if ok), self.end_s)

    def answered(self, from_s: int, to_s: int) -> int:
        """The ok answers of these seconds."""
        return sum(self.ok[max(0, from_s - self.first_s) : max(0, to_s - self.first_s)])

    def failed(self, from_s: int, to_s: int) -> int:
        """The errors of these seconds."""
        return sum(self.errors[max(0, from_s - self.first_s) : max(0, to_s - self.first_s)])


@dataclass(frozen=True, slots=True, kw_only=True)
class Outage:
    """A spell in which a host answered nothing, or fewer requests than failed."""

    from_s: int
    to_s: int
    """The first second after it."""
    errors: int
    is_over: bool
    """False: the run's seconds end inside it."""
    restarted: bool = False
    """The host is known to have started anew in it."""


def course(tallies: Iterable[Tally], *, from_s: int, to_s: int) -> RunSeconds:
    """Add up one host's tallies by second, `from_s <= second < to_s`."""
    sums: dict[int, tuple[int, int]] = {}
    for tally in tallies:
        ok, errors = sums.get(tally.at_s, (0, 0))
        sums[tally.at_s] = ok + tally.ok, errors + tally.errors
    rows = [sums.get(second, (0, 0)) for second in range(from_s, to_s)]
    return RunSeconds(
        first_s=from_s, ok=tuple(ok for ok, _ in rows), errors=tuple(bad for _, bad in rows)
    )


def outages(seconds: RunSeconds, *, restarts: Sequence[float] = ()) -> list[Outage]:
    """The spells in which the host was down, in order; `restarts` are moments at which it is known to have restarted.

    A slow host is silent for seconds, and one that fails now and then may fail twice before it answers again. So a
    spell is an outage only beside a known restart, or when too many answers are missing for chance (MISSED, FAILED).
    A host that never answered before has had no outage.
    """
    # spells of seconds, after the first answer, in which nothing was answered or more failed than was answered
    spells = []
    at = seconds.first_answer_s - seconds.first_s
    after = zip(seconds.ok[at:], seconds.errors[at:], strict=True)
    for is_down, group in groupby(after, key=lambda each: each[0] == 0 or each[1] > each[0]):
        errors = [bad for _, bad in group]
        low, at = at, at + len(errors)
        if is_down:
            spell = Outage(
                from_s=seconds.first_s + low,
                to_s=seconds.first_s + at,
                errors=sum(errors),
                is_over=at < len(seconds.ok),
            )
            spells.append(spell)

    # its usual rate: from the first answer on, spells with errors left out
    bad = [each for each in spells if each.errors]
    up_s = seconds.end_s - seconds.first_answer_s - sum(each.to_s - each.from_s for each in bad)
    ok = sum(seconds.ok) - sum(seconds.answered(each.from_s, each.to_s) for each in bad)
    rate = ok / up_s if up_s > 0 else 0.0

    known = set()
    for moment in restarts:
        near = [s for s in spells if s.from_s - CLOCKS_S <= moment < s.to_s + NOTICED_S]
        if near:
            known.add(max(near, key=lambda each: each.to_s - each.from_s))
    return [
        replace(spell, restarted=spell in known)
        for spell in spells
        if spell in known
        or (spell.errors >= FAILED and rate * (spell.to_s - spell.from_s) >= MISSED)
    ]


def outage_at(found: Sequence[Outage], at: float | None) -> Outage | None:
    """The one that holds a moment or is nearest to it; of no moment, the one with the most errors."""
    if at is None:
        return max(found, key=lambda each: (each.errors, each.to_s - each.from_s), default=None)
    return min(found, key=lambda each: max(each.from_s - at, at - each.to_s, 0.0), default=None)


def affected_intervals(
    seconds: RunSeconds, restarts: Sequence[float], *, window_s: int
) -> tuple[AffectedInterval, ...]:
    """The outages that the window of the last `window_s` of these seconds holds, oldest first.

    The seconds may begin before the window: an outage that began there is known by the answers before it.
    """
    window_from_s = seconds.end_s - window_s
    return tuple(
        AffectedInterval(
            restarted=each.restarted,
            from_s=each.from_s,
            to_s=each.to_s if each.is_over else None,
            in_window_s=each.to_s - max(each.from_s, window_from_s),
            clean_in_s=each.to_s - window_from_s if each.is_over else None,
            errors=seconds.failed(max(each.from_s, window_from_s), each.to_s),
        )
        for each in outages(seconds, restarts=restarts)
        if each.to_s > window_from_s
    )

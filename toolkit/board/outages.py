"""When a host was down in a run: the spells in which it answered nothing or failed more than it answered.

No clock, no store: the seconds are an argument.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import groupby

from toolkit.records import Tally

NOTICED_S = 30.0
"""A restart is noticed at the next look, up to so long after the host is back."""
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


def course(
    tallies: Iterable[Tally], *, from_s: int | None = None, to_s: int | None = None
) -> RunSeconds:
    """Add up one host's tallies by second, from its first to its last unless `from_s <= second < to_s` are given."""
    sums: dict[int, tuple[int, int]] = {}
    for tally in tallies:
        ok, errors = sums.get(tally.at_s, (0, 0))
        sums[tally.at_s] = ok + tally.ok, errors + tally.errors
    first_s = min(sums, default=0) if from_s is None else from_s
    end_s = max(sums, default=first_s - 1) + 1 if to_s is None else to_s
    rows = [sums.get(second, (0, 0)) for second in range(first_s, end_s)]
    return RunSeconds(
        first_s=first_s, ok=tuple(ok for ok, _ in rows), errors=tuple(bad for _, bad in rows)
    )


def outages(told: RunSeconds, *, restarts: Sequence[float] = ()) -> list[Outage]:
    """The spells in which the host was down, in order; `restarts` are moments at which it is known to have restarted.

    A slow host is silent for seconds, and one that fails now and then may fail twice before it answers again. So a
    spell is an outage only beside a known restart, or when too many answers are missing for chance (MISSED, FAILED).
    A host that never answered before has had no outage.
    """
    spells = _spells(told)
    rate = _usual_rate(told, spells)
    known = {spell for at in restarts if (spell := _spell_at(spells, at))}
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


def _spells(told: RunSeconds) -> list[Outage]:
    """Runs of seconds, after the first answer, in which nothing was answered or more failed than was answered."""
    edges = [not (ok == 0 or bad > ok) for ok, bad in zip(told.ok, told.errors, strict=True)]
    found: list[tuple[int, int]] = []
    number = next((at for at, ok in enumerate(told.ok) if ok), len(edges))
    for is_up, group in groupby(edges[number:]):
        length = len(list(group))
        if not is_up:
            found.append((number, number + length))
        number += length
    return [
        Outage(
            from_s=told.first_s + low,
            to_s=told.first_s + high,
            errors=sum(told.errors[low:high]),
            is_over=high < len(told.ok),
        )
        for low, high in found
    ]


def _usual_rate(told: RunSeconds, spells: Sequence[Outage]) -> float:
    """Answered a second, from the first answer on, spells with errors left out."""
    bad = [each for each in spells if each.errors]
    first_s = next((told.first_s + at for at, ok in enumerate(told.ok) if ok), told.end_s)
    span_s = told.end_s - first_s - sum(each.to_s - each.from_s for each in bad)
    ok = sum(told.ok) - sum(told.answered(each.from_s, each.to_s) for each in bad)
    return ok / span_s if span_s > 0 else 0.0


def _spell_at(spells: Sequence[Outage], at: float) -> Outage | None:
    """The longest spell that holds a restart, or lies shortly before it was noticed."""
    near = [each for each in spells if each.from_s - CLOCKS_S <= at < each.to_s + NOTICED_S]
    return max(near, key=lambda each: each.to_s - each.from_s, default=None)

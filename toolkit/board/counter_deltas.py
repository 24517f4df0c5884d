"""Whether a host's own counters hold what a blast got from it: accused only where nothing else explains the difference.

A blast never stands still, so two looks at counters are compared with the tallies between them within bounds: what was
in flight at either look, what ended within a few seconds of it, what failed. A response cache keeps requests from the
engine, too, so a host is accused only where its answers are known not to come from one. Where counters could not be
compared, the reason is told: without it nobody is called clean. No network, no clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor

import numpy as np

from toolkit.bench.evidence import middle, of
from toolkit.board.scrapes import Scrape
from toolkit.board.window import Integers
from toolkit.records import START_SLACK_S, RequestRecord, Verdict
from toolkit.units import whole

GRACE_S = 6
"""A look takes up to 5 s, and a second's tally is placed within one."""
LEAST_SCRAPES = 4
"""In a row, none of which falls below the one before: behind a balancer of two hosts they would."""
LEAST_S = 15
"""Between the first and the last of them: more than the seconds at both ends in which nobody knows what was counted."""
MISSING, SURPLUS = 0.2, 0.2
"""Of what was answered, or of what can have been sent: what is less may have an innocent reason that nobody thought of."""
LEAST_REQUESTS = 50
LEAST_ANSWERS = 10
"""To say that the counters hold them."""
LEAST_PAIRS = 6
AS_SLOW = 0.8
"""A twin in four fifths of its unique's time or more: no cache answered it."""
TOLD = 0.9
"""Of the answers must tell, or be judged, that no cache answered them."""
HITS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Ours:
    """What the blast counted of one host, second by second, and what it may have had in flight."""

    from_s: int
    seconds: Integers
    """A row each of ok answers, errors, and output tokens of the ok answers (estimates are none)."""
    cache_known: int
    """Ok answers in all of it that tell whether a cache answered them, or could be judged."""
    cache_hits: int
    in_flight: int
    """The most users at once: so many requests may be half done at any moment."""
    max_tokens: int
    """The most that any request asked for."""

    def between(self, seconds: tuple[int, int]) -> tuple[int, int, int]:
        """Ok answers, errors and tokens from the first of these seconds to the second."""
        low, high = seconds
        inside = slice(max(0, low - self.from_s), max(0, high - self.from_s + 1))
        ok, errors, tokens = self.seconds[:, inside].sum(axis=1).tolist()
        return ok, errors, tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterStretch:
    """Looks at one process, whose counters never fell: how much they rose, and in which seconds."""

    first_at: float
    last_at: float
    requests: float
    tokens: float

    @property
    def inside(self) -> tuple[int, int]:
        """Seconds that surely lie between the two looks."""
        return ceil(self.first_at) + GRACE_S, floor(self.last_at) - GRACE_S

    @property
    def around(self) -> tuple[int, int]:
        """Seconds that surely hold all that lies between the two looks."""
        return floor(self.first_at) - GRACE_S, ceil(self.last_at) + GRACE_S


@dataclass(frozen=True, slots=True, kw_only=True)
class CounterDeltas:
    """What a host's counters say of its answers."""

    accusations: tuple[Verdict, ...] = ()
    gap: str | None = None
    """Why they could not be compared."""
    lacks: bool = False
    """That is the gap: they lack answers, and a response cache may have kept these from the engine."""

    @property
    def holds(self) -> bool:
        """Whether they hold what was answered."""
        return not self.accusations and self.gap is None


def stretch(
    scrapes: Sequence[Scrape],
    from_s: int,
    to_s: int,
    *,
    from_start: bool = False,
    to_end: bool = False,
) -> CounterStretch | None:
    """The longest stretch on one process whose surroundings lie in the seconds from `from_s` to `to_s`.

    Before a run's start and after its end nothing was sent, so that looks beside these need no seconds around them.
    """
    from_at = from_s if from_start else from_s + GRACE_S
    to_at = to_s + 1 if to_end else to_s - GRACE_S
    best: list[Scrape] = []
    row: list[Scrape] = []
    for now in scrapes:
        if now.requests is None or now.generation_tokens is None:
            row = row if now.is_down or now.started_at is None else []
        elif from_at <= now.at <= to_at:
            row = [*row, now] if row and _goes_on(row[-1], now) else [now]
            if not best or row[-1].at - row[0].at > best[-1].at - best[0].at:
                best = row
    if len(best) < LEAST_SCRAPES or best[-1].at - best[0].at < LEAST_S:
        return None
    first, last = best[0], best[-1]
    return CounterStretch(
        first_at=first.at,
        last_at=last.at,
        requests=(last.requests or 0) - (first.requests or 0),
        tokens=(last.generation_tokens or 0) - (first.generation_tokens or 0),
    )


def _goes_on(before: Scrape, now: Scrape) -> bool:
    """Whether the counters are of the same process and did not fall."""
    if before.started_at is None or now.started_at is None:
        is_same = before.started_at == now.started_at
    else:
        is_same = abs(now.started_at - before.started_at) <= START_SLACK_S
    return is_same and not _fell(before, now)


def _fell(earlier: Scrape, later: Scrape) -> bool:
    return (later.requests or 0) < (earlier.requests or 0) or (later.generation_tokens or 0) < (
        earlier.generation_tokens or 0
    )


def counted(
    seen: CounterStretch,
    ours: Ours,
    canaries: Sequence[RequestRecord],
    all_canaries: Callable[[], int],
) -> CounterDeltas:
    """Compare the counters with the tallies; `all_canaries` counts those that ended in the stretch's surroundings."""
    accusations = [hidden_backend(seen, ours, canaries)]
    if surplus(seen, ours) >= LEAST_REQUESTS:
        # only here it is worth counting the canaries, too
        accusations.append(foreign_traffic(seen, ours, all_canaries()))
    if told := tuple(each for each in accusations if each):
        return CounterDeltas(accusations=told)
    answers, _, _ = ours.between(seen.inside)
    # with fewer it would not show if the counters held none of them
    if answers < LEAST_ANSWERS or (1 - MISSING) * answers < ours.in_flight:
        return CounterDeltas(
            gap=f"only {whole(answers)} answers between two looks at its counters so far"
        )
    lost = answers - seen.requests - ours.in_flight
    if lost >= MISSING * answers:
        gap = (
            f"its counters lack {of(lost, answers, 'answered requests')}, and nobody can tell"
            " whether a response cache kept them from the engine"
        )
        return CounterDeltas(gap=gap, lacks=True)
    return CounterDeltas()


def together(ours: Sequence[Ours]) -> Ours:
    """What was counted of several addresses of one engine."""
    return replace(
        ours[0],
        seconds=np.sum([each.seconds for each in ours], axis=0),
        cache_known=sum(each.cache_known for each in ours),
        cache_hits=sum(each.cache_hits for each in ours),
        in_flight=sum(each.in_flight for each in ours),
        max_tokens=max(each.max_tokens for each in ours),
    )


def are_one_engine(one: Sequence[Scrape], other: Sequence[Scrape]) -> bool:
    """Whether two addresses' scrapes may be of one engine: the same settings and start, and no count that contradicts it."""
    one, other = ([each for each in of if not each.is_down] for of in (one, other))
    settings = {each.config_hash for each in (*one, *other)}
    starts = [each.started_at for each in (*one, *other)]
    known = [at for at in starts if at is not None]
    if len(settings) != 1 or None in settings or len(known) < len(starts):
        return False
    if max(known) - min(known) > START_SLACK_S:
        return False
    return not any(
        later.at - earlier.at > GRACE_S and _fell(earlier, later)
        for first, second in ((one, other), (other, one))
        for earlier in first
        for later in second
    )


def hidden_backend(
    seen: CounterStretch, ours: Ours, canaries: Sequence[RequestRecord]
) -> Verdict | None:
    """Accuse a host whose counters lack both requests and tokens that it answered, and that has no cache."""
    if not _has_no_cache(ours, canaries):
        return None
    answers, _, tokens = ours.between(seen.inside)
    # what ended inside may have begun before the first look, whose counter holds a part of its tokens already
    lost_tokens = tokens - seen.tokens - ours.in_flight * ours.max_tokens
    lost = answers - seen.requests - ours.in_flight
    if answers < LEAST_REQUESTS or lost < MISSING * answers or lost_tokens < MISSING * tokens:
        return None
    return Verdict(
        code="hidden_backend",
        confidence="medium",
        evidence=(
            f"between two looks at its counters they lack at least {of(lost, answers, 'answered requests')}"
            f" and {of(lost_tokens, tokens, 'answered tokens')}, and repeated requests take as long as new ones"
        ),
    )


def _has_no_cache(ours: Ours, canaries: Sequence[RequestRecord]) -> bool:
    """Whether the tallies and the twins both say that the engine itself answers repeated requests."""
    ok = int(ours.seconds[0].sum())
    if ours.cache_known < TOLD * ok or ours.cache_hits > HITS * ok:
        return False
    uniques = {shot.slot: shot for shot in canaries if shot.kind == "unique" and shot.e2e_ms}
    shares = [
        (shot.e2e_ms or 0.0) / (uniques[shot.pair].e2e_ms or 1.0)
        for shot in canaries
        if shot.kind == "twin" and shot.ok and shot.pair in uniques
    ]
    usual = middle(shares)
    return len(shares) >= LEAST_PAIRS and usual is not None and usual >= AS_SLOW


def surplus(seen: CounterStretch, ours: Ours) -> float:
    """Requests that the host counted beyond the ranked ones that can have reached it; canaries are not among these."""
    answers, errors, _ = ours.between(seen.around)
    return seen.requests - answers - errors - ours.in_flight


def foreign_traffic(seen: CounterStretch, ours: Ours, canaries: int) -> Verdict | None:
    """Tell of load that is not ours; `canaries` are all that ended in the stretch's surroundings."""
    beyond = surplus(seen, ours) - canaries
    sent = seen.requests - beyond
    if beyond < max(LEAST_REQUESTS, SURPLUS * sent):
        return None
    return Verdict(
        code="foreign_traffic",
        confidence="medium",
        evidence=(
            f"between two looks its counters rose by {whole(seen.requests)} requests, and no more than"
            f" {whole(sent)} of them can have been ours"
        ),
    )

"""Whether a host's own counters hold what a blast got from it: accused only where nothing else explains the difference.

A blast never stands still, so two scrapes of counters are compared with the tallies between them within bounds: what was
in flight at either scrape, what ended within a few seconds of it, what failed. A response cache keeps requests from the
engine, too, so a host is accused only where its answers are known not to come from one. Where counters could not be
compared, the reason is given: without them nobody is called clean. No network, no clock.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from math import ceil, floor
from typing import NamedTuple

from toolkit.bench.evidence import middle, of
from toolkit.board.scrapes import Scrape
from toolkit.board.window import Integers
from toolkit.records import START_SLACK_S, RequestRecord, Verdict
from toolkit.units import whole

GRACE_S = 6
"""A scrape takes up to 5 s, and a second's tally is placed within one."""
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
"""A duplicate that took four fifths of the first one's time or more: no cache answered it."""
KNOWN = 0.9
"""Of the answers must say, or be judged, that no cache answered them."""
HITS = 0.01


@dataclass(frozen=True, slots=True, kw_only=True)
class Sent:
    """What the blast counted, second by second, and what it may have had in flight: of each host, or of one engine."""

    from_s: int
    seconds: Integers
    """Last axis: seconds; the one before: ok answers, errors, and output tokens of the ok answers (estimates are none)."""
    cache_known: Integers
    """Ok answers in all of it that say whether a cache answered them, or could be judged."""
    cache_hits: Integers
    in_flight: int
    """The most users at once: so many requests may be half done at any moment."""
    max_tokens: int
    """The most that any request allowed."""

    def to(self, hosts: Sequence[int]) -> "Sent":
        """What was counted of these hosts (rows), which are addresses of one engine."""
        return replace(
            self,
            seconds=self.seconds[list(hosts)].sum(axis=0),
            cache_known=self.cache_known[list(hosts)].sum(),
            cache_hits=self.cache_hits[list(hosts)].sum(),
            in_flight=self.in_flight * len(hosts),
        )

    def between(self, first_s: int, last_s: int) -> tuple[int, int, int]:
        """Ok answers, errors and tokens of these seconds, both included."""
        inside = slice(max(0, first_s - self.from_s), max(0, last_s - self.from_s + 1))
        ok, errors, tokens = self.seconds[:, inside].sum(axis=1).tolist()
        return ok, errors, tokens


class Rise(NamedTuple):
    """How much one process's counters rose between two scrapes, without ever falling."""

    first_at: float
    last_at: float
    requests: float
    tokens: float

    @property
    def around(self) -> tuple[int, int]:
        """Seconds that surely hold all that lies between the two scrapes."""
        return floor(self.first_at) - GRACE_S, ceil(self.last_at) + GRACE_S

    def surplus(self, sent: Sent) -> float:
        """Requests that the host counted beyond the ranked ones that can have reached it; canaries are not among these."""
        answers, errors, _ = sent.between(*self.around)
        return self.requests - answers - errors - sent.in_flight


class Comparison(NamedTuple):
    """What a host's counters say of its answers."""

    accusations: tuple[Verdict, ...] = ()
    gap: str | None = None
    """Why they could not be compared."""
    lacks: bool = False
    """That is the gap: they lack answers, and a response cache may have kept these from the engine."""


def longest_rise(
    scrapes: Sequence[Scrape],
    from_s: int,
    to_s: int,
    *,
    from_start: bool = False,
    to_end: bool = False,
) -> Rise | None:
    """The longest stretch on one process whose surroundings lie in the seconds from `from_s` to `to_s`.

    Before a run's start and after its end nothing was sent, so that scrapes beside these need no seconds around them.
    """
    from_at = from_s if from_start else from_s + GRACE_S
    to_at = to_s + 1 if to_end else to_s - GRACE_S
    best: list[Scrape] = []
    row: list[Scrape] = []
    for now in scrapes:
        if now.requests is None or now.generation_tokens is None:
            row = row if now.is_down or now.started_at is None else []
        elif from_at <= now.at <= to_at:
            starts = {now.started_at, row[-1].started_at} if row else {now.started_at}
            is_same = len(starts) == 1 or _started_together(starts)
            row = [*row, now] if row and is_same and not _fell(row[-1], now) else [now]
            if not best or row[-1].at - row[0].at > best[-1].at - best[0].at:
                best = row
    if len(best) < LEAST_SCRAPES or best[-1].at - best[0].at < LEAST_S:
        return None
    first, last = best[0], best[-1]
    return Rise(
        first_at=first.at,
        last_at=last.at,
        requests=(last.requests or 0) - (first.requests or 0),
        tokens=(last.generation_tokens or 0) - (first.generation_tokens or 0),
    )


def are_one_engine(one: Sequence[Scrape], other: Sequence[Scrape]) -> bool:
    """Whether two addresses' scrapes may be of one engine: the same settings and start, and no count that contradicts it."""
    one, other = ([each for each in of_host if not each.is_down] for of_host in (one, other))
    settings = {each.config_hash for each in (*one, *other)}
    if len(settings) != 1 or None in settings:
        return False
    return _started_together({each.started_at for each in (*one, *other)}) and not any(
        later.at - earlier.at > GRACE_S and _fell(earlier, later)
        for first, second in ((one, other), (other, one))
        for earlier in first
        for later in second
    )


def _started_together(starts: set[float | None]) -> bool:
    known = [at for at in starts if at is not None]
    return len(known) == len(starts) and max(known) - min(known) <= START_SLACK_S


def _fell(earlier: Scrape, later: Scrape) -> bool:
    return (later.requests or 0) < (earlier.requests or 0) or (later.generation_tokens or 0) < (
        earlier.generation_tokens or 0
    )


def compared(
    rise: Rise, sent: Sent, canaries: Sequence[RequestRecord], all_canaries: Callable[[], int]
) -> Comparison:
    """Compare the counters with the tallies; `all_canaries` counts those that ended around the two scrapes."""
    # seconds that surely lie between the two
    answers, _, tokens = sent.between(ceil(rise.first_at) + GRACE_S, floor(rise.last_at) - GRACE_S)
    lost = answers - rise.requests - sent.in_flight
    # what ended inside may have begun before the first scrape, whose counter holds a part of its tokens already
    lost_tokens = tokens - rise.tokens - sent.in_flight * sent.max_tokens
    lacks = lost >= MISSING * answers
    accusations = []
    is_proof = answers >= LEAST_REQUESTS and lacks and lost_tokens >= MISSING * tokens
    if is_proof and _has_no_cache(sent, canaries):
        hidden_backend = Verdict(
            code="hidden_backend",
            confidence="medium",
            evidence=(
                f"between two looks at its counters they lack at least {of(lost, answers, 'answered requests')}"
                f" and {of(lost_tokens, tokens, 'answered tokens')}, and repeated requests take as long as new ones"
            ),
        )
        accusations.append(hidden_backend)

    foreign = rise.surplus(sent)
    if foreign >= LEAST_REQUESTS:
        foreign -= all_canaries()  # only here they are worth a reading
    own = rise.requests - foreign
    if foreign >= max(LEAST_REQUESTS, SURPLUS * own):
        foreign_traffic = Verdict(
            code="foreign_traffic",
            confidence="medium",
            evidence=(
                f"between two looks its counters rose by {whole(rise.requests)} requests, and no more than"
                f" {whole(own)} of them can have been ours"
            ),
        )
        accusations.append(foreign_traffic)
    if accusations:
        return Comparison(tuple(accusations))

    # with fewer it would not show if the counters held none of them
    if answers < LEAST_ANSWERS or (1 - MISSING) * answers < sent.in_flight:
        return Comparison(gap=f"only {whole(answers)} answers between two looks at its counters")
    if lacks:
        gap = (
            f"its counters lack {of(lost, answers, 'answered requests')}, and nobody can tell"
            " whether a response cache kept them from the engine"
        )
        return Comparison(gap=gap, lacks=True)
    return Comparison()


def _has_no_cache(sent: Sent, canaries: Sequence[RequestRecord]) -> bool:
    """Whether the tallies and the duplicates both say that the engine itself answers repeated requests."""
    ok = int(sent.seconds[0].sum())
    if sent.cache_known < KNOWN * ok or sent.cache_hits > HITS * ok:
        return False
    uniques = {shot.slot: shot for shot in canaries if shot.kind == "unique" and shot.e2e_ms}
    shares = [
        (shot.e2e_ms or 0.0) / (uniques[shot.pair].e2e_ms or 1.0)
        for shot in canaries
        if shot.kind == "twin" and shot.ok and shot.pair in uniques
    ]
    usual = middle(shares)
    return len(shares) >= LEAST_PAIRS and usual is not None and usual >= AS_SLOW

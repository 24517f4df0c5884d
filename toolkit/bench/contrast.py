"""Can two hosts be told apart by their records? The ratio of their times to answer, and how sure it is.

It compares and never ranks; what failed is not its business, and neither are tokens.

What is compared. E2E of equal slots: the same template, asked to stream or not, at about the same moment; so a hard
prompt or a slow moment of the client meets both hosts. E2E as it is, not per token: it is what the client waited
for, and nothing in it is a number that the host claims. Two hosts that sample the same model answer at different
lengths by chance; that is noise, and widens the interval. A host that always answers shorter does answer sooner:
whether it may is a verdict's question. Twins are left out, for they ask about a cache. A slot that one of the two
did not answer is left out for both: pairs that remain still compare like with like.

How sure. records are not independent: requests that run together share the engine's steps, so a slow second slows all
of a wave (as many slots as run at once). Sixteen requests at concurrency 8 are two looks at a host, not sixteen. So
the mean log ratio is judged by how much it moves between blocks of whole waves. At most 5 blocks, so that in a long
run a block outlives a disturbance of several waves. Two blocks leave one degree of freedom, at which Student's t is
12.7 and hardly any difference would ever be found; therefore the blocks' variance is pooled with a guess, worth 3
degrees of freedom: the variance inside the blocks, plus an assumed wave-to-wave deviation of 7 % of the ratio (5 % at
each host). The more blocks, the less the guess counts. A run of one wave has nothing but the guess.

What does not matter. Whatever stays the same for a whole run (a clock, a temperature, a neighbour) moves all of its
blocks alike and can't be seen in them. So hosts are different only if the whole interval lies beyond 5 %.

Measured: how often of 2,000 simulated runs identical hosts were called different (`equal`), and hosts 1.2 and 1.5 times
as fast were found, in percent. Log-normal noise at each host, beside 1 to 5 % a request; one slot in four missing:

                                          16x8               64x8              200x8
    each host's own noise           equal  1.2  1.5    equal  1.2  1.5    equal  1.2  1.5
    5 % a request                     0.0   54  100      0.0  100  100      0.0  100  100
    20 % a request                    0.1   11   86      0.0   74  100      0.0  100  100
    3 % shared by a wave              0.0   58  100      0.0  100  100      0.0  100  100
    10 % shared by a wave             4.7   39   95      1.3   74  100      0.2   99  100
    20 % shared by a wave              21   34   67      5.6   37   94      1.8   69  100
    1 request in 20 takes 5 times     0.0   17   56      0.1   33   96      0.2   80  100
    lengths vary by 20 %              0.2   10   84      0.0   71  100      0.1  100  100
    lengths vary by 40 %              0.8    5   30      0.6   24   96      0.3   66  100
    5 % a wave, and 0.7 of the last   0.7   54  100      2.9   93  100      0.6  100  100
    10 % a wave, and 0.7 of the last   16   48   95       16   66   99      6.2   77  100

So two waves suffice while waves differ by up to 10 %; on a host that swings by 20 % only a longer run is fair. A host
twice as fast was found from 16x8 in 82 % of the runs where lengths vary by 40 %, and in 86 % or more of all others.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations, groupby

from toolkit.bench.evidence import over_at, started_at
from toolkit.records import RequestRecord
from toolkit.stats import student_t

LEAST_DIFFERENCE = 1.05
"""A smaller ratio of times is no difference, however sure it is."""
MOST_BLOCKS = 5
GUESS_WORTH = 3
"""Degrees of freedom of the guess at the variance between blocks."""
WAVE_DEVIATION = 0.07
"""Assumed standard deviation, wave to wave, of the log ratio of two hosts."""
MOST_EXPONENT = 700.0
"""e to this is still a float."""

_Slot = tuple[int, int, str, bool]
"""Concurrency (0: open loop), slot, kind, streamed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contrast:
    """How many times as long as `b` host `a` takes to answer: below 1, `a` is faster."""

    pairs: int
    """Requests that both answered."""
    ratio: float | None
    """Geometric mean over the pairs; None without a pair."""
    low: float | None
    """95 % confidence interval of the ratio; None with fewer than two pairs."""
    high: float | None
    different: bool


_Answers = tuple[dict[_Slot, float], float]
"""Of one host: log E2E by slot, and how many requests were under way at once, on average."""


def contrast(a: Sequence[RequestRecord], b: Sequence[RequestRecord]) -> Contrast:
    """Compare two hosts by their records in one run."""
    return _contrast(_answers(a), _answers(b))


def tied(records: Mapping[str, Sequence[RequestRecord]]) -> dict[str, tuple[str, ...]]:
    """For each host the others that can't be told from it, in the order given.

    Hosts without a common answered slot are not tied: nothing was compared. Each pair may be wrong in
    one run of twenty; of many pairs, some will be.
    """
    answers = {name: _answers(of_host) for name, of_host in records.items()}
    ties: dict[str, list[str]] = {name: [] for name in answers}
    for name, other in combinations(answers, 2):
        found = _contrast(answers[name], answers[other])
        if found.pairs and not found.different:
            ties[name].append(other)
            ties[other].append(name)
    return {name: tuple(others) for name, others in ties.items()}


def _answers(records: Iterable[RequestRecord]) -> _Answers:
    measured = [record for record in records if record.kind != "warmup"]
    log_e2e: dict[_Slot, float] = {
        (record.concurrency or 0, record.slot, record.kind, record.stream): math.log(record.e2e_ms)
        for record in measured
        if record.ok and record.kind != "twin" and record.e2e_ms and 0 < record.e2e_ms < math.inf
    }
    # Little's law: the time that all requests took together / the time in which they did
    spans = [(started_at(record), over_at(record)) for record in measured]
    busy_s = sum(end - start for start, end in spans)
    first_s = min((start for start, _ in spans), default=0.0)
    window_s = max((end for _, end in spans), default=0.0) - first_s
    overlap = busy_s / window_s if window_s > 0 else 1.0
    return log_e2e, overlap if 1.0 <= overlap < math.inf else 1.0


def _contrast(a: _Answers, b: _Answers) -> Contrast:
    (log_a, overlap_a), (log_b, overlap_b) = a, b
    pairs = {slot: log_a[slot] - log_b[slot] for slot in sorted(log_a.keys() & log_b.keys())}
    if not pairs:
        return Contrast(pairs=0, ratio=None, low=None, high=None, different=False)

    # each level's slots in at most 5 blocks of whole waves; slots without a pair leave gaps
    open_wave = math.ceil(max(overlap_a, overlap_b))
    blocks: list[list[float]] = []
    waves = 0
    for level, of_level in groupby(pairs, key=lambda slot: slot[0]):
        slots = list(of_level)
        wave, first = level or open_wave, slots[0][1]
        level_waves = (slots[-1][1] - first) // wave + 1
        size = wave * math.ceil(level_waves / MOST_BLOCKS)
        waves += level_waves
        for _, block in groupby(slots, key=lambda slot: (slot[1] - first) // size):
            blocks.append([pairs[slot] for slot in block])

    # half the confidence interval of the mean log ratio, from mean squares per pair as in an analysis of variance
    count, mean = len(pairs), math.fsum(pairs.values()) / len(pairs)
    means = [math.fsum(block) / len(block) for block in blocks]
    between = math.fsum(
        len(block) * (own - mean) ** 2 for block, own in zip(blocks, means, strict=True)
    )
    inside = math.fsum(
        (value - own) ** 2 for block, own in zip(blocks, means, strict=True) for value in block
    )
    inside_freedom = count - len(means)
    # the guess can't be worth more than what the variance inside the blocks rests on
    worth = min(GUESS_WORTH, inside_freedom)
    guess = inside / inside_freedom + count / waves * WAVE_DEVIATION**2 if worth else 0.0
    freedom = worth + len(means) - 1
    if freedom < 1:
        return Contrast(pairs=count, ratio=_exp(mean), low=None, high=None, different=False)
    variance = (worth * guess + between) / freedom / count
    reach = student_t(0.05, freedom) * math.sqrt(variance)
    return Contrast(
        pairs=count,
        ratio=_exp(mean),
        low=_exp(mean - reach),
        high=_exp(mean + reach),
        different=abs(mean) - reach > math.log(LEAST_DIFFERENCE),
    )


def _exp(value: float) -> float:
    return math.exp(max(-MOST_EXPONENT, min(MOST_EXPONENT, value)))

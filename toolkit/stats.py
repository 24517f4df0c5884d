"""The one histogram of latencies, and every interval: Student's, of blocks, of differences. Pure Python.

The histogram is mergeable: how many values fell into each of 924 fixed buckets.

It answers quantiles within 1 % for 10 us to 1000 s. It never holds a failure (a fast error must not improve a p95),
never interpolates, and never knows a sum or a maximum.

The bound. Bucket edges grow by gamma = (1 + alpha) / (1 - alpha), alpha = 0.01. The value told for bucket [low, high)
is 2 * low * high / (low + high), which is high * (1 - alpha) = low * (1 + alpha): no value in the bucket is further away
than 1 % of itself. That is the logarithmic mapping of DDSketch (Masson, Rim, Lee: DDSketch, VLDB 2019), without its
growing and collapsing stores: the edges are the same in every process for ever, so a sketch needs no header.

Choices. Nearest rank, so a quantile is (within 1 %) a latency that some request had: between cache hits of 2 ms and
misses of 3 s a t-digest interpolates to one that none had. Integer counts, so sums are exact: any order of merging
gives the same bytes, and a rolling window may subtract what left it and still equal a full recount. Not 0.5 %: a blob
of a busy second (1,000 values of two kinds) was 1.7 times as long.

Measured: the largest error in 12 trials of 60,000 values, hits around 2 ms and misses around 3 s, in per cent; and the
bytes of 200 and of 2,000 values. Counting one takes 0.3 us, a quantile 11 us (10,000 values, 2 shared cores).

    hits          none          50 %          60 %          95 %
    p50 p95 p99   .42 1.0 .99   .94 .93 .91   .68 .85 .94   .98 .90 .90
    bytes         280  460      416  752      388  748      260  572

    bucket 0         1                       i                                 922                       923
    ... 0.01 ms ] ( 0.01 , 0.0102 ) ... [ 0.01*gamma^(i-1) , 0.01*gamma^i ) ... [ 999,933 , 1,020,134 ) [ 1,020,134 ms ...

    blob: pairs of little-endian u16, ascending by bucket, empty buckets left out; 4 bytes each
          | bucket | count | bucket | count | ...     70,000 values in bucket 5: | 5 | 65535 | 5 | 4465 |

Buckets 0 and 923 have no bound: a quantile of at most BELOW_MS or of at least ABOVE_MS is to be shown as
"< 10 us" or "> 1000 s".
"""

import math
import struct
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import pairwise
from typing import Self

ALPHA = 0.01
BUCKETS = 924
BELOW_MS = 0.01
"""A quantile of at most this is only known to be no more."""
_LOG_GAMMA = math.log((1 + ALPHA) / (1 - ALPHA))
ABOVE_MS = BELOW_MS * math.exp(_LOG_GAMMA * (BUCKETS - 2))
"""1,020.1 s, the edge of the last bucket; a quantile of at least this is only known to be more."""
MAX_PAIR_COUNT = 65_535


class Sketch:
    """Counts of latencies by bucket; equal sketches have equal bytes."""

    __slots__ = ("_count", "counts")

    def __init__(self) -> None:
        self.counts: dict[int, int] = {}
        """Bucket -> values in it, at least 1; to be read, not written."""
        self._count = 0

    @property
    def count(self) -> int:
        """How many values it holds."""
        return self._count

    def add(self, value_ms: float, count: int = 1) -> None:
        """Count a latency. Raises ValueError for NaN, infinity, a negative one, or a count below 1."""
        if not 0 <= value_ms < math.inf:
            raise ValueError(f"no latency: {value_ms!r} ms")
        if count < 1:
            raise ValueError(f"no count: {count!r}")
        bucket = _bucket(value_ms)
        self.counts[bucket] = self.counts.get(bucket, 0) + count
        self._count += count

    @classmethod
    def of(cls, values_ms: Iterable[float | None]) -> Self:
        """A sketch of what is known of these and finite; a negative one, of a clock that was set back, counts as 0."""
        sketch = cls()
        for value_ms in values_ms:
            if value_ms is not None and math.isfinite(value_ms):
                sketch.add(max(0.0, value_ms))
        return sketch

    def merge(self, other: "Sketch") -> None:
        """Add all that the other one holds."""
        for bucket, count in other.counts.items():
            self.counts[bucket] = self.counts.get(bucket, 0) + count
        self._count += other.count

    def subtract(self, other: "Sketch") -> None:
        """Take away what was merged before. Raises ValueError, and changes nothing, if it was not in here."""
        left = {
            bucket: self.counts.get(bucket, 0) - count for bucket, count in other.counts.items()
        }
        if min(left.values(), default=0) < 0:
            raise ValueError("what is to be subtracted was never added")
        self.counts = {bucket: count for bucket, count in (self.counts | left).items() if count > 0}
        self._count -= other.count

    def quantile(self, q: float) -> float | None:
        """The ceil(q * n)-th smallest value, within 1 %; None when there is none. Raises ValueError outside 0..1."""
        if not 0 <= q <= 1:
            raise ValueError(f"no quantile: {q!r}")
        wanted = rank(self._count, q)
        counted = 0
        for bucket in sorted(self.counts):
            counted += self.counts[bucket]
            if counted >= wanted:
                return _value_ms(bucket)
        return None

    def to_bytes(self) -> bytes:
        """The blob drawn at the top."""
        return _blob(self.counts)

    @classmethod
    def from_bytes(cls, blob: bytes) -> Self:
        """Read a blob. Raises ValueError for one that `to_bytes` cannot have written."""
        if len(blob) % 4:
            raise ValueError("a sketch is a row of 4-byte pairs")
        sketch = cls()
        before = (-1, MAX_PAIR_COUNT)
        for bucket, count in struct.iter_unpack("<HH", blob):
            follows = bucket > before[0] or before == (bucket, MAX_PAIR_COUNT)
            if bucket >= BUCKETS or count == 0 or not follows:
                raise ValueError(f"damaged sketch: {count} in bucket {bucket} after {before[0]}")
            sketch.counts[bucket] = sketch.counts.get(bucket, 0) + count
            sketch._count += count
            before = (bucket, count)
        return sketch

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Sketch) and self.counts == other.counts

    __hash__ = None  # type: ignore[assignment]  # it changes

    def __repr__(self) -> str:
        return f"Sketch({self._count} values)"


def rank(count: int, q: float) -> int:
    """Which one of so many sorted values is the quantile: the nearest rank, from 1."""
    # 0.07 * 100 is 7.000000000000001 to a float: without rounding its rank would be 8
    return max(1, math.ceil(round(q * count, 6)))


def nearest_rank(values: Iterable[float | None], q: float) -> float | None:
    """The quantile of what is known, one of the values; None of nothing."""
    known = sorted(value for value in values if value is not None)
    return known[rank(len(known), q) - 1] if known else None


def merged(blobs: Iterable[bytes]) -> bytes:
    """The blob of all that these hold, in 55 % of the time that reading and merging sketches takes.

    It looks less closely: pairs may stand in any order. Raises ValueError for what no blob can be.
    """
    counts: dict[int, int] = {}
    for blob in blobs:
        if len(blob) % 4:
            raise ValueError("a sketch is a row of 4-byte pairs")
        for bucket, count in struct.iter_unpack("<HH", blob):
            counts[bucket] = counts.get(bucket, 0) + count
    if max(counts, default=0) >= BUCKETS:
        raise ValueError(f"damaged sketch: no bucket {max(counts)}")
    return _blob(counts)


def _blob(counts: Mapping[int, int]) -> bytes:
    pairs: list[int] = []
    for bucket in sorted(counts):
        full, rest = divmod(counts[bucket], MAX_PAIR_COUNT)
        pairs += [bucket, MAX_PAIR_COUNT] * full
        if rest:
            pairs += [bucket, rest]
    return struct.pack(f"<{len(pairs)}H", *pairs)


def _bucket(value_ms: float) -> int:
    if value_ms <= BELOW_MS:
        return 0
    if value_ms >= ABOVE_MS:
        return BUCKETS - 1
    return math.floor(math.log(value_ms / BELOW_MS) / _LOG_GAMMA) + 1


def _value_ms(bucket: int) -> float:
    """Within alpha of every value in the bucket: its upper edge * (1 - alpha)."""
    return BELOW_MS * math.exp(_LOG_GAMMA * bucket) * (1 - ALPHA)


# --- a mean; how sure is one, or a difference ---


def mean(values: Iterable[float | None]) -> float | None:
    """Of those that are known; None: none is."""
    known = [value for value in values if value is not None]
    return math.fsum(known) / len(known) if known else None


BLOCKS = (20, 15, 12, 10, 8, 6)
"""Tried from the left. All divide 120, so that whoever cuts a series into 120 cells has to cut no further."""
LEAST_BLOCKS = 6
RELATED = 0.1
"""Neighbouring blocks that go together by more than this are too short."""
MOST_RELATED = 0.8


def mean_interval(values: Sequence[float], together: int = 1) -> tuple[float, float] | None:
    """Student's 95 % interval of the mean of independent blocks; None of fewer than two."""
    count = len(values)
    if count < 2:
        return None
    mean = math.fsum(values) / count
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    reach = student_t(0.05, count - 1, together) * math.sqrt(variance / count)
    return mean - reach, mean + reach


@lru_cache(maxsize=256)
def student_t(alpha: float, freedom: int, together: int = 1) -> float:
    """The two-sided quantile that `together` intervals need to hold all at once: 4.303 at 2 degrees and one interval."""
    wanted = alpha / max(1, together)
    low, high = 0.0, 1.0
    while _tails(high, freedom) > wanted:
        high *= 2
    for _ in range(80):
        middle = (low + high) / 2
        low, high = (middle, high) if _tails(middle, freedom) > wanted else (low, middle)
    return high


def _tails(t: float, freedom: int) -> float:
    """Both tails beyond t: finite sums for whole degrees of freedom (Abramowitz and Stegun 26.7.3 and 26.7.4)."""
    angle = math.atan2(t, math.sqrt(freedom))
    sine, squared = math.sin(angle), math.cos(angle) ** 2
    term, total = 1.0, 0.0
    if freedom % 2:
        term = math.cos(angle)
        for step in range(1, (freedom - 1) // 2 + 1):
            total += term
            term *= squared * (2 * step) / (2 * step + 1)
        inside = 2 / math.pi * (angle + sine * total)
    else:
        for step in range(1, freedom // 2 + 1):
            total += term
            term *= squared * (2 * step - 1) / (2 * step)
        inside = sine * total
    return max(0.0, 1 - inside)


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """How far a figure may be off by chance."""

    variance: float
    freedom: float
    """Degrees of freedom that the variance rests on."""
    blocks: int


Blocks = Callable[[int], Sequence[float] | None]
"""The figure in each of so many stretches of the series; None where it cannot be told of one of them."""


def spread(whole: float, blocks: Blocks, *, most: int) -> Spread | None:
    """How far `whole` may be off, from at most so many stretches; None: there are too few to tell.

    The method is that of batch means in simulation (Schmeiser, Batch Size Effects in the Analysis of Simulation Output,
    1982), and for quantiles that of sectioning (Asmussen and Glynn, Stochastic Simulation, 2007, chapter III.5): the series is cut
    into k stretches, the figure is taken once of the whole and once of each stretch, and

        variance = sum((block - whole)**2) / (k - 1) / k           half an interval = t(k - 1) * sqrt(variance)

    Requests and seconds are not independent: what runs together shares the engine's steps, and a slow second is followed by
    another one. Stretches that are longer than such a memory are nearly independent, and there are few of them, which
    Student's t pays for. So k begins at 20 and falls until neighbouring blocks no longer go together; where they still do at
    6, the variance is widened by (1 + r) / (1 - r), r being their correlation, as for an autoregressive series.

    Why no block bootstrap. It was tried first: the stationary one (Politis and Romano 1994), its mean length chosen from the
    data (Politis and White 2004). With the seconds of one run it is too sure of itself. Measured: of 2,000 (bootstrap: 400)
    simulated series of n seconds, each 0, 0.5, 0.8 or 0.9 of the one before plus noise, how many 95 % intervals held the mean,
    in per cent:

                             n = 60                120                 300
        memory         0   .5   .8   .9     0   .5   .8   .9     0   .5   .8   .9
        this          96   93   89   86    96   95   93   90    96   96   94   93
        10 blocks     94   92   82   68    95   93   90   81    95   94   93   91
        bootstrap     94   87   75   62    95   86   79   68    95   90   86   80

    So a minute is enough where a second remembers half of the last; where it remembers more, run for five.
    """
    found: Spread | None = None
    for count in (each for each in BLOCKS if each <= most):
        values = blocks(count)
        if values is None:
            continue
        related = _related(values)
        found = _of(whole, values, related)
        if related < RELATED:
            break
    return found


def of_difference(a: Spread, b: Spread) -> Spread:
    """The spread of a difference of two figures that have nothing to do with each other (Welch and Satterthwaite)."""
    variance = a.variance + b.variance
    parts = sum(each.variance**2 / each.freedom for each in (a, b))
    freedom = variance**2 / parts if parts else min(a.freedom, b.freedom)
    return Spread(variance=variance, freedom=freedom, blocks=min(a.blocks, b.blocks))


def at_least(found: Spread, variance: float) -> Spread:
    """The same, with a variance that is known to be no smaller than this."""
    if variance <= found.variance:
        return found
    return Spread(variance=variance, freedom=found.freedom, blocks=found.blocks)


def half_interval(found: Spread) -> float:
    """Half of the 95 % confidence interval."""
    return student_t(0.05, max(1, math.floor(found.freedom))) * math.sqrt(found.variance)


def _of(whole: float, values: Sequence[float], related: float) -> Spread:
    count = len(values)
    squares = math.fsum((value - whole) ** 2 for value in values)
    wider = (1 + related) / (1 - related)
    return Spread(variance=squares / (count - 1) / count * wider, freedom=count - 1, blocks=count)


def _related(values: Sequence[float]) -> float:
    """Correlation of neighbouring blocks, 0 to 0.8.

    What a sample of k shows is too low by about 1 / k (Kendall 1954).
    """
    count = len(values)
    mean = math.fsum(values) / count
    off = [value - mean for value in values]
    squares = math.fsum(each * each for each in off)
    if squares <= 0:
        return 0.0
    neighbours = math.fsum(one * other for one, other in pairwise(off))
    return min(MOST_RELATED, max(0.0, neighbours / squares + 1 / count))

"""What all parts of a stretch of seconds add up to, for every host: counts, and histograms of E2E and TTFT.

Parts may come in any order and late, and leave again: all sums are integers, so that what was added and what was taken
away leave exactly what a full recount counts, bit for bit. No store, no clock: which seconds belong in is for the feed
to say.

    parts ---> Totals (dense: hosts x 2 x 924 and hosts x 9)    a window that moves: add, drop
          ---> Slab   (sparse: only buckets that hold any)      a step that is kept: 10 s of history

Adding 18,000 parts of 20 hosts at once is one `bincount` for each host and metric: a single one over all of them would
walk a table that no cache holds.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from itertools import chain
from operator import itemgetter
from typing import Any

import numpy as np
from numpy.typing import NDArray

from toolkit.errors import ToolkitError
from toolkit.records import Part
from toolkit.stats import ALPHA, BELOW_MS, BUCKETS, Sketch

Integers = NDArray[np.int64]
Quantiles = list[list[list[float | None]]]
"""For each host, for each metric, one latency for each per cent; None of nothing."""

E2E, TTFT = 0, 1
"""The metrics, as the second axis of a histogram."""
METRICS = 2
_FIRST = Part._fields.index("ok")
_BLOBS = Part._fields.index("e2e")
COUNTS = Part._fields[_FIRST:_BLOBS]
"""The counts of a part, in the order of their columns."""
PULSES = ("ok", "errors", "output_tokens", "output_tokens_estimated")
"""The counts that are kept for single seconds, too."""
MOST = 2**32
"""Of one count in one part: a host that claims absurd usage must not break the sums, which are exact up to 2**53."""
FEW = 400
"""Parts up to which all histograms are counted in one pass: two seconds of 20 hosts in 0.1 ms where it was 0.4 ms."""
_INTEGERS = itemgetter(slice(Part._fields.index("host"), _BLOBS))
_WIDTH = _BLOBS - Part._fields.index("host")


@cache
def bucket_values_ms() -> NDArray[np.float64]:
    """The latency that each bucket tells, the very floats that Sketch tells."""
    values = []
    for bucket in range(BUCKETS):
        one = Sketch.from_bytes(np.array([bucket, 1], dtype="<u2").tobytes())
        values.append(one.quantile(0.5))
    return np.array(values, dtype=np.float64)


@cache
def bucket_edges_ms() -> NDArray[np.float64]:
    """Where buckets meet: bucket i lies between edge i and edge i + 1; the first begins at 0, the last never ends."""
    growth = (1 + ALPHA) / (1 - ALPHA)
    inner = BELOW_MS * growth ** np.arange(BUCKETS - 1, dtype=np.float64)
    return np.concatenate(([0.0], inner, [np.inf]))


@dataclass(frozen=True, slots=True)
class Slab:
    """Totals of a stretch that is kept, without the empty buckets: 2 to 4 KB for 10 s of a busy host."""

    counts: Integers
    """Hosts x COUNTS."""
    cells: NDArray[np.int32]
    """Which cells of the flat histograms hold any, ascending."""
    values: NDArray[np.integer[Any]]
    """What these hold, in 4 bytes each where that is enough."""

    @property
    def nbytes(self) -> int:
        """Memory of the three arrays."""
        return self.counts.nbytes + self.cells.nbytes + self.values.nbytes


class Totals:
    """Counts and histograms of every host; hosts are rows, in the order of `hosts`."""

    __slots__ = ("_hosts", "_pulse_s", "_rows", "counts", "histograms", "pulse")

    def __init__(self, hosts: Sequence[int], *, pulse_s: int = 0) -> None:
        """Begin empty. `pulse_s`: keep single seconds' counts (PULSES), too, for stretches of at most so many."""
        self._hosts = tuple(hosts)
        self._rows: Integers = np.full(max(hosts, default=0) + 1, -1, dtype=np.int64)
        self._rows[list(hosts)] = np.arange(len(hosts))
        self._pulse_s = pulse_s
        self.counts: Integers = np.zeros((len(hosts), len(COUNTS)), dtype=np.int64)
        self.histograms: Integers = np.zeros((len(hosts), METRICS, BUCKETS), dtype=np.int64)
        self.pulse: Integers = np.zeros((len(hosts), len(PULSES), pulse_s), dtype=np.int64)

    def add(self, parts: Sequence[Part]) -> None:
        """Add parts that are not in here yet."""
        self._move(parts, 1)

    def drop(self, parts: Sequence[Part]) -> None:
        """Take away parts that were added before."""
        self._move(parts, -1)

    def add_totals(self, other: "Totals") -> None:
        """Add all that another one of the same hosts and pulse holds."""
        self.counts += other.counts
        self.histograms += other.histograms
        self.pulse += other.pulse

    def add_slab(self, slab: Slab, sign: int = 1) -> None:
        """Add a slab of the same hosts, or of the first of them; with -1 take it away."""
        self.counts[: len(slab.counts)] += sign * slab.counts
        # every cell stands once in a slab, so plain indexing adds right
        self.histograms.reshape(-1)[slab.cells] += sign * slab.values

    def copy(self) -> "Totals":
        """Make another one that holds the same."""
        other = Totals(self._hosts, pulse_s=self._pulse_s)
        other.add_totals(self)
        return other

    def slab(self) -> Slab:
        """Keep what is in here in less memory; the pulse is not kept."""
        flat = self.histograms.reshape(-1)
        cells = np.flatnonzero(flat)
        values: NDArray[np.integer[Any]] = flat[cells]
        if values.max(initial=0) < 2**31:
            values = values.astype(np.int32)
        return Slab(self.counts.copy(), cells.astype(np.int32), values)

    def seconds(self, row: int, from_s: int, to_s: int) -> Integers:
        """PULSES of one host, a row each, in each second from `from_s` to `to_s`."""
        told: Integers = self.pulse[row][:, np.arange(from_s, to_s + 1) % self._pulse_s]
        return told

    def quantiles_ms(self, *percents: int) -> Quantiles:
        """Nearest-rank quantiles of each host, for each metric, in the order of `percents`; None of nothing."""
        return quantiles_ms(self.histograms, percents)

    def equals(self, other: "Totals") -> bool:
        """Tell whether every single number is the same."""
        pairs = (
            (self.counts, other.counts),
            (self.histograms, other.histograms),
            (self.pulse, other.pulse),
        )
        return all(np.array_equal(one, two) for one, two in pairs)

    def failed_down(self) -> list[int]:
        """Each host's errors in the seconds in which more failed than were answered."""
        ok, errors = self.pulse[:, 0], self.pulse[:, 1]
        failed: list[int] = np.where(errors > ok, errors, 0).sum(axis=1).tolist()
        return failed

    def _move(self, parts: Sequence[Part], sign: int) -> None:
        if not parts:
            return
        # one pass over all integers of all parts: four times as fast as a column after the other
        flat = chain.from_iterable(map(_INTEGERS, parts))
        columns = np.fromiter(flat, dtype=np.int64, count=len(parts) * _WIDTH).reshape(-1, _WIDTH)
        rows, seconds = self._rows_of(columns[:, 0]), columns[:, 1]
        counts = np.minimum(columns[:, 2:], MOST)
        histograms = self._histograms(parts, rows)
        # nothing below refuses: all of it is applied, or none
        self.histograms += sign * histograms
        for place in range(len(COUNTS)):
            self.counts[:, place] += sign * _sums(rows, counts[:, place], len(self.counts))
        if self._pulse_s:
            pulse = self.pulse.reshape(-1)
            for plane, name in enumerate(PULSES):
                places = (len(PULSES) * rows + plane) * self._pulse_s + seconds % self._pulse_s
                np.add.at(pulse, places, sign * counts[:, COUNTS.index(name)])

    def _rows_of(self, hosts: Integers) -> Integers:
        if hosts.max() < len(self._rows):
            rows: Integers = self._rows[hosts]
            if rows.min() >= 0:
                return rows
        raise ToolkitError(
            "a tally in the database is of a host that takes no part in its run",
            "Was it written by another program? Export the run, or start a new one",
        )

    def _histograms(self, parts: Sequence[Part], rows: Integers) -> Integers:
        if len(parts) <= FEW:
            return _counted_at_once(parts, rows, len(self.counts))
        found = np.zeros_like(self.histograms)
        for row, metrics in _blobs_of(parts, rows.tolist()).items():
            for metric, blobs in enumerate(metrics):
                pairs = _pairs(blobs)
                found[row, metric] = _sums(pairs[:, 0], pairs[:, 1], BUCKETS)
        return found


def _blobs_of(
    parts: Sequence[Part], rows: Sequence[int]
) -> dict[int, tuple[list[bytes], list[bytes]]]:
    """Row -> its sketches of E2E and of TTFT."""
    found: dict[int, tuple[list[bytes], list[bytes]]] = {}
    for part, row in zip(parts, rows, strict=True):
        blobs = found.get(row)
        if blobs is None:
            blobs = found[row] = ([], [])
        blobs[E2E].append(part.e2e)
        blobs[TTFT].append(part.ttft)
    return found


def _counted_at_once(parts: Sequence[Part], rows: Integers, hosts: int) -> Integers:
    """The histograms of a few parts: of these a pass for each host and metric would cost more than the table."""
    blobs = [part.e2e for part in parts] + [part.ttft for part in parts]
    lengths = np.fromiter(map(len, blobs), dtype=np.int64, count=len(blobs))
    if (lengths % 4).any():
        raise _damaged()
    pairs = _pairs(blobs)
    first = np.concatenate((rows * METRICS + E2E, rows * METRICS + TTFT)) * BUCKETS
    cells = np.repeat(first, lengths // 4) + pairs[:, 0]
    return _sums(cells, pairs[:, 1], hosts * METRICS * BUCKETS).reshape(hosts, METRICS, BUCKETS)


def _pairs(blobs: Sequence[bytes]) -> NDArray[np.uint16]:
    """Bucket and count of all sketches; of a bucket that stands several times the counts add up, as Sketch writes them."""
    joined = b"".join(blobs)
    if len(joined) % 4:
        raise _damaged()
    pairs = np.frombuffer(joined, dtype="<u2").reshape(-1, 2)
    if len(pairs) and pairs[:, 0].max() >= BUCKETS:
        raise _damaged()
    return pairs


def _sums(places: NDArray[Any], values: NDArray[Any], length: int) -> Integers:
    """Add values up by place. As weights they are floats, exact up to 2**53."""
    return np.bincount(places, weights=values, minlength=length).astype(np.int64)


def _damaged() -> ToolkitError:
    return ToolkitError(
        "a tally in the database holds a damaged sketch",
        "Was it written by another program? Export the run, or start a new one",
    )


def quantiles_ms(histograms: Integers, percents: Sequence[int]) -> Quantiles:
    """Nearest-rank quantiles along the last axis, of whatever stands along the first: hosts, or steps."""
    counted = np.cumsum(histograms, axis=-1)
    total = counted[..., -1]
    told = np.empty((*total.shape, len(percents)), dtype=object)
    for place, percent in enumerate(percents):
        # whole numbers: the rank is ceil(n * percent / 100), at least 1
        rank = np.maximum(-(-total * percent // 100), 1)
        bucket = (counted < rank[..., None]).sum(axis=-1)
        values = bucket_values_ms()[np.minimum(bucket, BUCKETS - 1)]
        told[..., place] = np.where(total > 0, values.astype(object), None)
    nested: Quantiles = told.tolist()
    return nested


def slab_of(parts: Sequence[Part], hosts: Sequence[int]) -> Slab:
    """Add parts up into a slab."""
    totals = Totals(hosts)
    totals.add(parts)
    return totals.slab()


def merged(slabs: Sequence[Slab]) -> Slab:
    """Add slabs up; they may have been made with fewer hosts."""
    hosts = max(len(slab.counts) for slab in slabs)
    totals = Totals(range(hosts))
    for slab in slabs:
        totals.add_slab(slab)
    return totals.slab()

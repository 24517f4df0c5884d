"""What all parts of a stretch of seconds add up to, for every host: counts, and histograms of E2E and TTFT.

Parts may come in any order and late, and leave again: all sums are integers, so that what was added and what was taken
away leave exactly what a full recount counts, bit for bit. No store, no clock: which seconds belong in is for the feed
to say.

    parts ---> Totals (dense: hosts x 2 x 924 and hosts x 9)    a window that moves
          ---> Slab   (sparse: only buckets that hold any)      a step that is kept: 10 s of history

Adding 18,000 parts of 20 hosts at once is one `bincount` for each host and metric: a single one over all of them would
walk a table that no cache holds.
"""

from collections import defaultdict
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
OF_A_SECOND = ("ok", "errors", "output_tokens", "output_tokens_estimated")
"""The counts that are kept for single seconds, too."""
MOST = 2**32
"""Of one count in one part: a host that claims absurd usage must not break the sums, which are exact up to 2**53."""
FEW = 400
"""Parts up to which all histograms are counted in one pass: two seconds of 20 hosts in 0.1 ms where it was 0.4 ms. More
of them in chunks of so many would do without the other way, but a cold page took 155 ms in place of 125."""
_INTEGERS = itemgetter(slice(Part._fields.index("host"), _BLOBS))
_WIDTH = _BLOBS - Part._fields.index("host")


@cache
def bucket_values_ms() -> NDArray[np.float64]:
    """The latency that each bucket stands for, the very floats of Sketch."""
    blobs = (np.array([bucket, 1], dtype="<u2").tobytes() for bucket in range(BUCKETS))
    return np.array([Sketch.from_bytes(blob).quantile(0.5) for blob in blobs], dtype=np.float64)


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


class Totals:
    """Counts and histograms of every host; hosts are rows, in the order of `hosts`."""

    __slots__ = ("_hosts", "_rows", "_seconds_s", "by_second", "counts", "histograms")

    def __init__(self, hosts: Sequence[int], *, seconds_s: int = 0) -> None:
        """Begin empty. `seconds_s`: keep single seconds (OF_A_SECOND), too, for stretches of at most so many."""
        self._hosts = tuple(hosts)
        self._rows: Integers = np.full(max(hosts, default=0) + 1, -1, dtype=np.int64)
        self._rows[list(hosts)] = np.arange(len(hosts))
        self._seconds_s = seconds_s
        self.counts: Integers = np.zeros((len(hosts), len(COUNTS)), dtype=np.int64)
        self.histograms: Integers = np.zeros((len(hosts), METRICS, BUCKETS), dtype=np.int64)
        self.by_second: Integers = np.zeros((len(hosts), len(OF_A_SECOND), seconds_s), np.int64)

    def add(self, parts: Sequence[Part], sign: int = 1) -> None:
        """Add parts that are not in here yet; with -1 take away what was added before. All of them, or none."""
        if not parts:
            return
        # one pass over all integers of all parts: four times as fast as a column after the other
        flat = chain.from_iterable(map(_INTEGERS, parts))
        columns = np.fromiter(flat, dtype=np.int64, count=len(parts) * _WIDTH).reshape(-1, _WIDTH)
        hosts, seconds, counts = columns[:, 0], columns[:, 1], np.minimum(columns[:, 2:], MOST)
        rows = self._rows[np.minimum(hosts, len(self._rows) - 1)]
        if hosts.max() >= len(self._rows) or rows.min() < 0:
            raise ToolkitError(
                "a tally in the database is of a host that takes no part in its run",
                "Was it written by another program? Export the run, or start a new one",
            )
        histograms = _histograms(parts, rows, len(self.counts))

        # nothing below refuses
        self.histograms += sign * histograms
        for place in range(len(COUNTS)):
            self.counts[:, place] += sign * _sums(rows, counts[:, place], len(self.counts))
        if self._seconds_s:
            cells = self.by_second.reshape(-1)
            for plane, name in enumerate(OF_A_SECOND):
                places = (len(OF_A_SECOND) * rows + plane) * self._seconds_s
                np.add.at(
                    cells, places + seconds % self._seconds_s, sign * counts[:, COUNTS.index(name)]
                )

    def add_totals(self, other: "Totals") -> None:
        """Add all that another one of the same hosts and seconds holds."""
        self.counts += other.counts
        self.histograms += other.histograms
        self.by_second += other.by_second

    def add_slab(self, slab: Slab, sign: int = 1) -> None:
        """Add a slab of the same hosts; with -1 take it away."""
        self.counts += sign * slab.counts
        # every cell stands once in a slab, so plain indexing adds right
        self.histograms.reshape(-1)[slab.cells] += sign * slab.values

    def copy(self) -> "Totals":
        """Make another one that holds the same."""
        other = Totals(self._hosts, seconds_s=self._seconds_s)
        other.add_totals(self)
        return other

    def slab(self) -> Slab:
        """Keep what is in here in less memory; single seconds are not kept."""
        flat = self.histograms.reshape(-1)
        cells = np.flatnonzero(flat)
        values: NDArray[np.integer[Any]] = flat[cells]
        if values.max(initial=0) < 2**31:
            values = values.astype(np.int32)
        return Slab(self.counts.copy(), cells.astype(np.int32), values)

    def seconds(self, from_s: int, to_s: int) -> Integers:
        """Hosts x OF_A_SECOND x the seconds from `from_s` to `to_s`."""
        return self.by_second[:, :, np.arange(from_s, to_s + 1) % self._seconds_s]


def _histograms(parts: Sequence[Part], rows: Integers, hosts: int) -> Integers:
    """Add up the sketches of every host."""
    if len(parts) <= FEW:
        lengths, pairs = _pairs([part.e2e for part in parts] + [part.ttft for part in parts])
        first = np.concatenate((rows * METRICS + E2E, rows * METRICS + TTFT)) * BUCKETS
        cells = np.repeat(first, lengths) + pairs[:, 0]
        flat = _sums(cells, pairs[:, 1], hosts * METRICS * BUCKETS)
        return flat.reshape(hosts, METRICS, BUCKETS)
    found = np.zeros((hosts, METRICS, BUCKETS), dtype=np.int64)
    of_hosts: dict[int, tuple[list[bytes], list[bytes]]] = defaultdict(lambda: ([], []))
    for part, row in zip(parts, rows.tolist(), strict=True):
        e2e, ttft = of_hosts[row]
        e2e.append(part.e2e)
        ttft.append(part.ttft)
    # Host by host, as the rows lie in memory: metric by metric took a fifth longer, 98 ms in place of 77 on a busy machine.
    for row, metrics in of_hosts.items():
        for metric, blobs in enumerate(metrics):
            _, pairs = _pairs(blobs)
            found[row, metric] = _sums(pairs[:, 0], pairs[:, 1], BUCKETS)
    return found


def _pairs(blobs: Sequence[bytes]) -> tuple[Integers, NDArray[np.uint16]]:
    """How many pairs each sketch has; and bucket and count of all, which add up where a bucket stands several times."""
    lengths = np.fromiter(map(len, blobs), dtype=np.int64, count=len(blobs))
    pairs = np.empty((0, 2), dtype="<u2")
    is_damaged = (lengths % 4).any()
    if not is_damaged:
        pairs = np.frombuffer(b"".join(blobs), dtype="<u2").reshape(-1, 2)
        is_damaged = pairs[:, 0].max(initial=0) >= BUCKETS
    if is_damaged:
        raise ToolkitError(
            "a tally in the database holds a damaged sketch",
            "Was it written by another program? Export the run, or start a new one",
        )
    return lengths // 4, pairs


def _sums(places: NDArray[Any], values: NDArray[Any], length: int) -> Integers:
    """Add values up by place. As weights they are floats, exact up to 2**53."""
    return np.bincount(places, weights=values, minlength=length).astype(np.int64)


def quantiles_ms(histograms: Integers, percents: Sequence[int]) -> Quantiles:
    """Nearest-rank quantiles of each metric, of whatever stands along the first axis: hosts, or steps; None of nothing."""
    counted = np.cumsum(histograms, axis=-1)
    total = counted[..., -1]
    found = np.empty((*total.shape, len(percents)), dtype=object)
    for place, percent in enumerate(percents):
        # whole numbers: the rank is ceil(n * percent / 100), at least 1
        rank = np.maximum(-(-total * percent // 100), 1)
        bucket = (counted < rank[..., None]).sum(axis=-1)
        values = bucket_values_ms()[np.minimum(bucket, BUCKETS - 1)]
        found[..., place] = np.where(total > 0, values.astype(object), None)
    nested: Quantiles = found.tolist()
    return nested

"""`/metrics` text, any dialect -> samples looked up by sample name. No network, no clock.

It groups raw lines by name and has prometheus-client parse a name's lines when that name is asked
for: a scout wants a tenth of a page. It never trusts `# TYPE`: which family a sample belongs to, and
whether a counter's family is called `..._total`, differs per dialect; the sample's name does not
(`vllm:iteration_tokens_total_bucket` is a histogram's).
"""

import math
import re
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate, pairwise

from prometheus_client.parser import text_string_to_metric_families

from toolkit.records import Reading
from toolkit.safe_text import printable

MAX_LINES = 250_000
"""A real page of 16 MB has fewer: recorded pages hold 80 characters a line, comments included."""
MAX_LINE_CHARACTERS = 8_192
"""The longest recorded line has 1,064. prometheus-client needs up to 0.5 us a character on a line of
nothing but labels, 0.2 us on a usual one (measured on 2 cores)."""
MAX_PARSED_CHARACTERS = 2 * 1024 * 1024
"""Of one page, all names together: 0.4 s of parsing, 1 s when made to hurt. A recorded page costs a
scout 18,000; 64 data-parallel engines behind one address would cost about a million."""
LINE_COST_CHARACTERS = 64
"""What a line costs beside its own characters: an empty one takes as long as so many of them."""
SHOWN_CHARACTERS = 80
STARTED = "process_start_time_seconds"

_NAME = re.compile(r"[ \t]*([a-zA-Z_:][a-zA-Z0-9_:]*)([ \t{]?)")
_PLAIN = re.compile(
    r"[a-zA-Z_:][a-zA-Z0-9_:]*\{(.*)\} ([+-]?[0-9]{1,300}(?:\.[0-9]{1,300})?(?:[eE][+-]?[0-9]{1,3})?)"
)
"""A sample without timestamp and exemplar. What stands before the last brace goes to the parser as
it is, so a brace among the labels is its affair."""
_MARK = "-1795200963.25"
"""A value that no engine writes."""
KEPT_LABELS = 8_192
MAX_KEPT_CHARACTERS = 2_048
"""Engines write the same labels on line after line and page after page: of the 157 plain lines that
scout reads of a recorded page under load, 78 have labels of their own. The texts kept are at most
8,192 * 2,048 = 16.8 million characters."""
# the parser's own bugs: `{ ="x"}` is an IndexError, a timestamp of 400 digits an OverflowError
_UNREADABLE = (ValueError, IndexError, OverflowError)

Labels = tuple[tuple[str, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """One line of a page: its labels, sorted by name, and its value, which may be NaN or Inf."""

    labels: Labels
    value: float

    def label(self, name: str) -> str:
        """Return one label's value; a label that is absent equals an empty one, as in Prometheus."""
        return next((value for key, value in self.labels if key == name), "")

    @property
    def is_amount(self) -> bool:
        """Whether its value can be a number of things; -1 and NaN stand for unknown."""
        return 0 <= self.value < math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Quantile:
    """A quantile, or the edge it lies beyond when it sits in the first or the last bucket."""

    value: float | None = None
    below: float | None = None
    """It is at most this: it sits in the first bucket, where interpolation would invent a number."""
    above: float | None = None
    """It is more than this: it sits in the bucket without an upper edge."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """A histogram, all series together; without buckets it still has a mean."""

    edges: tuple[float, ...]
    """Upper edges, ascending, the last one +Inf; empty when only sum and count are known."""
    counts: tuple[float, ...]
    """Observations at or below each edge."""
    sum: float | None
    count: float

    def quantile(self, share: float) -> Quantile:
        """Estimate a quantile like Prometheus: linear inside the bucket that holds its rank.

        rank = share * n, value = low + (high - low) * (rank - counted below) / (counted inside);
        e.g., edges 1 2, counts 10 30, share 0.5: rank 15, 1 + 1 * (15 - 10) / 20 = 1.25.
        """
        if not self.counts or self.counts[-1] <= 0:
            return Quantile()
        rank = share * self.counts[-1]
        last = len(self.counts) - 1
        at = next((i for i, count in enumerate(self.counts) if count >= rank), last)
        if math.isinf(self.edges[at]):
            return Quantile(above=self.edges[at - 1]) if at else Quantile()
        if at == 0:
            return Quantile(below=self.edges[0])
        low, high = self.edges[at - 1 : at + 1]
        under, upto = self.counts[at - 1 : at + 1]
        return Quantile(value=finite(low + (high - low) * (rank - under) / (upto - under)))

    def mean(self) -> float | None:
        """Divide sum by count; None when nothing was observed."""
        return None if self.sum is None or self.count <= 0 else self.sum / self.count

    def since(self, earlier: "Histogram") -> "Histogram | None":
        """Return what was observed after `earlier`; None when a count went backwards: a restart."""
        if self.edges != earlier.edges:
            return None
        counts = [now - then for now, then in zip(self.counts, earlier.counts, strict=True)]
        inside = [upto - under for under, upto in pairwise([0.0, *counts])]
        total = None if self.sum is None or earlier.sum is None else self.sum - earlier.sum
        if min(inside, default=0) < 0 or self.count < earlier.count or (total or 0) < 0:
            return None
        return Histogram(
            edges=self.edges, counts=tuple(counts), sum=total, count=self.count - earlier.count
        )


class MetricsPage:
    """The samples of one page, by sample name; lines are parsed when their name is asked for."""

    def __init__(self) -> None:
        self.lines: dict[str, list[str]] = {}
        """Sample name -> its raw lines, in the page's order."""
        self._samples: dict[str, tuple[Sample, ...]] = {}
        self._left = MAX_PARSED_CHARACTERS
        self.openmetrics = False
        """Whether the page has the `# EOF` line of OpenMetrics."""
        self.cut = False
        """Whether a limit left something unread: see the limits at the top."""
        self.ended_early = False
        """Whether its last line has no end: the rest of it was lost, and of its name nothing is known."""
        self.bad_lines = 0
        """Lines that could not be read, among those looked at so far."""
        self.first_bad_line = ""
        """The first of them, shortened, safe to print."""

    def note_bad(self, line: str) -> None:
        """Count a line that cannot be read."""
        self.bad_lines += 1
        self.first_bad_line = self.first_bad_line or printable(
            line[:MAX_LINE_CHARACTERS].strip()[:SHOWN_CHARACTERS]
        )

    @property
    def has_samples(self) -> bool:
        """Whether at least one line reads as a sample; prose and JSON have none."""
        return any(self.samples(name) for name in self.lines)

    def samples(self, name: str) -> tuple[Sample, ...]:
        """Return a name's samples; a series that stands twice counts once, the first time."""
        if name not in self._samples:
            lines = self.lines.get(name, [])
            cost = sum(map(len, lines)) + LINE_COST_CHARACTERS * len(lines)
            if cost > self._left:
                self.cut = True  # half of a name's series would sum to a wrong number
                lines, cost = [], 0
            self._left -= cost
            found: dict[Labels, float] = {}
            # line by line: reading them in one go gains 8 % and ends at the first bad one
            for line in lines:
                try:
                    labels, value = _read_line(name, line)
                except _UNREADABLE:
                    self.note_bad(line)
                else:
                    found.setdefault(labels, value)
            self._samples[name] = tuple(Sample(labels=key, value=found[key]) for key in found)
        return self._samples[name]

    def total(self, name: str, **labels: str) -> float | None:
        """Sum all series that bear these labels, e.g., those of all engines and models.

        NaN and Inf are unknown and left out; None when nothing is left.
        """
        values = [
            sample.value
            for sample in self.samples(name)
            if math.isfinite(sample.value)
            and all(sample.label(key) == value for key, value in labels.items())
        ]
        return finite(sum(values)) if values else None

    def histogram(self, name: str) -> Histogram | None:
        """Sum a histogram over its series, on the edges they share; `name` without `_bucket`."""
        counts, sums = (
            {each.labels: each.value for each in self.samples(name + end) if each.is_amount}
            for end in ("_count", "_sum")
        )
        buckets: dict[Labels, dict[float, float]] = {}
        for sample in self.samples(f"{name}_bucket"):
            with suppress(ValueError):
                edge = float(sample.label("le"))
                if sample.is_amount and not math.isnan(edge):
                    series = tuple(pair for pair in sample.labels if pair[0] != "le")
                    buckets.setdefault(series, {})[edge] = sample.value
        for series, own in buckets.items():
            if series in counts:
                own.setdefault(math.inf, counts[series])  # stands in for a lost +Inf bucket
        whole = [own for own in buckets.values() if math.inf in own]
        if not whole and not counts:
            return None

        edges = sorted(set(whole[0]).intersection(*whole)) if whole else []
        # counts that fall are lifted, as Prometheus does
        merged = tuple(accumulate((sum(own[edge] for own in whole) for edge in edges), max))
        return Histogram(
            edges=tuple(edges),
            counts=merged,
            # a sum whose count could not be read, or the reverse, would spoil the mean
            sum=finite(sum(sums.values())) if sums and sums.keys() == counts.keys() else None,
            count=sum(counts.values()) if counts else merged[-1],
        )

    def readings(self) -> tuple[Reading, ...]:
        """Return every raw gauge and counter, a histogram's sum and count among them.

        Left out: buckets, `_created` times, the process's and Python's own numbers, and values that
        are not finite (nothing can be computed from them).
        """
        return tuple(
            Reading(name=name, labels=sample.labels, value=sample.value)
            for name in self.lines
            if not name.endswith(("_bucket", "_created"))
            and (not name.startswith(("python_", "process_")) or name == STARTED)
            for sample in self.samples(name)
            if math.isfinite(sample.value)
        )


def read_page(text: str) -> MetricsPage:
    """Group a page's lines by sample name; never raises, whatever the text."""
    page = MetricsPage()
    # not splitlines: a label's value may hold \x0b, \x85 or \u2028; only \n ends a line
    rows = text.split("\n", MAX_LINES)
    page.cut = len(rows) > MAX_LINES
    last = "" if page.cut else rows.pop()
    for row in rows[:MAX_LINES]:
        match = _NAME.match(row)
        if match and match[2] and len(row) <= MAX_LINE_CHARACTERS:
            page.lines.setdefault(match[1], []).append(row)
        elif row.rstrip() == "# EOF":
            page.openmetrics = True
        elif match or row[:MAX_LINE_CHARACTERS].lstrip()[:1] not in ("", "#"):
            page.note_bad(row)
    if last.rstrip() == "# EOF":
        page.openmetrics = True
    elif last.strip():
        # half of a number is another number, and a sum over the lines before it lacks those behind it
        page.ended_early = True
        if begun := _NAME.match(last):
            for name in tuple(page.lines):
                if name == begun[1] or (not begun[2] and name.startswith(begun[1])):
                    del page.lines[name]
    return page


def _read_line(name: str, line: str) -> tuple[Labels, float]:
    """Read one sample; raises one of `_UNREADABLE` when it is none, or one of another name."""
    plain = _PLAIN.fullmatch(line)
    if plain and len(plain[1]) <= MAX_KEPT_CHARACTERS:
        labels = _labels(plain[1])
        if labels is not None:
            return labels, float(plain[2])
    return _parsed(name, line)


@lru_cache(maxsize=KEPT_LABELS)
def _labels(text: str) -> Labels | None:
    """Parse what stands between the braces, once for all lines that bear the same.

    None when the parser finds the end of the labels earlier, e.g., before an exemplar: it then reads
    another value than the one put behind them.
    """
    labels, value = _parsed("x", f"x{{{text}}} {_MARK}")
    return labels if value == float(_MARK) else None


def _parsed(name: str, line: str) -> tuple[Labels, float]:
    for family in text_string_to_metric_families(line):
        for sample in family.samples:
            if sample.name == name:
                return tuple(sorted(sample.labels.items())), float(sample.value)
    raise ValueError(line)


def finite(value: float) -> float | None:
    """None for NaN and infinity."""
    return value if math.isfinite(value) else None

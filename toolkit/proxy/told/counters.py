"""What the proxy did, counted: requests, rejections, errors, tokens, times, calls upstream. It reads no clock and knows no page.

A hit is to cost next to nothing: it bumps a Tally, a few ints that were looked up when its answer was made ready. All else comes as
a Served, after its end. Labels are bounded: whoever asks for a thousand models that nobody serves fills no page.

The hit ratio is hits / cacheable requests: those for which the cache was asked. Coalesced ones are cacheable, and counted apart.
An error is what failed. A rejection is a boundary held and no error; nor is a client that left before its end.
"""

from bisect import bisect_left
from collections.abc import Iterable, Mapping
from typing import Any

from toolkit.proxy.exchange import Served

MOST_MODELS = 64
MOST_WORDS = 256
"""Reasons, kinds and names come from us, the settings or an upstream's status: more of one sort are an accident."""
MOST_CHARACTERS = 100
OTHER = "other"
NONE = "none"
BYPASS = "bypass"
"""Instead of hit, coalesced or miss: the cache was not asked."""

EDGES_S = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0),
)
"""Upper edges of the histograms' buckets: a hit takes less than 0.1 ms, a miss may take 100 s."""
QUICK_S = EDGES_S[0]

COUNTS: Mapping[str, tuple[str, ...]] = {
    "requests": ("team", "model", "endpoint", "cache", "code"),
    "rejections": ("team", "reason"),
    "errors": ("team", "model", "kind"),
    "left": ("team", "model"),
    "prompt_tokens": ("team", "model", "cache"),
    "output_tokens": ("team", "model", "cache"),
    "prefix_tokens": ("model",),
    "stored": ("model",),
    "bypasses": ("reason",),
    "hits": ("layer",),
    "hit_bytes": ("model",),
    "refusals": ("reason",),
    "upstream_requests": ("upstream",),
    "upstream_errors": ("upstream", "kind"),
    "upstream_retries": ("upstream",),
    "verified": ("model", "result"),
    "events": ("kind",),
}
"""What is counted, and by what."""
TIMES: Mapping[str, tuple[str, ...]] = dict.fromkeys(
    ("ttft", "tpot", "queue", "latency"), ("model", "cache")
)
"""What is timed, and by what."""

Labels = tuple[str, ...]


class Times:
    """How often something took how long: a histogram over EDGES_S and beyond."""

    __slots__ = ("counts", "sum_s")

    def __init__(self, counts: Iterable[int] = (), sum_s: float = 0.0) -> None:
        self.counts = list(counts) or [0] * (len(EDGES_S) + 1)
        """In each bucket alone, not up to it."""
        self.sum_s = sum_s

    def observe(self, took_s: float) -> None:
        """Count one that took so long; at an edge it belongs below."""
        self.counts[bisect_left(EDGES_S, took_s)] += 1
        self.sum_s += took_s

    def add(self, other: "Times") -> None:
        """Count all of another's."""
        self.counts = [one + more for one, more in zip(self.counts, other.counts, strict=True)]
        self.sum_s += other.sum_s

    @property
    def count(self) -> int:
        """All of them."""
        return sum(self.counts)


class Tally:
    """Hits in memory of one team, model, endpoint and manner of answer; whoever serves one may bump the ints itself."""

    __slots__ = (
        *("hits", "size", "prompt_tokens", "output_tokens", "quick", "slow", "sum_s"),
        *("team", "model", "endpoint", "stream"),
    )

    def __init__(self, team: str, model: str, endpoint: str, *, stream: bool) -> None:
        self.team, self.model, self.endpoint, self.stream = team, model, endpoint, stream
        self.clear()

    def clear(self) -> None:
        """Begin at zero."""
        self.hits = 0
        self.size = 0
        """Bytes of the answers."""
        self.prompt_tokens = self.output_tokens = 0
        self.quick = 0
        """Hits of at most QUICK_S; they are in no bucket of `slow`."""
        self.slow = [0] * (len(EDGES_S) + 1)
        self.sum_s = 0.0

    def hit(self, took_s: float, size: int, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Count one hit, answered at once after so many seconds: for a stream that is its time to the first token, too."""
        self.hits += 1
        self.size += size
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens
        self.sum_s += took_s
        if took_s <= QUICK_S:
            self.quick += 1
        else:
            self.slow[bisect_left(EDGES_S, took_s)] += 1


class Words:
    """Values of one label, a bounded number of them, and safe to write on a page; whatever comes later is `other`."""

    __slots__ = ("_known", "_most")

    def __init__(self, most: int) -> None:
        self._most = most
        self._known: dict[str, str] = {}

    def learn(self, name: str) -> str:
        """Give a name a place of its own while there is one; names that begin alike for long share it."""
        name = name[:MOST_CHARACTERS]
        word = self._known.get(name)
        if word is None:
            if len(self._known) >= self._most:
                return OTHER
            word = self._known[name] = printable(name)
        return word

    def known(self, name: str) -> str:
        """The name, if it has a place."""
        return self._known.get(name[:MOST_CHARACTERS], OTHER)


class Counters:
    """Everything counted by one process; belongs to one thread. `counts` and `times` are whole after `settle`."""

    __slots__ = ("_models", "_tallies", "_words", "counts", "times")

    def __init__(self) -> None:
        self.counts: dict[str, dict[Labels, float]] = {name: {} for name in COUNTS}
        self.times: dict[str, dict[Labels, Times]] = {name: {} for name in TIMES}
        self._models = Words(MOST_MODELS)
        self._words: dict[str, Words] = {}
        self._tallies: dict[tuple[str, str, str, bool], Tally] = {}

    # --- What happens ---------------------------------------------------------------------------

    def tally(self, team: str, model: str | None, endpoint: str, *, stream: bool) -> Tally:
        """Where hits of this kind are counted; to be kept with the answer that is made ready."""
        # an answer was stored: the model is no client's invention
        name = NONE if model is None else self._models.learn(model)
        key = (self._word("team", team), name, self._word("endpoint", endpoint), stream)
        found = self._tallies.get(key)
        if found is None:
            found = self._tallies[key] = Tally(*key[:3], stream=stream)
        return found

    def take(self, served: Served) -> None:
        """Count one request that ended, and was not counted by a tally."""
        model = self._model(served)
        team, cache = self._word("team", served.team), served.cache or BYPASS
        endpoint = self._word("endpoint", served.endpoint)
        self.add("requests", team, model, endpoint, cache, _code(served.status))
        self._take_end(served, team, model)
        self._take_cache(served, model)
        self._take_tokens(served, team, model, cache)
        self._take_times(served, model, cache)

    def refuse(self, reason: str) -> None:
        """Count a request that was never understood, and so is none of `requests`."""
        self.add("refusals", self._word("reason", reason))

    def ask_upstream(self, upstream: str, failed: int = 0) -> None:
        """Count one call upstream, however many requests it answers; `failed`: how many others failed before it."""
        name = self._word("upstream", upstream)
        self.add("upstream_requests", name)
        if failed:
            self.add("upstream_retries", name)

    def fail_upstream(self, upstream: str, kind: str) -> None:
        """Count a call upstream that gave no whole answer, whether another one did or not."""
        self.add("upstream_errors", self._word("upstream", upstream), self._word("kind", kind))

    def verify(self, model: str | None, *, is_same: bool) -> None:
        """Count a hit that was asked again and compared."""
        name = NONE if model is None else self._models.learn(model)
        self.add("verified", name, "same" if is_same else "different")

    def note(self, kind: str) -> None:
        """Count an event, e.g., `upstream_left`."""
        self.add("events", self._word("event", kind))

    def add(self, name: str, *labels: str, by: float = 1) -> None:
        """Count something of COUNTS; the labels are known to be bounded."""
        counted = self.counts[name]
        counted[labels] = counted.get(labels, 0) + by

    # --- What comes of it -----------------------------------------------------------------------

    def settle(self) -> "Counters":
        """Move what the tallies hold to where all else is; itself."""
        for tally in self._tallies.values():
            if tally.hits:
                self._settle(tally)
                tally.clear()
        return self

    def total(self, name: str, **labels: str) -> float:
        """Sum of what was counted under these labels, e.g., `total("requests", cache="hit")`."""
        places = [(COUNTS[name].index(label), value) for label, value in labels.items()]
        return sum(
            value
            for key, value in self.counts[name].items()
            if all(key[place] == wanted for place, wanted in places)
        )

    def by(self, name: str, label: str) -> dict[str, float]:
        """Sums of what was counted by the values of one label, e.g., `by("requests", "cache")["hit"]`."""
        place = COUNTS[name].index(label)
        found: dict[str, float] = {}
        for key, value in self.counts[name].items():
            found[key[place]] = found.get(key[place], 0) + value
        return found

    def timed(self, name: str, **labels: str) -> Times:
        """One histogram of all that bear these labels."""
        places = [(TIMES[name].index(label), value) for label, value in labels.items()]
        whole = Times()
        for key, times in self.times[name].items():
            if all(key[place] == wanted for place, wanted in places):
                whole.add(times)
        return whole

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values, to be merged elsewhere."""
        self.settle()
        return {
            "counts": {
                name: [[*key, value] for key, value in counted.items()]
                for name, counted in self.counts.items()
            },
            "times": {
                name: [[*key, times.counts, times.sum_s] for key, times in timed.items()]
                for name, timed in self.times.items()
            },
        }

    def merge(self, told: Mapping[str, Any]) -> "Counters":
        """Add what another process counted, by its `as_dict`; itself. Models beyond MOST_MODELS are `other` here, too."""
        for name, rows in told["counts"].items():
            for *key, value in rows:
                self.add(name, *self._bounded(COUNTS[name], key), by=value)
        for name, rows in told["times"].items():
            for *key, counts, sum_s in rows:
                self._times(name, *self._bounded(TIMES[name], key)).add(Times(counts, sum_s))
        return self

    # --- Inside ---------------------------------------------------------------------------------

    def _model(self, served: Served) -> str:
        if served.model is None:
            return NONE
        is_served = served.status is not None and served.status < 300
        return (self._models.learn if is_served else self._models.known)(served.model)

    def _word(self, sort: str, name: str) -> str:
        words = self._words.get(sort)
        if words is None:
            words = self._words[sort] = Words(MOST_WORDS)
        return words.learn(name)

    def _bounded(self, labels: Labels, key: Iterable[str]) -> Iterable[str]:
        return (
            self._models.learn(value) if label == "model" and value not in (NONE, OTHER) else value
            for label, value in zip(labels, key, strict=True)
        )

    def _times(self, name: str, model: str, cache: str) -> Times:
        timed = self.times[name]
        found = timed.get((model, cache))
        if found is None:
            found = timed[model, cache] = Times()
        return found

    def _take_end(self, served: Served, team: str, model: str) -> None:
        """A request that was rejected, left or failed is one of these alone."""
        if served.rejected is not None:
            self.add("rejections", team, self._word("reason", served.rejected))
        elif served.left:
            self.add("left", team, model)
        elif (kind := error_kind(served)) is not None:
            self.add("errors", team, model, self._word("kind", kind))

    def _take_cache(self, served: Served, model: str) -> None:
        if served.cache == "hit":
            self.add("hits", served.layer or "memory")
        if served.bypass is not None:
            self.add("bypasses", self._word("bypass", served.bypass))
        if served.stored:
            self.add("stored", model)

    def _take_tokens(self, served: Served, team: str, model: str, cache: str) -> None:
        if served.prompt_tokens:
            self.add("prompt_tokens", team, model, cache, by=served.prompt_tokens)
        if served.output_tokens:
            self.add("output_tokens", team, model, cache, by=served.output_tokens)
        if served.cached_tokens and served.cache not in ("hit", "coalesced"):
            self.add("prefix_tokens", model, by=served.cached_tokens)

    def _take_times(self, served: Served, model: str, cache: str) -> None:
        """Failures are in no histogram of answers, as they are in none of the toolkit's; what they waited counts."""
        if served.queue_ms is not None:
            self._times("queue", model, cache).observe(served.queue_ms / 1e3)
        if served.rejected is not None or served.left or error_kind(served) is not None:
            return
        if served.status is not None and served.status >= 400:
            return
        for name, took_ms in (
            ("ttft", served.ttft_ms),
            ("tpot", served.tpot_ms),
            ("latency", served.latency_ms),
        ):
            if took_ms is not None:
                self._times(name, model, cache).observe(took_ms / 1e3)

    def _settle(self, tally: Tally) -> None:
        model = tally.model
        by = tally.hits
        self.add("requests", tally.team, model, tally.endpoint, "hit", "2xx", by=by)
        self.add("hits", "memory", by=by)
        self.add("hit_bytes", model, by=tally.size)
        if tally.prompt_tokens:
            self.add("prompt_tokens", tally.team, model, "hit", by=tally.prompt_tokens)
        if tally.output_tokens:
            self.add("output_tokens", tally.team, model, "hit", by=tally.output_tokens)
        times = Times(tally.slow, tally.sum_s)
        times.counts[0] += tally.quick
        for name in ("latency", "ttft") if tally.stream else ("latency",):
            self._times(name, model, "hit").add(times)


def error_kind(served: Served) -> str | None:
    """How a request failed; None: it did not, or it was rejected or left, or it was the client's own slip (4xx)."""
    if served.rejected is not None or served.left:
        return None
    if served.error_kind is None and served.status is not None and served.status >= 500:
        return f"http_{served.status}"
    return served.error_kind


def printable(name: str) -> str:
    """A text that breaks no page: short, without control characters and halves of surrogate pairs."""
    short = name[:MOST_CHARACTERS]
    return short if short.isprintable() else "".join(c if c.isprintable() else "?" for c in short)


def _code(status: int | None) -> str:
    if status is None:
        return NONE
    return f"{status // 100}xx" if 100 <= status < 600 else OTHER

"""What the proxy counts, and its pages for Prometheus. It reads no clock and opens no socket.

A hit costs next to nothing: it adds to a Tally that was looked up when its answer was made ready. All else is counted once, at its
end, as a Served. Labels are bounded: a client that asks for a thousand models that nobody serves fills no page.

The five indicators, with `r(x)` for `sum(rate(toolkit_proxy_x[1m]))`:

    TTFT             histogram_quantile(0.95, sum by (le) (rate(toolkit_proxy_ttft_seconds_bucket[1m])))
    TPOT, queue      the same of tpot_seconds, queue_seconds
    cache hit ratio  r(requests_total{cache="hit"}) / r(requests_total{cache!="bypass"})
    error rate       r(errors_total) / (r(requests_total) - r(rejections_total) - r(clients_left_total))

Over the last minute they are on the page ready made, too, for users without Prometheus: `toolkit_proxy_last_minute_...`. Coalesced
requests are cacheable, and counted apart. A rejection is a limit that was held and no error; nor is a client that left.
"""

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from toolkit.metrics.parser import Histogram, Quantile
from toolkit.records import SeenCache
from toolkit.safe_text import printable

if TYPE_CHECKING:
    from toolkit.proxy.upstream.routing import UpstreamState

PREFIX = "toolkit_proxy_"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"
MAX_MODELS = 64
MAX_VALUES = 256
"""Of any other label: reasons, kinds and names come from us, the settings or an upstream's status; more are an accident."""
MAX_LABEL_CHARS = 100
OTHER = "other"
NONE = "none"
BYPASS = "bypass"
"""Instead of hit, coalesced or miss: the cache was not asked."""

EDGES_S = (
    *(0.00005, 0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05),
    *(0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0),
)
"""Upper edges of the histograms' buckets: a hit takes less than 0.1 ms, a miss may take 100 s."""

COUNTERS = {
    "requests": ("team model endpoint cache code", "Requests that ended, rejected ones included"),
    "rejections": ("team reason", "Requests not served because a limit was held; no errors"),
    "errors": ("team model kind", "Requests that failed"),
    "clients_left": ("team model", "Requests whose client left before the end; no errors"),
    "prompt_tokens": ("team model cache", "Prompt tokens of answered requests, by usage"),
    "output_tokens": ("team model cache", "Tokens of answers, by usage; of hits: what was spared"),
    "prefix_cached_tokens": ("model", "Prompt tokens that upstreams had in their prefix cache"),
    "stored_answers": ("model", "Answers that were stored"),
    "bypasses": ("reason", "Requests for which the cache was not asked, by reason"),
    "hits": ("layer", "Hits by the layer that had the answer"),
    "hit_bytes": ("model", "Bytes of answers from memory"),
    "refused_requests": ("reason", "Requests that were refused before they were understood"),
    "upstream_requests": ("upstream", "Calls upstream, one for all that share it"),
    "upstream_errors": ("upstream kind", "Calls upstream without a whole answer"),
    "upstream_retries": ("upstream", "Calls upstream because another one failed"),
    "events": ("kind", "What happened, by kind"),
}
"""Name on the page -> labels, and what it says there."""
LABELS = {name: tuple(labels.split()) for name, (labels, _) in COUNTERS.items()}
PRIVATE = frozenset(
    "refused_requests upstream_requests upstream_errors upstream_retries events".split()
)
"""Clients see none of these; of the others they see the sums over all teams."""
TIMES = {
    "ttft": "From a stream's request to the first token sent to the client",
    "tpot": "Seconds an output token after the first",
    "queue": "Waiting for a slot, of requests that needed one",
    "latency": "From a request to the end of its answer",
}
"""What is timed."""
TIME_LABELS = ("model", "cache")
LATELY = {
    "requests_per_s": ("requests_per_second", "Requests that ended", "requests", "window_s"),
    "rejections_per_s": ("rejections_per_second", "Requests rejected", "rejections", "window_s"),
    "hit_ratio": ("hit_ratio", "Hits / cacheable requests", "hits", "cacheable"),
    "coalesced_ratio": ("coalesced_ratio", "Joined / cacheable requests", "coalesced", "cacheable"),
    "error_rate": ("error_ratio", "Errors / (ok + errors)", "errors", "ended"),
}
"""Key of the last minute's indicators -> name on the page, what it says there, and which count is divided by which."""
LATELY_TIMES = ("ttft", "tpot", "queue")
QUANTILES = {"p50": 0.5, "p95": 0.95}

Labels = tuple[str, ...]


@dataclass(slots=True, kw_only=True)
class Served:
    """What became of one request, made once, at its end; the counters, the log and the store read it, and nobody changes it then."""

    ts: float
    """Wall clock, when its first byte was read."""
    request_id: str = ""
    team: str = ""
    method: str = "POST"
    path: str = ""
    endpoint: str = ""
    model: str | None = None
    stream: bool | None = None
    status: int | None = None
    """None: the client left before one was known."""
    cache: SeenCache | None = None
    """None: caching was not wanted or not possible."""
    layer: str | None = None
    """Where a hit was found: `memory`, `disk` or `redis`."""
    bypass: str | None = None
    """Why the cache was not asked, e.g., `no-store`, `sampled`, `off`."""
    new: bool | None = None
    """No equal request was seen before."""
    prompt_tokens: int | None = None
    output_tokens: int | None = None
    cached_tokens: int | None = None
    ttft_ms: float | None = None
    """From the request's last byte to the first token sent to the client."""
    tpot_ms: float | None = None
    latency_ms: float | None = None
    queue_ms: float | None = None
    """Waiting for a slot, from the request's first byte; None where none was needed."""
    finish_reason: str | None = None
    upstream: str | None = None
    error_kind: str | None = None
    """None: all is well, a rejection included."""
    rejected: str | None = None
    """The reason of a rejection."""
    retry_after_s: float | None = None
    stored: bool = False
    left: bool = False
    """The client left before the end."""
    body_bytes: int = 0
    exact_key: str | None = None
    request_key: str | None = None
    prompt_key: str | None = None
    retries: int | None = None
    fallback: bool | None = None
    """It was asked of an upstream that is asked when no other can be."""

    def failure(self) -> str | None:
        """How it failed; None: it did not, or it was rejected or left, or it was the client's own slip (4xx)."""
        if self.rejected is not None or self.left:
            return None
        if self.error_kind is None and self.status is not None and self.status >= 500:
            return f"http_{self.status}"
        return self.error_kind


def no_times() -> list[float]:
    """A histogram's row: the count of each bucket alone, the one beyond the last edge too, and the sum of all seconds."""
    return [0] * (len(EDGES_S) + 2)


class Tally:
    """Hits in memory of one team, model, endpoint and manner of answer."""

    __slots__ = (
        *("hits", "size", "prompt_tokens", "output_tokens", "times"),
        *("team", "model", "endpoint", "stream"),
    )

    def __init__(self, team: str, model: str, endpoint: str, *, stream: bool) -> None:
        self.team, self.model, self.endpoint, self.stream = team, model, endpoint, stream
        self.clear()

    def clear(self) -> None:
        """Begin at zero."""
        self.hits = self.size = self.prompt_tokens = self.output_tokens = 0
        self.times = no_times()

    def hit(self, took_s: float, size: int, prompt_tokens: int = 0, output_tokens: int = 0) -> None:
        """Count one hit of so many bytes; for a stream its time is that to the first token, too."""
        self.hits += 1
        self.size += size
        self.prompt_tokens += prompt_tokens
        self.output_tokens += output_tokens
        self.times[bisect_left(EDGES_S, took_s)] += 1
        self.times[-1] += took_s


class LabelValues(dict[str, str]):
    """The values of one label as they stand on a page: the first `most` by their names, all later ones as `other`."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __missing__(self, value: str) -> str:
        # names that begin alike for long share a place
        short = value[:MAX_LABEL_CHARS]
        if short not in self:
            if short in (NONE, OTHER):
                return short
            if len(self) >= self._most:
                return OTHER
            self[short] = printable(short)
        return self[short]


class Counters:
    """Everything counted by one process; belongs to one thread. `counts` and `times` are whole after `settle`."""

    def __init__(self) -> None:
        self.counts: dict[str, dict[Labels, float]] = {name: defaultdict(int) for name in COUNTERS}
        self.times: dict[str, dict[Labels, list[float]]] = {
            name: defaultdict(no_times) for name in TIMES
        }
        self._tallies: dict[tuple[str, str, str, bool], Tally] = {}
        self._values: dict[str, LabelValues] = defaultdict(
            lambda: LabelValues(MAX_VALUES), model=LabelValues(MAX_MODELS)
        )

    def tally(self, team: str, model: str | None, endpoint: str, *, stream: bool) -> Tally:
        """Where hits of this kind are counted; kept with the answer that is made ready."""
        values = self._values
        # an answer was stored: the model is no client's invention
        labels = values["team"][team], values["model"][model or NONE], values["endpoint"][endpoint]
        found = self._tallies.get((*labels, stream))
        if found is None:
            found = self._tallies[*labels, stream] = Tally(*labels, stream=stream)
        return found

    def add(self, name: str, *labels: str, by: float = 1) -> None:
        """Count something of COUNTERS."""
        bounded = (
            self._values[label][value] for label, value in zip(LABELS[name], labels, strict=True)
        )
        self.counts[name][tuple(bounded)] += by

    def take(self, served: Served) -> None:
        """Count one request that ended, and was not counted by a tally."""
        counts, values = self.counts, self._values
        status, cache = served.status, served.cache or BYPASS
        failure = served.failure()
        if served.model is None:
            model = NONE
        elif status is not None and status < 300:
            model = values["model"][served.model]
        else:
            # what nobody answered gets no place of its own
            model = values["model"].get(served.model[:MAX_LABEL_CHARS], OTHER)
        team = values["team"][served.team]
        code = NONE
        if status is not None:
            code = f"{status // 100}xx" if 100 <= status < 600 else OTHER
        endpoint = values["endpoint"][served.endpoint]
        counts["requests"][team, model, endpoint, cache, code] += 1
        # one that was rejected, left or failed is one of these alone
        if served.rejected is not None:
            counts["rejections"][team, values["reason"][served.rejected]] += 1
        elif served.left:
            counts["clients_left"][team, model] += 1
        elif failure is not None:
            counts["errors"][team, model, values["kind"][failure]] += 1
        if served.cache == "hit":
            counts["hits"][served.layer or "memory",] += 1
        if served.bypass is not None:
            counts["bypasses"][values["reason"][served.bypass],] += 1
        if served.stored:
            counts["stored_answers"][model,] += 1
        if served.prompt_tokens:
            counts["prompt_tokens"][team, model, cache] += served.prompt_tokens
        if served.output_tokens:
            counts["output_tokens"][team, model, cache] += served.output_tokens
        if served.cached_tokens and cache not in ("hit", "coalesced"):
            # a hit repeats what the stored answer says: the prefix cache was asked once
            counts["prefix_cached_tokens"][model,] += served.cached_tokens
        times = [("queue", served.queue_ms)]
        if served.rejected is None and not served.left and failure is None and (status or 0) < 400:
            # failures are in no histogram of answers; what they waited counts
            times += (
                ("ttft", served.ttft_ms),
                ("tpot", served.tpot_ms),
                ("latency", served.latency_ms),
            )
        for name, took_ms in times:
            if took_ms is not None:
                row = self.times[name][model, cache]
                row[bisect_left(EDGES_S, took_ms / 1e3)] += 1
                row[-1] += took_ms / 1e3

    def upstream_asked(self, upstream: str, failed: int = 0) -> None:
        """Count one call upstream, however many requests it answers; `failed`: how many others failed before it."""
        name = self._values["upstream"][upstream]
        self.counts["upstream_requests"][name,] += 1
        if failed:
            self.counts["upstream_retries"][name,] += 1

    def settle(self) -> "Counters":
        """Move what the tallies hold to where all else is; itself."""
        counts = self.counts
        for tally in self._tallies.values():
            if not tally.hits:
                continue
            team, model = tally.team, tally.model
            counts["requests"][team, model, tally.endpoint, "hit", "2xx"] += tally.hits
            counts["hits"]["memory",] += tally.hits
            counts["hit_bytes"][model,] += tally.size
            if tally.prompt_tokens:
                counts["prompt_tokens"][team, model, "hit"] += tally.prompt_tokens
            if tally.output_tokens:
                counts["output_tokens"][team, model, "hit"] += tally.output_tokens
            for name in ("latency", "ttft") if tally.stream else ("latency",):
                self._add_times(name, (model, "hit"), tally.times)
            tally.clear()
        return self

    def _add_times(self, name: str, labels: Labels, row: Iterable[float]) -> None:
        before = self.times[name][labels]
        self.times[name][labels] = [one + more for one, more in zip(before, row, strict=True)]

    def total(self, name: str, **labels: str) -> float:
        """Sum of what was counted under these labels, e.g., `total("requests", cache="hit")`."""
        self.settle()
        wanted = [(LABELS[name].index(label), value) for label, value in labels.items()]
        return sum(
            value
            for key, value in self.counts[name].items()
            if all(key[place] == each for place, each in wanted)
        )

    def as_dict(self) -> dict[str, Any]:
        """All of it as plain JSON values, to be merged elsewhere."""
        self.settle()
        return {
            "counts": {name: list(counted.items()) for name, counted in self.counts.items()},
            "times": {name: list(timed.items()) for name, timed in self.times.items()},
        }

    def merge(self, counted: Mapping[str, Any]) -> "Counters":
        """Add what another process counted, by its `as_dict`; itself. Models beyond MAX_MODELS are `other` here, too."""
        for name, counts in counted["counts"].items():
            for labels, value in counts:
                self.add(name, *labels, by=value)
        for name, times in counted["times"].items():
            for (model, cache), row in times:
                self._add_times(name, (self._values["model"][model], cache), row)
        return self


class LastMinute:
    """Samples counters once a second: what happened between the newest sample and one a minute older.

    None where nothing happened that could tell. Quantiles are Prometheus's own estimate from the histograms' buckets; at or below
    the first edge and beyond the last one, the edge. Hits count for the TTFT as clients saw it.
    """

    WINDOW_S = 60.0

    def __init__(self) -> None:
        self._samples: deque[tuple[dict[str, float], dict[str, Histogram]]] = deque()

    def sample(self, now: float, counters: Counters) -> None:
        """Remember what was counted so far; `now` is of any monotonic clock."""
        total = counters.total
        left, rejections = total("clients_left"), total("rejections")
        counts = {
            "window_s": now,
            "requests": total("requests"),
            "cacheable": total("requests") - total("requests", cache=BYPASS),
            "ended": total("requests") - rejections - left,
            "hits": total("requests", cache="hit"),
            "coalesced": total("requests", cache="coalesced"),
            "rejections": rejections,
            "errors": total("errors"),
        }
        times = {}
        for name in LATELY_TIMES:
            *buckets, _ = map(sum, zip(no_times(), *counters.times[name].values(), strict=True))
            upto = tuple(map(float, accumulate(buckets)))
            edges = (*EDGES_S, float("inf"))
            times[name] = Histogram(edges=edges, counts=upto, sum=None, count=upto[-1])
            counts[name] = upto[-1]
        samples = self._samples
        if samples and any(counts[name] < before for name, before in samples[-1][0].items()):
            samples.clear()  # a process began anew: what it had counted is gone
        samples.append((counts, times))
        while len(samples) > 2 and samples[1][0]["window_s"] <= now - self.WINDOW_S:
            samples.popleft()

    def indicators(self) -> dict[str, float | None]:
        """By the keys of LATELY, `window_s`, and `ttft_p50_s` and the like; as of the newest sample."""
        found: dict[str, float | None] = {"window_s": 0.0, **dict.fromkeys(LATELY)}
        found |= {f"{name}_{share}_s": None for name in LATELY_TIMES for share in QUANTILES}
        if not self._samples:
            return found
        (old, old_times), (new, new_times) = self._samples[0], self._samples[-1]
        lately = {name: count - old[name] for name, count in new.items()}
        found["window_s"] = lately["window_s"]
        for key, (_, _, part, whole) in LATELY.items():
            if lately[whole] > 0:
                found[key] = lately[part] / lately[whole]
        for name, histogram in new_times.items():
            times = histogram.since(old_times[name])
            for key, share in QUANTILES.items():
                at = Quantile() if times is None else times.quantile(share)
                either = (at.value, at.below, at.above)
                found[f"{name}_{key}_s"] = next((x for x in either if x is not None), None)
        return found


# --- what holds right now ---------------------------------------------------------------------------

UPSTREAM_STATES = ("up", "trying", "left")
"""Routing's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGauge:
    """What one layer of the cache holds, and what it let go."""

    layer: str
    """`memory`, `disk` or `redis`."""
    entries: int | None = None
    size_bytes: int | None = None
    limit_bytes: int | None = None
    evicted: int | None = None
    """Gone for want of room, since the start."""
    expired: int | None = None
    refused: int | None = None
    """Not stored: too large, or without time to live."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What holds right now, of all processes together."""

    version: str = ""
    started_at: float | None = None
    """Wall clock."""
    workers: int = 1
    connections: int = 0
    busy: int = 0
    """Connections with a request under way."""
    flights: int = 0
    """Calls upstream under way."""
    slots: int = 0
    """Admission's, in use."""
    slot_limit: int | None = None
    queued: Mapping[str, int] = field(default_factory=dict)
    """Requests that wait for a slot, by team."""
    layers: tuple[CacheGauge, ...] = ()
    """Memory, and the file and Redis where there are any."""
    redis_open: bool | None = None
    """The breaker is open: Redis is not asked for now. None: there is no Redis."""
    upstreams: tuple["UpstreamState", ...] = ()
    page_ages_s: Mapping[str, float | None] = field(default_factory=dict)
    """Since the /metrics of each upstream came last; None: it never came."""
    epochs: Mapping[str, int] = field(default_factory=dict)
    """By model."""
    log_lines_dropped: int = 0
    rows_dropped: int = 0
    """Rows for the store."""


# --- the pages --------------------------------------------------------------------------------------

Lately = Mapping[str, float | None]
"""What LastMinute.indicators says."""
Kind = type[CounterMetricFamily] | type[GaugeMetricFamily]
Row = tuple[Kind, str, str, str, Mapping[Any, float | None]]
"""A family: its kind, name, text and labels, and its values by theirs."""


def page(counters: Counters, now: Gauges, lately: Lately, engines: str | None = None) -> bytes:
    """The whole page, for the admin's port. With the engines' own page: that, and what clients may see of ours.

    They see no team, no upstream's name, no word of who was refused what. Of the engines' page, families of a proxy behind this one
    are left out: ours bear the same names. OpenMetrics' end mark, a mere comment in this format, goes to the end: readers tell one
    of vLLM's front ends by it.
    """
    ours = generate_latest(_Families(counters, now, lately, is_public=engines is not None))
    if engines is None:
        return ours
    lines, end = [], ""
    for line in engines.split("\n"):
        words = line.split(maxsplit=3)
        name = words[2] if line.startswith("#") and len(words) > 2 else line.lstrip()
        if line.rstrip() == "# EOF":
            end = "# EOF\n"
        elif words and not name.startswith(PREFIX):
            lines.append(line)
    return ("\n".join([*lines, ours.decode()]) + end).encode()


class _Families(Collector):
    """All families of a page; what several workers counted was merged before."""

    def __init__(self, counters: Counters, now: Gauges, lately: Lately, *, is_public: bool) -> None:
        self._counters, self._now, self._lately = counters.settle(), now, lately
        self._is_public = is_public

    def collect(self) -> Iterator[Metric]:
        for name, (_, text) in COUNTERS.items():
            if self._is_public and name in PRIVATE:
                continue
            # a team stands before all other labels
            first = 1 if self._is_public and LABELS[name][0] == "team" else 0
            sums: dict[Labels, float] = defaultdict(int)
            for labels, count in self._counters.counts[name].items():
                sums[labels[first:]] += count
            yield _family(CounterMetricFamily, name, text, LABELS[name][first:], sums)
        edges = (*map(repr, EDGES_S), "+Inf")
        for name, text in TIMES.items():
            histogram = HistogramMetricFamily(f"{PREFIX}{name}_seconds", text, labels=TIME_LABELS)
            for labels, (*buckets, sum_s) in self._counters.times[name].items():
                upto = map(float, accumulate(buckets))
                histogram.add_metric(labels, list(zip(edges, upto, strict=True)), sum_s)
            yield histogram
        for kind, name, text, label, values in self._now_and_lately():
            family = _family(kind, name, text, label.split(), values)
            if label or family.samples:
                yield family

    def _now_and_lately(self) -> Iterator[Row]:
        now, gauge, counter = self._now, GaugeMetricFamily, CounterMetricFamily
        yield gauge, "build_info", "Its version", "version", {(now.version,): 1}
        for name, text, value in (
            ("start_time_seconds", "When it started, since 1970", now.started_at),
            ("workers", "Processes", now.workers),
            ("connections", "Clients' connections", now.connections),
            ("connections_busy", "Connections with a request under way", now.busy),
            ("flights", "Calls upstream under way", now.flights),
            ("slots_in_use", "Slots for calls upstream in use", now.slots),
            ("slots_limit", "Slots for calls upstream", now.slot_limit),
            ("queue_length", "Requests that wait for a slot", sum(now.queued.values())),
            ("redis_breaker_open", "Redis is not asked for now", now.redis_open),
        ):
            yield gauge, name, text, "", {(): value}
        text = "Raised when a model's stored answers end"
        yield gauge, "model_epoch", text, "model", {(k,): v for k, v in now.epochs.items()}
        for kind, name, text, key in (
            (gauge, "cache_entries", "Stored answers", "entries"),
            (gauge, "cache_bytes", "Bytes of stored answers", "size_bytes"),
            (gauge, "cache_limit_bytes", "The most they may take", "limit_bytes"),
            (counter, "cache_evictions", "Answers gone for want of room", "evicted"),
            (counter, "cache_expirations", "Answers gone because their time was over", "expired"),
            (counter, "cache_refusals", "Answers not stored: too large, or without time to live", "refused"),
        ):  # fmt: skip
            yield kind, name, text, "layer", {(one.layer,): getattr(one, key) for one in now.layers}
        # why an engine's numbers are not on the clients' page; by number there, as on the engines' series: a name may be an address
        text = "Since its /metrics came last; after two looks in vain its numbers are left out"
        ages = {
            (str(number) if self._is_public else name,): age_s
            for number, (name, age_s) in enumerate(now.page_ages_s.items())
        }
        yield gauge, "upstream_metrics_age_seconds", text, "upstream", ages
        if not self._is_public:
            text = "Requests that wait, by team"
            yield gauge, "team_queue_length", text, "team", {(k,): v for k, v in now.queued.items()}
            text = "Lines of the log lost to a disk that was slow or full"
            yield counter, "log_lines_dropped", text, "", {(): now.log_lines_dropped}
            text = "Rows that the store did not take in time"
            yield counter, "rows_dropped", text, "", {(): now.rows_dropped}
            states = {
                (one.name, state): float(state == one.state)
                for one in now.upstreams
                for state in UPSTREAM_STATES
            }
            yield gauge, "upstream_state", "1 for the state it is in", "upstream state", states
            for name, text, key in (
                ("upstream_draining", "It is sent no more", "draining"),
                ("upstream_in_flight", "Calls of ours under way", "in_flight"),
                ("upstream_running", "Requests it runs, by its own page", "running"),
                ("upstream_waiting", "Requests that wait in it, by its own page", "waiting"),
            ):
                held = {(one.name,): getattr(one, key) for one in now.upstreams}
                yield gauge, name, text, "upstream", held
        text = "{}, over the last minute"
        for key, (name, what, _, _) in LATELY.items():
            values: Mapping[Any, float | None] = {(): self._lately[key]}
            yield gauge, f"last_minute_{name}", text.format(what), "", values
        for key in LATELY_TIMES:
            name = f"last_minute_{key}_seconds"
            values = {(str(at),): self._lately[f"{key}_{q}_s"] for q, at in QUANTILES.items()}
            yield gauge, name, text.format(TIMES[key]), "quantile", values


def _family(
    kind: Kind, name: str, text: str, labels: Sequence[str], values: Mapping[Any, float | None]
) -> Metric:
    """What is unknown is left out."""
    family = kind(PREFIX + name, text, labels=labels)
    for key, value in values.items():
        if value is not None:
            family.add_metric([printable(each) for each in key], float(value))
    return family

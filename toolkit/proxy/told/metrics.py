"""Counters and what holds right now -> a page for Prometheus, whole or as clients may see it. No clock, no socket.

The five indicators, with `r(x)` for `sum(rate(toolkit_proxy_x[1m]))`:

    TTFT             histogram_quantile(0.95, sum by (le) (rate(toolkit_proxy_ttft_seconds_bucket[1m])))
    TPOT, queue      the same of tpot_seconds, queue_seconds
    cache hit ratio  r(requests_total{cache="hit"}) / r(requests_total{cache!="bypass"})
    error rate       r(errors_total) / (r(requests_total) - r(rejections_total) - r(clients_left_total))

Over the last minute they stand there ready made, too, for who has no Prometheus: `toolkit_proxy_last_minute_...`.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import accumulate

from prometheus_client import generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from toolkit.proxy.told.counters import COUNTS, EDGES_S, TIMES, Counters, Labels, Times, printable
from toolkit.proxy.told.recent import Indicators

PREFIX = "toolkit_proxy_"
CONTENT_TYPE = b"text/plain; version=0.0.4; charset=utf-8"

UPSTREAM_STATES = ("up", "trying", "left")
"""Routing's."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerGauge:
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
class UpstreamGauge:
    """One upstream as it is now."""

    name: str
    state: str
    """One of UPSTREAM_STATES."""
    draining: bool = False
    in_flight: int = 0
    """Calls of ours."""
    running: float | None = None
    """By its own page, as `waiting`."""
    waiting: float | None = None
    metrics_age_s: float | None = None
    """Since its own page came last. None: it never came."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gauges:
    """What holds right now, of one process or of all workers together (`together`)."""

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
    layers: tuple[LayerGauge, ...] = ()
    redis_open: bool | None = None
    """The breaker is open: Redis is not asked for now. None: there is no Redis."""
    upstreams: tuple[UpstreamGauge, ...] = ()
    epochs: Mapping[str, int] = field(default_factory=dict)
    """By model."""
    log_lines_dropped: int = 0
    rows_dropped: int = 0
    """Rows for the store."""


class _Families(Collector):
    """Families that were made, in the shape that prometheus-client takes them."""

    def __init__(self, families: Iterable[Metric]) -> None:
        self._families = families

    def collect(self) -> Iterable[Metric]:
        return self._families


def page(counters: Counters, gauges: Gauges, lately: Indicators) -> bytes:
    """The whole page, for the admin listener."""
    return generate_latest(_Families(families(counters, gauges, lately)))


def public(counters: Counters, gauges: Gauges, lately: Indicators) -> str:
    """What clients may see: no team, no upstream, no word of who was refused what."""
    counters.settle()
    found = (
        *_counted(counters, _PUBLIC, hidden=frozenset({"team"})),
        *_timed(counters),
        *_now(gauges),
        *_layers(gauges),
        # by number, as on the engines' series: a name may be an address
        _ages((str(number), one) for number, one in enumerate(gauges.upstreams)),
        *_lately(lately),
    )
    return generate_latest(_Families(found)).decode()


def merged(upstream_page: str, public_page: str) -> str:
    """An upstream's page and ours behind it. Families of a proxy behind this one are left out: ours bear the same names.

    OpenMetrics' end mark, a mere comment in this format, goes to the end: readers tell one of vLLM's front ends by it.
    """
    lines = [line for line in upstream_page.split("\n") if line.strip() and not _is_ours(line)]
    ends = [line for line in lines if _is_end(line)]
    lines = [line for line in lines if not _is_end(line)]
    return "\n".join([*lines, public_page]) + "# EOF\n" * bool(ends)


def families(counters: Counters, gauges: Gauges, lately: Indicators) -> Iterator[Metric]:
    """All families of the whole page."""
    counters.settle()
    yield from _counted(counters, _COUNTED)
    yield from _timed(counters)
    yield from _now(gauges)
    yield from _layers(gauges)
    yield from _held_back(gauges)
    yield from _upstreams(gauges)
    yield from _lately(lately)


def together(gauges: Iterable[Gauges]) -> Gauges:
    """All workers' gauges as one, the owner's first: what each has of its own adds up, what they share is the owner's."""
    owner, *others = gauges
    every = (owner, *others)
    return Gauges(
        version=owner.version,
        started_at=owner.started_at,
        workers=len(every),
        connections=sum(one.connections for one in every),
        busy=sum(one.busy for one in every),
        flights=owner.flights,
        slots=owner.slots,
        slot_limit=owner.slot_limit,
        queued=owner.queued,
        layers=tuple(_layers_together(every)),
        redis_open=owner.redis_open,
        upstreams=owner.upstreams,
        epochs=owner.epochs,
        log_lines_dropped=sum(one.log_lines_dropped for one in every),
        rows_dropped=sum(one.rows_dropped for one in every),
    )


def _layers_together(every: Iterable[Gauges]) -> Iterator[LayerGauge]:
    """The memory of each is its own; disk and Redis are one for all."""
    found: dict[str, list[LayerGauge]] = {}
    for gauges in every:
        for layer in gauges.layers:
            found.setdefault(layer.layer, []).append(layer)
    for name, layers in found.items():
        if name != "memory":
            yield layers[0]
            continue
        yield LayerGauge(
            layer=name,
            entries=_sum(layer.entries for layer in layers),
            size_bytes=_sum(layer.size_bytes for layer in layers),
            limit_bytes=_sum(layer.limit_bytes for layer in layers),
            evicted=_sum(layer.evicted for layer in layers),
            expired=_sum(layer.expired for layer in layers),
            refused=_sum(layer.refused for layer in layers),
        )


def _sum(values: Iterable[int | None]) -> int | None:
    known = [value for value in values if value is not None]
    return sum(known) if known else None


# --- Counters -----------------------------------------------------------------------------------

_COUNTED: Mapping[str, tuple[str, str]] = {
    "requests": ("requests", "Requests that ended, rejected ones included"),
    "rejections": ("rejections", "Requests not served because a limit was held; no errors"),
    "errors": ("errors", "Requests that failed"),
    "left": ("clients_left", "Requests whose client left before the end; no errors"),
    "prompt_tokens": ("prompt_tokens", "Prompt tokens of answered requests, by usage"),
    "output_tokens": ("output_tokens", "Tokens of answers, by usage; of hits: what was spared"),
    "prefix_tokens": (
        "prefix_cached_tokens",
        "Prompt tokens that upstreams had in their prefix cache",
    ),
    "stored": ("stored_answers", "Answers that were stored"),
    "bypasses": ("bypasses", "Requests for which the cache was not asked, by reason"),
    "hits": ("hits", "Hits by the layer that had the answer"),
    "hit_bytes": ("hit_bytes", "Bytes of answers from memory"),
    "refusals": ("refused_requests", "Requests that were refused before they were understood"),
    "upstream_requests": ("upstream_requests", "Calls upstream, one for all that share it"),
    "upstream_errors": ("upstream_errors", "Calls upstream without a whole answer"),
    "upstream_retries": ("upstream_retries", "Calls upstream because another one failed"),
    "verified": ("verified_hits", "Hits asked again and compared; `different`: they diverge"),
    "events": ("events", "What happened, by kind"),
}
_PUBLIC = {
    name: _COUNTED[name]
    for name in (
        "requests rejections errors left prompt_tokens output_tokens prefix_tokens stored"
        " bypasses hits hit_bytes verified"
    ).split()
}
_TIMED = {
    "ttft": "From a stream's request to the first token sent to the client",
    "tpot": "Seconds an output token after the first",
    "queue": "Waiting for a slot, of requests that needed one",
    "latency": "From a request to the end of its answer",
}


def _counted(
    counters: Counters, told: Mapping[str, tuple[str, str]], hidden: frozenset[str] = frozenset()
) -> Iterator[Metric]:
    for name, (metric, text) in told.items():
        shown = [label for label in COUNTS[name] if label not in hidden]
        family = CounterMetricFamily(PREFIX + metric, text, labels=shown)
        for key, value in _without(counters.counts[name], COUNTS[name], hidden).items():
            family.add_metric(key, value)
        yield family


def _without(
    counted: Mapping[Labels, float], labels: Labels, hidden: frozenset[str]
) -> dict[Labels, float]:
    """Summed over the labels that are hidden."""
    found: dict[Labels, float] = {}
    for key, value in counted.items():
        rest = tuple(each for each, label in zip(key, labels, strict=True) if label not in hidden)
        found[rest] = found.get(rest, 0) + value
    return found


def _timed(counters: Counters) -> Iterator[Metric]:
    for name, text in _TIMED.items():
        family = HistogramMetricFamily(f"{PREFIX}{name}_seconds", text, labels=TIMES[name])
        for key, times in counters.times[name].items():
            family.add_metric(key, _buckets(times), times.sum_s)
        yield family


def _buckets(times: Times) -> list[tuple[str, float]]:
    edges = (*map(repr, EDGES_S), "+Inf")
    return [(edge, float(upto)) for edge, upto in zip(edges, accumulate(times.counts), strict=True)]


# --- What holds right now -----------------------------------------------------------------------


def _now(gauges: Gauges) -> Iterator[Metric]:
    build = GaugeMetricFamily(PREFIX + "build_info", "Its version", labels=["version"])
    build.add_metric([gauges.version], 1)
    yield build
    if gauges.started_at is not None:
        yield _gauge("start_time_seconds", "When it started, since 1970", gauges.started_at)
    yield _gauge("workers", "Processes", gauges.workers)
    yield _gauge("connections", "Clients' connections", gauges.connections)
    yield _gauge("connections_busy", "Connections with a request under way", gauges.busy)
    yield _gauge("flights", "Calls upstream under way", gauges.flights)
    yield _gauge("slots_in_use", "Slots for calls upstream in use", gauges.slots)
    if gauges.slot_limit is not None:
        yield _gauge("slots_limit", "Slots for calls upstream", gauges.slot_limit)
    yield _gauge("queue_length", "Requests that wait for a slot", sum(gauges.queued.values()))
    yield _by("model_epoch", "Raised when a model's stored answers end", "model", gauges.epochs)


def _layers(gauges: Gauges) -> Iterator[Metric]:
    layers = {layer.layer: layer for layer in gauges.layers}
    for name, text, field_name in (
        ("cache_entries", "Stored answers", "entries"),
        ("cache_bytes", "Bytes of stored answers", "size_bytes"),
        ("cache_limit_bytes", "The most they may take", "limit_bytes"),
    ):
        known = {layer: getattr(one, field_name) for layer, one in layers.items()}
        yield _by(name, text, "layer", known)
    for name, text, field_name in (
        ("cache_evictions", "Answers gone for want of room", "evicted"),
        ("cache_expirations", "Answers gone because their time was over", "expired"),
        ("cache_refusals", "Answers not stored: too large, or without time to live", "refused"),
    ):
        family = CounterMetricFamily(PREFIX + name, text, labels=["layer"])
        for layer, one in layers.items():
            if (value := getattr(one, field_name)) is not None:
                family.add_metric([layer], value)
        yield family
    if gauges.redis_open is not None:
        yield _gauge("redis_breaker_open", "Redis is not asked for now", gauges.redis_open)


def _held_back(gauges: Gauges) -> Iterator[Metric]:
    yield _by("team_queue_length", "Requests that wait, by team", "team", gauges.queued)
    for name, text, value in (
        (
            "log_lines_dropped",
            "Lines of the log lost to a disk that was slow or full",
            gauges.log_lines_dropped,
        ),
        ("rows_dropped", "Rows that the store did not take in time", gauges.rows_dropped),
    ):
        family = CounterMetricFamily(PREFIX + name, text)
        family.add_metric([], value)
        yield family


def _upstreams(gauges: Gauges) -> Iterator[Metric]:
    state = GaugeMetricFamily(
        PREFIX + "upstream_state", "1 for the state it is in", labels=["upstream", "state"]
    )
    for upstream in gauges.upstreams:
        for each in dict.fromkeys((*UPSTREAM_STATES, upstream.state)):
            state.add_metric([printable(upstream.name), each], each == upstream.state)
    yield state
    for name, text, field_name in (
        ("upstream_draining", "It is sent no more", "draining"),
        ("upstream_in_flight", "Calls of ours under way", "in_flight"),
        ("upstream_running", "Requests it runs, by its own page", "running"),
        ("upstream_waiting", "Requests that wait in it, by its own page", "waiting"),
    ):
        known = {one.name: getattr(one, field_name) for one in gauges.upstreams}
        yield _by(name, text, "upstream", known)
    yield _ages((one.name, one) for one in gauges.upstreams)


def _ages(upstreams: Iterable[tuple[str, UpstreamGauge]]) -> Metric:
    """Why an engine's numbers are not on the clients' page."""
    text = "Since its /metrics came last; after two looks in vain its numbers are left out"
    known = {name: one.metrics_age_s for name, one in upstreams}
    return _by("upstream_metrics_age_seconds", text, "upstream", known)


def _lately(lately: Indicators) -> Iterator[Metric]:
    for name, text, value in (
        ("hit_ratio", "Hits / cacheable requests", lately.hit_ratio),
        ("coalesced_ratio", "Joined / cacheable requests", lately.coalesced_ratio),
        ("error_ratio", "Errors / (ok + errors)", lately.error_rate),
        ("requests_per_second", "Requests that ended", lately.requests_per_s),
        ("rejections_per_second", "Requests rejected", lately.rejections_per_s),
    ):
        if value is not None:
            yield _gauge(f"last_minute_{name}", f"{text}, over the last minute", value)
    for name, p50, p95 in (
        ("ttft", lately.ttft_p50_s, lately.ttft_p95_s),
        ("tpot", lately.tpot_p50_s, lately.tpot_p95_s),
        ("queue", lately.queue_p50_s, lately.queue_p95_s),
    ):
        text = f"{_TIMED[name]}, over the last minute"
        yield _by(f"last_minute_{name}_seconds", text, "quantile", {"0.5": p50, "0.95": p95})


def _gauge(name: str, text: str, value: float) -> Metric:
    return GaugeMetricFamily(PREFIX + name, text, value=float(value))


def _by(name: str, text: str, label: str, values: Mapping[str, float | None]) -> Metric:
    family = GaugeMetricFamily(PREFIX + name, text, labels=[label])
    for key, value in values.items():
        if value is not None:
            family.add_metric([printable(key)], float(value))
    return family


def _is_ours(line: str) -> bool:
    """A line of a proxy's page: a sample, or what is said of its family."""
    if not line.startswith("#"):
        return line.lstrip().startswith(PREFIX)
    words = line.split(maxsplit=3)
    return len(words) > 2 and words[2].startswith(PREFIX)


def _is_end(line: str) -> bool:
    return line.rstrip() == "# EOF"

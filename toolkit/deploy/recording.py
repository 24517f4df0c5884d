"""Which series Prometheus works out beforehand, for the alerts and for whoever looks at weeks: quantiles, rates, ratios. Plain records.

Buckets are summed before a quantile is taken: the mean of two servers' p95 is no p95. All rates are taken before they are summed, so
that a restart, which sets counters back to 0, is seen by `rate` and costs nothing. A ratio whose numerator was never counted is 0
and not missing: a proxy shows no series of hits before the first hit. Where nothing happened it is 0 / 0, NaN, which fires no alert.

A quantile beyond the last finite edge stays there, and below the first one it is a guess: vLLM's first edges are 10 ms between
tokens and 300 ms of queueing and of whole requests, its last ones 2,560 s (TTFT) and 7,680 s.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from toolkit.deploy import metric_names as names

WINDOW = "5m"
"""60 scrapes at 5 s: long enough for a p95 of some requests a second, short enough to be about now."""
QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
ENGINE_BY = "host, instance, model_name"
"""An engine's name, its address, its model; ranks of data parallelism (`engine`) are one server."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One recorded series."""

    name: str
    """level:metric:operations, as Prometheus recommends."""
    expr: str
    says: str


def of_engines() -> tuple[Record, ...]:
    """All of the job `engine`."""
    return (*_engine_rates(), *_engine_now(), *_engine_errors(), *_engine_times())


def of_proxies() -> tuple[Record, ...]:
    """All of the job `proxy`."""
    return (*_proxy_rates(), *_proxy_ratios(), *_proxy_times())


def engine_quantile(metric: str, word: str) -> str:
    """The name of a recorded quantile of an engine's histogram, e.g., of its TTFT's `p95`."""
    return f"host:{_plain(metric)}:{word}_{WINDOW}"


def proxy_quantile(metric: str, word: str) -> str:
    """The same of a proxy's."""
    return f"proxy:{metric}:{word}_{WINDOW}"


FINISHED_RATE = f"host:vllm_requests_finished:rate{WINDOW}"
KV_MOST = "host:vllm_kv_cache_usage:max"
RUNNING_SUM = "host:vllm_requests_running:sum"
WAITING_SUM = "host:vllm_requests_waiting:sum"
PREEMPTION_RATE = f"host:vllm_preemptions:rate{WINDOW}"
PREFIX_HIT_RATIO = f"host:vllm_prefix_cache_hits:ratio_rate{WINDOW}"
HTTP_ERROR_RATE = f"host:http_errors:rate{WINDOW}"
HTTP_ERROR_RATIO = f"host:http_errors:ratio_rate{WINDOW}"
BROKEN_RATE = f"host:vllm_requests_broken:rate{WINDOW}"
BROKEN_RATIO = f"host:vllm_requests_broken:ratio_rate{WINDOW}"

OURS = 'reason!~"unknown_model|prompt_too_long|output_too_long"'

PROXY_RATE = f"proxy:requests:rate{WINDOW}"
PROXY_HIT_RATE = f"proxy:hits:rate{WINDOW}"
PROXY_CACHEABLE_RATE = f"proxy:cacheable:rate{WINDOW}"
PROXY_HIT_RATIO = f"proxy:hits:ratio_rate{WINDOW}"
PROXY_COALESCED_RATIO = f"proxy:coalesced:ratio_rate{WINDOW}"
PROXY_ERROR_RATE = f"proxy:errors:rate{WINDOW}"
PROXY_ERROR_RATIO = f"proxy:errors:ratio_rate{WINDOW}"
PROXY_REJECTION_RATE = f"proxy:rejections:rate{WINDOW}"
PROXY_REJECTION_RATIO = f"proxy:rejections:ratio_rate{WINDOW}"


def _engine_rates() -> Iterator[Record]:
    for metric, word, says in (
        (names.PROMPT_TOKENS, "prompt_tokens", "Prompt tokens a second, those from the cache too"),
        (names.GENERATION_TOKENS, "generation_tokens", "Output tokens a second"),
        (names.PREEMPTIONS, "preemptions", "Requests a second that lost their KV blocks"),
    ):
        yield Record(name=f"host:vllm_{word}:rate{WINDOW}", expr=_engine_rate(metric), says=says)
    by_reason = _engine_rate(names.FINISHED, more_by=", finished_reason")
    yield Record(name=FINISHED_RATE, expr=by_reason, says="Requests a second, by how they ended")


def _engine_now() -> Iterator[Record]:
    for name, metric, how, says in (
        (RUNNING_SUM, names.RUNNING, "sum", "Requests in the batch"),
        (WAITING_SUM, names.WAITING, "sum", "Requests in the engine's queue"),
        (KV_MOST, names.KV_USAGE, "max", "Share of KV blocks in use, of the fullest rank"),
    ):
        expr = f'{how} by ({ENGINE_BY}) ({metric}{{job="{names.ENGINES}"}})'
        yield Record(name=name, expr=expr, says=says)
    yield Record(
        name=PREFIX_HIT_RATIO,
        expr=f"{_engine_rate(names.PREFIX_HITS)}\n/ {_engine_rate(names.PREFIX_QUERIES)}",
        says="Share of prompt tokens that the prefix cache had",
    )


def _engine_errors() -> Iterator[Record]:
    asked = _rate(names.HTTP_REQUESTS, "host, instance", 'job="engine",handler=~"/v1/.*"')
    failed = _rate(
        names.HTTP_REQUESTS, "host, instance", 'job="engine",handler=~"/v1/.*",status="5xx"'
    )
    yield Record(
        name=HTTP_ERROR_RATE,
        expr=f"{failed}\nor 0 * {asked}",
        says="Answers 5xx a second; 0 where none was ever counted",
    )
    yield Record(
        name=HTTP_ERROR_RATIO,
        expr=f"{HTTP_ERROR_RATE}\n/ {asked}",
        says="Share of requests that got 5xx",
    )
    broken = _rate(names.FINISHED, ENGINE_BY, 'job="engine",finished_reason="error"')
    ended = _engine_rate(names.FINISHED)
    yield Record(
        name=BROKEN_RATE,
        expr=f"{broken}\nor 0 * {ended}",
        says="Requests a second that the engine gave up, streams with status 200 too",
    )
    yield Record(
        name=BROKEN_RATIO,
        expr=f"{BROKEN_RATE}\n/ {ended}",
        says="Share of requests that the engine gave up",
    )


def _engine_times() -> Iterator[Record]:
    for metric, says in (
        (names.TTFT, "From a request's arrival to its first token"),
        (names.TPOT, "Seconds an output token after the first, by request"),
        (names.E2E, "From a request's arrival to its last token"),
        (names.QUEUE, "In the engine's queue; known only once a request has ended"),
    ):
        buckets = f"host:{_plain(metric)}_bucket:rate{WINDOW}"
        expr = _rate(f"{metric}_bucket", f"le, {ENGINE_BY}", 'job="engine"')
        yield from _quantiles(buckets, expr, says, f"host:{_plain(metric)}")


def _proxy_rates() -> Iterator[Record]:
    yield Record(
        name=PROXY_RATE,
        expr=_proxy_rate(names.PROXY_REQUESTS, by="instance, cache"),
        says="Requests a second, by what the cache said",
    )
    yield Record(
        name=f"proxy:output_tokens:rate{WINDOW}",
        expr=_proxy_rate(names.PROXY_OUTPUT_TOKENS, by="instance, cache"),
        says="Output tokens a second to clients, by what the cache said",
    )
    cacheable = _proxy_rate(names.PROXY_REQUESTS, 'cache!="bypass"')
    yield Record(
        name=PROXY_CACHEABLE_RATE,
        expr=f"{cacheable}\nor 0 * {_proxy_rate(names.PROXY_REQUESTS)}",
        says="Requests a second for which the cache was asked",
    )
    for name, metric, matcher, says in (
        (PROXY_HIT_RATE, names.PROXY_REQUESTS, 'cache="hit"', "Hits a second"),
        (PROXY_ERROR_RATE, names.PROXY_ERRORS, "", "Requests a second that failed"),
        (PROXY_REJECTION_RATE, names.PROXY_REJECTIONS, "", "Requests a second turned away"),
    ):
        expr = f"{_proxy_rate(metric, matcher)}\nor 0 * {_proxy_rate(names.PROXY_REQUESTS)}"
        yield Record(name=name, expr=expr, says=says)


def _proxy_ratios() -> Iterator[Record]:
    every = _proxy_rate(names.PROXY_REQUESTS)
    coalesced = _proxy_rate(names.PROXY_REQUESTS, 'cache="coalesced"')
    yield Record(
        name=PROXY_HIT_RATIO,
        expr=f"{PROXY_HIT_RATE} / {PROXY_CACHEABLE_RATE}",
        says="Hits / cacheable requests",
    )
    yield Record(
        name=PROXY_COALESCED_RATIO,
        expr=f"({coalesced} or 0 * {every})\n/ {PROXY_CACHEABLE_RATE}",
        says="Requests that shared a call / cacheable requests",
    )
    left = f"({_proxy_rate(names.PROXY_LEFT)} or 0 * {every})"
    yield Record(
        name=PROXY_ERROR_RATIO,
        expr=f"{PROXY_ERROR_RATE}\n/ ({every} - {PROXY_REJECTION_RATE} - {left})",
        says="Errors / (ok + errors): neither rejections nor clients that left are in it",
    )
    yield Record(
        name=PROXY_REJECTION_RATIO,
        # one too long, or for a model that nobody serves, is the client's slip: no engine more would serve it
        expr=f"({_proxy_rate(names.PROXY_REJECTIONS, OURS)} or 0 * {every})\n/ {every}",
        says="Share of requests that were turned away for want of room or time",
    )


def _proxy_times() -> Iterator[Record]:
    for metric, says in (
        (names.PROXY_TTFT, "From a stream's request to its first token, as clients see it"),
        (names.PROXY_LATENCY, "From a request to the end of its answer, hits included"),
        (names.PROXY_QUEUE_TIME, "In the proxy's queue, of requests that needed a slot"),
    ):
        buckets = f"proxy:{metric}_bucket:rate{WINDOW}"
        expr = _rate(f"{metric}_bucket", "le, instance", 'job="proxy"')
        yield from _quantiles(buckets, expr, says, f"proxy:{metric}")


def _quantiles(buckets: str, expr: str, says: str, name: str) -> Iterator[Record]:
    yield Record(name=buckets, expr=expr, says=f"{says}: its buckets, summed")
    for share, word in QUANTILES:
        yield Record(
            name=f"{name}:{word}_{WINDOW}",
            expr=f"histogram_quantile({share}, {buckets})",
            says=f"{says}: {word}",
        )


def _engine_rate(metric: str, more_by: str = "") -> str:
    return _rate(metric, ENGINE_BY + more_by, f'job="{names.ENGINES}"')


def _proxy_rate(metric: str, matcher: str = "", by: str = "instance") -> str:
    return _rate(metric, by, ",".join(filter(None, (f'job="{names.PROXIES}"', matcher))))


def _rate(metric: str, by: str, matchers: str) -> str:
    return f"sum by ({by}) (rate({metric}{{{matchers}}}[{WINDOW}]))"


def _plain(metric: str) -> str:
    """Without the colon, which divides the parts of a recorded name."""
    return metric.replace(":", "_")

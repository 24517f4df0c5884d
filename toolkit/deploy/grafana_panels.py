"""What the dashboard shows of engines and proxy, as plain records: rows of panels, each with its queries and what they mean. No JSON here.

Buckets are summed over servers before a quantile is taken, rates are taken before they are summed. What vLLM's own dashboards get
wrong is said where it is done otherwise: a queue's mean is a sum divided by a count, and steps a second are no tokens a second.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from toolkit.deploy import metric_names as names

ENGINE = 'job=~"$job",host=~"$host"'
MODEL = f'{ENGINE},model_name=~"$model"'
PROXY = 'instance=~"$proxy"'
RANGE = "[$__rate_interval]"
"""Grafana's: never shorter than four scrapes."""
QUANTILES = ((0.5, "p50"), (0.95, "p95"), (0.99, "p99"))
EDGE = "Beyond its last finite edge a quantile stays on that edge."

Kind = Literal["timeseries", "heatmap", "state-timeline", "stat"]
Unit = Literal["reqps", "s", "percentunit", "short", "bytes", "tokens/s", "steps/s", "dtdurations"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """One PromQL expression."""

    expr: str
    legend: str = ""
    """In Grafana's template language; empty: all labels."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """One picture."""

    title: str
    says: str
    """What it means, behind the `i`."""
    queries: tuple[Query, ...]
    unit: Unit = "short"
    kind: Kind = "timeseries"
    stacked: bool = False
    whole: bool = False
    """From 0 to 1."""
    words: tuple[tuple[str, str, str], ...] = ()
    """Value, its word, its colour; for states."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """Panels under one heading."""

    title: str
    panels: tuple[Panel, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that is marked at its moment in every picture."""

    name: str
    expr: str
    title: str
    colour: str
    tags: str = ""
    """Labels, with commas between them."""
    at_value: bool = False
    """The moment is the value, in milliseconds since 1970; else it is wherever the value is above 0."""


def rows(*, proxy: bool) -> tuple[Row, ...]:
    """The dashboard, from what clients see to what engines do."""
    inside = (*_engine_load(), _engine_queue(), *_engine_sizes())
    if not proxy:
        # what the engines time is what clients see, but for the way there
        clients = Row(title="Clients", panels=(*_clients_of_engines(), *_engine_answers()))
        return (clients, Row(title="Engines", panels=inside))
    return (
        Row(title="Clients", panels=tuple(_clients_of_proxy())),
        Row(title="Engines", panels=(*inside, *_engine_answers())),
        Row(title="Cache and proxy", panels=(*_cache(), *_proxy_load())),
    )


def happenings(*, proxy: bool) -> tuple[Happening, ...]:
    """What Prometheus knows of: starts, engines that were left, alerts."""
    found = (
        Happening(
            name="Engine starts",
            expr=f"1000 * {names.START_TIME}{{{ENGINE}}}",
            title="{{host}} started",
            colour="orange",
            tags="host,instance",
            at_value=True,
        ),
        Happening(
            name="Alerts",
            expr='ALERTS{alertstate="firing",alertname=~"(Engine|Proxy).*"}',
            title="{{alertname}} {{host}}",
            colour="red",
            tags="severity",
        ),
    )
    left = f'{names.PROXY_UPSTREAM_STATE}{{{PROXY},state="left"}}'
    return (*found, *_happenings_of_proxy(left)) if proxy else found


def _happenings_of_proxy(left: str) -> Iterator[Happening]:
    yield Happening(
        name="Proxy starts",
        expr=f"1000 * {names.PROXY_START_TIME}{{{PROXY}}}",
        title="the proxy {{instance}} started",
        colour="purple",
        tags="instance",
        at_value=True,
    )
    yield Happening(
        name="Engines left",
        # the place of a successor is always left: only what changed is marked
        expr=f"{left} == 1 unless {left} offset 1m == 1",
        title="the proxy left {{upstream}}",
        colour="yellow",
        tags="upstream",
    )
    yield Happening(
        name="Stored answers ended",
        expr=f"changes({names.PROXY_EPOCH}{{{PROXY}}}[1m]) > 0",
        title="stored answers of {{model}} ended",
        colour="blue",
        tags="model",
    )


# --- What clients see ---------------------------------------------------------------------------


def _clients_of_proxy() -> Iterator[Panel]:
    every = _proxy_rate(names.PROXY_REQUESTS)
    errors, rejected, left = (
        f"({_proxy_rate(each)} or vector(0))"
        for each in (names.PROXY_ERRORS, names.PROXY_REJECTIONS, names.PROXY_LEFT)
    )
    yield Panel(
        title="Requests",
        says="That ended, by what the cache said; `bypass`: it was not asked.",
        unit="reqps",
        stacked=True,
        queries=(_by(names.PROXY_REQUESTS, PROXY, "cache"),),
    )
    yield Panel(
        title="Errors",
        says="Errors / (ok + errors). Neither rejections nor clients that left are errors.",
        unit="percentunit",
        queries=(
            Query(expr=f"{errors} / ({every} - {rejected} - {left})", legend="errors"),
            Query(expr=f"{rejected} / {every}", legend="turned away"),
        ),
    )
    yield Panel(
        title="Time to first token",
        says=f"Of streams, hits included, as clients see it. {EDGE} (500 s)",
        unit="s",
        queries=_quantiles(names.PROXY_TTFT, PROXY),
    )
    yield Panel(
        title="End to end",
        says=f"From a request to the end of its answer, hits included. {EDGE} (500 s)",
        unit="s",
        queries=_quantiles(names.PROXY_LATENCY, PROXY),
    )
    yield Panel(
        title="Output tokens",
        says="By usage, to clients; those of hits were spared.",
        unit="tokens/s",
        stacked=True,
        queries=(_by(names.PROXY_OUTPUT_TOKENS, PROXY, "cache"),),
    )
    yield Panel(
        title="Seconds an output token",
        says=f"After the first, of streams; hits come at once. {EDGE} (500 s)",
        unit="s",
        queries=_quantiles(names.PROXY_TPOT, PROXY),
    )


def _clients_of_engines() -> Iterator[Panel]:
    asked = f'{ENGINE},handler=~"/v1/.*"'
    failed = f'sum(rate({names.HTTP_REQUESTS}{{{asked},status="5xx"}}{RANGE}))'
    yield Panel(
        title="Errors",
        says="Share of answers 5xx. Streams that were given up have status 200: they are `error` among the requests of engines.",
        unit="percentunit",
        queries=(
            Query(
                expr=f"({failed} or vector(0)) / sum(rate({names.HTTP_REQUESTS}{{{asked}}}{RANGE}))",
                legend="5xx",
            ),
        ),
    )
    yield Panel(
        title="End to end",
        says=f"From arrival to the last token; 300 ms is the first edge. {EDGE} (7,680 s)",
        unit="s",
        queries=_quantiles(names.E2E, MODEL),
    )


# --- Engines ------------------------------------------------------------------------------------


def _engine_load() -> Iterator[Panel]:
    yield Panel(
        title="Answers",
        says="Whether any place of the engine answers /metrics.",
        kind="state-timeline",
        queries=(Query(expr=f"max by (host) (up{{{ENGINE}}})", legend="{{host}}"),),
        words=(("0", "down", "red"), ("1", "up", "green")),
    )
    yield Panel(
        title="Running and waiting",
        says="In the batch, and in the engine's own queue. Waiting for long: more than it can carry.",
        queries=(
            Query(expr=f"sum by (host) ({names.RUNNING}{{{MODEL}}})", legend="{{host}} running"),
            Query(expr=f"sum by (host) ({names.WAITING}{{{MODEL}}})", legend="{{host}} waiting"),
        ),
    )
    yield Panel(
        title="KV blocks in use",
        says="Of the fullest rank. Blocks that only the prefix cache holds count as free.",
        unit="percentunit",
        whole=True,
        queries=(Query(expr=f"max by (host) ({names.KV_USAGE}{{{MODEL}}})", legend="{{host}}"),),
    )
    yield Panel(
        title="Preemptions",
        says="Requests that lost their KV blocks and are computed again: the GPU does its work twice.",
        unit="reqps",
        queries=(_by(names.PREEMPTIONS, MODEL, "host"),),
    )
    hits, asked = (
        f"sum by (host) (rate({each}{{{MODEL}}}{RANGE}))"
        for each in (names.PREFIX_HITS, names.PREFIX_QUERIES)
    )
    yield Panel(
        title="Prefix cache",
        says="Share of prompt tokens that had not to be computed.",
        unit="percentunit",
        whole=True,
        queries=(Query(expr=f"{hits} / {asked}", legend="{{host}}"),),
    )
    yield Panel(
        title="Tokens",
        says="Prompt tokens of finished prefills, those from the cache too, and output tokens.",
        unit="tokens/s",
        queries=(
            _by(names.PROMPT_TOKENS, MODEL, "host", " prompt"),
            _by(names.GENERATION_TOKENS, MODEL, "host", " output"),
        ),
    )


def _engine_queue() -> Panel:
    return Panel(
        title="Queue",
        says="Known once a request has ended. The mean is the sum divided by the count: the first edge is 300 ms, and below"
        " it a p95 is a guess.",
        unit="s",
        queries=(
            *_means(names.QUEUE, "{{host}} mean"),
            *_quantiles(names.QUEUE, MODEL, ((0.95, "p95"),)),
        ),
    )


def _engine_answers() -> Iterator[Panel]:
    yield Panel(
        title="Requests of engines",
        says="That ended, by how. `length`: max_tokens was reached. `abort`: the client left. `error`: the engine gave it up.",
        unit="reqps",
        stacked=True,
        queries=(_by(names.FINISHED, MODEL, "finished_reason"),),
    )
    yield Panel(
        title="Time to first token, in the engine",
        says=f"From arrival at the engine; what a proxy in front of it adds is not in it. {EDGE} (2,560 s)",
        unit="s",
        queries=_quantiles(names.TTFT, MODEL),
    )
    yield Panel(
        title="Seconds an output token, in the engine",
        says=f"After the first, by request; 10 ms is the first edge. {EDGE} (80 s)",
        unit="s",
        queries=_quantiles(names.TPOT, MODEL),
    )


def _engine_sizes() -> Iterator[Panel]:
    for title, metric in (
        ("Prompt length", names.PROMPT_LENGTH),
        ("Answer length", names.GENERATION_LENGTH),
    ):
        yield Panel(
            title=title,
            says="Tokens of the requests that ended; the darker, the more.",
            kind="heatmap",
            queries=(
                Query(
                    expr=f"sum by (le) (increase({metric}_bucket{{{MODEL}}}{RANGE}))",
                    legend="{{le}}",
                ),
            ),
        )
    yield Panel(
        title="Tokens a step",
        says="How full a step is, prompt and output tokens: `_sum` / `_count`. The more, the better the GPU is used.",
        queries=_means(names.STEP_TOKENS, "{{host}}"),
    )
    yield Panel(
        title="Steps",
        says="Of the engine's loop. vLLM's own dashboard calls this number tokens a second.",
        unit="steps/s",
        queries=(_by(f"{names.STEP_TOKENS}_count", MODEL, "host"),),
    )
    yield Panel(
        title="Turned away by the engine",
        says="503, where --max-num-queued-reqs or --max-num-queued-tokens is set.",
        unit="reqps",
        # it bears no label `engine`, but its model's
        queries=(_by(names.ADMISSION_REJECTIONS, MODEL, "reason"),),
    )
    yield Panel(
        title="Running for",
        says="Since the process started; not told where vLLM runs several API servers.",
        kind="stat",
        unit="dtdurations",
        queries=(
            Query(
                expr=f"time() - max by (host) ({names.START_TIME}{{{ENGINE}}})", legend="{{host}}"
            ),
        ),
    )


# --- Cache and proxy ----------------------------------------------------------------------------


def _cache() -> Iterator[Panel]:
    cacheable = f'sum(rate({names.PROXY_REQUESTS}{{{PROXY},cache!="bypass"}}{RANGE}))'
    hits, joined = (
        f'(sum(rate({names.PROXY_REQUESTS}{{{PROXY},cache="{each}"}}{RANGE})) or vector(0))'
        for each in ("hit", "coalesced")
    )
    yield Panel(
        title="Hit ratio",
        says="Hits / cacheable requests. Coalesced ones shared the call of another, and are counted apart.",
        unit="percentunit",
        whole=True,
        queries=(
            Query(expr=f"{hits} / {cacheable}", legend="hits"),
            Query(expr=f"{joined} / {cacheable}", legend="coalesced"),
        ),
    )
    yield Panel(
        title="Hits by layer",
        says="Where the answer was: this process, the file, Redis.",
        unit="reqps",
        stacked=True,
        queries=(_by(names.PROXY_HITS, PROXY, "layer"),),
    )
    yield Panel(
        title="Not cached, and why",
        says="Requests for which the cache was not asked.",
        unit="reqps",
        stacked=True,
        queries=(_by(names.PROXY_BYPASSES, PROXY, "reason"),),
    )
    yield Panel(
        title="Room in the cache",
        says="Bytes of stored answers, as a share of the most that they may take.",
        unit="percentunit",
        whole=True,
        queries=(
            Query(
                expr=f"max by (layer) ({names.PROXY_CACHE_BYTES}{{{PROXY}}}\n/ {names.PROXY_CACHE_LIMIT}{{{PROXY}}})",
                legend="{{layer}}",
            ),
        ),
    )


def _proxy_load() -> Iterator[Panel]:
    yield Panel(
        title="Turned away, and why",
        says="A limit was held; these are no errors.",
        unit="reqps",
        stacked=True,
        queries=(_by(names.PROXY_REJECTIONS, PROXY, "reason"),),
    )
    yield Panel(
        title="Queue of the proxy",
        says="Requests that wait for a slot, slots in use, calls upstream.",
        queries=tuple(
            Query(expr=f"sum({metric}{{{PROXY}}})", legend=word)
            for metric, word in (
                (names.PROXY_QUEUE, "wait"),
                (names.PROXY_SLOTS, "slots in use"),
                (names.PROXY_FLIGHTS, "calls upstream"),
            )
        ),
    )
    yield Panel(
        title="Time in the proxy's queue",
        says=f"Of requests that needed a slot. {EDGE} (500 s)",
        unit="s",
        queries=_quantiles(names.PROXY_QUEUE_TIME, PROXY),
    )
    state = f"max by (upstream) ({names.PROXY_UPSTREAM_STATE}{{{PROXY},state="
    yield Panel(
        title="Engines, as the proxy sees them",
        says="Each place of each engine; the place of a successor is left while nothing stands there.",
        kind="state-timeline",
        queries=(Query(expr=f'2 * {state}"up"}})\n+ {state}"trying"}})', legend="{{upstream}}"),),
        words=(("0", "left", "red"), ("1", "trying", "yellow"), ("2", "up", "green")),
    )
    yield Panel(
        title="Calls that failed",
        says="Calls upstream without a whole answer, whether another engine gave one or not.",
        unit="reqps",
        stacked=True,
        queries=(
            Query(
                expr=f"sum by (upstream, kind) (rate({names.PROXY_UPSTREAM_ERRORS}{{{PROXY}}}{RANGE}))",
                legend="{{upstream}} {{kind}}",
            ),
        ),
    )
    yield Panel(
        title="What happened",
        says="The proxy's events by kind; each stands in its log with its reason.",
        unit="reqps",
        queries=(_by(names.PROXY_EVENTS, PROXY, "kind"),),
    )


# --- Queries ------------------------------------------------------------------------------------


def _by(metric: str, selector: str, label: str, more: str = "") -> Query:
    expr = f"sum by ({label}) (rate({metric}{{{selector}}}{RANGE}))"
    return Query(expr=expr, legend=f"{{{{{label}}}}}{more}")


def _quantiles(
    metric: str, selector: str, shares: tuple[tuple[float, str], ...] = QUANTILES
) -> tuple[Query, ...]:
    buckets = f"sum by (le) (rate({metric}_bucket{{{selector}}}{RANGE}))"
    return tuple(
        Query(expr=f"histogram_quantile({share}, {buckets})", legend=word) for share, word in shares
    )


def _means(metric: str, legend: str) -> tuple[Query, ...]:
    summed, counted = (
        f"sum by (host) (rate({metric}_{part}{{{MODEL}}}{RANGE}))" for part in ("sum", "count")
    )
    return (Query(expr=f"{summed} / {counted}", legend=legend),)


def _proxy_rate(metric: str) -> str:
    return f"sum(rate({metric}{{{PROXY}}}{RANGE}))"

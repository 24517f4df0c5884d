"""When somebody is to be woken, or told in the morning: alert rules with their reason, as plain records. `Limits` holds every threshold.

Each fires on what is seen, never on 0 / 0, and each has `for_s`, so that one slow or failed request at night wakes nobody: it has left
the recorded rates' window of 5 minutes before the time is over, or the rule asks for more than one. What can't be seen is an alert of
its own (EngineGone, EngineBlind): an engine that lost its target or its metrics would silence all the others.

A `rate` misses what a series was born with: the very first errors of a kind that was never counted before are counted from the next on.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from toolkit.deploy import metric_names as names
from toolkit.deploy import recording as recorded
from toolkit.deploy.engine_flags import USUAL_MAX_NUM_SEQS, max_num_seqs
from toolkit.deploy.site import Site, SiteEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """Every threshold. Latencies must lie between the first and the last edge of their histograms, or they are never crossed."""

    engine_down_s: int = 120
    """No place of an engine answers. A start of vLLM takes minutes: raise it where restarts are daily work."""
    proxy_down_s: int = 60
    unseen_s: int = 300
    """No target, or no metrics, for so long."""
    stuck_s: int = 60
    """Work is under way and nothing moves: so long it is looked back, and so long it must last. The watchdog acts after 60 s."""
    restarts: int = 2
    """More than so many of one engine in `restarts_s` are a crash loop; a swap or an update is one."""
    restarts_s: int = 1800
    kv_usage: float = 0.95
    """Share of KV blocks. The next long request preempts another."""
    kv_usage_s: int = 600
    preemptions_per_s: float = 0.1
    """Six a minute: each throws away the work of a whole prefill."""
    slow_s: int = 600
    """Longer than the window of 5 minutes, so that a single slow request is over before."""
    ttft_p95_s: float = 5.0
    """Where people wait in front of a chat. The last edge: 2,560 s, in old engines 10 s."""
    queue_p95_s: float = 2.0
    """More than the first edge, 0.3 s, below which a queue time is a guess."""
    waiting_s: int = 300
    """More wait than fit into a batch (max-num-seqs), for so long: the queue does not go away by itself."""
    error_ratio: float = 0.05
    errors_per_minute: float = 1.0
    """And more than so many: one failed request of one is 100 %."""
    errors_s: int = 120
    rejection_ratio: float = 0.05
    rejections_s: int = 300
    hit_ratio_of_past: float = 0.5
    """Of what it was over `hit_past_s`."""
    hit_ratio_least: float = 0.05
    """A cache that never hit can't fall."""
    hit_past_s: int = 6 * 3600
    hit_now_s: int = 1800
    cacheable_per_s: float = 0.05
    """90 requests in half an hour: fewer say nothing about a ratio."""
    hit_s: int = 900


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """One alert rule."""

    name: str
    expr: str
    for_s: int
    severity: Literal["critical", "warning"]
    """`critical`: clients are harmed now. `warning`: they will be, or pay more than they need."""
    reason: str
    """Why there is such a rule, for whoever reads the file."""
    summary: str
    """In Prometheus' template language, as `description`."""
    description: str
    """What to do: it names the toolkit's verb that helps."""


AT = "http://{{ $labels.instance }}"
DIAGNOSE = f"`toolkit diagnose {AT}` says which bottleneck it is, and which lever to turn first."


def of_site(site: Site, limits: Limits = Limits()) -> tuple[Alert, ...]:
    """The alerts that a site needs."""
    engines = (*_engines_seen(site, limits), *_engines_move(limits), *_engines_full(limits))
    engines = (*engines, *_latencies(limits))
    engines = (*engines, _queue(site.engines, limits), _errors(limits))
    if site.proxy is None:
        return engines
    redis = [_redis(limits)] if site.proxy.redis_env is not None else []
    return (*engines, *_proxy_seen(limits), *_proxy_serves(limits), _hits_fallen(limits), *redis)


def told(found: Sequence[Alert], limits: Limits = Limits()) -> tuple[str, ...]:
    """The thresholds of these alerts in words, for the top of the file."""
    names = {each.name for each in found}
    size = f"more than max-num-seqs, where none is named {USUAL_MAX_NUM_SEQS}"
    errors = f"more than {limits.error_ratio:.0%} and {limits.errors_per_minute:g} a minute for {duration(limits.errors_s)}"
    queue = f"p95 of {limits.queue_p95_s:g} s and more for {duration(limits.slow_s)}"
    lines = {
        "EngineDown": f"{duration(limits.engine_down_s)} without an answer",
        "EngineStuck": f"nothing moved for {duration(limits.stuck_s)}, seen for as long",
        "EngineRestarting": f"more than {limits.restarts} times within {duration(limits.restarts_s)}",
        "EngineKvCacheFull": f"more than {limits.kv_usage:.0%} of the blocks for {duration(limits.kv_usage_s)}",
        "EnginePreempting": f"more than {limits.preemptions_per_s:g} requests a second for {duration(limits.slow_s)}",
        "EngineQueueLong": f"{size} wait for {duration(limits.waiting_s)}",
        "EngineTtftSlow": f"p95 of {limits.ttft_p95_s:g} s and more for {duration(limits.slow_s)}",
        "EngineQueueSlow": queue,
        "EngineErrors": errors,
        "ProxyDown": f"{duration(limits.proxy_down_s)} without an answer",
        "ProxyErrors": errors,
        "ProxyRejecting": f"more than {limits.rejection_ratio:.0%} for {duration(limits.rejections_s)}",
        "ProxyQueueSlow": queue,
        "ProxyHitRatioFallen": f"below {limits.hit_ratio_of_past:.0%} of what it was over {duration(limits.hit_past_s)}",
    }
    return tuple(f"{name:20} {words}" for name, words in lines.items() if name in names)


def duration(seconds: int) -> str:
    """As Prometheus writes one: `90s`, `10m`, `6h`."""
    for unit, long in (("h", 3600), ("m", 60)):
        if seconds and seconds % long == 0:
            return f"{seconds // long}{unit}"
    return f"{seconds}s"


def _engines_seen(site: Site, limits: Limits) -> Iterator[Alert]:
    up = 'max by (host) (up{job="engine"})'
    yield Alert(
        name="EngineDown",
        expr=f"{up} == 0",
        for_s=limits.engine_down_s,
        severity="critical",
        reason="No place of the engine answers /metrics: it loads, ended, or hangs so that not even its pages come.",
        summary="Engine {{ $labels.host }} does not answer",
        description="`toolkit serve status` tells whether it loads or was given up; its log says why. Without a watchdog,"
        " `toolkit watchdog` restarts it.",
    )
    gone = "\nor ".join(
        f'absent(up{{job="engine",host={names.quoted(each.name)}}})' for each in site.engines
    )
    yield Alert(
        name="EngineGone",
        expr=gone,
        for_s=limits.unseen_s,
        severity="critical",
        reason="Without a target there is no `up` that could be 0, and every other alert of this engine is silent.",
        summary="Engine {{ $labels.host }} is no target any more",
        description="Compare the scrape configuration with the stack: `toolkit deploy prometheus` writes it anew.",
    )
    yield Alert(
        name="EngineBlind",
        expr=f'{up} == 1\nunless on (host) count by (host) ({names.WAITING}{{job="engine"}})',
        for_s=limits.unseen_s,
        severity="warning",
        reason="An engine with --disable-log-stats, or no vLLM at all, answers a page without its metrics: all else is silent.",
        summary="Engine {{ $labels.host }} answers, and tells nothing of itself",
        description="Take --disable-log-stats out of its flags. `toolkit scout` on its address says what it is.",
    )


def _engines_move(limits: Limits) -> Iterator[Alert]:
    by, window = "host, instance", duration(limits.stuck_s)
    signs = "\n".join(
        f"unless on ({by}) max by ({by}) (changes({sign}[{window}])) > 0"
        for sign in (
            f'{names.GENERATION_TOKENS}{{job="engine"}}',
            f'{names.PROMPT_TOKENS}{{job="engine"}}',
            f'{names.STEP_TOKENS}_count{{job="engine"}}',
            f'{names.KV_USAGE}{{job="engine"}}',
        )
    )
    busy = " + ".join(
        f'sum by ({by}) ({each}{{job="engine"}})' for each in (names.RUNNING, names.WAITING)
    )
    yield Alert(
        name="EngineStuck",
        expr=f"{busy} > 0\n{signs}",
        for_s=limits.stuck_s,
        severity="critical",
        reason="The watchdog's rule (toolkit/serving/watch/progress.py): work is under way, and neither tokens nor steps nor KV blocks move."
        " /health says 200 meanwhile. A sign that it does not tell clears nobody.",
        summary="Engine {{ $labels.host }} has {{ $value }} requests under way and makes nothing of them",
        description=f"`toolkit watchdog --url {AT}` asks it for a token, and restarts it if it is told how;"
        " of a running stack, `toolkit serve restart` does.",
    )
    past, started = duration(limits.restarts_s), f'{names.START_TIME}{{job="engine"}}'
    yield Alert(
        name="EngineRestarting",
        # A start time is missing where vLLM runs several API servers; counters that fall tell it, too, once there were tokens.
        # Of an engine that tells its start a page that came too late, under load, is no restart
        expr=f"max by (host) (changes({started}[{past}])) > {limits.restarts}\n"
        f'or max by (host) (resets({names.GENERATION_TOKENS}{{job="engine"}}[{past}])) > {limits.restarts}\n'
        f'or (max by (host) (changes(up{{job="engine"}}[{past}])) > {2 * limits.restarts + 1}\n'
        f"  unless on (host) last_over_time({started}[{past}]))",
        for_s=0,
        severity="warning",
        reason="Each restart empties the KV cache and costs a warm-up; one after the other is a fault that a restart does not mend.",
        summary="Engine {{ $labels.host }} starts again and again",
        description="`toolkit serve status` tells how often and why; `toolkit preflight` whether the machine is fit for it.",
    )


def _engines_full(limits: Limits) -> Iterator[Alert]:
    yield Alert(
        name="EngineKvCacheFull",
        expr=f"{recorded.KV_MOST} > {limits.kv_usage}",
        for_s=limits.kv_usage_s,
        severity="warning",
        reason="Blocks that only the prefix cache holds count as free: what is counted here, live requests need.",
        summary="Engine {{ $labels.host }}: {{ $value | humanizePercentage }} of the KV blocks are in use",
        description=f"{DIAGNOSE} `toolkit plan` says what fits: a shorter max-model-len, an FP8 KV cache, fewer requests at once.",
    )
    yield Alert(
        name="EnginePreempting",
        expr=f"{recorded.PREEMPTION_RATE} > {limits.preemptions_per_s}",
        for_s=limits.slow_s,
        severity="warning",
        reason="A preempted request is computed again from its first token: the GPU is busy with what it had already done.",
        summary="Engine {{ $labels.host }} preempts {{ $value | humanize }} requests a second",
        description=f"{DIAGNOSE} Usually more requests run than KV blocks carry: lower max-num-seqs.",
    )


def _queue(engines: Sequence[SiteEngine], limits: Limits) -> Alert:
    """Each batch size that the stack names, and the usual one for all engines beside those, whoever adds them."""
    told = {each.name: found for each in engines if (found := max_num_seqs(each)) is not None}
    pairs = [(f'{{host=~"{_among(told, size)}"}}', size) for size in sorted(set(told.values()))]
    pairs += [(f'{{host!~"{"|".join(told)}"}}' if told else "", USUAL_MAX_NUM_SEQS)]
    return Alert(
        name="EngineQueueLong",
        expr="\nor ".join(
            f"sum by (host, instance) ({recorded.WAITING_SUM}{hosts}) > {size}"
            for hosts, size in pairs
        ),
        for_s=limits.waiting_s,
        severity="warning",
        reason="More requests wait than one batch holds (max-num-seqs). Queue times are told only by requests that end: this sees those"
        " that do not.",
        summary="Engine {{ $labels.host }}: {{ $value }} requests wait",
        description=f"{DIAGNOSE} A limit in front of it ([proxy.admission] in the stack file) turns away what can't be served in time.",
    )


def _among(told: dict[str, int], size: int) -> str:
    """Names of engines are DNS labels, and so hold nothing that a regular expression would read."""
    return "|".join(name for name, its in told.items() if its == size)


def _latencies(limits: Limits) -> Iterator[Alert]:
    for name, metric, limit, what in (
        ("EngineTtftSlow", names.TTFT, limits.ttft_p95_s, "to the first token"),
        ("EngineQueueSlow", names.QUEUE, limits.queue_p95_s, "in the queue"),
    ):
        yield Alert(
            name=name,
            # at least: beyond its last edge a quantile stands on that edge
            expr=f"{recorded.engine_quantile(metric, 'p95')} >= {limit:g}",
            for_s=limits.slow_s,
            severity="warning",
            reason="One client in twenty waits at least so long. `for` is longer than the window, so one slow request fires nothing.",
            summary=f"Engine {{{{ $labels.host }}}}: p95 {what} is {{{{ $value | humanizeDuration }}}}",
            description=f"{DIAGNOSE} `toolkit workload` says what a response cache would spare it.",
        )


def _errors(limits: Limits) -> Alert:
    def too_many(ratio: str, rate: str) -> str:
        ratio = f"max by (host, instance) ({ratio}) > {limits.error_ratio}"
        rate = f"60 * sum by (host, instance) ({rate}) > {limits.errors_per_minute:g}"
        return f"({ratio}\n  and {rate})"

    return Alert(
        name="EngineErrors",
        expr=f"{too_many(recorded.HTTP_ERROR_RATIO, recorded.HTTP_ERROR_RATE)}\n"
        f"or {too_many(recorded.BROKEN_RATIO, recorded.BROKEN_RATE)}",
        for_s=limits.errors_s,
        severity="critical",
        reason="Answers 5xx, or streams that began with 200 and that the engine gave up.",
        summary="Engine {{ $labels.host }}: {{ $value | humanizePercentage }} of the requests fail",
        description=f"`toolkit scout {AT}` and the engine's log say how; `toolkit serve restart` starts it anew.",
    )


def _proxy_seen(limits: Limits) -> Iterator[Alert]:
    yield Alert(
        name="ProxyDown",
        expr='up{job="proxy"} == 0',
        for_s=limits.proxy_down_s,
        severity="critical",
        reason="Clients reach the engines through it alone.",
        summary="The proxy {{ $labels.instance }} does not answer",
        description="`toolkit serve status` tells whether its stack runs; `toolkit serve` or `toolkit proxy` starts it.",
    )
    yield Alert(
        name="ProxyGone",
        expr='absent(up{job="proxy"})',
        for_s=limits.unseen_s,
        severity="critical",
        reason="Without a target there is no `up` that could be 0.",
        summary="The proxy is no target any more",
        description="Compare the scrape configuration with the stack: `toolkit deploy prometheus` writes it anew.",
    )
    yield Alert(
        name="ProxyWithoutEngine",
        expr=f'max by (instance) ({names.PROXY_UPSTREAM_STATE}{{job="proxy",state="up"}}) == 0',
        for_s=limits.proxy_down_s,
        severity="critical",
        reason="It left every engine: what is not in its cache is answered with an error.",
        summary="The proxy {{ $labels.instance }} has no engine to ask",
        description="`toolkit serve status` tells how each engine is; `toolkit scout` on their addresses asks them themselves.",
    )


def _proxy_serves(limits: Limits) -> Iterator[Alert]:
    yield Alert(
        name="ProxyErrors",
        expr=f"{recorded.PROXY_ERROR_RATIO} > {limits.error_ratio}\n"
        f"and 60 * {recorded.PROXY_ERROR_RATE} > {limits.errors_per_minute:g}",
        for_s=limits.errors_s,
        severity="critical",
        reason="Errors as clients see them: neither rejections nor clients that left are in it.",
        summary="The proxy {{ $labels.instance }}: {{ $value | humanizePercentage }} of the requests fail",
        description="`toolkit_proxy_errors_total` has them by kind, the proxy's log by request; `toolkit scout` asks the engines themselves.",
    )
    yield Alert(
        name="ProxyRejecting",
        expr=f"{recorded.PROXY_REJECTION_RATIO} > {limits.rejection_ratio}",
        for_s=limits.rejections_s,
        severity="warning",
        reason="A limit was held, which is no error; for minutes on end it says that there are too few engines, or too small a limit.",
        summary="The proxy {{ $labels.instance }} turns away {{ $value | humanizePercentage }} of the requests",
        description="`toolkit_proxy_rejections_total` has them by team and reason; `toolkit plan` says how many requests an engine carries.",
    )
    yield Alert(
        name="ProxyQueueSlow",
        expr=f"{recorded.proxy_quantile(names.PROXY_QUEUE_TIME, 'p95')} >= {limits.queue_p95_s:g}",
        for_s=limits.slow_s,
        severity="warning",
        reason="Of the requests that needed a slot, one in twenty waited at least so long before any engine saw it.",
        summary="The proxy {{ $labels.instance }}: p95 in the queue is {{ $value | humanizeDuration }}",
        description="`toolkit diagnose` on the engines' addresses says whether they could take more; then raise `concurrency` in"
        " [proxy.admission].",
    )


def _hits_fallen(limits: Limits) -> Alert:
    now = duration(limits.hit_now_s)
    past = f"[{duration(limits.hit_past_s)}] offset {now}"
    hits, asked = recorded.PROXY_HIT_RATE, recorded.PROXY_CACHEABLE_RATE
    before = f"(avg_over_time({hits}{past}) / avg_over_time({asked}{past}))"
    return Alert(
        name="ProxyHitRatioFallen",
        expr=f"avg_over_time({hits}[{now}]) / avg_over_time({asked}[{now}])\n"
        f"  < {limits.hit_ratio_of_past} * ({before} > {limits.hit_ratio_least})\n"
        f"and avg_over_time({asked}[{now}]) > {limits.cacheable_per_s}",
        for_s=limits.hit_s,
        severity="warning",
        reason="The cache hits half as often as over the hours before, each weighed by its requests: the engines carry the difference.",
        summary="The proxy {{ $labels.instance }}: the hit ratio fell to {{ $value | humanizePercentage }}",
        description="After an engine's restart or another model old answers end, and it comes back by itself. Else clients send something new:"
        " `toolkit workload` says what, and the proxy's /explain why a request is a miss.",
    )


def _redis(limits: Limits) -> Alert:
    return Alert(
        name="ProxyRedisLost",
        expr=f'{names.PROXY_REDIS_OPEN}{{job="proxy"}} == 1',
        for_s=limits.unseen_s,
        severity="warning",
        reason="The shared cache is not asked: clients see no error, but each proxy has only its own hits.",
        summary="The proxy {{ $labels.instance }} has lost Redis",
        description="It is asked again by itself once it answers. `redis_env` under [proxy.cache] in the stack file names the variable with its"
        " address; `toolkit serve status` tells the hit ratio without it.",
    )

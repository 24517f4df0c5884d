"""What has this server done so far? Adds up what happened, cheaply enough for every token; shows nothing.

No clock: times come with what is observed.
"""

from bisect import bisect_left
from collections.abc import Mapping
from dataclasses import dataclass, field

from toolkit.sim.engine import Engine, Finished, Progress
from toolkit.sim.families import FEW, HIGHR, numbers


class Histogram:
    """Counts per bucket, kept plainly; the page adds them up."""

    __slots__ = ("counts", "edges", "total")

    def __init__(self, edges: tuple[float, ...]) -> None:
        self.edges = edges
        self.counts = [0] * (len(edges) + 1)
        """The last one is the bucket beyond all edges."""
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value; an edge belongs to the bucket it ends."""
        self.counts[bisect_left(self.edges, value)] += 1
        self.total += value


class Meter:
    """One engine core's numbers, by the words that the tables in `families` use as sources."""

    def __init__(self, edges: Mapping[str, tuple[float, ...]], created_s: float) -> None:
        self.histograms = {name: Histogram(each) for name, each in edges.items()}
        self.created_s = created_s
        """Wall clock of the process's start: what every `_created` series tells."""
        self.ended: dict[str, int] = dict.fromkeys(("stop", "length", "abort", "error"), 0)
        self._last_token_at: dict[str, float] = {}

    def step(
        self, engine: Engine, progress: list[Progress], now: float, arrived: Mapping[str, float]
    ) -> None:
        """Count one finished engine step; `arrived` tells when each live request came."""
        self.histograms["iteration_tokens"].observe(engine.iteration_tokens)
        for each in progress:
            if each.token_id is not None:
                self._token(each, now, arrived)
            if each.finished:
                self._finish(each.finished)

    def forget(self, request_id: str) -> None:
        """Drop an aborted request, which 0.32.0 counts nowhere, not even as `abort`."""
        self._last_token_at.pop(request_id, None)

    def figures(self, engine: Engine) -> dict[str, float]:
        """Read off all counters and gauges of now, by source."""
        queries, hits = engine.prefix_queries_total, engine.prefix_hits_total
        prompt, cached = engine.prompt_tokens_total, engine.prompt_tokens_cached_total
        return {
            "zero": 0,
            "one": 1,
            "minus_one": -1,
            "running": engine.running,
            "waiting": engine.waiting,
            "kv_usage": engine.kv_usage,
            "prefix_queries": queries,
            "prefix_hits": hits,
            "hit_rate": (hits / queries if queries else 0) if engine.config.prefix_caching else -1,
            "preemptions": engine.preemptions_total,
            "prompt_tokens": prompt,
            "cached_tokens": cached,
            "computed_prompt_tokens": prompt - cached,
            "output_tokens": engine.generation_tokens_total,
            "all_tokens": prompt + engine.generation_tokens_total,
            **self.ended,
        }

    def _token(self, progress: Progress, now: float, arrived: Mapping[str, float]) -> None:
        request_id = progress.request_id
        if progress.first_token:
            self.histograms["ttft"].observe(now - arrived[request_id])
        else:
            self.histograms["gap"].observe(now - self._last_token_at[request_id])
        self._last_token_at[request_id] = now

    def _finish(self, finished: Finished) -> None:
        self._last_token_at.pop(finished.id, None)
        self.ended[finished.reason] += 1
        for name, value in observations(finished).items():
            self.histograms[name].observe(value)


def observations(finished: Finished) -> dict[str, float]:
    """What vLLM observes when a request ends; what never happened takes no time."""
    scheduled = _first(finished.scheduled_at, finished.ended_at)
    first = _first(finished.first_token_at, finished.ended_at)
    last = _first(finished.last_token_at, finished.ended_at)
    decode = last - first
    return {
        "prompt_tokens": finished.prompt_tokens,
        "computed_prompt_tokens": finished.computed_prompt_tokens,
        "output_tokens": finished.output_tokens,
        "max_tokens": finished.max_tokens,
        "n": 1,
        "preemptions": finished.preemptions,
        "e2e": last - finished.arrived_at,
        "queue": scheduled - finished.arrived_at,
        "prefill": first - scheduled,
        "decode": decode,
        "inference": last - scheduled,
        # zero for a single token, as vLLM has it
        "tpot": decode / (finished.output_tokens - 1) if finished.output_tokens > 1 else 0.0,
    }


def _first(value: float | None, otherwise: float) -> float:
    return otherwise if value is None else value


@dataclass(slots=True)
class Tally:
    """A count, a sum and when it began."""

    created_s: float
    count: int = 0
    total: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """One HTTP request and its answer, over."""

    handler: str
    """The route's path, or `none` for a path without one."""
    method: str
    status: int
    request_bytes: int
    """By the header; 0 without one."""
    response_bytes: int
    """By the header: a stream has none and counts 0."""
    duration_s: float


UNSEEN = ("/metrics", "/health", "/load", "/ping", "/version", "/server_info")
"""Handlers that vLLM leaves out of `http_*`."""


@dataclass(slots=True)
class HttpMeter:
    """What `prometheus_fastapi_instrumentator` counts; a series appears with its first request."""

    created_s: float
    requests: dict[tuple[str, str, str], Tally] = field(default_factory=dict)
    request_sizes: dict[str, Tally] = field(default_factory=dict)
    response_sizes: dict[str, Tally] = field(default_factory=dict)
    durations: dict[tuple[str, str], tuple[Histogram, float]] = field(default_factory=dict)
    """By handler and method, with the time of the first."""
    highr: Histogram = field(default_factory=lambda: Histogram(numbers(HIGHR)))

    def observe(self, exchange: Exchange, now_s: float) -> None:
        """Count one exchange, at this wall clock."""
        if exchange.handler in UNSEEN:
            return
        handler, method = exchange.handler, exchange.method
        family = f"{exchange.status // 100}xx"
        self.requests.setdefault((handler, method, family), Tally(now_s)).count += 1
        for sizes, size in (
            (self.request_sizes, exchange.request_bytes),
            (self.response_sizes, exchange.response_bytes),
        ):
            tally = sizes.setdefault(handler, Tally(now_s))
            tally.count += 1
            tally.total += size
        few = self.durations.setdefault((handler, method), (Histogram(numbers(FEW)), now_s))
        few[0].observe(exchange.duration_s)
        self.highr.observe(exchange.duration_s)

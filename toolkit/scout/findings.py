"""What a person should know about a host: rules over one sighting and the one before it.

No network, no clock, no store: the earlier sighting is an argument.
"""

from collections.abc import Iterator
from datetime import UTC, datetime

from toolkit.metrics.dialects import CacheNumbers, EngineNumbers
from toolkit.records import START_SLACK_S, Finding, Sighting
from toolkit.scout import answers as pages
from toolkit.scout.evidence import HostEvidence
from toolkit.units import counted, share, whole

LOW_MEMORY_SHARE = 0.85
"""vLLM's default is 0.9, from 0.20.0 on 0.92; the contest's trick host stood at 0.46."""
FEW_FULL_REQUESTS = 4
"""Fewer requests of full length than this in the KV cache: the batch can't hide decode's latency."""

LISTED = 4
"""Of more models only the first few are named; a host with 2,000 adapters would fill the screen."""

CONFIGURATION = (
    "engine version model models max_model_len gpu_memory_utilization cache_dtype block_size"
    " swap_space_gib prefix_caching engines"
).split()
"""Fields that somebody chose, in the order in which a change is told."""

COUNTERS = (
    "requests_total prompt_tokens_total generation_tokens_total preemptions_total"
    " prefix_queries_total prefix_hits_total"
).split()
"""They never fall in one process; a Sighting keeps the first four."""


def findings(
    sighting: Sighting, evidence: HostEvidence, before: Sighting | None
) -> tuple[Finding, ...]:
    """All findings of a host, the most urgent first."""
    found = [
        *_changes(before, sighting),
        *_gateway(evidence),
        *_pressure(sighting),
        *_capacity(sighting),
        *_cache(evidence.cache),
        *_open_doors(evidence),
        *_unread(evidence),
    ]
    return tuple(found)


def _gateway(evidence: HostEvidence) -> Iterator[Finding]:
    if evidence.gateway:
        text = f"{evidence.gateway} is a gateway: list the engines behind it, whose numbers it does not show"
        yield Finding(code="gateway", text=text)


def _changes(before: Sighting | None, now: Sighting) -> Iterator[Finding]:
    if before is None:
        return
    if has_restarted(before, now):
        yield Finding(code="restarted", text=_restart_text(now))
    changed = configuration_changes(before, now)
    if changed:
        yield Finding(code="config_changed", text="; ".join(changed))


def has_restarted(before: Sighting | EngineNumbers, now: Sighting | EngineNumbers) -> bool:
    """Whether another process answers than last time, by its start time or a counter that fell."""
    if before.started_at is not None and now.started_at is not None:
        return abs(now.started_at - before.started_at) > START_SLACK_S
    pairs = ((getattr(before, name, None), getattr(now, name, None)) for name in COUNTERS)
    return any(old is not None and new is not None and new < old for old, new in pairs)


def _restart_text(now: Sighting) -> str:
    if now.started_at is None:
        return "counters began anew since the last sighting: another process answers"
    return f"restarted at {clock_time(now.started_at)}: its counters began anew"


def clock_time(at: float) -> str:
    """Wall time in UTC, to the second; `?` for a time no calendar has."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "?"


def configuration_changes(before: Sighting, now: Sighting) -> list[str]:
    """Name each changed setting; none while one of the two hashes is unknown or both are equal."""
    if before.config_hash is None or now.config_hash is None:
        return []
    if before.config_hash == now.config_hash:
        return []
    pairs = [(name, getattr(before, name), getattr(now, name)) for name in CONFIGURATION]
    changed = [
        f"{name} {_plain(old)} -> {_plain(new)}"
        for name, old, new in pairs
        if old != new and old is not None and new is not None
    ]
    return changed or ["a setting changed that the table does not show (see the raw labels)"]


def last_word(before: Sighting | None, now: Sighting) -> Sighting | None:
    """The sighting that the next one is compared with: this one, unless it could not tell its settings.

    A look that was cut short knows neither hash nor counters; remembered, it would hide a restart.
    """
    cut_short = before is not None and before.config_hash is not None and now.config_hash is None
    return before if now.status == "down" or cut_short else now


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        more = len(value) - LISTED
        return ",".join(value[:LISTED]) + (f" and {more:,} more" if more > 0 else "")
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def _pressure(now: Sighting) -> Iterator[Finding]:
    if now.waiting:
        yield Finding(
            code="waiting",
            text=f"{whole(now.waiting)} requests wait while {whole(now.running or 0)} run",
        )
    if now.preemptions_total:
        yield Finding(
            code="preemptions",
            text=f"{whole(now.preemptions_total)} preemptions: the KV cache ran out and work was redone",
        )


def _capacity(now: Sighting) -> Iterator[Finding]:
    if now.prefix_caching is False:
        yield Finding(
            code="prefix_caching_off",
            text="prefix caching is off: equal prompt starts are recomputed",
        )
    used = now.gpu_memory_utilization
    if used is not None and used < LOW_MEMORY_SHARE:
        yield Finding(
            code="low_gpu_memory_utilization",
            text=f"gpu_memory_utilization {used:g}: the rest of the GPU's memory holds no KV cache",
        )
    full = full_length_requests(now)
    if full is not None and full < FEW_FULL_REQUESTS:
        yield Finding(code="few_kv_tokens", text=_few_tokens_text(now, full))


def full_length_requests(now: Sighting) -> float | None:
    """How many requests of max_model_len tokens the KV cache holds; vLLM's own figure first."""
    if now.kv_cache_max_concurrency is not None:
        return now.kv_cache_max_concurrency
    if now.kv_cache_tokens is None or not now.max_model_len:
        return None
    return now.kv_cache_tokens / now.max_model_len


def _few_tokens_text(now: Sighting, full: float) -> str:
    tokens = "the KV cache" if now.kv_cache_tokens is None else f"{now.kv_cache_tokens:,} KV tokens"
    length = "full length" if now.max_model_len is None else f"{now.max_model_len:,} tokens"
    holds = "hold" if now.kv_cache_tokens is not None else "holds"
    return f"{tokens} {holds} only {full:.1f} requests of {length}"


def _cache(cache: CacheNumbers | None) -> Iterator[Finding]:
    """Not where it is off: then all answers are the engine's."""
    if cache is None or (cache.off and not cache.cacheable):
        return
    text = "a response cache answers"
    if not cache.cacheable:
        text = "a response cache stands in front; no request has asked it yet"
    elif 0 <= cache.hits <= cache.cacheable:
        ratio, requests = share(cache.hits / cache.cacheable), whole(cache.cacheable)
        text += f": hit ratio {ratio} of {requests} cacheable request{'s' * (cache.cacheable != 1)}"
    if cache.coalesced:
        text += f", and {whole(cache.coalesced)} shared another one's answer as it came"
    yield Finding(code="response_cache", text=text)


def _open_doors(evidence: HostEvidence) -> Iterator[Finding]:
    metrics = evidence.metrics
    if metrics.ok and not metrics.with_key and evidence.numbers is not None:
        yield Finding(
            code="metrics_open",
            text="`/metrics` answers anyone: configuration and load are public",
        )
    door = evidence.look.answer(pages.INVOCATIONS)
    if door.status == 405 and "POST" in door.allow.upper():
        yield Finding(
            code="inference_open",
            text="`POST /invocations` runs inference without the key that `/v1` wants",
        )


def _unread(evidence: HostEvidence) -> Iterator[Finding]:
    page = evidence.page
    if page is not None and page.bad_lines:
        lines = counted(page.bad_lines, "line")
        yield Finding(
            code="bad_metric_lines",
            text=f"{lines} of `/metrics` could not be read, the first: {page.first_bad_line}",
        )
    if page is not None and page.cut:
        yield Finding(
            code="metrics_cut",
            text="`/metrics` is longer than is read; what did not fit is shown as unknown",
        )

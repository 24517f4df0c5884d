"""What a person should know about a host: rules over one sighting and the one before it, and how it changed over many.

No network, no clock, no store: earlier sightings are arguments.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from toolkit.records import Finding, Sighting
from toolkit.scout import pages
from toolkit.scout.sighting import HostEvidence, has_restarted
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
"""Fields that somebody chose, in the order in which a change is listed."""


def findings(now: Sighting, evidence: HostEvidence, before: Sighting | None) -> tuple[Finding, ...]:
    """All findings of a host, the most urgent first."""
    return tuple(Finding(code=code, text=text) for code, text in _found(now, evidence, before))


def _found(
    now: Sighting, evidence: HostEvidence, before: Sighting | None
) -> Iterator[tuple[str, str]]:
    if before is not None and has_restarted(before, now):
        words = "counters began anew since the last sighting: another process answers"
        if now.started_at is not None:
            words = f"restarted at {clock_time(now.started_at)}: its counters began anew"
        yield "restarted", words
    if before is not None and (changed := configuration_changes(before, now)):
        yield "config_changed", "; ".join(changed)
    if evidence.gateway:
        hidden = "list the engines behind it, whose numbers it does not show"
        yield "gateway", f"{evidence.gateway} is a gateway: {hidden}"

    # load and memory
    if now.waiting:
        running = whole(now.running or 0)
        yield "waiting", f"{whole(now.waiting)} requests wait while {running} run"
    if now.preemptions_total:
        redone = "preemptions: the KV cache ran out and work was redone"
        yield "preemptions", f"{whole(now.preemptions_total)} {redone}"
    if now.prefix_caching is False:
        yield "prefix_caching_off", "prefix caching is off: equal prompt starts are recomputed"
    used = now.gpu_memory_utilization
    if used is not None and used < LOW_MEMORY_SHARE:
        rest = "the rest of the GPU's memory holds no KV cache"
        yield "low_gpu_memory_utilization", f"gpu_memory_utilization {used:g}: {rest}"
    full = full_length_requests(now)
    if full is not None and full < FEW_FULL_REQUESTS:
        tokens = now.kv_cache_tokens
        holder = "the KV cache holds" if tokens is None else f"{tokens:,} KV tokens hold"
        length = "full length" if now.max_model_len is None else f"{now.max_model_len:,} tokens"
        yield "few_kv_tokens", f"{holder} only {full:.1f} requests of {length}"

    # not where it is off: then all answers are the engine's
    cache = evidence.cache
    if cache is not None and (cache.cacheable or not cache.off):
        words = "a response cache answers"
        if not cache.cacheable:
            words = "a response cache stands in front; no request has asked it yet"
        elif 0 <= cache.hits <= cache.cacheable:
            ratio, requests = share(cache.hits / cache.cacheable), whole(cache.cacheable)
            plural = "s" * (cache.cacheable != 1)
            words += f": hit ratio {ratio} of {requests} cacheable request{plural}"
        if cache.coalesced:
            words += f", and {whole(cache.coalesced)} shared another one's answer as it came"
        yield "response_cache", words

    # what is open to anyone, and what could not be read
    metrics, page = evidence.metrics, evidence.page
    inference = evidence.scrape.answer(pages.INVOCATIONS)
    if metrics.ok and not metrics.with_key and evidence.numbers is not None:
        yield "metrics_open", "`/metrics` answers anyone: configuration and load are public"
    if inference.status == 405 and "POST" in inference.allow.upper():
        words = "`POST /invocations` runs inference without the key that `/v1` wants"
        yield "inference_open", words
    if page is not None and page.bad_lines:
        first = f"of `/metrics` could not be read, the first: {page.first_bad_line}"
        yield "bad_metric_lines", f"{counted(page.bad_lines, 'line')} {first}"
    if page is not None and page.cut:
        words = "`/metrics` is longer than is read; what did not fit is shown as unknown"
        yield "metrics_cut", words


def full_length_requests(now: Sighting) -> float | None:
    """How many requests of max_model_len tokens the KV cache holds; vLLM's own figure first."""
    if now.kv_cache_max_concurrency is not None:
        return now.kv_cache_max_concurrency
    if now.kv_cache_tokens is None or not now.max_model_len:
        return None
    return now.kv_cache_tokens / now.max_model_len


def clock_time(at: float) -> str:
    """Wall time in UTC, to the second; `?` for a time no calendar has."""
    try:
        return datetime.fromtimestamp(at, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    except (ValueError, OverflowError, OSError):
        return "?"


# --- Changes --------------------------------------------------------------------------------------------


def configuration_changes(before: Sighting, now: Sighting) -> list[str]:
    """Name each changed setting; none while one of the two hashes is unknown or both are equal."""
    if None in (before.config_hash, now.config_hash) or before.config_hash == now.config_hash:
        return []
    pairs = [(name, getattr(before, name), getattr(now, name)) for name in CONFIGURATION]
    changed = [
        f"{name} {_plain(old)} -> {_plain(new)}"
        for name, old, new in pairs
        if old != new and old is not None and new is not None
    ]
    return changed or ["a setting changed that the table does not show (see the raw labels)"]


def _plain(value: object) -> str:
    if isinstance(value, tuple):
        more = len(value) - LISTED
        return ",".join(value[:LISTED]) + (f" and {more:,} more" if more > 0 else "")
    if isinstance(value, bool):
        return "on" if value else "off"
    return str(value)


def last_word(before: Sighting | None, now: Sighting) -> Sighting | None:
    """The sighting that the next one is compared with: this one, unless it could not say its settings.

    A scrape that was cut short knows neither hash nor counters; remembered, it would hide a restart.
    """
    cut_short = before is not None and before.config_hash is not None and now.config_hash is None
    return before if now.status == "down" or cut_short else now


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """Sightings in a row between which neither status, settings nor process changed."""

    first: Sighting
    last: Sighting
    sightings: int
    changes: tuple[str, ...]
    """What was new at its first sighting."""


def chapters(sightings: Iterable[Sighting]) -> list[Chapter]:
    """Cut sightings, oldest first, wherever something changed.

    The status is compared with the last sighting, settings and process with the last that had any.
    """
    found: list[Chapter] = []
    answered: Sighting | None = None
    for now in sightings:
        changes = []
        if not found:
            changes.append("first seen")
        elif (before := found[-1].last).status != now.status:
            why = f": {now.error}" if now.error else ""
            changes.append(f"{before.status} -> {now.status}{why}")
        if found and answered is not None and now.status != "down":
            if has_restarted(answered, now):
                changes.append("restarted")
            changes += configuration_changes(answered, now)
        if changes:
            found.append(Chapter(first=now, last=now, sightings=1, changes=tuple(changes)))
        else:
            found[-1] = replace(found[-1], last=now, sightings=found[-1].sightings + 1)
        answered = last_word(answered, now)
    return found

"""What scout's scrapes of a host say beside a blast: when it started anew, and what it serves otherwise than before.

Only what two scrapes of the same host contradict is told. No store, no clock.
"""

from collections.abc import Sequence
from typing import NamedTuple

from toolkit.records import START_SLACK_S, Event, EventKind, Sighting

_TOLD = (
    "version",
    "max_model_len",
    "gpu_memory_utilization",
    "cache_dtype",
    "block_size",
    "swap_space_gib",
    "prefix_caching",
    "engines",
)
"""Settings that are named when the configuration changed; what an engine measures by itself is none."""
SAME_RESTART_S = 60.0
"""A restart that somebody noted so close to one that was seen is the same."""


class Scrape(NamedTuple):
    """What the board keeps of a sighting: about 0.3 KB."""

    at: float
    is_down: bool
    started_at: float | None
    config_hash: str | None
    models: tuple[str, ...]
    max_model_len: int | None
    settings: tuple[object, ...]
    requests: float | None
    generation_tokens: float | None


class Contradiction(NamedTuple):
    """Something that two scrapes contradict."""

    noticed_at: float
    """Of the second one: before that nobody knew."""
    event: Event


def scrape_of(sighting: Sighting) -> Scrape:
    """Keep what is needed of a sighting."""
    return Scrape(
        at=sighting.at,
        is_down=sighting.status == "down",
        started_at=sighting.started_at,
        config_hash=sighting.config_hash,
        models=sighting.models or ((sighting.model,) if sighting.model else ()),
        max_model_len=sighting.max_model_len,
        settings=tuple(getattr(sighting, name) for name in _TOLD),
        requests=sighting.requests_total,
        generation_tokens=sighting.generation_tokens_total,
    )


def changes(name: str, url: str, scrapes: Sequence[Scrape]) -> list[Contradiction]:
    """Restarts and other settings between one host's scrapes, which are in order of time."""
    found = []
    before: Scrape | None = None
    newest = float("-inf")
    for now in scrapes:
        if now.is_down:
            continue
        if before is None:
            before, newest = now, now.started_at or newest
            continue

        told: list[tuple[EventKind, float, str]] = []
        if (at := _restarted_at(before, now, newest)) is not None:
            told.append(("restart", at, "started anew"))
        if before.models and now.models and before.models != now.models:
            old, new = (
                ", ".join(f"`{model[:80]}`" for model in each.models) for each in (before, now)
            )
            told.append(("model", now.at, f"{old} -> {new}"))
        is_hashed = before.config_hash is not None and now.config_hash is not None
        if is_hashed and before.config_hash != now.config_hash:
            settings = ", ".join(
                f"{setting} {'unknown' if old is None else str(old)[:80]} -> {str(new)[:80]}"
                for setting, old, new in zip(_TOLD, before.settings, now.settings, strict=True)
                if old != new and new is not None
            )
            told.append(("config", now.at, settings or "other settings than before"))
        found += [
            Contradiction(now.at, Event(name=name, url=url, at=at, kind=kind, text=text))
            for kind, at, text in told
        ]

        newest = max(newest, now.started_at or newest)
        # the last word on everything: a page that says less does not forget
        before = now._replace(
            started_at=before.started_at if now.started_at is None else now.started_at,
            config_hash=before.config_hash if now.config_hash is None else now.config_hash,
            models=now.models or before.models,
            settings=tuple(
                old if new is None else new
                for old, new in zip(before.settings, now.settings, strict=True)
            ),
        )
    return found


def _restarted_at(before: Scrape, now: Scrape, newest: float) -> float | None:
    """When another process began, between two scrapes; None: as far as one can see it is the same.

    Behind a balancer two processes may answer in turn, so only a start later than all before is one.
    """
    if before.started_at is not None and now.started_at is not None:
        if now.started_at <= newest + START_SLACK_S:
            return None
        return min(max(now.started_at, before.at), now.at)
    if now.started_at is None and before.requests is not None and now.requests is not None:
        return now.at if now.requests < before.requests else None
    return None


def together(noted: Sequence[Event], seen: Sequence[Event]) -> list[Event]:
    """All events by time; a restart that was noted and seen stands once, as it was noted."""
    known = [(each.name, each.at) for each in noted if each.kind == "restart"]
    new = [
        each
        for each in seen
        if each.kind != "restart"
        or not any(each.name == name and abs(each.at - at) <= SAME_RESTART_S for name, at in known)
    ]
    return sorted([*noted, *new], key=lambda each: each.at)

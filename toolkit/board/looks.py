"""What scout saw of a host beside a blast: when it started anew, and what it serves otherwise than before.

Only what two looks of the same host contradict is told. No store, no clock.
"""

from collections.abc import Iterable, Sequence
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


class BoardSnapshot(NamedTuple):
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
    """Something that two looks contradict."""

    noticed_at: float
    """Of the second one: before that nobody knew."""
    event: Event


def look_of(sighting: Sighting) -> BoardSnapshot:
    """Keep what is needed of a sighting."""
    return BoardSnapshot(
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


def changes(name: str, url: str, looks: Sequence[BoardSnapshot]) -> list[Contradiction]:
    """Restarts and other settings between one host's looks, which are in order of time."""
    found: list[Contradiction] = []

    def tell(now: BoardSnapshot, kind: EventKind, at: float, text: str) -> None:
        found.append(Contradiction(now.at, Event(name=name, url=url, at=at, kind=kind, text=text)))

    before: BoardSnapshot | None = None
    newest = float("-inf")
    for now in looks:
        if now.is_down:
            continue
        if before is not None:
            if (at := _restarted_at(before, now, newest)) is not None:
                tell(now, "restart", at, "started anew")
            if before.models and now.models and before.models != now.models:
                tell(now, "model", now.at, f"{_names(before.models)} -> {_names(now.models)}")
            if None not in (before.config_hash, now.config_hash) and (
                before.config_hash != now.config_hash
            ):
                tell(now, "config", now.at, _differences(before, now))
        newest = max(newest, now.started_at or newest)
        before = now if before is None else _filled(before, now)
    return found


def _restarted_at(before: BoardSnapshot, now: BoardSnapshot, newest: float) -> float | None:
    """When another process began, between two looks; None: as far as one can see it is the same.

    Behind a balancer two processes may answer in turn, so only a start later than all before is one.
    """
    if before.started_at is not None and now.started_at is not None:
        if now.started_at <= newest + START_SLACK_S:
            return None
        return min(max(now.started_at, before.at), now.at)
    if now.started_at is None and _falls(before.requests, now.requests):
        return now.at
    return None


def _falls(before: float | None, now: float | None) -> bool:
    return before is not None and now is not None and now < before


def _filled(before: BoardSnapshot, now: BoardSnapshot) -> BoardSnapshot:
    """The last word on everything: a page that says less does not forget."""
    return now._replace(
        started_at=before.started_at if now.started_at is None else now.started_at,
        config_hash=before.config_hash if now.config_hash is None else now.config_hash,
        models=now.models or before.models,
        settings=tuple(
            old if new is None else new
            for old, new in zip(before.settings, now.settings, strict=True)
        ),
    )


def _names(models: Iterable[str]) -> str:
    return ", ".join(f"`{model[:80]}`" for model in models)


def _differences(before: BoardSnapshot, now: BoardSnapshot) -> str:
    told = [
        f"{name} {_spelled(old)} -> {_spelled(new)}"
        for name, old, new in zip(_TOLD, before.settings, now.settings, strict=True)
        if old != new and new is not None
    ]
    return ", ".join(told) or "other settings than before"


def _spelled(value: object) -> str:
    return "unknown" if value is None else str(value)[:80]


def together(noted: Sequence[Event], seen: Sequence[Event]) -> list[Event]:
    """All events by time; a restart that was noted and seen stands once, as it was noted."""
    own = [each for each in noted if each.kind == "restart"]
    new = [
        each
        for each in seen
        if each.kind != "restart" or not any(_is_same(each, other) for other in own)
    ]
    return sorted([*noted, *new], key=lambda each: each.at)


def _is_same(one: Event, other: Event) -> bool:
    return one.name == other.name and abs(one.at - other.at) <= SAME_RESTART_S

"""What scout's scrapes of a host say beside a blast: when it started anew, and what it serves otherwise than before.

Only what two scrapes of the same host contradict is reported. No store, no clock.
"""

from typing import NamedTuple

from toolkit.records import START_SLACK_S, Event, EventKind, Sighting

_NAMED = (
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


class Change(NamedTuple):
    """A restart or another setting that two scrapes show."""

    noticed_at: float
    """Of the second one: before that nobody knew."""
    event: Event


class HostScrapes:
    """One host's scrapes."""

    def __init__(self, name: str, url: str) -> None:
        self._name, self._url = name, url
        self._by_time: dict[float, Scrape] = {}
        self._changes: list[Change] | None = []

    def add(self, sighting: Sighting) -> bool:
        """Keep what is needed of a sighting; whether it is new."""
        if sighting.at in self._by_time:
            return False
        self._by_time[sighting.at] = Scrape(
            at=sighting.at,
            is_down=sighting.status == "down",
            started_at=sighting.started_at,
            config_hash=sighting.config_hash,
            models=sighting.models or ((sighting.model,) if sighting.model else ()),
            max_model_len=sighting.max_model_len,
            settings=tuple(getattr(sighting, name) for name in _NAMED),
            requests=sighting.requests_total,
            generation_tokens=sighting.generation_tokens_total,
        )
        self._changes = None
        return True

    def between(self, from_at: float, to_at: float) -> list[Scrape]:
        """Those of a stretch, in order of time."""
        return [each for at, each in sorted(self._by_time.items()) if from_at <= at <= to_at]

    def changes(self) -> list[Change]:
        """Restarts and other settings, in order of time."""
        if self._changes is None:
            self._changes = self._found_changes()
        return self._changes

    def _found_changes(self) -> list[Change]:
        found = []
        before: Scrape | None = None
        newest = float("-inf")  # the latest start of all so far
        for _, now in sorted(self._by_time.items()):
            if now.is_down:
                continue
            if before is None:
                before, newest = now, now.started_at or newest
                continue

            changed: list[tuple[EventKind, float, str]] = []
            if before.started_at is not None and now.started_at is not None:
                # behind a balancer two processes may answer in turn, so only a start later than all before is one
                if now.started_at > newest + START_SLACK_S:
                    at = min(max(now.started_at, before.at), now.at)
                    changed.append(("restart", at, "started anew"))
            elif (
                now.started_at is None
                and now.requests is not None
                and now.requests < (before.requests or 0.0)
            ):
                changed.append(("restart", now.at, "started anew"))
            if before.models and now.models and before.models != now.models:
                old, new = (
                    ", ".join(f"`{model[:80]}`" for model in each.models) for each in (before, now)
                )
                changed.append(("model", now.at, f"{old} -> {new}"))
            is_hashed = before.config_hash is not None and now.config_hash is not None
            if is_hashed and before.config_hash != now.config_hash:
                settings = ", ".join(
                    f"{name} {'unknown' if old is None else str(old)[:80]} -> {str(new)[:80]}"
                    for name, old, new in zip(_NAMED, before.settings, now.settings, strict=True)
                    if old != new and new is not None
                )
                changed.append(("config", now.at, settings or "other settings than before"))
            found += [
                Change(now.at, Event(name=self._name, url=self._url, at=at, kind=kind, text=text))
                for kind, at, text in changed
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

"""How a host changed: its sightings cut into chapters. No store, no clock."""

from collections.abc import Iterable
from dataclasses import dataclass, replace

from toolkit.records import Sighting
from toolkit.scout.findings import configuration_changes, has_restarted, last_word


@dataclass(frozen=True, slots=True, kw_only=True)
class Chapter:
    """Sightings in a row between which neither status, settings nor process changed."""

    first: Sighting
    last: Sighting
    sightings: int
    changes: tuple[str, ...]
    """What was new at its first sighting."""


def chapters(sightings: Iterable[Sighting]) -> list[Chapter]:
    """Cut sightings, oldest first, wherever something changed."""
    told: list[Chapter] = []
    answered: Sighting | None = None
    for now in sightings:
        changes = _changes(told[-1].last if told else None, answered, now)
        if told and not changes:
            told[-1] = replace(told[-1], last=now, sightings=told[-1].sightings + 1)
        else:
            told.append(Chapter(first=now, last=now, sightings=1, changes=tuple(changes)))
        answered = last_word(answered, now)
    return told


def _changes(before: Sighting | None, answered: Sighting | None, now: Sighting) -> list[str]:
    """Compare status with the last sighting, settings and process with the last that had any."""
    if before is None:
        return ["first seen"]
    changes = []
    if before.status != now.status:
        changes.append(f"{before.status} -> {now.status}" + (f": {now.error}" if now.error else ""))
    if answered is not None and now.status != "down":
        if has_restarted(answered, now):
            changes.append("restarted")
        changes += configuration_changes(answered, now)
    return changes

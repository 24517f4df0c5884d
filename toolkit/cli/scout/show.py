"""How `toolkit scout` shows what it saw, as JSON lines; `scout_table` shows the same as tables."""

from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Self

from toolkit.cli.output import print_json
from toolkit.records import Host, Sighting

JSON_KEYS = [field.name for field in fields(Sighting) if field.name != "readings"]


class SightingShow:
    """Collects the newest sighting of each host; a kind of show decides what to print when."""

    def __init__(self, hosts: Sequence[Host]) -> None:
        self._order = [host.name for host in hosts]
        self._newest: dict[str, Sighting] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *details: object) -> None:
        if kind is None:
            self.close()

    def add(self, sighting: Sighting) -> None:
        """Take a new sighting."""
        self._newest[sighting.name] = sighting

    def close(self) -> None:
        """Print what is left to print."""

    @property
    def sightings(self) -> list[Sighting]:
        """The newest sighting of each host, in the order of the hosts file."""
        return [self._newest[name] for name in self._order if name in self._newest]

    @property
    def all_down(self) -> bool:
        """Whether every host that was looked at is down."""
        return bool(self._newest) and all(s.status == "down" for s in self._newest.values())


class JsonSightings(SightingShow):
    """Prints one line for each host at the end, in the order of the hosts file."""

    def close(self) -> None:
        """Print the newest sighting of each host."""
        print_sightings(self.sightings)


class JsonStream(SightingShow):
    """Prints each sighting as one line as soon as it is there."""

    def add(self, sighting: Sighting) -> None:
        """Print a new sighting."""
        super().add(sighting)
        print_json(as_object(sighting))


def as_object(sighting: Sighting) -> dict[str, Any]:
    """The JSON object of a sighting: the record's fields without the raw readings."""
    return {key: getattr(sighting, key) for key in JSON_KEYS}


def print_sightings(sightings: Sequence[Sighting]) -> None:
    """Print a line of JSON for each."""
    for sighting in sightings:
        print_json(as_object(sighting))

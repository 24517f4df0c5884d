"""What `scout` saw, kept: sightings of hosts, and the raw numbers of each sighting.

    hosts --< sightings --< readings >-- series

It never decides what a sighting means.
"""

import json
import math
import sqlite3
from collections.abc import Collection, Sequence
from pathlib import Path

from toolkit.database import Columns, Database, to_text, unreadable
from toolkit.records import Host, Reading, Sighting

SERIES_CACHE_SIZE = 20_000
"""Series whose id is remembered: 100 hosts of 130 gauges and counters each, with room. 13 MB."""

_SIGHTINGS = Columns(Sighting, elsewhere=("name", "url", "readings"))
_INSERT_SIGHTING = _SIGHTINGS.insertion("sightings", "host_id")
_NEWEST_FIRST = (
    f"SELECT {', '.join(_SIGHTINGS.names)} FROM sightings "  # noqa: S608 (fields of our own record)
    "WHERE host_id = ? AND at >= ? AND (status <> 'down') >= ? "
    "AND (config_hash IS NOT NULL) >= ? ORDER BY at DESC, id DESC LIMIT ?"
)
# CROSS JOIN: hosts in order outside, each one's stretch of the index inside, so that nothing is sorted.
_BETWEEN = (
    f"SELECT hosts.name, hosts.url, {', '.join(f'sightings.{name}' for name in _SIGHTINGS.names)} "  # noqa: S608
    "FROM hosts CROSS JOIN sightings ON sightings.host_id = hosts.id "
    "WHERE sightings.at BETWEEN ? AND ? ORDER BY hosts.name, hosts.url, sightings.at, sightings.id"
)
_INSERT_READING = "INSERT INTO readings VALUES (?, ?, ?) ON CONFLICT DO NOTHING"
_READINGS = """
    SELECT series.name, series.labels, readings.value
    FROM readings JOIN series ON series.id = readings.series_id
    WHERE readings.sighting_id = (
        SELECT sightings.id FROM sightings JOIN hosts ON hosts.id = sightings.host_id
        WHERE hosts.name = ? AND hosts.url = ? AND sightings.at = ?
        ORDER BY sightings.id DESC LIMIT 1
    )
"""
_SIGHTED_NAMES = """
    SELECT DISTINCT name FROM hosts
    WHERE EXISTS (SELECT 1 FROM sightings WHERE sightings.host_id = hosts.id)
    ORDER BY name
"""


def _reading(name: str, labels: str, value: float | None) -> Reading:
    try:
        pairs = tuple(sorted((str(label), str(said)) for label, said in json.loads(labels).items()))
    except (ValueError, AttributeError) as error:
        raise unreadable("`labels` of a stored reading") from error
    return Reading(name=name, labels=pairs, value=math.nan if value is None else value)


class Looks(Database):
    """The sightings and readings of one open database file."""

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        super().__init__(connection, path)
        self._series_ids: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}

    def add_sightings(self, sightings: Sequence[Sighting], hosts: Sequence[Host] = ()) -> None:
        """Store all or none of the sightings; `hosts` says what hosts.txt tells about the seen.

        NaN in a sighting's own fields becomes None, as does an integer past 64 bits; a reading's NaN
        stays. Of two readings of one series in one sighting the first stays.
        """
        if not sightings:
            return
        # ids of series that a failed batch made are rolled back with it
        with self._transaction(undo=self._series_ids.clear):
            for sighting in sightings:
                self._add_sighting(sighting)
            self._describe(hosts)

    def last_sighting(self, name: str, url: str) -> Sighting | None:
        """Look up the sighting with the latest `at`, without its readings."""
        return next(iter(self._history(name, url, since=-math.inf, limit=1)), None)

    def last_telling(self, name: str, url: str) -> Sighting | None:
        """Look up what to compare a host with: the latest sighting that told its settings.

        Where none ever did, the latest in which it answered at all.
        """
        told = self._history(name, url, -math.inf, limit=1, up=True, telling=True)
        answered = told or self._history(name, url, -math.inf, limit=1, up=True)
        return next(iter(answered), None)

    def sightings(
        self, name: str, *, since: float | None = None, limit: int | None = None
    ) -> list[Sighting]:
        """List what was seen under a name, at any URL, oldest first, without readings.

        `since` is the earliest `at`, seconds since 1970; of more than `limit` the newest stay.
        """
        urls = self._rows("SELECT url FROM hosts WHERE name = ?", (to_text(name),))
        start = -math.inf if since is None else since
        # SQLite reads a negative limit as none
        count = -1 if limit is None else max(0, limit)
        seen = [s for (url,) in urls for s in self._history(name, url, start, count)]
        seen.sort(key=lambda sighting: sighting.at)
        return seen if count < 0 else seen[max(0, len(seen) - count) :]

    def sightings_between(
        self, from_at: float, to_at: float, *, names: Collection[str] | None = None
    ) -> list[Sighting]:
        """List what was seen between two moments, both included, by host and time, without readings.

        `names` are the hosts wanted; None: all.
        """
        wanted = None if names is None else {to_text(name) for name in names}
        return [
            _SIGHTINGS.record(row, name=name, url=url, readings=())
            for name, url, *row in self._rows(_BETWEEN, (from_at, to_at))
            if wanted is None or name in wanted
        ]

    def readings(self, sighting: Sighting) -> tuple[Reading, ...]:
        """Look up the raw gauges and counters of a stored sighting, by name and labels."""
        key = (to_text(sighting.name), to_text(sighting.url), sighting.at)
        found = [_reading(*row) for row in self._rows(_READINGS, key)]
        return tuple(sorted(found, key=lambda reading: (reading.name, reading.labels)))

    def known_names(self) -> list[str]:
        """List the names of all hosts ever sighted, for the hint after a name that is not known."""
        return [name for (name,) in self._rows(_SIGHTED_NAMES)]

    def _history(
        self,
        name: str,
        url: str,
        since: float,
        limit: int,
        *,
        up: bool = False,
        telling: bool = False,
    ) -> list[Sighting]:
        host_ids = self._rows(
            "SELECT id FROM hosts WHERE name = ? AND url = ?", (to_text(name), to_text(url))
        )
        rows = [
            row
            for (id_,) in host_ids
            for row in self._rows(_NEWEST_FIRST, (id_, since, up, telling, limit))
        ]
        return [_SIGHTINGS.record(row, name=name, url=url, readings=()) for row in reversed(rows)]

    # Below: inside the transaction of add_sightings.

    def _add_sighting(self, sighting: Sighting) -> None:
        host_id = self._host_id(sighting.name, sighting.url, sighting.at)
        added = self._connection.execute(_INSERT_SIGHTING, [host_id, *_SIGHTINGS.row(sighting)])
        rows = [(added.lastrowid, self._series_id(r), r.value) for r in sighting.readings]
        self._connection.executemany(_INSERT_READING, rows)

    def _series_id(self, reading: Reading) -> int:
        key = (reading.name, reading.labels)
        known = self._series_ids.get(key)
        if known is not None:
            return known
        if len(self._series_ids) >= SERIES_CACHE_SIZE:
            self._series_ids.clear()  # refills in one tick; an order of use would cost every tick
        row = (to_text(reading.name), json.dumps(dict(reading.labels), sort_keys=True))
        self._series_ids[key] = self._id_of(
            "SELECT id FROM series WHERE name = ? AND labels = ?",
            row,
            "INSERT INTO series (name, labels) VALUES (?, ?)",
            row,
        )
        return self._series_ids[key]

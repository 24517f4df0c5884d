"""What `scout` saw, kept: snapshots of hosts, and the raw numbers of each.

    hosts --< sightings --< readings >-- series

It never decides what a snapshot means.
"""

import json
import math
from collections.abc import Collection, Sequence

from toolkit.records import Host, Reading, Sighting
from toolkit.store.database import Columns, Database, to_text, unreadable

_SIGHTINGS = Columns(Sighting, elsewhere=("name", "url", "readings"))
_INSERT_SIGHTING = _SIGHTINGS.insertion("sightings", "host_id")
_INSERT_READING = "INSERT INTO readings VALUES (?, ?, ?) ON CONFLICT DO NOTHING"

# CROSS JOIN: hosts in order outside, each one's stretch of the index inside, so that nothing is sorted.
_SIGHTINGS_OF_HOSTS = f"""
    SELECT hosts.name, hosts.url, {_SIGHTINGS.of("sightings")}
    FROM hosts CROSS JOIN sightings ON sightings.host_id = hosts.id
"""
_HISTORY = f"""{_SIGHTINGS_OF_HOSTS}
    WHERE hosts.name = ? ORDER BY sightings.at, sightings.id
"""
_LAST_UP = f"""{_SIGHTINGS_OF_HOSTS}
    WHERE hosts.name = ? AND hosts.url = ? AND sightings.status <> 'down'
    AND (sightings.config_hash IS NOT NULL) >= ?
    ORDER BY sightings.at DESC, sightings.id DESC LIMIT 1
"""
# of each host one look into the index of its sightings
_NEWEST = f"""
    SELECT hosts.name, hosts.url, {_SIGHTINGS.of("sightings")}
    FROM hosts JOIN sightings ON sightings.id = (
        SELECT id FROM sightings AS of_host
        WHERE host_id = hosts.id AND at <= ? AND (config_hash IS NOT NULL) >= ?
        ORDER BY at DESC, id DESC LIMIT 1
    )
    ORDER BY hosts.name, sightings.at
"""
_BETWEEN = f"""{_SIGHTINGS_OF_HOSTS}
    WHERE sightings.at BETWEEN ? AND ? ORDER BY hosts.name, hosts.url, sightings.at, sightings.id
"""
_READINGS = """
    SELECT series.name, series.labels, readings.value
    FROM readings JOIN series ON series.id = readings.series_id
    WHERE readings.sighting_id = (
        SELECT sightings.id FROM sightings JOIN hosts ON hosts.id = sightings.host_id
        WHERE hosts.name = ? AND hosts.url = ? AND sightings.at = ?
        ORDER BY sightings.id DESC LIMIT 1
    )
"""
_NAMES_SEEN = """
    SELECT DISTINCT name FROM hosts
    WHERE EXISTS (SELECT 1 FROM sightings WHERE sightings.host_id = hosts.id) ORDER BY name
"""
_IS_NEW_LOOSE_EVENT = """
    theirs.run_number IS NULL AND NOT EXISTS (
        SELECT 1 FROM main.events AS mine
        WHERE mine.run_number IS NULL AND mine.host_id IS host_ids.mine
        AND (mine.at, mine.kind, mine.text) = (theirs.at, theirs.kind, theirs.text)
    )
    ORDER BY theirs.id
"""


class Snapshots(Database):
    """The snapshots of one open database file, with their raw numbers."""

    def add_sightings(self, sightings: Sequence[Sighting], hosts: Sequence[Host] = ()) -> None:
        """Store all or none of the sightings; `hosts` says what hosts.txt tells about the seen.

        NaN in a sighting's own fields becomes None, as does an integer past 64 bits; a reading's NaN
        stays. Of two readings of one series in one sighting the first stays.
        """
        if not sightings:
            return
        with self._transaction():
            for sighting in sightings:
                host_id = self._host_id(sighting.name, sighting.url, sighting.at)
                row = [host_id, *_SIGHTINGS.row(sighting)]
                sighting_id = self._connection.execute(_INSERT_SIGHTING, row).lastrowid
                rows = [(sighting_id, self._series_id(r), r.value) for r in sighting.readings]
                self._connection.executemany(_INSERT_READING, rows)
            self._describe(hosts)

    def last_telling(self, name: str, url: str) -> Sighting | None:
        """Look up what to compare a host with: the latest sighting that told its settings.

        Where none ever did, the latest in which it answered at all.
        """
        for tells_settings in (True, False):
            found = self._rows(_LAST_UP, (to_text(name), to_text(url), tells_settings))
            if found:
                return _sighting(found[0])
        return None

    def sightings(self, name: str) -> list[Sighting]:
        """List what was seen under a name, at any URL, oldest first, without readings."""
        return [_sighting(row) for row in self._rows(_HISTORY, (to_text(name),))]

    def sightings_between(
        self, from_at: float, to_at: float, *, names: Collection[str] | None = None
    ) -> list[Sighting]:
        """List what was seen between two moments, both included, by host and time, without readings.

        `names` are the hosts wanted; None: all.
        """
        wanted = None if names is None else {to_text(name) for name in names}
        return [
            _sighting(row)
            for row in self._rows(_BETWEEN, (from_at, to_at))
            if wanted is None or row[0] in wanted
        ]

    def newest_sightings(self, until: float, *, telling: bool = False) -> list[Sighting]:
        """List each host's last sighting up to a moment, by name and time, without readings.

        `telling`: the last that told its settings; a host that never did is left out.
        """
        return [_sighting(row) for row in self._rows(_NEWEST, (until, telling))]

    def readings(self, sighting: Sighting) -> tuple[Reading, ...]:
        """Look up the raw gauges and counters of a stored sighting, by name and labels."""
        found = []
        of = (to_text(sighting.name), to_text(sighting.url), sighting.at)
        for name, text, value in self._rows(_READINGS, of):
            try:
                labels = sorted((str(label), str(said)) for label, said in json.loads(text).items())
            except (ValueError, AttributeError) as error:
                raise unreadable("`labels` of a stored reading") from error
            number = math.nan if value is None else value
            found.append(Reading(name=name, labels=tuple(labels), value=number))
        return tuple(sorted(found, key=lambda reading: (reading.name, reading.labels)))

    def known_names(self) -> list[str]:
        """List the names of all hosts ever sighted, for the hint after a name that is not known."""
        return [name for (name,) in self._rows(_NAMES_SEEN)]

    def sightings_before(self, before: float) -> int:
        """Count what was seen before a moment."""
        [(count,)] = self._rows("SELECT count(*) FROM sightings WHERE at < ?", (before,))
        return int(count)

    def remove_sightings(self, before: float) -> int:
        """Forget what was seen, and the events of no run, before a moment; tell how many sightings that were."""
        with self._transaction():
            self._connection.execute(
                "DELETE FROM readings WHERE sighting_id IN (SELECT id FROM sightings WHERE at < ?)",
                (before,),
            )
            self._connection.execute(
                "DELETE FROM events WHERE run_number IS NULL AND at < ?", (before,)
            )
            gone = self._connection.execute("DELETE FROM sightings WHERE at < ?", (before,))
            return gone.rowcount

    def copy_sightings(self) -> int:
        """Take over what this file has not seen from the file beside, and events of no run; tell how many sightings."""
        with self._transaction():
            [last] = self._connection.execute("SELECT max(id) FROM main.sightings").fetchone()
            new = self._share("sighting_id")
            self._copy("readings", "sighting_ids.mine > :last", {"last": last or 0})
            self._copy("events", _IS_NEW_LOOSE_EVENT, {})
            return new

    def _series_id(self, reading: Reading) -> int:
        """Inside a transaction."""
        known = self._known["series"]
        found = known.get((reading.name, reading.labels))
        if found is None:
            labels = json.dumps(dict(reading.labels), sort_keys=True)
            found = self._found_or_added(
                "series", {"name": to_text(reading.name), "labels": labels}
            )
            known[reading.name, reading.labels] = found
        return int(found)


def _sighting(row: Sequence[object]) -> Sighting:
    name, url, *columns = row
    return _SIGHTINGS.record(columns, name=name, url=url, readings=())

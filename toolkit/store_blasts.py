"""What blasts measured, kept: who takes part, tallies, seconds of the load generator, and events.

    runs --< run_hosts      >-- hosts
         --< tallies        >-- hosts, workers
         --< loader_seconds >-- workers
         --< events         >-- hosts

Tallies are only ever added. It never decides what a tally means, and never holds a prompt's or an answer's text.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from functools import cache
from typing import Any

from toolkit.database import Columns, to_text
from toolkit.errors import ToolkitError
from toolkit.records import (
    ErrorCount,
    Event,
    Host,
    LoaderSecond,
    Part,
    Shot,
    Sums,
    Tally,
    TallyKind,
)
from toolkit.sketches import merged
from toolkit.store_runs import Keys, Runs

TOGETHER = "+"
"""Between the names of the workers whose parts one row sums."""

_MOST = 2**63 - 1
"""The largest integer of a column; a host that tells absurd usage must not cost all hosts the second."""

_TALLIES = Columns(Tally, elsewhere=("run", "name", "url", "worker"))
_LOADER_SECONDS = Columns(LoaderSecond, elsewhere=("run", "worker"))
_EVENTS = Columns(Event, elsewhere=("run", "name", "url"))
_SUMMED = tuple(field.name for field in fields(Sums))

_INSERT_TALLY = _TALLIES.insertion("tallies", "run_number", "host_id", "worker_id")
_INSERT_LOADER_SECOND = (
    _LOADER_SECONDS.insertion("loader_seconds", "run_number", "worker_id")
    + " ON CONFLICT DO NOTHING"
)
_INSERT_EVENT = _EVENTS.insertion("events", "run_number", "host_id")
_INSERT_RUN_HOST = (
    "INSERT INTO run_hosts (run_number, host_id) VALUES (?, ?) ON CONFLICT DO NOTHING"
)

# The S608s: every inserted name is a field of our own record.
_PART = f"SELECT id, host_id, {', '.join(Part._fields[2:])} FROM tallies "  # noqa: S608
_NUMBER = "(SELECT number FROM runs WHERE id = :run)"
_FOLLOWING = (
    f"{_PART} INDEXED BY idx_tallies_ranked "
    f"WHERE run_number = {_NUMBER} AND kind = 'ranked' AND id > :after "
    "AND at_s BETWEEN :from_s AND :to_s ORDER BY id LIMIT :limit"
)
# A window of a long run: its rows' ids from the index alone, then the rows in the order of the file.
_WINDOW = (
    f"{_PART} WHERE id IN (SELECT id FROM tallies "  # noqa: S608
    "INDEXED BY idx_tallies_run_number_at_s_kind "
    f"WHERE run_number = {_NUMBER} AND at_s BETWEEN :from_s AND :to_s "
    "AND kind = 'ranked' AND id > :after ORDER BY id LIMIT :limit) ORDER BY id"
)
_TALLIES_OF_RUN = (
    "SELECT hosts.name, hosts.url, workers.name, "  # noqa: S608
    f"{', '.join(f'tallies.{name}' for name in _TALLIES.names)} "
    "FROM tallies JOIN hosts ON hosts.id = tallies.host_id "
    "JOIN workers ON workers.id = tallies.worker_id "
    f"WHERE tallies.run_number = {_NUMBER} AND tallies.at_s BETWEEN :from_s AND :to_s "
    "AND hosts.name = coalesce(:name, hosts.name) AND tallies.kind = coalesce(:kind, tallies.kind) "
    "ORDER BY tallies.at_s, tallies.id"
)
# In halves, as SQLite's sum() refuses what passes 64 bits, and total() is a float.
_HALVES = ", ".join(f"sum({name} >> 32), sum({name} & 4294967295)" for name in _SUMMED)
_SUMS_OF_RUN = (
    f"SELECT hosts.name, hosts.url, tallies.kind, {_HALVES} "  # noqa: S608
    "FROM tallies JOIN hosts ON hosts.id = tallies.host_id "
    f"WHERE tallies.run_number = {_NUMBER} GROUP BY tallies.host_id, tallies.kind "
    "ORDER BY hosts.name, hosts.url, tallies.kind DESC"
)
_LOADER_SECONDS_OF_RUN = (
    "SELECT loader_seconds.id, workers.name, "  # noqa: S608
    f"{', '.join(f'loader_seconds.{name}' for name in _LOADER_SECONDS.names)} "
    "FROM loader_seconds INDEXED BY idx_loader_seconds_run_number "
    "JOIN workers ON workers.id = loader_seconds.worker_id "
    f"WHERE loader_seconds.run_number = {_NUMBER} AND loader_seconds.id > :after "
    "AND loader_seconds.at_s >= :from_s ORDER BY loader_seconds.id"
)
_LAST_SECOND = (
    f"SELECT (SELECT max(at_s) FROM tallies WHERE run_number = {_NUMBER}), "  # noqa: S608
    f"(SELECT max(at_s) FROM loader_seconds WHERE run_number = {_NUMBER})"
)
_LAST_ROW = (
    f"SELECT max(id) FROM tallies INDEXED BY idx_tallies_ranked WHERE run_number = {_NUMBER} "  # noqa: S608
    "AND kind = 'ranked'"
)
# A run that was killed has no end; then it was over when the next of its verb began.
_EVENTS_OF_RUN = (
    "SELECT events.id, events.run_number IS NOT NULL, hosts.name, hosts.url, "  # noqa: S608
    f"{', '.join(f'events.{name}' for name in _EVENTS.names)} "
    "FROM runs JOIN events ON events.run_number = runs.number "
    "OR events.run_number IS NULL AND events.at BETWEEN runs.started_at AND coalesce("
    "runs.ended_at, (SELECT min(later.started_at) FROM runs AS later "
    "WHERE later.verb = runs.verb AND later.started_at > runs.started_at), 9e999) "
    "LEFT JOIN hosts ON hosts.id = events.host_id "
    "WHERE runs.id = :run AND events.id > :after ORDER BY events.id"
)
_HOSTS_OF_RUN = (
    "SELECT hosts.id, hosts.name, hosts.url, hosts.team, hosts.model, hosts.note "  # noqa: S608
    "FROM run_hosts JOIN hosts ON hosts.id = run_hosts.host_id "
    f"WHERE run_hosts.run_number = {_NUMBER} ORDER BY run_hosts.id"
)


class Blasts(Runs):
    """The blasts of one open database file: runs with tallies, seconds of the load generator and events."""

    def plan_hosts(self, run_id: str, hosts: Sequence[Host]) -> None:
        """Remember in this order who takes part in a stored run, whether or not it ever answers."""
        with self._transaction():
            keys = self._keys()
            rows = [keys(run_id, host.name, host.url) for host in hosts]
            self._connection.executemany(_INSERT_RUN_HOST, rows)
            self._describe(hosts)

    def add_tallies(self, tallies: Sequence[Tally]) -> None:
        """Store all or none of the tallies, of stored runs, a row each; every one counts.

        A worker may count late what belongs to a second that it told already. So whoever hears workers drops a
        message that comes twice.
        """
        if tallies:
            with self._transaction():
                self._insert_tallies(tallies, self._keys())

    def add_loader_seconds(self, seconds: Sequence[LoaderSecond]) -> None:
        """Store all or none of the seconds, of stored runs; of a worker's second the first word stays."""
        if seconds:
            with self._transaction():
                self._insert_loader_seconds(seconds)

    def add_event(self, event: Event) -> None:
        """Store an event, of a stored run or of none."""
        with self._transaction():
            self._insert_events([event], self._keys())

    def add_second(
        self,
        tallies: Sequence[Tally] = (),
        seconds: Sequence[LoaderSecond] = (),
        shots: Sequence[Shot] = (),
        events: Sequence[Event] = (),
    ) -> None:
        """Store what a blast's master heard since the last time, all or nothing.

        What several workers counted of one host, second and kind becomes one row, whose worker is `a+b`: four
        workers would else write, and every window read, four rows for one.
        """
        if not (tallies or seconds or shots or events):
            return
        try:
            summed = _summed(tallies)
        except ValueError as error:
            raise ToolkitError(f"a tally cannot be stored: {error}") from error
        with self._transaction():
            keys = self._keys()
            self._insert_tallies(summed, keys)
            self._insert_loader_seconds(seconds)
            self._insert_shots(shots, keys)
            self._insert_events(events, keys)

    def hosts_of(self, run_id: str) -> dict[int, Host]:
        """Who takes part in a run, planned or met, by the database's number, in the order of the plan."""
        found = self._rows(_HOSTS_OF_RUN, {"run": to_text(run_id)})
        return {
            number: Host(name=name, url=url, team=team, model=model, note=note)
            for number, name, url, team, model, note in found
        }

    def parts(
        self,
        run_id: str,
        *,
        after_row: int = 0,
        from_s: int | None = None,
        to_s: int | None = None,
        limit: int | None = None,
    ) -> list[Part]:
        """List what a window needs of a run's ranked tallies, in the order of writing.

        Only those of rows past `after_row` and of the seconds from `from_s` to `to_s`, both included; of
        more than `limit` the first.
        """
        is_window = after_row <= 0 and (from_s is not None or to_s is not None)
        found = self._rows(
            _WINDOW if is_window else _FOLLOWING,
            {
                **_seconds(run_id, from_s, to_s),
                "after": after_row,
                # SQLite reads a negative limit as none
                "limit": -1 if limit is None else max(0, limit),
            },
        )
        return list(map(Part._make, found))

    def last_row(self, run_id: str) -> int:
        """The last part's row: whoever follows from there reads only what is new; 0 before the first."""
        [(row,)] = self._rows(_LAST_ROW, {"run": to_text(run_id)})
        return row or 0

    def last_second(self, run_id: str) -> int | None:
        """The latest second that any worker told of, since 1970."""
        [seconds] = self._rows(_LAST_SECOND, {"run": to_text(run_id)})
        return max((second for second in seconds if second is not None), default=None)

    def tallies(
        self,
        run_id: str,
        *,
        name: str | None = None,
        kind: TallyKind | None = None,
        from_s: int | None = None,
        to_s: int | None = None,
    ) -> list[Tally]:
        """List a run's tallies whole, by second, those of one second in the order of writing."""
        wanted = {"name": None if name is None else to_text(name), "kind": kind}
        found = self._rows(_TALLIES_OF_RUN, {**_seconds(run_id, from_s, to_s), **wanted})
        return [
            _TALLIES.record(row, run=run_id, name=host, url=url, worker=worker)
            for host, url, worker, *row in found
        ]

    def tally_sums(self, run_id: str) -> dict[tuple[str, str, TallyKind], Sums]:
        """What a run's tallies add up to, by host (name, URL) and kind, exactly."""
        sums: dict[tuple[str, str, TallyKind], Sums] = {}
        for name, url, kind, *halves in self._rows(_SUMS_OF_RUN, {"run": to_text(run_id)}):
            wholes = [(high << 32) + low for high, low in zip(*[iter(halves)] * 2, strict=True)]
            sums[name, url, kind] = Sums(**dict(zip(_SUMMED, wholes, strict=True)))
        return sums

    def loader_seconds(
        self, run_id: str, *, after_row: int = 0, from_s: int | None = None
    ) -> list[tuple[int, LoaderSecond]]:
        """List (row, second) of a run's load generator in the order of writing, past a row."""
        found = self._rows(
            _LOADER_SECONDS_OF_RUN, {**_seconds(run_id, from_s, None), "after": after_row}
        )
        return [
            (row, _LOADER_SECONDS.record(values, run=run_id, worker=worker))
            for row, worker, *values in found
        ]

    def events(self, run_id: str, *, after_row: int = 0) -> list[tuple[int, Event]]:
        """List (row, event) of a run in the order of writing, past a row.

        Events of no run belong to every run that was on at their moment.
        """
        found = self._rows(_EVENTS_OF_RUN, {"run": to_text(run_id), "after": after_row})
        return [
            (row, _EVENTS.record(values, run=run_id if is_its_own else None, name=name, url=url))
            for row, is_its_own, name, url, *values in found
        ]

    # Below: inside a transaction.

    def _insert_tallies(self, tallies: Iterable[Tally], keys: Keys) -> None:
        worker_id = self._worker_ids()
        taking_part: dict[tuple[int, int], None] = {}
        rows = []
        for tally in tallies:
            key = keys(tally.run, tally.name, tally.url)
            taking_part[key] = None
            rows.append((*key, worker_id(tally.worker), *_TALLIES.row(_capped(tally))))
        self._connection.executemany(_INSERT_RUN_HOST, taking_part)
        self._connection.executemany(_INSERT_TALLY, rows)

    def _insert_loader_seconds(self, seconds: Iterable[LoaderSecond]) -> None:
        worker_id = self._worker_ids()
        rows = [
            (self._run_row(each.run)[0], worker_id(each.worker), *_LOADER_SECONDS.row(each))
            for each in seconds
        ]
        self._connection.executemany(_INSERT_LOADER_SECOND, rows)

    def _insert_events(self, events: Iterable[Event], keys: Keys) -> None:
        for event in events:
            number = None if event.run is None else self._run_row(event.run)[0]
            row = (number, self._host_of(event, keys), *_EVENTS.row(event))
            self._connection.execute(_INSERT_EVENT, row)

    def _host_of(self, event: Event, keys: Keys) -> int | None:
        if event.name is None:
            return None
        if event.url is None:
            raise ToolkitError(f"an event of `{event.name}` names no URL")
        if event.run is None:
            return self._host_id(event.name, event.url, event.at)
        return keys(event.run, event.name, event.url)[1]

    def _worker_ids(self) -> Callable[[str], int]:
        @cache  # for this batch only: a rollback takes the ids of new workers with it
        def worker_id(name: str) -> int:
            row = (to_text(name),)
            return self._id_of(
                "SELECT id FROM workers WHERE name = ?",
                row,
                "INSERT INTO workers (name) VALUES (?)",
                row,
            )

        return worker_id


def _seconds(run_id: str, from_s: int | None, to_s: int | None) -> dict[str, object]:
    """A question's run and its first and last second, in SQL's names for them."""
    return {
        "run": to_text(run_id),
        "from_s": -_MOST - 1 if from_s is None else from_s,
        "to_s": _MOST if to_s is None else to_s,
    }


def _summed(tallies: Iterable[Tally]) -> list[Tally]:
    """One tally for each host, second and kind of a run."""
    cells: defaultdict[tuple[object, ...], list[Tally]] = defaultdict(list)
    for tally in tallies:
        cells[tally.run, tally.name, tally.url, tally.at_s, tally.kind].append(tally)
    return [said[0] if len(said) == 1 else _sum(said) for said in cells.values()]


def _sum(said: Sequence[Tally]) -> Tally:
    """What several tallies of one host, second and kind tell."""
    kinds: Counter[str] = Counter()
    for tally in said:
        kinds.update({each.kind: each.count for each in tally.error_kinds})
    sums: dict[str, Any] = {name: sum(getattr(one, name) for one in said) for name in _SUMMED}
    return replace(
        said[0],
        worker=TOGETHER.join(sorted({tally.worker for tally in said})),
        error_kinds=tuple(ErrorCount(kind=kind, count=count) for kind, count in kinds.items()),
        e2e=merged(tally.e2e for tally in said),
        ttft=merged(tally.ttft for tally in said),
        **sums,
    )


def _capped(tally: Tally) -> Tally:
    too_large: dict[str, Any] = {name: _MOST for name in _SUMMED if getattr(tally, name) > _MOST}
    return replace(tally, **too_large) if too_large else tally

"""What blasts measured, kept: who takes part, tallies, seconds of the load generator, and events.

    runs --< run_hosts      >-- hosts
         --< tallies        >-- hosts, workers
         --< loader_seconds >-- workers
         --< events         >-- hosts

Tallies are only ever added. It never decides what a tally means, and never holds a prompt's or an answer's text.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Any

from toolkit.errors import ToolkitError
from toolkit.records import (
    ErrorCount,
    Event,
    Host,
    LoaderSecond,
    Part,
    RequestRecord,
    Sums,
    Tally,
    TallyKind,
)
from toolkit.stats import merged
from toolkit.store.database import Columns, to_text
from toolkit.store.runs import RUN_NUMBER, Runs

_MOST = 2**63 - 1
"""The largest integer of a column; a host that tells absurd usage must not cost all hosts the second."""

_TALLIES = Columns(Tally, elsewhere=("run", "name", "url", "worker"))
_LOADER_SECONDS = Columns(LoaderSecond, elsewhere=("run", "worker"))
_EVENTS = Columns(Event, elsewhere=("run", "name", "url"))
_SUMMED = tuple(field.name for field in fields(Sums))
_FIGURES = attrgetter(*_SUMMED)

_INSERT_TALLY = _TALLIES.insertion("tallies", "run_number", "host_id", "worker_id")
_INSERT_LOADER_SECOND = (
    _LOADER_SECONDS.insertion("loader_seconds", "run_number", "worker_id")
    + " ON CONFLICT DO NOTHING"
)
_INSERT_EVENT = _EVENTS.insertion("events", "run_number", "host_id")
_INSERT_RUN_HOST = (
    "INSERT INTO run_hosts (run_number, host_id) VALUES (?, ?) ON CONFLICT DO NOTHING"
)

_PART = f"SELECT id, host_id, {', '.join(Part._fields[2:])} FROM tallies"
_FOLLOWING = f"""
    {_PART} INDEXED BY idx_tallies_ranked
    WHERE run_number = {RUN_NUMBER} AND kind = 'ranked' AND id > :after
    AND at_s BETWEEN :from_s AND :to_s
    ORDER BY id LIMIT :limit
"""
# A window of a long run: its rows' ids from the index alone, then the rows in the order of the file.
_WINDOW = f"""
    {_PART} WHERE id IN (
        SELECT id FROM tallies INDEXED BY idx_tallies_run_number_at_s_kind
        WHERE run_number = {RUN_NUMBER} AND at_s BETWEEN :from_s AND :to_s
        AND kind = 'ranked' AND id > :after
        ORDER BY id LIMIT :limit
    ) ORDER BY id
"""
_LAST_ROW = f"""
    SELECT max(id) FROM tallies INDEXED BY idx_tallies_ranked
    WHERE run_number = {RUN_NUMBER} AND kind = 'ranked'
"""
_LAST_SECOND = f"""
    SELECT max(at_s) FROM (
        SELECT max(at_s) AS at_s FROM tallies WHERE run_number = {RUN_NUMBER}
        UNION ALL SELECT max(at_s) FROM loader_seconds WHERE run_number = {RUN_NUMBER}
    )
"""
_TALLIES_OF_RUN = f"""
    SELECT hosts.name, hosts.url, workers.name, {_TALLIES.of("tallies")}
    FROM tallies JOIN hosts ON hosts.id = tallies.host_id
    JOIN workers ON workers.id = tallies.worker_id
    WHERE tallies.run_number = {RUN_NUMBER} AND tallies.at_s BETWEEN :from_s AND :to_s
    AND hosts.name = coalesce(:name, hosts.name) AND tallies.kind = coalesce(:kind, tallies.kind)
    ORDER BY tallies.at_s, tallies.id
"""
# In halves, as SQLite's sum() refuses what passes 64 bits, and total() is a float.
_HALVES = ", ".join(f"sum({name} >> 32), sum({name} & 4294967295)" for name in _SUMMED)
_SUMS_OF_RUN = f"""
    SELECT hosts.name, hosts.url, tallies.kind, {_HALVES}
    FROM tallies JOIN hosts ON hosts.id = tallies.host_id
    WHERE tallies.run_number = {RUN_NUMBER} GROUP BY tallies.host_id, tallies.kind
    ORDER BY hosts.name, hosts.url, tallies.kind DESC
"""
_LOADER_SECONDS_OF_RUN = f"""
    SELECT loader_seconds.id, workers.name, {_LOADER_SECONDS.of("loader_seconds")}
    FROM loader_seconds INDEXED BY idx_loader_seconds_run_number
    JOIN workers ON workers.id = loader_seconds.worker_id
    WHERE loader_seconds.run_number = {RUN_NUMBER} AND loader_seconds.id > :after
    AND loader_seconds.at_s >= :from_s
    ORDER BY loader_seconds.id
"""
# A run that was killed has no end; then it was over when the next of its verb began.
_EVENTS_OF_RUN = f"""
    SELECT events.id, events.run_number IS NOT NULL, hosts.name, hosts.url, {_EVENTS.of("events")}
    FROM runs JOIN events ON events.run_number = runs.number
    OR events.run_number IS NULL AND events.at BETWEEN runs.started_at AND coalesce(
        runs.ended_at,
        (SELECT min(later.started_at) FROM runs AS later
         WHERE later.verb = runs.verb AND later.started_at > runs.started_at),
        9e999
    )
    LEFT JOIN hosts ON hosts.id = events.host_id
    WHERE runs.id = :run AND events.id > :after ORDER BY events.id
"""
_HOSTS_OF_RUN = f"""
    SELECT hosts.id, hosts.name, hosts.url, hosts.team, hosts.model, hosts.note
    FROM run_hosts JOIN hosts ON hosts.id = run_hosts.host_id
    WHERE run_hosts.run_number = {RUN_NUMBER} ORDER BY run_hosts.id
"""


class Tallies(Runs):
    """The blasts of one open database file: runs with tallies, seconds of the load generator and events."""

    def plan_hosts(self, run_id: str, hosts: Sequence[Host]) -> None:
        """Remember in this order who takes part in a stored run, whether or not it ever answers."""
        with self._transaction():
            rows = [self._key(run_id, host.name, host.url) for host in hosts]
            self._connection.executemany(_INSERT_RUN_HOST, rows)
            self._describe(hosts)

    def add_event(self, event: Event) -> None:
        """Store an event, of a stored run or of none."""
        self.add_second(events=[event])

    def add_second(
        self,
        tallies: Sequence[Tally] = (),
        seconds: Sequence[LoaderSecond] = (),
        shots: Sequence[RequestRecord] = (),
        events: Sequence[Event] = (),
    ) -> None:
        """Store what a blast's master heard since the last time, of stored runs, all or nothing.

        What several workers counted of one host, second and kind becomes one row, whose worker is `a+b`: four
        workers would else write, and every window read, four rows for one. A worker may count late what belongs to a
        second that it told already: that is one more row, so whoever hears workers drops a message that comes twice.
        Of a worker's second of the load generator the first word stays.
        """
        if not (tallies or seconds or shots or events):
            return
        try:
            summed = _summed(tallies)
        except ValueError as error:
            raise ToolkitError(f"a tally cannot be stored: {error}") from error
        with self._transaction():
            keys = [self._key(tally.run, tally.name, tally.url) for tally in summed]
            self._connection.executemany(_INSERT_RUN_HOST, dict.fromkeys(keys))
            rows = [
                (*key, self._worker_id(tally.worker), *_TALLIES.row(tally))
                for key, tally in zip(keys, summed, strict=True)
            ]
            self._connection.executemany(_INSERT_TALLY, rows)
            of_loader = [
                (
                    self._run_row(each.run)[0],
                    self._worker_id(each.worker),
                    *_LOADER_SECONDS.row(each),
                )
                for each in seconds
            ]
            self._connection.executemany(_INSERT_LOADER_SECOND, of_loader)
            self._insert_shots(shots)
            for event in events:
                run_number = None if event.run is None else self._run_row(event.run)[0]
                host_id = None
                if event.name is not None:
                    if event.url is None:
                        raise ToolkitError(f"an event of `{event.name}` names no URL")
                    host_id = self._host_id(event.name, event.url, event.at)
                row = (run_number, host_id, *_EVENTS.row(event))
                self._connection.execute(_INSERT_EVENT, row)

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
        [(second,)] = self._rows(_LAST_SECOND, {"run": to_text(run_id)})
        return None if second is None else int(second)

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

    def _worker_id(self, name: str) -> int:
        """Inside a transaction."""
        known = self._known["workers"]
        if name not in known:
            known[name] = self._found_or_added("workers", {"name": to_text(name)})
        return int(known[name])


def _seconds(run_id: str, from_s: int | None, to_s: int | None) -> dict[str, object]:
    """A question's run and its first and last second, in SQL's names for them."""
    return {
        "run": to_text(run_id),
        "from_s": -_MOST - 1 if from_s is None else from_s,
        "to_s": _MOST if to_s is None else to_s,
    }


def _summed(tallies: Iterable[Tally]) -> list[Tally]:
    """One tally for each host, second and kind of a run, no figure larger than a column can hold."""
    cells: defaultdict[tuple[object, ...], list[Tally]] = defaultdict(list)
    for tally in tallies:
        cells[tally.run, tally.name, tally.url, tally.at_s, tally.kind].append(tally)
    summed = []
    for parts in cells.values():
        if len(parts) == 1 and max(_FIGURES(parts[0])) <= _MOST:
            summed.append(parts[0])  # to make it anew would cost as much as to store it
            continue
        totals = [min(_MOST, sum(column)) for column in zip(*map(_FIGURES, parts), strict=True)]
        kinds: Counter[str] = Counter()
        for part in parts:
            kinds.update({each.kind: each.count for each in part.error_kinds})
        figures: dict[str, Any] = dict(zip(_SUMMED, totals, strict=True))
        whole = replace(
            parts[0],
            worker="+".join(sorted({part.worker for part in parts})),
            error_kinds=tuple(ErrorCount(kind=kind, count=count) for kind, count in kinds.items()),
            e2e=merged(part.e2e for part in parts),
            ttft=merged(part.ttft for part in parts),
            **figures,
        )
        summed.append(whole)
    return summed

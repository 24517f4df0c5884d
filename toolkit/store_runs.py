"""What benches measured, kept: runs, and each host's shots, ledger and verdicts in them.

    runs --< shots    >-- hosts
         --< ledgers  >--
         --< verdicts >--

It never decides what a shot means, and never holds a prompt's or an answer's text.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any

from toolkit.database import Columns, Database, to_text
from toolkit.errors import ToolkitError
from toolkit.records import Host, Ledger, Run, Shot, Verdict

HINTED_RUNS = 5
"""So many of the newest runs are named after one that is not known."""

Keys = Callable[[str, str, str], tuple[int, int]]
"""(Run's id, host's name and URL) -> the run's number and the host's id."""

_RUNS = Columns(Run)
_SHOTS = Columns(Shot, elsewhere=("run", "name", "url"))
_LEDGERS = Columns(Ledger, elsewhere=("run", "name", "url"))
_VERDICTS = Columns(Verdict)

_INSERT_RUN = _RUNS.insertion("runs") + " ON CONFLICT DO NOTHING"
_INSERT_SHOT = _SHOTS.insertion("shots", "run_number", "host_id")
_INSERT_LEDGER = _LEDGERS.insertion("ledgers", "run_number", "host_id") + " ON CONFLICT DO NOTHING"
_INSERT_VERDICT = _VERDICTS.insertion("verdicts", "run_number", "host_id")

# The S608s: every inserted name is a field of our own record.
_NEWEST_RUNS = (
    f"SELECT {', '.join(_RUNS.names)} FROM runs WHERE verb = coalesce(?, verb) "  # noqa: S608
    "ORDER BY started_at DESC, number DESC LIMIT ?"
)
_RUN = f"SELECT {', '.join(_RUNS.names)} FROM runs WHERE id = ?"  # noqa: S608


def _of_run(table: str, names: Sequence[str], order: str) -> str:
    """SQL that reads a table's rows of one run, and of one host's name unless that is NULL.

    CROSS JOIN tells SQLite to walk the hosts in order outside and the table's index inside. Left to
    itself it walks the run's rows and sorts them all.
    """
    columns = ", ".join(f"{table}.{name}" for name in names)
    return (
        f"SELECT hosts.name, hosts.url, {columns} "  # noqa: S608
        f"FROM hosts CROSS JOIN {table} ON {table}.host_id = hosts.id "
        f"WHERE {table}.run_number = (SELECT number FROM runs WHERE id = ?) "
        "AND hosts.name = coalesce(?, hosts.name) "
        f"ORDER BY hosts.name, hosts.url, {table}.{order}"
    )


_SHOTS_OF_RUN = _of_run("shots", _SHOTS.names, "slot, shots.id")
# The innermost walk never leaves the index: only what is kept is looked up.
_SHOTS_BETWEEN = f"""
    SELECT hosts.name, hosts.url, {", ".join(f"shots.{name}" for name in _SHOTS.names)}
    FROM (
        SELECT id AS kept_id, row_number() OVER (PARTITION BY host_id ORDER BY sent_at DESC, id DESC) AS place
        FROM shots
        WHERE run_number = (SELECT number FROM runs WHERE id = ?) AND sent_at BETWEEN ? AND ?
    )
    CROSS JOIN shots ON shots.id = kept_id
    JOIN hosts ON hosts.id = shots.host_id
    WHERE place <= ?
    ORDER BY hosts.name, hosts.url, shots.sent_at, shots.id
"""  # noqa: S608
_LEDGERS_OF_RUN = _of_run("ledgers", _LEDGERS.names, "id")
_VERDICTS_OF_RUN = _of_run("verdicts", _VERDICTS.names, "id")


class Runs(Database):
    """The runs of one open database file, with their shots, ledgers and verdicts.

    What is written is read back bit for bit, but for NaN and integers past 64 bits, which become
    None, lone surrogates, which are spelled out, and -0.0, which becomes 0.0.
    """

    def add_run(self, run: Run) -> None:
        """Store a run that begins; its shots come after it."""
        with self._transaction():
            if not self._connection.execute(_INSERT_RUN, _RUNS.row(run)).rowcount:
                raise ToolkitError(
                    f"`{self._path}` already has a run `{run.id}`",
                    "Start it again: a run draws a new id",
                )

    def end_run(self, run_id: str, *, ended_at: float, client_ok: bool | None) -> None:
        """Say that a stored run is over, and whether the measuring machine kept up."""
        with self._transaction():
            ended = self._connection.execute(
                "UPDATE runs SET ended_at = ?, client_ok = ? WHERE id = ?",
                (ended_at, client_ok, to_text(run_id)),
            )
            if not ended.rowcount:
                raise self._no_run(run_id)

    def reopen_run(self, run_id: str) -> None:
        """Say that a stored run goes on: it has no end any more."""
        with self._transaction():
            reopened = self._connection.execute(
                "UPDATE runs SET ended_at = NULL WHERE id = ?", (to_text(run_id),)
            )
            if not reopened.rowcount:
                raise self._no_run(run_id)

    def add_shots(self, shots: Sequence[Shot], hosts: Sequence[Host] = ()) -> None:
        """Store all or none of the shots, of stored runs; `hosts` says what hosts.txt tells of theirs."""
        if not shots:
            return
        with self._transaction():
            self._insert_shots(shots, self._keys())
            self._describe(hosts)

    def add_ledgers(self, ledgers: Sequence[Ledger]) -> None:
        """Store all or none of the ledgers, one a host and stored run."""
        if not ledgers:
            return
        with self._transaction():
            keys = self._keys()
            for ledger in ledgers:
                row = (*keys(ledger.run, ledger.name, ledger.url), *_LEDGERS.row(ledger))
                if not self._connection.execute(_INSERT_LEDGER, row).rowcount:
                    raise ToolkitError(
                        f"`{self._path}` already has the ledger of `{ledger.name}` in run `{ledger.run}`"
                    )

    def add_verdicts(
        self, run_id: str, verdicts: Mapping[tuple[str, str], Sequence[Verdict]]
    ) -> None:
        """Store each host's (name, URL) verdicts on a stored run, after those that are there already."""
        if not verdicts:
            return
        with self._transaction():
            keys = self._keys()
            rows = [
                (*keys(run_id, *host), *_VERDICTS.row(verdict))
                for host, found in verdicts.items()
                for verdict in found
            ]
            self._connection.executemany(_INSERT_VERDICT, rows)

    def hosts(self) -> list[Host]:
        """List all hosts that anything was ever stored about, the last met first."""
        found = self._rows("SELECT name, url, team, model, note FROM hosts ORDER BY id DESC")
        return [
            Host(name=name, url=url, team=team, model=model, note=note)
            for name, url, team, model, note in found
        ]

    def runs(self, *, verb: str | None = None, limit: int | None = None) -> list[Run]:
        """List runs, the last begun first."""
        # SQLite reads a negative limit as none
        count = -1 if limit is None else max(0, limit)
        wanted = None if verb is None else to_text(verb)
        return [_RUNS.record(row) for row in self._rows(_NEWEST_RUNS, (wanted, count))]

    def run(self, run_id: str) -> Run | None:
        """Look up a run."""
        found = self._rows(_RUN, (to_text(run_id),))
        return _RUNS.record(found[0]) if found else None

    def shots(self, run_id: str, *, name: str | None = None) -> list[Shot]:
        """List a run's shots by host and slot, those of equal slots as they came; none of no such run."""
        return [
            _SHOTS.record(row, run=run_id, name=host, url=url)
            for host, url, *row in self._of_run(_SHOTS_OF_RUN, run_id, name)
        ]

    def shots_between(
        self, run_id: str, from_at: float, to_at: float, *, most_per_host: int = 200
    ) -> list[Shot]:
        """List a run's shots that left between two moments, both included, by host and time.

        Of more than `most_per_host` of a host the newest stay, so that of an old pair one may be missing.
        """
        return [
            _SHOTS.record(row, run=run_id, name=host, url=url)
            for host, url, *row in self._rows(
                _SHOTS_BETWEEN, (to_text(run_id), from_at, to_at, max(0, most_per_host))
            )
        ]

    def ledgers(self, run_id: str) -> list[Ledger]:
        """List a run's ledgers by host."""
        return [
            _LEDGERS.record(row, run=run_id, name=host, url=url)
            for host, url, *row in self._of_run(_LEDGERS_OF_RUN, run_id)
        ]

    def verdicts(self, run_id: str) -> dict[tuple[str, str], tuple[Verdict, ...]]:
        """Each host's (name, URL) verdicts on a run, in the order of writing; one without any has no key."""
        found: dict[tuple[str, str], tuple[Verdict, ...]] = {}
        for host, url, *row in self._of_run(_VERDICTS_OF_RUN, run_id):
            found[host, url] = (*found.get((host, url), ()), _VERDICTS.record(row))
        return found

    def _of_run(self, sql: str, run_id: str, name: str | None = None) -> list[tuple[Any, ...]]:
        return self._rows(sql, (to_text(run_id), None if name is None else to_text(name)))

    # Below: inside a transaction.

    def _insert_shots(self, shots: Sequence[Shot], keys: Keys) -> None:
        rows = [(*keys(shot.run, shot.name, shot.url), *_SHOTS.row(shot)) for shot in shots]
        self._connection.executemany(_INSERT_SHOT, rows)

    def _keys(self) -> Keys:
        """How a row names its run and host; a host not met before was first seen when the run began."""

        @cache  # for this batch only: a rollback takes the ids of new hosts with it
        def keys(run_id: str, name: str, url: str) -> tuple[int, int]:
            number, started_at = self._run_row(run_id)
            return number, self._host_id(name, url, started_at)

        return keys

    def _run_row(self, run_id: str) -> tuple[int, float]:
        found = self._connection.execute(
            "SELECT number, started_at FROM runs WHERE id = ?", (to_text(run_id),)
        ).fetchone()
        if found is None:
            raise self._no_run(run_id)
        return found[0], found[1]

    def _no_run(self, run_id: str) -> ToolkitError:
        newest = self._connection.execute(_NEWEST_RUNS, (None, HINTED_RUNS)).fetchall()
        known = ", ".join(_RUNS.record(row).id for row in newest) or "none yet"
        return ToolkitError(f"`{self._path}` has no run `{run_id}`", f"Known runs: {known}")

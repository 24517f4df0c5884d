"""Runs, kept: what each is, each host's shots, ledger and verdicts in it; whole runs counted, copied and removed.

    runs --< shots, ledgers, verdicts >-- hosts

It never decides what a shot means or which runs to keep, and never holds a prompt's or an answer's text.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from toolkit.errors import ToolkitError
from toolkit.records import Host, Ledger, RequestRecord, Run, Verdict
from toolkit.store.database import USED_BYTES, Columns, Database, to_text

HINTED_RUNS = 5
"""So many of the newest runs are named after one that is not known."""

OF_RUNS = "run_hosts shots ledgers verdicts tallies loader_seconds events seen captures".split()
"""All tables whose rows are of a run."""

RUN_NUMBER = "(SELECT number FROM main.runs WHERE id = :run)"

_RUNS = Columns(Run)
_SHOTS = Columns(RequestRecord, elsewhere=("run", "name", "url"))
_LEDGERS = Columns(Ledger, elsewhere=("run", "name", "url"))
_VERDICTS = Columns(Verdict)

_INSERT_RUN = _RUNS.insertion("runs") + " ON CONFLICT DO NOTHING"
_INSERT_SHOT = _SHOTS.insertion("shots", "run_number", "host_id")
_INSERT_LEDGER = _LEDGERS.insertion("ledgers", "run_number", "host_id") + " ON CONFLICT DO NOTHING"
_INSERT_VERDICT = _VERDICTS.insertion("verdicts", "run_number", "host_id")

_RUN = f"SELECT {_RUNS.of('runs')} FROM runs WHERE id = ?"
_NEWEST_RUNS = f"""
    SELECT {_RUNS.of("runs")} FROM runs WHERE verb = coalesce(?, verb)
    ORDER BY started_at DESC, number DESC LIMIT ?
"""


def _of_run(table: str, columns: Columns[Any], order: str) -> str:
    """SQL that reads a table's rows of one run, and of one host's name unless that is NULL.

    CROSS JOIN tells SQLite to walk the hosts in order outside and the table's index inside. Left to
    itself it walks the run's rows and sorts them all.
    """
    return f"""
        SELECT hosts.name, hosts.url, {columns.of(table)}
        FROM hosts CROSS JOIN {table} ON {table}.host_id = hosts.id
        WHERE {table}.run_number = {RUN_NUMBER} AND hosts.name = coalesce(:name, hosts.name)
        ORDER BY hosts.name, hosts.url, {table}.{order}
    """


_SHOTS_OF_RUN = _of_run("shots", _SHOTS, "slot, shots.id")
_LEDGERS_OF_RUN = _of_run("ledgers", _LEDGERS, "id")
_VERDICTS_OF_RUN = _of_run("verdicts", _VERDICTS, "id")
# The innermost walk never leaves the index: only what is kept is looked up.
_SHOTS_BETWEEN = f"""
    SELECT hosts.name, hosts.url, {_SHOTS.of("shots")}
    FROM (
        SELECT id AS kept_id, row_number() OVER (PARTITION BY host_id ORDER BY sent_at DESC, id DESC) AS place
        FROM shots
        WHERE run_number = {RUN_NUMBER} AND sent_at BETWEEN :from_at AND :to_at
    )
    CROSS JOIN shots ON shots.id = kept_id
    JOIN hosts ON hosts.id = shots.host_id
    WHERE place <= :most
    ORDER BY hosts.name, hosts.url, shots.sent_at, shots.id
"""

_CONTENT = f"""
    SELECT
        (SELECT count(*) FROM (
            SELECT host_id FROM run_hosts WHERE run_number = {RUN_NUMBER}
            UNION SELECT host_id FROM shots WHERE run_number = {RUN_NUMBER}
            UNION SELECT host_id FROM ledgers WHERE run_number = {RUN_NUMBER}
        )),
        -- a blast's shots are some of its tallied requests
        coalesce(tallied.requests, timed.requests, 0) + coalesce(arrived.requests, 0),
        coalesce(tallied.errors, timed.errors, 0) + coalesce(arrived.errors, 0),
        nullif(max(
            coalesce(timed.last_at, -9e999),
            coalesce((SELECT max(at_s) FROM loader_seconds WHERE run_number = {RUN_NUMBER}), -9e999),
            coalesce(arrived.written_at, -9e999)
        ), -9e999)
    FROM
        (SELECT sum(ok + errors) AS requests, sum(errors) AS errors
         FROM tallies WHERE run_number = {RUN_NUMBER}) AS tallied,
        (SELECT count(*) AS requests, sum(NOT ok) AS errors, max(sent_at) AS last_at
         FROM shots WHERE run_number = {RUN_NUMBER} AND kind <> 'warmup') AS timed,
        (SELECT sum(requests) AS requests, sum(errors) AS errors, max(written_at) AS written_at
         FROM captures WHERE run_number = {RUN_NUMBER}) AS arrived
"""

# From the run's first row to its last, in the order of writing; its index would have them sorted, blobs and all.
_ROWS_OF_RUN = """
    +theirs.run_number = :theirs
    AND theirs.id >= (SELECT min(id) FROM other.{table} WHERE run_number = :theirs)
    AND theirs.id <= (SELECT max(id) FROM other.{table} WHERE run_number = :theirs)
    ORDER BY theirs.id
"""
_ADD_TEXTS = """
    UPDATE main.prompts SET prompt_text = theirs.prompt_text
    FROM other.prompts AS theirs JOIN temp.prompt_ids ON prompt_ids.theirs = theirs.id
    WHERE prompts.prompt_key = theirs.prompt_key
    AND prompts.prompt_text IS NULL AND theirs.prompt_text NOTNULL
"""
_REMOVE_UNSEEN = (
    "DELETE FROM bodies WHERE id NOT IN (SELECT body_id FROM seen WHERE body_id NOTNULL)",
    "DELETE FROM prompts WHERE id NOT IN (SELECT prompt_id FROM bodies WHERE prompt_id NOTNULL)",
    "DELETE FROM clients WHERE id NOT IN (SELECT client_id FROM seen WHERE client_id NOTNULL)",
    "DELETE FROM targets WHERE id NOT IN (SELECT target_id FROM seen WHERE target_id NOTNULL)",
)


class Content(NamedTuple):
    """What is stored of a run."""

    hosts: int
    requests: int
    """All that were sent, canaries included, warm-up left out; of a capture all that arrived."""
    errors: int
    """Of a capture the answers of 400 and more, as far as answers were followed."""
    last_at: float | None
    """The latest moment that anything of it is of, seconds since 1970; None: nothing is. Of a capture, which may
    have read an old file: when it last wrote."""


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
            self._connection.execute(
                "UPDATE runs SET ended_at = ?, client_ok = ? WHERE number = ?",
                (ended_at, client_ok, self._run_row(run_id)[0]),
            )

    def reopen_run(self, run_id: str) -> None:
        """Say that a stored run goes on: it has no end any more."""
        with self._transaction():
            self._connection.execute(
                "UPDATE runs SET ended_at = NULL WHERE number = ?", (self._run_row(run_id)[0],)
            )

    def add_shots(self, shots: Sequence[RequestRecord], hosts: Sequence[Host] = ()) -> None:
        """Store all or none of the shots, of stored runs; `hosts` says what hosts.txt tells of theirs."""
        if not shots:
            return
        with self._transaction():
            self._insert_shots(shots)
            self._describe(hosts)

    def add_ledgers(self, ledgers: Sequence[Ledger]) -> None:
        """Store all or none of the ledgers, one a host and stored run."""
        if not ledgers:
            return
        with self._transaction():
            for ledger in ledgers:
                row = (*self._key(ledger.run, ledger.name, ledger.url), *_LEDGERS.row(ledger))
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
            rows = [
                (*self._key(run_id, *host), *_VERDICTS.row(verdict))
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

    def shots(self, run_id: str, *, name: str | None = None) -> list[RequestRecord]:
        """List a run's shots by host and slot, those of equal slots as they came; none of no such run."""
        found = self._rows(_SHOTS_OF_RUN, {"run": to_text(run_id), "name": name and to_text(name)})
        return [_SHOTS.record(row, run=run_id, name=host, url=url) for host, url, *row in found]

    def shots_between(
        self, run_id: str, from_at: float, to_at: float, *, most_per_host: int = 200
    ) -> list[RequestRecord]:
        """List a run's shots that left between two moments, both included, by host and time.

        Of more than `most_per_host` of a host the newest stay, so that of an old pair one may be missing.
        """
        wanted = {"run": to_text(run_id), "from_at": from_at, "to_at": to_at}
        found = self._rows(_SHOTS_BETWEEN, {**wanted, "most": max(0, most_per_host)})
        return [_SHOTS.record(row, run=run_id, name=host, url=url) for host, url, *row in found]

    def ledgers(self, run_id: str) -> list[Ledger]:
        """List a run's ledgers by host."""
        found = self._rows(_LEDGERS_OF_RUN, {"run": to_text(run_id), "name": None})
        return [_LEDGERS.record(row, run=run_id, name=host, url=url) for host, url, *row in found]

    def verdicts(self, run_id: str) -> dict[tuple[str, str], tuple[Verdict, ...]]:
        """Each host's (name, URL) verdicts on a run, in the order of writing; one without any has no key."""
        found: dict[tuple[str, str], tuple[Verdict, ...]] = {}
        for host, url, *row in self._rows(_VERDICTS_OF_RUN, {"run": to_text(run_id), "name": None}):
            found[host, url] = (*found.get((host, url), ()), _VERDICTS.record(row))
        return found

    def content(self, run_id: str) -> Content:
        """Count what is stored of a run."""
        [row] = self._rows(_CONTENT, {"run": to_text(run_id)})
        return Content(*row)

    def remove_run(self, run_id: str) -> None:
        """Forget a run with everything of it; the file keeps its size. No host goes: what is known of it costs nothing."""
        with self._transaction():
            self._run_row(run_id)
            self._remove_run(run_id)

    def used_bytes_without(self, run_ids: Iterable[str], *, enough: int = 0) -> list[int]:
        """What the file would take, without the room they leave, after each of these runs is removed in turn.

        The last told is the first of at most `enough` bytes. It removes them and takes it back, so nobody can write
        meanwhile; reading goes on.
        """
        sizes = []
        with self._transaction():
            self._connection.execute("SAVEPOINT trial")
            for run_id in run_ids:
                self._remove_run(run_id)
                [used] = self._connection.execute(USED_BYTES).fetchone()
                sizes.append(int(used))
                if used <= enough:
                    break
            self._connection.execute("ROLLBACK TO trial")
        return sizes

    def copy_run(self, run_id: str) -> None:
        """Take over a run, which this file must not have yet, with everything of it, from the file beside."""
        name = {"run": to_text(run_id)}
        with self._transaction():
            self._copy("runs", "theirs.id = :run", name)
            mine, _ = self._run_row(run_id)  # says so if neither file has it
            [theirs] = self._connection.execute(
                "SELECT number FROM other.runs WHERE id = :run", name
            ).fetchone()
            numbers = {"mine": mine, "theirs": theirs}

            # what its requests refer to; bodies after what they refer to themselves
            needed = "SELECT {} FROM other.seen WHERE run_number = :theirs"
            bodies = f"SELECT prompt_id FROM other.bodies WHERE id IN ({needed.format('body_id')})"
            self._share("prompt_id", f"theirs.id IN ({bodies})", {"theirs": theirs})
            for column in ("body_id", "client_id", "target_id"):
                self._share(column, f"theirs.id IN ({needed.format(column)})", {"theirs": theirs})
            self._connection.execute(_ADD_TEXTS)
            for table in OF_RUNS:
                rows = (
                    "theirs.run_number = :theirs ORDER BY theirs.ts, theirs.number"
                    if table == "seen"
                    else _ROWS_OF_RUN.format(table=table)
                )
                self._copy(table, rows, numbers, run_number=":mine")

    # Below: inside a transaction.

    def _insert_shots(self, shots: Iterable[RequestRecord]) -> None:
        rows = [(*self._key(shot.run, shot.name, shot.url), *_SHOTS.row(shot)) for shot in shots]
        self._connection.executemany(_INSERT_SHOT, rows)

    def _key(self, run_id: str, name: str, url: str) -> tuple[int, int]:
        """How a row names its run and host; a host not met before was first seen when the run began."""
        known = self._known["keys"]
        found: tuple[int, int] | None = known.get((run_id, name, url))
        if found is None:
            number, started_at = self._run_row(run_id)
            found = known[run_id, name, url] = (number, self._host_id(name, url, started_at))
        return found

    def _run_row(self, run_id: str) -> tuple[int, float]:
        """A run's number, and when it began. Raises ToolkitError where there is no such run."""
        known = self._known["runs"]
        if run_id not in known:
            known[run_id] = self._connection.execute(
                "SELECT number, started_at FROM main.runs WHERE id = ?", (to_text(run_id),)
            ).fetchone()
        if known[run_id] is None:
            newest = self._connection.execute(_NEWEST_RUNS, (None, HINTED_RUNS)).fetchall()
            names = ", ".join(_RUNS.record(row).id for row in newest) or "none yet"
            raise ToolkitError(f"`{self._path}` has no run `{run_id}`", f"Known runs: {names}")
        number, started_at = known[run_id]
        return number, started_at

    def _remove_run(self, run_id: str) -> None:
        name = {"run": to_text(run_id)}
        had_seen = self._connection.execute(
            f"SELECT 1 FROM seen WHERE run_number = {RUN_NUMBER} LIMIT 1", name
        ).fetchone()
        for table in OF_RUNS:
            self._connection.execute(f"DELETE FROM {table} WHERE run_number = {RUN_NUMBER}", name)
        self._connection.execute("DELETE FROM runs WHERE id = :run", name)
        if had_seen:
            for removal in _REMOVE_UNSEEN:
                self._connection.execute(removal)
        self._known.clear()

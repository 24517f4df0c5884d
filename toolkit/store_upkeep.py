"""Whole runs: what is in each, copied from another file, removed. The only module that names all families' tables at once.

It never decides which runs to keep, and never removes a host: what is known of it costs nothing.
"""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from toolkit.database import as_uri, to_text
from toolkit.store_blasts import Blasts
from toolkit.store_looks import Looks
from toolkit.store_seen import Captures

_OF_RUNS: dict[str, tuple[str, ...]] = {
    "run_hosts": ("host",),
    "shots": ("host",),
    "ledgers": ("host",),
    "verdicts": ("host",),
    "tallies": ("host", "worker"),
    "loader_seconds": ("worker",),
    "events": ("host",),
    "seen": (),  # and what no foreign key tells: bodies, clients, targets; hence _copy_seen
    "captures": (),
}
"""Table -> whose ids its rows bear beside their run's; tests/test_store_upkeep.py knows when one is missing."""

_SHARED = {
    # what rows of several runs refer to: (table, by what two files know that they mean the same)
    "host": ("hosts", "name, url"),
    "worker": ("workers", "name"),
    "series": ("series", "name, labels"),
}

_SEEN_SHARES = {
    # what rows of `seen` refer to, each after what it refers to itself: by what two files know that they mean
    # the same, and which of the other file's a run needs
    "prompts": (
        "prompt_key prompt_chars prompt_tokens prompt_blocks block_tokens",
        "SELECT prompt_id FROM other.bodies WHERE id IN (SELECT body_id FROM other.seen WHERE run_number = :theirs)",
    ),
    "bodies": ("exact_key", "SELECT body_id FROM other.seen WHERE run_number = :theirs"),
    "clients": ("name", "SELECT client_id FROM other.seen WHERE run_number = :theirs"),
    "targets": (
        "path server method",
        "SELECT target_id FROM other.seen WHERE run_number = :theirs",
    ),
}
_SEEN_REFERS = {
    "body_id": "bodies",
    "client_id": "clients",
    "target_id": "targets",
    "prompt_id": "prompts",
}
_ADD_TEXTS = """
    UPDATE main.prompts SET prompt_text = theirs.prompt_text
    FROM other.prompts AS theirs JOIN temp.prompts_ids ON prompts_ids.theirs = theirs.id
    WHERE prompts.prompt_key = theirs.prompt_key
    AND prompts.prompt_text IS NULL AND theirs.prompt_text NOTNULL
"""
_REMOVE_UNSEEN = (
    "DELETE FROM bodies WHERE id NOT IN (SELECT body_id FROM seen WHERE body_id NOTNULL)",
    "DELETE FROM prompts WHERE id NOT IN (SELECT prompt_id FROM bodies WHERE prompt_id NOTNULL)",
    "DELETE FROM clients WHERE id NOT IN (SELECT client_id FROM seen WHERE client_id NOTNULL)",
    "DELETE FROM targets WHERE id NOT IN (SELECT target_id FROM seen WHERE target_id NOTNULL)",
)

_NUMBER = "(SELECT number FROM main.runs WHERE id = :run)"
_SIZES = "SELECT page_count, freelist_count, page_size FROM pragma_page_count, pragma_freelist_count, pragma_page_size"
_CONTENT = f"""
    SELECT
        (SELECT count(*) FROM (
            SELECT host_id FROM run_hosts WHERE run_number = {_NUMBER}
            UNION SELECT host_id FROM shots WHERE run_number = {_NUMBER}
            UNION SELECT host_id FROM ledgers WHERE run_number = {_NUMBER}
        )),
        tallied.answered, tallied.failed, timed.answered, timed.failed,
        timed.last_at, (SELECT max(at_s) FROM loader_seconds WHERE run_number = {_NUMBER}),
        (SELECT requests FROM captures WHERE run_number = {_NUMBER}),
        (SELECT errors FROM captures WHERE run_number = {_NUMBER}),
        (SELECT written_at FROM captures WHERE run_number = {_NUMBER})
    FROM
        (SELECT sum(ok) AS answered, sum(errors) AS failed FROM tallies WHERE run_number = {_NUMBER}) AS tallied,
        (SELECT sum(ok) AS answered, sum(NOT ok) AS failed, max(sent_at) AS last_at
         FROM shots WHERE run_number = {_NUMBER} AND kind <> 'warmup') AS timed
"""  # noqa: S608 (fixed names)


_BOTH_NUMBERS = """
    SELECT mine.number, theirs.number
    FROM main.runs AS mine JOIN other.runs AS theirs USING (id) WHERE id = :run
"""
# From the run's first row to its last, in the order of writing; its index would have them sorted, blobs and all.
_ROWS_OF_RUN = """
    theirs.run_number = :theirs
    AND theirs.id >= (SELECT min(id) FROM other.{table} WHERE run_number = :theirs)
    AND theirs.id <= (SELECT max(id) FROM other.{table} WHERE run_number = :theirs)
    ORDER BY theirs.id
"""
_KNOWN_HOST = """UPDATE SET
    first_seen_at = min(first_seen_at, excluded.first_seen_at),
    team = coalesce(team, excluded.team),
    model = coalesce(model, excluded.model),
    note = coalesce(note, excluded.note)
"""
_NEW_SIGHTINGS = """
    CREATE TEMP TABLE new_sightings AS
    SELECT theirs.id FROM other.sightings AS theirs
    JOIN temp.host_ids ON host_ids.theirs = theirs.host_id
    WHERE NOT EXISTS (
        SELECT 1 FROM main.sightings AS mine WHERE mine.host_id = host_ids.mine AND mine.at = theirs.at
    )
"""
_IS_NEW_LOOSE_EVENT = """
    theirs.run_number IS NULL AND NOT EXISTS (
        SELECT 1 FROM main.events AS mine
        WHERE mine.run_number IS NULL AND mine.host_id IS host_ids.mine
        AND (mine.at, mine.kind, mine.text) = (theirs.at, theirs.kind, theirs.text)
    )
    ORDER BY theirs.id
"""


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


class Upkeep(Looks, Blasts, Captures):
    """Whole runs of one open database file."""

    def content(self, run_id: str) -> Content:
        """Count what is stored of a run."""
        [row] = self._rows(_CONTENT, {"run": to_text(run_id)})
        hosts, tallied, tallied_errors, timed, timed_errors, sent_at, told_s, *captured = row
        # a blast's shots are some of its tallied requests
        answered, failed = (timed, timed_errors) if tallied is None else (tallied, tallied_errors)
        arrived, refused, written_at = captured
        moments = [at for at in (sent_at, told_s, written_at) if at is not None]
        last_at = max(moments, default=None)
        requests = (answered or 0) + (failed or 0) + (arrived or 0)
        return Content(hosts, requests, (failed or 0) + (refused or 0), last_at)

    def remove_run(self, run_id: str) -> None:
        """Forget a run with everything of it; the file keeps its size."""
        with self._transaction():
            self._run_row(run_id)
            self._remove_run(run_id)

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

    def sightings_before(self, before: float) -> int:
        """Count what was seen before a moment."""
        [(count,)] = self._rows("SELECT count(*) FROM sightings WHERE at < ?", (before,))
        return int(count)

    def used_bytes(self) -> int:
        """What the file would take without the room that removed rows left."""
        [(pages, free, page_bytes)] = self._rows(_SIZES)
        return int((pages - free) * page_bytes)

    def used_bytes_without(self, run_ids: Sequence[str], *, enough: int = 0) -> list[int]:
        """What the file would take, without the room they leave, after each of these runs is removed in turn.

        The last told is the first of at most `enough` bytes. It removes them and takes it back, so nobody can write meanwhile; reading goes on.
        """
        sizes = []
        with self._transaction():
            self._connection.execute("SAVEPOINT trial")
            for run_id in run_ids:
                self._remove_run(run_id)
                pages, free, page_bytes = self._connection.execute(_SIZES).fetchone()
                sizes.append(int((pages - free) * page_bytes))
                if sizes[-1] <= enough:
                    break
            self._connection.execute("ROLLBACK TO trial")
        return sizes

    def shrink(self) -> None:
        """Give the room of removed rows back to the disk by writing the file anew.

        Meanwhile it takes up to twice as much again as is kept, and nobody else can write.
        """
        self._rows("VACUUM")
        self._rows("PRAGMA wal_checkpoint(TRUNCATE)")

    @contextmanager
    def beside(self, other: Path) -> Iterator[None]:
        """Have another file, brought up to date, at hand to copy from; its hosts are known here from then on."""
        self._rows("ATTACH ? AS other", (as_uri(other, "ro"),))
        try:
            with self._transaction():
                for shared, (table, names) in _SHARED.items():
                    self._share(shared, table, names)
            yield
        finally:
            for shared in _SHARED:
                self._rows(f"DROP TABLE IF EXISTS temp.{shared}_ids")
            self._rows("DETACH other")

    def copy_run(self, run_id: str) -> None:
        """Take over a run, which this file must not have yet, with everything of it, from the file beside."""
        name = {"run": to_text(run_id)}
        with self._transaction():
            self._copy("runs", "theirs.id = :run", name)
            self._run_row(run_id)  # says so if neither file has it
            numbers = self._connection.execute(_BOTH_NUMBERS, name).fetchone()
            both = dict(zip(("mine", "theirs"), numbers, strict=True))
            for table, shared in _OF_RUNS.items():
                if table != "seen":
                    rows = _ROWS_OF_RUN.format(table=table)
                    self._copy(table, rows, both, shared, run_number=":mine")
            self._copy_seen(both)

    def copy_sightings(self) -> int:
        """Take over what this file has not seen from the file beside, and events of no run; tell how many sightings."""
        with self._transaction():
            [before] = self._connection.execute("SELECT max(id) FROM main.sightings").fetchone()
            added = {"before": before or 0}
            self._connection.execute(_NEW_SIGHTINGS)
            new = "theirs.id IN temp.new_sightings ORDER BY theirs.id"
            self._copy("sightings", new, added, ("host",), id="theirs.id + :before")
            new = "theirs.sighting_id IN temp.new_sightings"
            of = {"sighting_id": "theirs.sighting_id + :before"}
            self._copy("readings", new, added, ("series",), **of)
            [copied] = self._connection.execute(
                "SELECT count(*) FROM temp.new_sightings"
            ).fetchone()
            self._connection.execute("DROP TABLE temp.new_sightings")
            self._copy("events", _IS_NEW_LOOSE_EVENT, {}, ("host",))
            return int(copied)

    # Below: inside a transaction.

    def _remove_run(self, run_id: str) -> None:
        name = {"run": to_text(run_id)}
        had_seen = self._connection.execute(
            f"SELECT 1 FROM seen WHERE run_number = {_NUMBER} LIMIT 1",  # noqa: S608
            name,
        ).fetchone()
        for table in _OF_RUNS:
            self._connection.execute(f"DELETE FROM {table} WHERE run_number = {_NUMBER}", name)  # noqa: S608
        self._connection.execute("DELETE FROM runs WHERE id = :run", name)
        if had_seen:
            for removal in _REMOVE_UNSEEN:
                self._connection.execute(removal)
            self._forget_ids()

    def _copy_seen(self, both: Mapping[str, int]) -> None:
        """Copy a run's requests and, where this file has them not yet, what their bodies ask."""
        for table, (same, needed) in _SEEN_SHARES.items():
            self._share_needed(table, same.split(), needed, both)
        self._connection.execute(_ADD_TEXTS)
        columns = ["ts", "number", *self._columns("seen")]
        self._connection.execute(
            f"INSERT INTO main.seen (run_number, {', '.join(columns)}) "  # noqa: S608
            f"SELECT :mine, {_renumbered(columns)} FROM other.seen AS theirs {_joins(columns)} "
            "WHERE theirs.run_number = :theirs ORDER BY theirs.ts, theirs.number",
            both,
        )
        for table in _SEEN_SHARES:
            self._connection.execute(f"DROP TABLE temp.{table}_ids")

    def _share_needed(
        self, table: str, same: Sequence[str], needed: str, both: Mapping[str, int]
    ) -> None:
        """Take over what rows of a run refer to, and know by which number it is here."""
        columns = self._columns(table)
        is_same = " AND ".join(f"mine.{name} IS theirs.{name}" for name in same)
        self._connection.execute(
            f"INSERT INTO main.{table} ({', '.join(columns)}) "  # noqa: S608
            f"SELECT {_renumbered(columns)} FROM other.{table} AS theirs {_joins(columns)} "
            f"WHERE theirs.id IN ({needed}) "
            f"AND NOT EXISTS (SELECT 1 FROM main.{table} AS mine WHERE {is_same})",
            both,
        )
        self._connection.execute(
            f"CREATE TEMP TABLE {table}_ids AS SELECT theirs.id AS theirs, mine.id AS mine "  # noqa: S608
            f"FROM other.{table} AS theirs JOIN main.{table} AS mine ON {is_same} "
            f"WHERE theirs.id IN ({needed})",
            both,
        )
        self._connection.execute(
            f"CREATE UNIQUE INDEX temp.{table}_by_theirs ON {table}_ids (theirs, mine)"
        )

    def _share(self, shared: str, table: str, names: str) -> None:
        """Know what the other file's rows refer to, and by which number here."""
        columns = ", ".join(self._columns(table))
        known = _KNOWN_HOST if shared == "host" else "NOTHING"
        # `WHERE true`: without it SQLite takes ON CONFLICT for a join's ON
        self._connection.execute(
            f"INSERT INTO main.{table} ({columns}) SELECT {columns} FROM other.{table} "  # noqa: S608
            f"WHERE true ON CONFLICT ({names}) DO {known}"
        )
        self._connection.execute(
            f"CREATE TEMP TABLE {shared}_ids AS SELECT theirs.id AS theirs, mine.id AS mine "  # noqa: S608
            f"FROM other.{table} AS theirs JOIN main.{table} AS mine USING ({names})"
        )
        self._connection.execute(
            f"CREATE UNIQUE INDEX temp.{shared}_by_theirs ON {shared}_ids (theirs, mine)"
        )

    def _copy(
        self,
        table: str,
        which: str,
        values: Mapping[str, object],
        shared: Sequence[str] = (),
        **given: str,
    ) -> None:
        """Copy the other file's rows; `shared` are renumbered, `given` are columns by what they become."""
        taken = given | {f"{each}_id": f"{each}_ids.mine" for each in shared}
        taken |= {
            name: f"theirs.{name}"
            for name in self._columns(table)
            if name not in (*taken, "run_number")
        }
        # LEFT: an event may concern no host
        joins = " ".join(
            f"LEFT JOIN temp.{each}_ids ON {each}_ids.theirs = theirs.{each}_id" for each in shared
        )
        self._connection.execute(
            f"INSERT INTO main.{table} ({', '.join(taken)}) "  # noqa: S608
            f"SELECT {', '.join(taken.values())} FROM other.{table} AS theirs NOT INDEXED {joins} "
            f"WHERE {which}",
            values,
        )

    def _columns(self, table: str) -> list[str]:
        """A table's columns but for the number that the file itself gave each row."""
        found = self._connection.execute(
            "SELECT name FROM pragma_table_info(?, 'main') WHERE NOT pk", (table,)
        )
        return [name for (name,) in found]


def _renumbered(columns: Sequence[str]) -> str:
    """SQL for the other file's columns, with this file's number for what they refer to."""
    return ", ".join(
        f"{_SEEN_REFERS[name]}_ids.mine" if name in _SEEN_REFERS else f"theirs.{name}"
        for name in columns
    )


def _joins(columns: Sequence[str]) -> str:
    tables = {name: _SEEN_REFERS[name] for name in columns if name in _SEEN_REFERS}
    return " ".join(
        f"LEFT JOIN temp.{table}_ids ON {table}_ids.theirs = theirs.{name}"
        for name, table in tables.items()
    )

"""Where facts are kept: with migrations.py, which makes them, the only module that knows the tables.

    hosts --< sightings --< readings >-- series

It never decides what a fact means, never creates a table outside a migration, and never stores
an API key or the name of the variable that holds one.
"""

import json
import math
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self, get_args, get_origin, get_type_hints
from urllib.parse import quote

from toolkit.errors import ToolkitError
from toolkit.migrations import STEPS
from toolkit.records import Finding, Host, Reading, Sighting

DEFAULT_PATH = Path("data/toolkit.db")

BUSY_TIMEOUT_S = 5.0
"""How long a writer waits for another process; a batch holds the lock for milliseconds."""

JOURNAL_SIZE_LIMIT_BYTES = 64 * 1024 * 1024
"""A bulk load was seen to leave a 48 MB write-ahead log in place; this caps what stays."""

SERIES_CACHE_SIZE = 20_000
"""Series whose id is remembered: 100 hosts of 130 gauges and counters each, with room. 13 MB."""

MIGRATION_SET = "toolkit"

_Mode = Literal["rwc", "ro"]

_OTHER_FILE = "Give another file with `--db`"

_REASONS: dict[int | None, tuple[str, str]] = {
    sqlite3.SQLITE_BUSY: (
        "is locked by another process",
        f"Wait until that process is done. {_OTHER_FILE} to go on now",
    ),
    sqlite3.SQLITE_NOTADB: ("is not a SQLite database", _OTHER_FILE),
    sqlite3.SQLITE_READONLY: (
        "may not be written",
        f"Allow writing to it and to its folder. {_OTHER_FILE} to leave it alone",
    ),
    sqlite3.SQLITE_CANTOPEN: (
        "cannot be opened",
        f"Allow reading it and writing to its folder. {_OTHER_FILE} to leave it alone",
    ),
    sqlite3.SQLITE_FULL: (
        "cannot grow, the disk is full",
        "Free some space and run it again; what was stored before is whole",
    ),
    sqlite3.SQLITE_IOERR: (
        "cannot be read or written, the disk reports an error",
        "Check the disk and its free space; network file systems do not suit SQLite",
    ),
    sqlite3.SQLITE_CORRUPT: (
        "is damaged",
        "Rescue what is left with `sqlite3 OLD .recover | sqlite3 NEW`",
    ),
}
"""By SQLite's primary result code: what to say after the file's name, and the way out."""


# --- The file -----------------------------------------------------------------------------------


def _migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring a new or older file to this program's schema; whoever comes second finds it done."""
    # sqlite-utils imports pandas and numpy where they exist (0.4 s of CPU, 1.6 s on a slow disk) and
    # has no switch for it; only a file that needs a migration pays.
    from sqlite_utils import Database, Migrations  # noqa: PLC0415

    migrations = Migrations(MIGRATION_SET)
    for name, step in STEPS.items():
        migrations(name=name)(step)
    _leave_rollback_journal(connection)
    # One lock around the look and the change: `apply` alone makes its own table outside any
    # transaction, so two processes on a new file would trip over each other.
    with _immediate(connection):
        if _steps_missing(connection, path):
            migrations.apply(Database(connection, execute_plugins=False, strict=True))


def _leave_rollback_journal(connection: sqlite3.Connection) -> None:
    """Switch the file to write-ahead logging, for which it must be free for a moment.

    Two connections that both want this would wait for each other for ever, so SQLite answers one of
    them at once and without its busy timeout: 2 of 90 openings, six processes on each new file.
    """
    patience_s = connection.execute("PRAGMA busy_timeout").fetchone()[0] / 1000
    deadline = time.monotonic() + patience_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
        else:
            return


def _refuse_old(_: sqlite3.Connection, path: Path) -> None:
    raise ToolkitError(
        f"`{path}` was written by an older toolkit, or by none",
        "Run `toolkit scout HOSTS` on it once, which brings it up to date",
    )


def _steps_missing(connection: sqlite3.Connection, path: Path) -> bool:
    """Tell whether the file lacks a step. Raises ToolkitError when it is newer, or not ours."""
    tables = {name for (name,) in connection.execute("SELECT name FROM sqlite_schema")}
    if not tables:
        return True
    applied: set[str] = set()
    if "_sqlite_migrations" in tables:
        rows = connection.execute(
            "SELECT name FROM _sqlite_migrations WHERE migration_set = ?", (MIGRATION_SET,)
        )
        applied = {name for (name,) in rows}
    if not applied:
        raise ToolkitError(f"`{path}` is the database of another program", _OTHER_FILE)
    if applied - STEPS.keys():
        raise ToolkitError(
            f"`{path}` was written by a newer toolkit",
            f"Update the toolkit. {_OTHER_FILE} to go on",
        )
    return applied != STEPS.keys()


def _refuse_path(path: Path, mode: _Mode) -> None:
    """Say plainly what SQLite would call `unable to open database file` or a syntax error."""
    if sqlite3.sqlite_version_info < (3, 37):
        raise ToolkitError(
            f"This Python's SQLite {sqlite3.sqlite_version} has no STRICT tables, 3.37 is needed",
            "Use a Python that brings a newer one, e.g., from python.org or `uv python install`",
        )
    if path.is_dir():
        raise ToolkitError(f"`{path}` is a folder", f"Name the file, e.g., `{path / 'toolkit.db'}`")
    if mode == "ro" and not path.exists():
        raise ToolkitError(
            f"`{path}` does not exist", "`toolkit scout HOSTS` makes it; `--db` names another"
        )


def _connect(path: Path, mode: _Mode, busy_timeout_s: float) -> sqlite3.Connection:
    # A URI, because only it can say `mode`; quoted from bytes, because `?`, `#` and `%` mean
    # something in a URI and a file's name need not be UTF-8.
    return sqlite3.connect(
        f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}",
        uri=True,
        timeout=busy_timeout_s,
        isolation_level=None,  # transactions begin where we say so
        check_same_thread=False,  # scout flushes in a worker thread; Store has a lock
    )


def _prepare(connection: sqlite3.Connection, path: Path, mode: _Mode) -> None:
    """Set up a connection; the first statement is where SQLite finds that a file is none of its own."""
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("PRAGMA foreign_keys = ON")  # 0.4 us a reading
    connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_SIZE_LIMIT_BYTES}")
    if _steps_missing(connection, path):
        (_migrate if mode == "rwc" else _refuse_old)(connection, path)


@contextmanager
def _immediate(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one write transaction.

    IMMEDIATE, not the plain BEGIN of `Database.atomic`: a transaction that first reads and then
    writes fails at once, busy timeout or not, when another process wrote in between.
    """
    try:
        connection.execute("BEGIN IMMEDIATE")
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite may have rolled back by itself, e.g., on a full disk
            connection.execute("ROLLBACK")
        raise


@contextmanager
def _told(path: Path) -> Iterator[None]:
    """Turn SQLite's and the system's refusals into the one error a user may see."""
    try:
        yield
    except sqlite3.Error as error:
        what, hint = _REASONS.get(_primary_code(error), (f"refused: {error}", ""))
        raise ToolkitError(f"`{path}` {what}", hint) from error
    except OSError as error:
        raise ToolkitError(f"`{path}` cannot be used: {error.strerror}", _OTHER_FILE) from error


def _primary_code(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)  # the driver's own complaints have none
    return None if code is None else code & 0xFF


# --- Rows and records ---------------------------------------------------------------------------


def _to_column(value: object) -> object:
    """Make a field's value fit its column; SQLite itself turns NaN into NULL, which is None here."""
    if isinstance(value, str):
        return _to_text(value)
    if isinstance(value, tuple):
        return json.dumps([asdict(one) if isinstance(one, Finding) else one for one in value])
    if isinstance(value, int) and not -(2**63) <= value < 2**63:
        return None  # no count is that large: a host's nonsense must not cost the whole batch
    return value


def _to_text(text: str) -> str:
    """Spell out lone surrogates, which a host's JSON may hold and UTF-8 cannot."""
    return text.encode("utf-8", "backslashreplace").decode()


def _from_column(hint: Any) -> Callable[[Any], Any]:
    """Choose how a column becomes a field of type `hint`. Raises TypeError on a type not met before."""
    kinds = {kind for kind in get_args(hint) or (hint,) if kind is not type(None)}
    if get_origin(hint) is tuple:
        return _from_list(get_args(hint)[0])
    if get_origin(hint) is Literal or kinds <= {str, int, float}:
        return lambda value: value
    if kinds == {bool}:
        return lambda value: None if value is None else bool(value)
    raise TypeError(f"no column for a field of type {hint}")


def _from_list(kind: Any) -> Callable[[str], tuple[Any, ...]]:
    if kind is Finding:
        return lambda text: tuple(Finding(**one) for one in json.loads(text))
    if kind is str:
        return lambda text: tuple(json.loads(text))
    raise TypeError(f"no column for a list of {kind}")


_ELSEWHERE = ("name", "url", "readings")
"""Fields of a sighting that live in the tables hosts and readings."""

_FIELDS: dict[str, Callable[[Any], Any]] = {
    name: _from_column(hint)
    for name, hint in get_type_hints(Sighting).items()
    if name not in _ELSEWHERE
}
"""The columns of the table sightings, each with the way back into its field."""

# The S608s: every inserted name is a field of our own record.
_INSERT_SIGHTING = (
    f"INSERT INTO sightings (host_id, {', '.join(_FIELDS)}) "  # noqa: S608
    f"VALUES (?{', ?' * len(_FIELDS)})"
)
_NEWEST_FIRST = (
    f"SELECT {', '.join(_FIELDS)} FROM sightings "  # noqa: S608
    "WHERE host_id = ? AND at >= ? AND (status <> 'down') >= ? "
    "AND (config_hash IS NOT NULL) >= ? ORDER BY at DESC, id DESC LIMIT ?"
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


def _sighting(name: str, url: str, row: Sequence[object]) -> Sighting:
    values = {field: read(value) for (field, read), value in zip(_FIELDS.items(), row, strict=True)}
    return Sighting(name=name, url=url, **values)


def _reading(name: str, labels: str, value: float | None) -> Reading:
    pairs = tuple(sorted(json.loads(labels).items()))
    return Reading(name=name, labels=pairs, value=math.nan if value is None else value)


# --- The store ----------------------------------------------------------------------------------


class Store:
    """One open database file; threads may share it. Every method raises ToolkitError and no other.

    No method leaves a transaction open, so a reader never keeps the write-ahead log from being
    folded back. Writers of any number of processes take turns.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._lock = threading.Lock()
        self._series_ids: dict[tuple[str, tuple[tuple[str, str], ...]], int] = {}

    @classmethod
    def open(cls, path: Path | str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Self:
        """Open for reading and writing; make the folder and the file, and migrate, as needed."""
        path = Path(path)
        with _told(path.parent):
            path.parent.mkdir(parents=True, exist_ok=True)
        return cls._opened(path, "rwc", busy_timeout_s)

    @classmethod
    def open_readonly(cls, path: Path | str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Self:
        """Open for reading only; never makes or migrates a file."""
        path = Path(path)
        return cls._opened(path, "ro", busy_timeout_s)

    @classmethod
    def _opened(cls, path: Path, mode: _Mode, busy_timeout_s: float) -> Self:
        with _told(path):
            _refuse_path(path, mode)
            connection = _connect(path, mode, busy_timeout_s)
            try:
                _prepare(connection, path, mode)
            except BaseException:
                connection.close()
                raise
        return cls(connection, path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the file, after a write that is under way in another thread."""
        with self._lock, _told(self._path):
            self._connection.close()

    def add_sightings(self, sightings: Sequence[Sighting], hosts: Sequence[Host] = ()) -> None:
        """Store all or none of the sightings; `hosts` says what hosts.txt tells about the seen.

        NaN in a sighting's own fields becomes None, as does an integer past 64 bits; a reading's NaN
        stays. Of two readings of one series in one sighting the first stays.
        """
        if not sightings:
            return
        with self._lock, _told(self._path):
            try:
                with _immediate(self._connection):
                    for sighting in sightings:
                        self._add_sighting(sighting)
                    self._describe(hosts)
            except BaseException:
                self._series_ids.clear()  # ids of this batch may have been rolled back
                raise

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
        urls = self._rows("SELECT url FROM hosts WHERE name = ?", (_to_text(name),))
        start = -math.inf if since is None else since
        # SQLite reads a negative limit as none
        count = -1 if limit is None else max(0, limit)
        seen = [s for (url,) in urls for s in self._history(name, url, start, count)]
        seen.sort(key=lambda sighting: sighting.at)
        return seen if count < 0 else seen[max(0, len(seen) - count) :]

    def readings(self, sighting: Sighting) -> tuple[Reading, ...]:
        """Look up the raw gauges and counters of a stored sighting, by name and labels."""
        key = (_to_text(sighting.name), _to_text(sighting.url), sighting.at)
        found = [_reading(*row) for row in self._rows(_READINGS, key)]
        return tuple(sorted(found, key=lambda reading: (reading.name, reading.labels)))

    def known_names(self) -> list[str]:
        """List the names of all hosts ever seen, for the hint after a name that is not known."""
        return [name for (name,) in self._rows("SELECT DISTINCT name FROM hosts ORDER BY name")]

    def _rows(self, sql: str, values: Sequence[object] = ()) -> list[tuple[Any, ...]]:
        with self._lock, _told(self._path):
            return self._connection.execute(sql, values).fetchall()

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
            "SELECT id FROM hosts WHERE name = ? AND url = ?", (_to_text(name), _to_text(url))
        )
        rows = [
            row
            for (id_,) in host_ids
            for row in self._rows(_NEWEST_FIRST, (id_, since, up, telling, limit))
        ]
        return [_sighting(name, url, row) for row in reversed(rows)]

    # Below: inside the transaction of add_sightings.

    def _add_sighting(self, sighting: Sighting) -> None:
        values = [_to_column(getattr(sighting, field)) for field in _FIELDS]
        added = self._connection.execute(_INSERT_SIGHTING, [self._host_id(sighting), *values])
        rows = [(added.lastrowid, self._series_id(r), r.value) for r in sighting.readings]
        self._connection.executemany(_INSERT_READING, rows)

    def _host_id(self, sighting: Sighting) -> int:
        key = (_to_text(sighting.name), _to_text(sighting.url))
        return self._id_of(
            "SELECT id FROM hosts WHERE name = ? AND url = ?",
            key,
            "INSERT INTO hosts (name, url, first_seen_at) VALUES (?, ?, ?)",
            (*key, sighting.at),
        )

    def _series_id(self, reading: Reading) -> int:
        key = (reading.name, reading.labels)
        known = self._series_ids.get(key)
        if known is not None:
            return known
        if len(self._series_ids) >= SERIES_CACHE_SIZE:
            self._series_ids.clear()  # refills in one tick; an order of use would cost every tick
        row = (_to_text(reading.name), json.dumps(dict(reading.labels), sort_keys=True))
        self._series_ids[key] = self._id_of(
            "SELECT id FROM series WHERE name = ? AND labels = ?",
            row,
            "INSERT INTO series (name, labels) VALUES (?, ?)",
            row,
        )
        return self._series_ids[key]

    def _id_of(self, select: str, key: Iterable[object], insert: str, row: Iterable[object]) -> int:
        found = self._connection.execute(select, tuple(key)).fetchone()
        if found is not None:
            return int(found[0])
        added = self._connection.execute(insert, tuple(row)).lastrowid
        assert added is not None
        return added

    def _describe(self, hosts: Iterable[Host]) -> None:
        """Keep what hosts.txt says now; no page is touched when it says what it said before."""
        rows = []
        for host in hosts:
            words = tuple(w and _to_text(w) for w in (host.team, host.model, host.note))
            rows.append((*words, _to_text(host.name), _to_text(host.url), *words))
        self._connection.executemany(
            "UPDATE hosts SET team = ?, model = ?, note = ? WHERE name = ? AND url = ? "
            "AND (team, model, note) IS NOT (?, ?, ?)",
            rows,
        )

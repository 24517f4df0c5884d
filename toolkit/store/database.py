"""The store's file: opening, bringing it up to date, who may write, what its refusals mean; records as rows, another file's rows.

Of the tables it knows only those that rows of many others refer to: what each of their rows stands for.
"""

import json
import os
import sqlite3
import threading
import time
import weakref
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, is_dataclass
from functools import lru_cache
from operator import attrgetter
from pathlib import Path
from types import TracebackType
from typing import Any, Generic, Literal, Self, TypeVar, get_args, get_origin, get_type_hints
from urllib.parse import quote

from toolkit.errors import ToolkitError
from toolkit.private_files import make_folder, make_private
from toolkit.records import Host
from toolkit.store.migrations import STEPS, TABLES

BUSY_TIMEOUT_S = 5.0
"""How long a writer waits for another process; a batch holds the lock for milliseconds."""

JOURNAL_SIZE_LIMIT_BYTES = 64 * 1024 * 1024
"""A bulk load was seen to leave a 48 MB write-ahead log in place; this caps what stays."""

PAGE_BYTES = 8192
"""Of a new file. A busy second's tally has 1.4 to 2.3 KB: in SQLite's own 4 KiB a third of each page stayed empty."""

REMEMBERED = 100_000
"""Numbers of so many rows of a table are held in memory, then forgotten at once: an order of use would cost every row."""

MIGRATION_SET = "toolkit"

REFERS = {
    "host_id": ("hosts", ("name", "url")),
    "worker_id": ("workers", ("name",)),
    "series_id": ("series", ("name", "labels")),
    "sighting_id": ("sightings", ("host_id", "at")),
    "prompt_id": (
        "prompts",
        ("prompt_key", "prompt_chars", "prompt_tokens", "prompt_blocks", "block_tokens"),
    ),
    "body_id": ("bodies", ("exact_key",)),
    "client_id": ("clients", ("name",)),
    "target_id": ("targets", ("path", "server", "method")),
}
"""Columns that refer to a row of another table, and that table's columns by which two files know that they mean the same."""

USED_BYTES = """
    SELECT (page_count - freelist_count) * page_size
    FROM pragma_page_count, pragma_freelist_count, pragma_page_size
"""

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
_READERS_REASONS = _REASONS | {
    sqlite3.SQLITE_READONLY: (
        "cannot be read where nothing may be written beside it, which SQLite needs",
        "Allow writing to its folder, or copy it to a folder of yours and name the copy with `--db`",
    )
}


# --- The file -----------------------------------------------------------------------------------


def as_uri(path: Path, mode: str) -> str:
    """How SQLite is to open a file, `rwc`, `rw` or `ro`, which only a URI can say.

    Quoted from bytes, because `?`, `#` and `%` mean something in a URI and a file's name need not be UTF-8.
    """
    return f"file:{quote(os.fsencode(path.absolute()))}?mode={mode}"


@contextmanager
def _explained(
    path: Path, reasons: Mapping[int | None, tuple[str, str]] = _REASONS
) -> Iterator[None]:
    """Turn SQLite's and the system's refusals into the one error a user may see."""
    try:
        yield
    except sqlite3.Error as error:
        what, hint = reasons.get(_primary_code(error), (f"refused: {error}", _OTHER_FILE))
        raise ToolkitError(f"`{path}` {what}", hint) from error
    except OSError as error:
        raise ToolkitError(f"`{path}` cannot be used: {error.strerror}", _OTHER_FILE) from error


def _primary_code(error: sqlite3.Error) -> int | None:
    code = getattr(error, "sqlite_errorcode", None)  # the driver's own complaints have none
    return None if code is None else code & 0xFF


def _refuse_traps(connection: sqlite3.Connection, path: Path) -> None:
    """Refuse a file in which to read or to write one of our tables would run what somebody else wrote, e.g., without end.

    Views of other names are a user's own and are never asked.
    """
    connection.execute("PRAGMA trusted_schema = OFF")
    for kind, name, of, root in connection.execute(
        "SELECT type, lower(name), lower(tbl_name), rootpage FROM sqlite_schema"
    ):
        # a virtual table has no page of its own
        what = "virtual table" if kind == "table" and not root else kind
        if (what == "trigger" and of in TABLES) or (
            what in ("view", "virtual table") and name in TABLES
        ):
            raise ToolkitError(
                f"`{path}` has a {what} where the toolkit has its table `{of}`",
                f"No toolkit made it so. {_OTHER_FILE}",
            )


def _steps_missing(connection: sqlite3.Connection, path: Path) -> bool:
    """Does the file lack a step? Raises ToolkitError when it is newer, or not ours."""
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


def _migrate(connection: sqlite3.Connection, path: Path, busy_timeout_s: float) -> None:
    """Bring a new or older file to this program's schema; whoever comes second finds it done."""
    # sqlite-utils imports pandas and numpy where they exist (0.4 s of CPU, 1.6 s on a slow disk) and
    # has no switch for it; only a file that needs a migration pays.
    import sqlite_utils  # noqa: PLC0415

    migrations = sqlite_utils.Migrations(MIGRATION_SET)
    for name, statements in STEPS.items():

        @migrations(name=name)
        def _(db: sqlite_utils.Database, statements: str = statements) -> None:
            for statement in statements.split(";\n"):  # `executescript` would commit first
                db.execute(statement)

    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")  # one that holds anything keeps its own
    # Two connections that both leave the rollback journal would wait for each other for ever, so SQLite answers one of
    # them at once and without its busy timeout: 2 of 90 openings, six processes on each new file.
    deadline = time.monotonic() + busy_timeout_s
    while True:
        try:
            connection.execute("PRAGMA journal_mode = WAL")
            break
        except sqlite3.OperationalError as error:
            if _primary_code(error) != sqlite3.SQLITE_BUSY or time.monotonic() > deadline:
                raise
            time.sleep(0.01)
    # One lock around the look and the change: `apply` alone makes its own table outside any
    # transaction, so two processes on a new file would trip over each other.
    with _immediate(connection):
        if _steps_missing(connection, path):
            migrations.apply(sqlite_utils.Database(connection, execute_plugins=False, strict=True))


@contextmanager
def _immediate(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one write transaction.

    IMMEDIATE, not the plain BEGIN of sqlite-utils' `atomic`: a transaction that first reads and then
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


# --- Rows and records ---------------------------------------------------------------------------

Record = TypeVar("Record")


class Columns(Generic[Record]):
    """The fields of a record that are columns of its own table, and the way there and back."""

    def __init__(self, record: type[Record], elsewhere: Collection[str] = ()) -> None:
        """`elsewhere` names the fields that live in other tables. Raises TypeError on a new type."""
        hints = {n: hint for n, hint in get_type_hints(record).items() if n not in elsewhere}
        readers = {name: _reader(hint) for name, hint in hints.items()}
        self._record = record
        self._readers = {name: reader for name, reader in readers.items() if reader}
        self._values = attrgetter(*hints)
        self.names = tuple(hints)

    def of(self, table: str) -> str:
        """SQL that lists the columns of a table."""
        return ", ".join(f"{table}.{name}" for name in self.names)

    def insertion(self, table: str, *before: str) -> str:
        """SQL that inserts a row: the columns `before`, then the record's."""
        names = (*before, *self.names)
        return f"INSERT INTO {table} ({', '.join(names)}) VALUES ({', '.join('?' * len(names))})"

    def row(self, record: Record) -> list[object]:
        """What the record's columns hold."""
        # Sorting out what needs nothing first makes a shot's row in 2.5 us instead of 3.6.
        return [v if type(v) in _FIT_AS_THEY_ARE else _to_column(v) for v in self._values(record)]

    def record(self, row: Sequence[object], **elsewhere: object) -> Record:
        """The record of a row of its columns; `elsewhere` are the fields that are none."""
        values = dict(zip(self.names, row, strict=True))
        for name, reader in self._readers.items():
            try:
                values[name] = reader(values[name])
            except (ValueError, TypeError, LookupError, AttributeError) as error:
                what = f"`{name}` of a stored {self._record.__name__.lower()}"
                raise unreadable(what) from error
        return self._record(**values, **elsewhere)


def unreadable(what: str) -> ToolkitError:
    """For what stands in the file and cannot have come from the toolkit."""
    return ToolkitError(
        f"{what} is not as the toolkit writes it",
        "The database was damaged, or changed by something else. Give another with `--db`",
    )


_FIT_AS_THEY_ARE = frozenset({float, bytes, bool, type(None)})


def _to_column(value: object) -> object:
    """Make a field's value fit its column; SQLite itself turns NaN into NULL, which is None here."""
    if isinstance(value, int):
        # no count is larger: a host's nonsense must not cost the whole batch
        return value if -(2**63) <= value < 2**63 else None
    if isinstance(value, str):
        return to_text(value)
    if isinstance(value, tuple):
        if all(type(one) is str for one in value):
            return _list_of_words(value)
        return json.dumps([one if isinstance(one, str) else asdict(one) for one in value])
    return value


@lru_cache(maxsize=1024)
def _list_of_words(words: tuple[str, ...]) -> str:
    """Most requests have one of a few lists of options: 0.1 us instead of 5."""
    return json.dumps(words)


def to_text(text: str) -> str:
    """Spell out lone surrogates, which a host's JSON may hold and UTF-8 cannot."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _reader(hint: Any) -> Callable[[Any], Any] | None:
    """How a column becomes a field of type `hint`; None: as it is. Raises TypeError on a new type."""
    kinds = {kind for kind in get_args(hint) or (hint,) if kind is not type(None)}
    if get_origin(hint) is Literal or all(get_origin(kind) is Literal for kind in kinds):
        return None
    if get_origin(hint) is tuple:
        return _list_reader(get_args(hint)[0])
    if kinds == {bool}:
        return lambda value: None if value is None else bool(value)
    if kinds <= {str, int, float, bytes}:
        return None
    raise TypeError(f"no column for a field of type {hint}")


def _list_reader(kind: Any) -> Callable[[str], tuple[Any, ...]]:
    """Of a JSON list of words, or of records whose fields are words and numbers."""
    if kind is not str and not (isinstance(kind, type) and is_dataclass(kind)):
        raise TypeError(f"no column for a list of {kind}")
    hints = {} if kind is str else get_type_hints(kind)
    allowed = {name: get_args(hint) or (hint,) for name, hint in hints.items()}

    def read(text: str) -> tuple[Any, ...]:
        found = json.loads(text)
        if kind is str:
            if not all(type(one) is str for one in found):
                raise ValueError(text)
            return tuple(found)
        if not all(
            isinstance(value, allowed[name]) for one in found for name, value in one.items()
        ):
            raise ValueError(text)
        return tuple(kind(**one) for one in found)

    return read


# --- Another file's rows ------------------------------------------------------------------------

_LEARN_OF_HOSTS = """
    UPDATE main.hosts SET
        first_seen_at = min(hosts.first_seen_at, theirs.first_seen_at),
        team = coalesce(hosts.team, theirs.team),
        model = coalesce(hosts.model, theirs.model),
        note = coalesce(hosts.note, theirs.note)
    FROM other.hosts AS theirs JOIN temp.host_ids ON host_ids.theirs = theirs.id
    WHERE hosts.id = host_ids.mine
"""


def _mine(column: str) -> str:
    """SQL for what a column of the other file's row is here."""
    return f"{column}s.mine" if column in REFERS else f"theirs.{column}"


def _joins(columns: Iterable[str]) -> str:
    """SQL that finds this file's numbers of what a row refers to; LEFT: an event may concern no host."""
    return " ".join(
        f"LEFT JOIN temp.{name}s ON {name}s.theirs = theirs.{name}"
        for name in columns
        if name in REFERS
    )


@lru_cache
def _find_and_insert(table: str, key: tuple[str, ...], more: tuple[str, ...]) -> tuple[str, str]:
    """The SQL of Database._found_or_added; to write it anew for each prompt of a capture took a tenth of its time."""
    where = " AND ".join(f"{name} IS ?" for name in key)
    names, marks = ", ".join(key + more), ", ".join("?" * len(key + more))
    return (
        f"SELECT id FROM {table} WHERE {where}",
        f"INSERT INTO {table} ({names}) VALUES ({marks})",
    )


# --- The database -------------------------------------------------------------------------------


class Database:
    """One open database file; threads may share it. Every method raises ToolkitError and no other.

    No method leaves a transaction open, so a reader never keeps the write-ahead log from being
    folded back. Writers of any number of processes take turns.
    """

    def __init__(self, connection: sqlite3.Connection, path: Path) -> None:
        self._connection = connection
        self._path = path
        self._lock = threading.Lock()
        self._known: defaultdict[str, dict[Any, Any]] = defaultdict(dict)
        """By table: the numbers of rows that were met, for as long as nobody else can have removed them."""
        self._file_version = -1
        # of a file that nobody closes, e.g., since another took its place, it goes with its last reader
        weakref.finalize(self, connection.close).atexit = False

    @classmethod
    def open(cls, path: Path | str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Self:
        """Open for reading and writing; make the folder and the file, and migrate, as needed."""
        path = Path(path)
        with _explained(path.parent):
            make_folder(path.parent)
        return cls._opened(path, "rwc", busy_timeout_s)

    @classmethod
    def open_existing(cls, path: Path | str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Self:
        """Open for reading and writing what is there already, and migrate it as needed."""
        return cls._opened(Path(path), "rw", busy_timeout_s)

    @classmethod
    def open_readonly(cls, path: Path | str, busy_timeout_s: float = BUSY_TIMEOUT_S) -> Self:
        """Open for reading only; never makes or migrates a file."""
        return cls._opened(Path(path), "ro", busy_timeout_s)

    @classmethod
    def _opened(cls, path: Path, mode: str, busy_timeout_s: float) -> Self:
        reasons = _READERS_REASONS if mode == "ro" else _REASONS
        with _explained(path, reasons), ExitStack() as undo:
            # what SQLite would call `unable to open database file` or a syntax error
            if sqlite3.sqlite_version_info < (3, 37):
                raise ToolkitError(
                    f"This Python's SQLite {sqlite3.sqlite_version} has no STRICT tables, 3.37 is needed",
                    "Use a Python that brings a newer one, e.g., from python.org or `uv python install`",
                )
            if path.is_dir():
                raise ToolkitError(
                    f"`{path}` is a folder", f"Name the file, e.g., `{path / 'toolkit.db'}`"
                )
            if path.exists() and not path.is_file():
                # SQLite would wait for a pipe for ever, and leave a journal beside `/dev/null`
                raise ToolkitError(f"`{path}` is a device or a pipe", "Name a file")
            if mode != "rwc" and not path.exists():
                raise ToolkitError(
                    f"`{path}` does not exist",
                    "`toolkit scout`, `bench`, `blast` and `capture` make it; `--db` names another",
                )

            if mode == "rwc":
                make_private(path)
            connection = sqlite3.connect(
                as_uri(path, mode),
                uri=True,
                timeout=busy_timeout_s,
                isolation_level=None,  # transactions begin where we say so
                check_same_thread=False,  # flushes run in worker threads; _lock keeps them apart
            )
            undo.callback(connection.close)
            # the first statement is where SQLite finds that a file is none of its own
            _refuse_traps(connection, path)
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute("PRAGMA foreign_keys = ON")  # 0.4 us a reading
            connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_SIZE_LIMIT_BYTES}")
            if _steps_missing(connection, path):
                if mode == "ro":
                    raise ToolkitError(
                        f"`{path}` was written by an older toolkit, or by none",
                        "Run `toolkit scout HOSTS` on it once, which brings it up to date",
                    )
                _migrate(connection, path, busy_timeout_s)
            undo.pop_all()
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
        with self._lock, _explained(self._path):
            self._connection.close()

    def used_bytes(self) -> int:
        """What the file would take without the room that removed rows left."""
        [(used,)] = self._rows(USED_BYTES)
        return int(used)

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
                for column in ("host_id", "worker_id", "series_id"):
                    self._share(column)
                self._connection.execute(_LEARN_OF_HOSTS)
            yield
        finally:
            for column in REFERS:
                self._rows(f"DROP TABLE IF EXISTS temp.{column}s")
            self._rows("DETACH other")

    def _rows(
        self, sql: str, values: Sequence[object] | Mapping[str, object] = ()
    ) -> list[tuple[Any, ...]]:
        with self._lock, _explained(self._path):
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def _transaction(self) -> Iterator[None]:
        """Run the block as the only writer, all or nothing."""
        with self._lock, _explained(self._path):
            try:
                with _immediate(self._connection):
                    # somebody may have removed what is remembered; it takes 1 us to know
                    [version] = self._connection.execute("PRAGMA data_version").fetchone()
                    if version != self._file_version:
                        self._known.clear()
                        self._file_version = version
                    yield
            except BaseException:
                self._known.clear()  # rows of a failed batch are gone with their numbers
                raise
            for known in self._known.values():
                if len(known) > REMEMBERED:
                    known.clear()

    @contextmanager
    def _snapshot(self) -> Iterator[None]:
        """Have several questions answered from one state of the file, whoever writes meanwhile."""
        with self._lock, _explained(self._path):
            self._connection.execute("BEGIN")
            try:
                yield
            finally:
                self._connection.execute("ROLLBACK")

    # Below: inside a transaction.

    def _host_id(self, name: str, url: str, at: float) -> int:
        """Look up a host, or make it: first seen at `at`."""
        known = self._known["hosts"]
        if (name, url) not in known:
            key = {"name": to_text(name), "url": to_text(url)}
            known[name, url] = self._found_or_added("hosts", key, first_seen_at=at)
        return int(known[name, url])

    def _found_or_added(self, table: str, key: Mapping[str, object], **more: object) -> int:
        """The number of the row that has these columns; where there is none it is made, with `more`."""
        look_up, insert = _find_and_insert(table, tuple(key), tuple(more))
        found = self._connection.execute(look_up, tuple(key.values())).fetchone()
        if found is not None:
            return int(found[0])
        added = self._connection.execute(insert, (*key.values(), *more.values())).lastrowid
        assert added is not None
        return added

    def _describe(self, hosts: Iterable[Host]) -> None:
        """Keep what hosts.txt says now; no page is touched when it says what it said before."""
        rows = []
        for host in hosts:
            words = tuple(w and to_text(w) for w in (host.team, host.model, host.note))
            rows.append((*words, to_text(host.name), to_text(host.url), *words))
        self._connection.executemany(
            "UPDATE hosts SET team = ?, model = ?, note = ? WHERE name = ? AND url = ? "
            "AND (team, model, note) IS NOT (?, ?, ?)",
            rows,
        )

    def _share(
        self, column: str, which: str = "true", values: Mapping[str, object] | None = None
    ) -> int:
        """Take over what this column of the other file refers to, and know by which number it is here; tell how much was new."""
        table, names = REFERS[column]
        same = " AND ".join(f"mine.{name} IS {_mine(name)}" for name in names)
        unknown = f"NOT EXISTS (SELECT 1 FROM main.{table} AS mine WHERE {same})"
        new = self._copy(table, f"{which} AND {unknown} ORDER BY theirs.id", values or {})
        self._connection.execute(f"DROP TABLE IF EXISTS temp.{column}s")
        self._connection.execute(
            f"CREATE TEMP TABLE {column}s (theirs INTEGER PRIMARY KEY, mine INTEGER)"
        )
        self._connection.execute(
            f"INSERT INTO temp.{column}s SELECT theirs.id, min(mine.id) FROM other.{table} AS theirs "
            f"{_joins(names)} JOIN main.{table} AS mine ON {same} WHERE {which} GROUP BY theirs.id",
            values or {},
        )
        return new

    def _copy(self, table: str, which: str, values: Mapping[str, object], **given: str) -> int:
        """Copy the other file's rows, with this file's numbers of what they refer to; `given` says in SQL what columns become."""
        found = self._connection.execute(
            # all but the number that a file itself gives each row
            "SELECT name FROM pragma_table_info(:table, 'main') WHERE NOT pk OR "
            "(SELECT max(pk) > 1 FROM pragma_table_info(:table, 'main'))",
            {"table": table},
        )
        columns = [name for (name,) in found]
        taken = ", ".join(given.get(name, _mine(name)) for name in columns)
        return self._connection.execute(
            f"INSERT INTO main.{table} ({', '.join(columns)}) "
            f"SELECT {taken} FROM other.{table} AS theirs {_joins(columns)} WHERE {which}",
            values,
        ).rowcount

"""The file of the proxy's shared layer: made for its owner's eyes alone, opened, and set aside when it is damaged.

It knows the tables and nothing of what is in them. Not the toolkit's store: losing this file costs time, never a fact.
"""

import contextlib
import errno
import fcntl
import os
import sqlite3
import stat
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import quote

from toolkit.errors import ToolkitError

APPLICATION_ID = 0x746B7063
"""`tkpc` in the file's header: whose it is."""
SCHEMA = 1
PAGE_BYTES = 8192
"""An answer of 1,000 bytes takes 1,214 of the file; in pages of 4 KiB 1,410 (60,000 answers)."""
BUSY_TIMEOUT_S = 5.0
"""How long a writer waits for another process; a transaction holds the lock for milliseconds."""
OPENING_PATIENCE_S = 5.0
JOURNAL_LIMIT_BYTES = 32 * 2**20
CACHE_KIB = 8192
BROKEN_KEPT = 3
"""So many damaged files stay beside the new one; a failing disk must not be filled with them."""

DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
OTHER_FILE = "Name another file, or none, as `file` under `[cache]`"

# With a rowid an answer's place follows its time: the oldest are the first, and a batch is appended. The key as the
# tree's own order (WITHOUT ROWID) took 47 us of CPU to write an answer of 1,000 bytes instead of 7 to 10, and 1,443 bytes
# of file instead of 1,214; it was found as fast.
TABLES = """
CREATE TABLE answers (
    id INTEGER PRIMARY KEY,
    key BLOB NOT NULL UNIQUE,
    ends_at REAL NOT NULL,
    put_at REAL NOT NULL,
    tenant TEXT NOT NULL,
    model TEXT NOT NULL,
    value BLOB NOT NULL
) STRICT;
CREATE INDEX answers_by_end ON answers (ends_at);
CREATE TABLE epochs (model TEXT PRIMARY KEY, number INTEGER NOT NULL) STRICT, WITHOUT ROWID;
CREATE TABLE identities (name TEXT PRIMARY KEY, identity TEXT NOT NULL) STRICT, WITHOUT ROWID;
"""


class UnfitError(Exception):
    """The file can't be used as it is, and may be replaced."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened:
    """One open file: a connection to write, another to read, so that neither waits for the other."""

    writer: sqlite3.Connection
    reader: sqlite3.Connection
    inode: int
    """Which file it is: another process may have set it aside since."""
    warnings: tuple[str, ...] = ()

    def close(self) -> None:
        """Close both; what is written stays written whatever this says."""
        for connection in (self.reader, self.writer):
            with contextlib.suppress(sqlite3.Error):
                connection.close()


def opened(path: Path) -> Opened:
    """Open the file, or make it, or set a damaged one aside and make another.

    Raises ToolkitError on a file that the user has to do something about, sqlite3.Error and OSError on what may pass.
    """
    _refuse_path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    with _alone(path.parent):
        warnings = list(_made_private(path))
        try:
            writer = _prepared(path)
        except UnfitError as error:
            warnings.append(_set_aside(path, str(error)))
            warnings += _made_private(path)
            writer = _prepared(path)
        try:
            reader = _reader(path)
        except BaseException:
            writer.close()
            raise
        inode = path.stat().st_ino
    return Opened(writer=writer, reader=reader, inode=inode, warnings=tuple(warnings))


def set_aside(path: Path, inode: int, reason: str) -> str | None:
    """Move a damaged file out of the way, unless another process did; what to tell the user."""
    with _alone(path.parent):
        return None if has_moved(path, inode) else _set_aside(path, reason)


def has_moved(path: Path, inode: int) -> bool:
    """Whether the file of this name is another than the one that was opened, or gone."""
    try:
        return path.stat().st_ino != inode
    except (FileNotFoundError, NotADirectoryError):
        return True
    except OSError:
        return False  # nobody can say


def primary_code(error: sqlite3.Error) -> int | None:
    """SQLite's result code without its details; the driver's own complaints have none."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def reason_of(error: Exception) -> str:
    """What went wrong with the file, to stand behind its name."""
    if isinstance(error, sqlite3.Error):
        return _REASONS.get(primary_code(error), f"refused: {error}")
    if isinstance(error, OSError):
        return f"cannot be used: {error.strerror or error}"
    return str(error)


_REASONS: dict[int | None, str] = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_READONLY: "may not be written",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
    sqlite3.SQLITE_FULL: "cannot grow, the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written, the disk reports an error",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_NOTADB: "is not a SQLite database",
}


# --- Who may read it ------------------------------------------------------------------------------


def _refuse_path(path: Path) -> None:
    if path.is_dir():
        raise ToolkitError(f"`{path}` is a folder", "Name a file as `file` under `[cache]`")
    if path.exists() and not path.is_file():
        # `/dev/null` would be taken away from all other users of the machine, and a pipe waited for without end
        raise ToolkitError(
            f"`{path}` is a device or a pipe", "Name a file as `file` under `[cache]`"
        )
    if path.exists() and path.stat().st_uid != os.geteuid():
        # another user's file: what is in it would be served as this proxy's answers
        raise ToolkitError(f"`{path}` belongs to another user", OTHER_FILE)


def _made_private(path: Path) -> Iterator[str]:
    """Make the file, or take away others' right to read it; SQLite gives its -wal and -shm the same rights."""
    with contextlib.suppress(FileExistsError):
        os.close(os.open(path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
    # never opened by hand where it exists: closing it would end SQLite's own locks of this process
    for each in _with_journals(path):
        with contextlib.suppress(FileNotFoundError):
            mode = stat.S_IMODE(each.stat().st_mode)
            if mode & 0o077:
                each.chmod(0o600)
                yield f"`{each}` could be read by others (mode {mode:o}); now by its owner alone"


def _with_journals(path: Path) -> tuple[Path, Path, Path]:
    return path, Path(f"{path}-wal"), Path(f"{path}-shm")


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time opens a file here or sets it aside; a lock on the folder itself leaves no file behind."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + OPENING_PATIENCE_S
        while not _is_locked(handle) and time.monotonic() < deadline:
            time.sleep(0.01)
        yield
    finally:
        os.close(handle)


def _is_locked(handle: int) -> bool:
    """Whether the lock is ours, or there is none to be had: some network file systems know no lock on a folder."""
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        return error.errno not in (errno.EWOULDBLOCK, errno.EINTR)
    return True


def _set_aside(path: Path, reason: str) -> str:
    numbers = range(1, BROKEN_KEPT + 1)
    names = [Path(f"{path}.broken-{number}") for number in numbers]
    there = next((name for name in names if not name.exists()), names[-1])
    for old, new in zip(_with_journals(path), _with_journals(there), strict=True):
        try:
            old.replace(new)
        except FileNotFoundError:
            new.unlink(missing_ok=True)  # an older one's journal is none of this one's
    return (
        f"`{path}` {reason}; it was set aside as `{there.name}`, and the shared cache begins anew"
    )


# --- SQLite ---------------------------------------------------------------------------------------


def _connected(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """Connect to the file and make none: one that SQLite made might be read by others."""
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=rw"
    return sqlite3.connect(
        uri, uri=True, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
    )


def _prepared(path: Path) -> sqlite3.Connection:
    """The connection that writes; the tables are there after it. Raises UnfitError on a damaged file."""
    connection = _connected(path, BUSY_TIMEOUT_S)
    try:
        try:
            _prepare(connection, path)
        except sqlite3.DatabaseError as error:
            if primary_code(error) in DAMAGE:
                raise UnfitError(reason_of(error)) from error
            raise
    except BaseException:
        connection.close()
        raise
    return connection


def _prepare(connection: sqlite3.Connection, path: Path) -> None:
    kinds = connection.execute("SELECT name, type FROM sqlite_schema").fetchall()
    tables = {name for name, _ in kinds}
    if {kind for _, kind in kinds} - {"table", "index"}:
        # to ask one of these would run what somebody else wrote, perhaps without end
        raise ToolkitError(f"`{path}` has a view or a trigger, and no proxy made one", OTHER_FILE)
    owner, version = number(connection, "application_id"), number(connection, "user_version")
    if tables and owner != APPLICATION_ID:
        # not set aside: whoever uses it would go on writing into a file that nobody finds
        raise ToolkitError(f"`{path}` is the database of another program", OTHER_FILE)
    if tables and version != SCHEMA:
        raise UnfitError("was written by another version of the toolkit")
    if not tables:
        _make(connection)
    connection.execute("PRAGMA journal_mode = WAL")
    # a kill loses nothing that was written, a power cut at most what was not checkpointed
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_LIMIT_BYTES}")
    connection.execute("SELECT count(*) FROM epochs").fetchall()


def _make(connection: sqlite3.Connection) -> None:
    connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
    connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
    connection.execute("PRAGMA journal_mode = WAL")
    with transaction(connection):
        for statement in TABLES.split(";"):
            connection.execute(statement)
        connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
        connection.execute(f"PRAGMA user_version = {SCHEMA}")


def _reader(path: Path) -> sqlite3.Connection:
    """The connection that reads; it never waits: a file that another process just repairs is a miss.

    No mmap: it saves 1.6 us of 11 (100,000 answers of 1,000 bytes), and a file that is cut short under it ends the
    process with SIGBUS (tried).
    """
    connection = _connected(path, busy_timeout_s=0.0)
    connection.execute("PRAGMA query_only = ON")
    connection.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
    return connection


@contextlib.contextmanager
def transaction(connection: sqlite3.Connection) -> Iterator[None]:
    """Run the block in one write transaction, all or nothing."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        yield
        connection.execute("COMMIT")
    except BaseException:
        if connection.in_transaction:  # SQLite may have rolled back by itself, e.g., on a full disk
            with contextlib.suppress(sqlite3.Error):
                connection.execute("ROLLBACK")
        raise


def number(connection: sqlite3.Connection, pragma: str) -> int:
    """What one of SQLite's pragmas counts."""
    return int(connection.execute(f"PRAGMA {pragma}").fetchall()[0][0])

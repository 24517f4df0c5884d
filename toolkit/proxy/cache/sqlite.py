"""Stored answers in a SQLite file, which outlive a restart and are shared by the processes of one machine. It does file I/O.

A look-up runs in the caller's thread and waits for nobody; a filter of the file's keys spares most look-ups that would find nothing.
New answers wait in memory, where look-ups find them, for one thread that writes ten times a second. A file that fails costs hits, never
an answer. It is not the toolkit's store: losing it costs time, never a fact.
"""

import contextlib
import errno
import fcntl
import os
import sqlite3
import stat
import threading
import time
from collections import deque
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple
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

TICK_S = 0.1
"""A kill loses at most what was put in so long, and the time of one write. Seeing whether other processes wrote takes 18 us."""
WAITING_BYTES = 64 * 2**20
"""Most that waits to be written; more is not stored, and counted."""
TRANSACTION_BYTES = 4 * 2**20
"""Other processes' writers wait for one transaction at most."""
LARGEST_SHARE = 8
"""No answer and no transaction takes more than this part of the file."""
AGAIN_S, LONGEST_AGAIN_S = 1.0, 60.0
"""A file that failed is tried again after so long; doubles each time."""
UPKEEP_S = 30.0
"""How often ended answers are deleted while nothing is put."""
VACUUM_PAGES = 512
"""More free pages than these are given back to the disk, so many at a time."""
ROWS_AT_ONCE = 8192
"""Deleted in one transaction."""
ROW_BYTES = 256
"""What an answer costs beside its bytes, in memory while it waits and in the file: 214 there (measured)."""
KEYS_PER_TICK = 20_000
"""Read for the filter before the thread looks after all else again."""
FILTER_KEYS = 2_000_000
"""After so many, or twice as many as the file had, the filter is made anew: of so many one look-up in 22 is in vain."""

DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_FORMAT})
MAY_PASS = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
MAY_PASS_ERRNO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE})
REASONS: dict[int | None, str] = {
    sqlite3.SQLITE_BUSY: "is locked by another process",
    sqlite3.SQLITE_READONLY: "may not be written",
    sqlite3.SQLITE_CANTOPEN: "cannot be opened",
    sqlite3.SQLITE_FULL: "cannot grow, the disk is full",
    sqlite3.SQLITE_IOERR: "cannot be read or written, the disk reports an error",
    sqlite3.SQLITE_CORRUPT: "is damaged",
    sqlite3.SQLITE_NOTADB: "is not a SQLite database",
    sqlite3.SQLITE_FORMAT: "was written by another version of the toolkit",
}
NAME_A_FILE = "Name a file as `file` under `[cache]`"
OTHER_FILE = "Name another file, or none, as `file` under `[cache]`"

# With a rowid an answer's place follows its time: the oldest are the first, and a batch is appended. The key as the
# tree's own order (WITHOUT ROWID) took 47 us of CPU to write an answer of 1,000 bytes instead of 7 to 10, and 1,443 bytes
# of file instead of 1,214; it was found as fast.
TABLES = f"""
BEGIN IMMEDIATE;
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
PRAGMA application_id = {APPLICATION_ID};
PRAGMA user_version = {SCHEMA};
COMMIT;
"""
FINGERPRINTS = (
    "CREATE TABLE IF NOT EXISTS fingerprints"
    " (name TEXT PRIMARY KEY, value TEXT NOT NULL) STRICT, WITHOUT ROWID"
)
PUT = (
    "INSERT OR REPLACE INTO answers (id, key, ends_at, put_at, tenant, model, value)"
    " VALUES (?, ?, ?, ?, ?, ?, ?)"
)
# One row for thousands of keys: each row that SQLite hands over is a turn at the interpreter's lock, for which a thread waits
# up to 5 ms while the loop is busy.
KEYS = """
SELECT group_concat(hex(substr(key, 1, 6)), ''), max(id)
FROM (SELECT id, key FROM answers WHERE id > ? ORDER BY id LIMIT ?)
"""


class Row(NamedTuple):
    """An answer in the file, but for its number."""

    key: bytes
    ends_at: float
    put_at: float
    tenant: str
    model: str
    value: bytes

    @property
    def weight(self) -> int:
        """What it costs, in bytes."""
        return len(self.value) + ROW_BYTES


class KeyFilter:
    """Which keys may be in the file. Two bits of 2**24 for each, by its first bytes: keys are digests.

    Of 100,000 keys 1 in 7,000 others is taken for one of them, of a million 1 in 79.
    """

    def __init__(self) -> None:
        self._bits = bytearray(2**21)
        self.count, self.max_count = 0, FILTER_KEYS
        """After so many it is made anew: of answers that were deleted it keeps the keys."""
        self.last_id = self.version = 0
        """The file was read up to this answer, and to this number of other processes' writes."""
        self.is_complete = False
        """All keys of the file were read; before that, and while the file fails, each look-up asks the file."""

    def add(self, starts: bytes) -> None:
        """Know these keys, the first six bytes of each, one behind the other."""
        bits = self._bits
        for at in range(0, len(starts), 3):
            place = int.from_bytes(starts[at : at + 3])
            bits[place >> 3] |= 1 << (place & 7)
        self.count += len(starts) // 6

    def may_hold(self, key: bytes) -> bool:
        """False: it is not in the file."""
        if not self.is_complete:
            return True
        bits, one, two = self._bits, int.from_bytes(key[:3]), int.from_bytes(key[3:6])
        return bool(bits[one >> 3] >> (one & 7) & bits[two >> 3] >> (two & 7) & 1)


class SqliteCache:
    """One process's use of the file; its methods may be called from any thread. Open it after forking."""

    def __init__(self, path: Path | str, max_bytes: int) -> None:
        """Open the file or make it. Raises ToolkitError on one that the user has to do something about."""
        self.path = Path(path)
        self.max_bytes = max_bytes
        self.problem: str | None = None
        """Why nothing is read or written now; it is tried again by itself."""
        self.lost = 0
        """Answers not stored, because too much waited or they were too large."""
        self.warnings: deque[str] = deque()
        """What the user should know, each once: whoever reads one takes it out."""
        # one connection to write, another to read, so that neither waits for the other
        self._writer: sqlite3.Connection | None = None
        self._reader: sqlite3.Connection | None = None
        self._inode = 0
        """Which file is open: another process may have set it aside since."""
        self._fault: Exception | None = None
        """The file failed in a way that it must be opened anew after."""
        self._pending: dict[bytes, Row] = {}
        self._pending_bytes = 0
        self._pending_fingerprints: dict[str, str] = {}
        """What is not in the file yet."""
        self._keys = KeyFilter()
        self._upkeep_s = 0.0
        """When it is due, monotonic."""
        self._read_lock, self._queue_lock = threading.Lock(), threading.Lock()
        self._write_lock = threading.Lock()
        self._wake, self._end = threading.Event(), threading.Event()
        try:
            self._opened()
        except (sqlite3.Error, OSError) as error:
            self._failed(error)
            system = getattr(error, "errno", None)
            if primary_code(error) not in MAY_PASS and system not in MAY_PASS_ERRNO:
                raise ToolkitError(f"The shared cache {self.problem}", OTHER_FILE) from error
        self._thread = threading.Thread(target=self._run, name="cache-file", daemon=True)
        self._thread.start()

    # --- answers ------------------------------------------------------------------------------------

    def get(self, key: bytes, now: float) -> tuple[bytes, float] | None:
        """The packed answer and when it ends (inf: never); None: there is none that is still good."""
        # first what waits, then the filter, then the file: the thread takes them the other way round
        row = self._pending.get(key)
        if row is not None:
            return (row.value, row.ends_at) if row.ends_at > now else None
        if not self._keys.may_hold(key):
            return None
        found = self._rows("SELECT value, ends_at FROM answers WHERE key = ?", (key,))
        return found[0] if found and found[0][1] > now else None

    def put(
        self,
        key: bytes,
        packed: bytes,
        *,
        ends_at: float,
        tenant: str,
        model: str | None,
        now: float,
    ) -> bool:
        """Queue an answer to be written; False if it is too large, too much waits, or it has ended. Never waits."""
        if not ends_at > now:
            return False
        row = Row(key, ends_at, now, as_text(tenant), as_text(model or ""), packed)
        with self._queue_lock:
            before = self._pending.get(key)
            pending_bytes = self._pending_bytes + row.weight - (before.weight if before else 0)
            if row.weight > self.max_bytes // LARGEST_SHARE or pending_bytes > WAITING_BYTES:
                self.lost += 1
                return False
            self._pending[key], self._pending_bytes = row, pending_bytes
        return True

    def purge(
        self, *, tenant: str | None = None, model: str | None = None, key: bytes | None = None
    ) -> int:
        """Delete the answers that match all that is given, or all answers; return how many.

        It waits for the file: call it in a thread that may. Raises ToolkitError where some may be there still.
        """
        given = {"tenant": tenant, "model": model, "key": key}
        wanted = {
            name: as_text(value) if isinstance(value, str) else value
            for name, value in given.items()
            if value is not None
        }
        where = " AND ".join([f"{name} = ?" for name in wanted] + ["id > ?"])
        some = f"SELECT id FROM answers WHERE {where} ORDER BY id LIMIT {ROWS_AT_ONCE}"  # noqa: S608 (names from above)
        delete = f"DELETE FROM answers WHERE id IN ({some}) RETURNING id"  # noqa: S608
        with self._write_lock:  # nothing is being written meanwhile
            with self._queue_lock:
                gone = [
                    row
                    for row in self._pending.values()
                    if all(getattr(row, name) == value for name, value in wanted.items())
                ]
                self._no_longer_pending(gone)
            count, last = len(gone), 0
            try:
                writer = self._opened()
                while True:
                    # a part at a time, in their order: other processes write in between
                    with writer:
                        found = writer.execute(delete, (*wanted.values(), last)).fetchall()
                    if not found:
                        break
                    count, last = count + len(found), max(found)[0]
            except (sqlite3.Error, OSError, ToolkitError) as error:
                self._failed(error)
                message = f"The shared cache could not be purged: {self.problem}"
                raise ToolkitError(message, "Purge again once it can be written") from None
            self._upkeep_s = 0.0  # there is space to give back
            return count

    # --- what the models are --------------------------------------------------------------------------

    def fingerprints(self) -> dict[str, str]:
        """What any process has kept of the models."""
        found = self._rows("SELECT name, value FROM fingerprints")
        with self._queue_lock:
            return dict(found) | self._pending_fingerprints

    def keep_fingerprints(self, known: Mapping[str, str]) -> None:
        """Queue them to be written at once, before any answer. Never waits."""
        with self._queue_lock:
            for name, value in known.items():
                self._pending_fingerprints[as_text(name)] = as_text(value)
        self._wake.set()

    def earlier_epochs(self) -> tuple[dict[str, int], dict[str, str]] | None:
        """The epochs by model and the identities by address that an earlier version wrote; None: it did not."""
        if not self._rows("SELECT 1 FROM sqlite_schema WHERE name = 'epochs'"):
            return None
        epochs = dict(self._rows("SELECT model, number FROM epochs"))
        return epochs, dict(self._rows("SELECT name, identity FROM identities"))

    # --- its state ------------------------------------------------------------------------------------

    def file_bytes(self) -> int | None:
        """How large the file is; None: it can't be read now."""
        found = self._rows(
            "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size", ()
        )
        return found[0][0] if found else None

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._end.set()
        self._wake.set()
        self._thread.join()
        self.flush()
        with self._write_lock:
            self._close_file()

    # --- reading ---------------------------------------------------------------------------------------

    def _rows(self, sql: str, values: tuple[object, ...] = ()) -> list[Any]:
        """Read all rows, so that no statement keeps an old state of the file; none where it can't be read."""
        with self._read_lock:
            if self._reader is None or self._fault is not None:
                return []
            try:
                return self._reader.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                # busy: another process repairs what one that was killed left
                if primary_code(error) != sqlite3.SQLITE_BUSY:
                    self._fault = error
        return []

    # --- writing: one thread at a time, behind the lock ---------------------------------------------------

    def _run(self) -> None:
        pause_s = 0.0
        while not self._end.wait(pause_s):
            self._wake.wait(TICK_S)
            self._wake.clear()
            self.flush()
            longer_s = min(max(AGAIN_S, 2 * pause_s), LONGEST_AGAIN_S)
            pause_s = 0.0 if self.problem is None else longer_s

    def flush(self) -> bool:
        """Write what waits, and read which keys other processes wrote; False if the file refused it. Waits for the file."""
        with self._write_lock:
            try:
                writer = self._opened()
                if self._pending_fingerprints or self._pending:
                    self._write(writer)
                elif self.problem is not None or time.monotonic() >= self._upkeep_s:
                    self._look_after(writer)
                self._refresh_filter(writer)
                self.problem = None
            except Exception as error:  # noqa: BLE001 (said and tried again: without its thread nothing is stored)
                self._failed(error)
            return not self._pending

    def _failed(self, error: Exception) -> None:
        self.problem = f"`{self.path}` {reason_of(error)}"
        self._keys.is_complete = False
        if primary_code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL):
            self._fault = error

    def _write(self, writer: sqlite3.Connection) -> None:
        if fingerprints := dict(self._pending_fingerprints):
            with writer:
                writer.executemany(
                    "INSERT OR REPLACE INTO fingerprints VALUES (?, ?)", fingerprints.items()
                )
            with self._queue_lock:
                left = self._pending_fingerprints.items() - fingerprints.items()
                self._pending_fingerprints = dict(left)
        most_bytes = min(TRANSACTION_BYTES, self.max_bytes // LARGEST_SHARE)
        while self._pending:
            part: list[Row] = []
            size = 0
            with self._queue_lock:
                for row in self._pending.values():
                    if part and size + row.weight > most_bytes:
                        break
                    part.append(row)
                    size += row.weight
            with writer:
                self._make_room(writer, size)
                # Numbered by the time: one that is deleted, as the last of all, leaves its number to no other answer, whose
                # key the filters of other processes would not ask for then.
                first = max(newest_id(writer) + 1, int(time.time() * 1e6))
                writer.executemany(PUT, ((first + n, *row) for n, row in enumerate(part)))
            self._keys.add(b"".join(row.key[:6] for row in part))
            with self._queue_lock:
                # what was put anew meanwhile waits on
                self._no_longer_pending([row for row in part if self._pending.get(row.key) is row])

    def _no_longer_pending(self, rows: list[Row]) -> None:
        for row in rows:
            del self._pending[row.key]
            self._pending_bytes -= row.weight

    def _make_room(self, writer: sqlite3.Connection, need: int) -> bool:
        """Delete what has ended, then the oldest, until so many bytes more fit; freed pages are used again.

        False: there is more to do, e.g., because the file may be no longer as large as it was.
        """
        ended = writer.execute(
            "DELETE FROM answers WHERE id IN (SELECT id FROM answers WHERE ends_at <= ? LIMIT ?)",
            (time.time(), ROWS_AT_ONCE),
        ).rowcount
        used = number(writer, "page_count") - number(writer, "freelist_count")
        excess = used * number(writer, "page_size") + need - self.max_bytes
        if excess > 0:
            last = 0
            oldest = "SELECT id, length(value) FROM answers ORDER BY id LIMIT ?"
            for last, size in writer.execute(oldest, (ROWS_AT_ONCE,)):  # noqa: B007
                excess -= size + ROW_BYTES
                if excess <= 0:
                    break
            writer.execute("DELETE FROM answers WHERE id <= ?", (last,))
        return excess <= 0 and ended < ROWS_AT_ONCE

    def _look_after(self, writer: sqlite3.Connection) -> None:
        """Delete what has ended, a part at a time, and give free pages back to the disk."""
        self._upkeep_s = time.monotonic() + UPKEEP_S
        with writer:
            is_done = self._make_room(writer, 0)
        has_spare = number(writer, "freelist_count") > VACUUM_PAGES
        if has_spare:
            # `execute` would stop after the first page
            writer.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
        if has_spare or not is_done:
            self._upkeep_s = 0.0  # go on soon

    def _refresh_filter(self, writer: sqlite3.Connection) -> None:
        """Read the file's keys, a part at a time; once all are known, those that other processes have written since."""
        keys, version = self._keys, number(writer, "data_version")
        is_full = keys.count >= keys.max_count
        if keys.is_complete and version == keys.version and not is_full:
            return
        # the newest were deleted: where the clock went back, others may bear their numbers
        if is_full or newest_id(writer) < keys.last_id:
            keys = self._keys = KeyFilter()
        starts, last = writer.execute(KEYS, (keys.last_id, KEYS_PER_TICK)).fetchone()
        if starts is not None:
            keys.add(bytes.fromhex(starts))
            keys.last_id = last
            return
        if not keys.is_complete:
            keys.max_count = max(FILTER_KEYS, 2 * keys.count)
        keys.is_complete, keys.version = True, version

    # --- the file -----------------------------------------------------------------------------------------

    def _opened(self) -> sqlite3.Connection:
        """The connection that writes. It is opened anew where the file failed, is gone, or another process set it aside.

        Makes the file where there is none, and sets a damaged one aside. Raises ToolkitError on a file that the user has to do
        something about, sqlite3.Error and OSError on what may pass.
        """
        if self._writer is not None and self._fault is None and not self._has_moved():
            return self._writer
        self._close_file()
        path, fault = self.path, self._fault
        if path.exists() and not path.is_file():
            # `/dev/null` would be taken away from all other users of the machine, and a pipe waited for without end
            kind = "folder" if path.is_dir() else "device or a pipe"
            raise ToolkitError(f"`{path}` is a {kind}", NAME_A_FILE)
        if path.exists() and path.stat().st_uid != os.geteuid():
            # another user's file: what is in it would be served as this proxy's answers
            raise ToolkitError(f"`{path}` belongs to another user", OTHER_FILE)
        path.parent.mkdir(parents=True, exist_ok=True)
        with _alone(path.parent):
            try:
                if fault is not None and primary_code(fault) in DAMAGE and not self._has_moved():
                    raise fault
                writer = self._prepared()
            except sqlite3.DatabaseError as error:
                if primary_code(error) not in DAMAGE:
                    raise
                self._set_aside(reason_of(error))
                writer = self._prepared()
            try:
                # It never waits: a file that another process just repairs is a miss. No mmap: it saves 1.6 us of 11 (100,000
                # answers of 1,000 bytes), and a file that is cut short under it ends the process with SIGBUS (tried).
                reader = _connected(path, busy_timeout_s=0.0)
                reader.execute("PRAGMA query_only = ON")
                reader.execute(f"PRAGMA cache_size = -{CACHE_KIB}")
                self._inode = path.stat().st_ino
            except BaseException:
                writer.close()
                raise
        self._keys = KeyFilter()
        with self._read_lock:
            self._writer, self._reader, self._fault = writer, reader, None
        return writer

    def _prepared(self) -> sqlite3.Connection:
        """Make sure of the file, its tables and that only its owner may read it; return the connection that writes."""
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR | os.O_CLOEXEC, 0o600))
        # never opened by hand where it exists: closing it would end SQLite's own locks of this process
        for each in _with_journals(self.path):
            with contextlib.suppress(FileNotFoundError):
                mode = stat.S_IMODE(each.stat().st_mode)
                if mode & 0o077:
                    each.chmod(0o600)
                    self.warnings.append(
                        f"`{each}` could be read by others (mode {mode:o}); now by its owner alone"
                    )
        with contextlib.ExitStack() as stack:
            connection = _connected(self.path, BUSY_TIMEOUT_S)
            stack.callback(connection.close)
            kinds = dict(connection.execute("SELECT name, type FROM sqlite_schema"))
            if set(kinds.values()) - {"table", "index"}:
                # to ask one of these would run what somebody else wrote, perhaps without end
                why = f"`{self.path}` has a view or a trigger, and no proxy made one"
                raise ToolkitError(why, OTHER_FILE)
            if kinds and number(connection, "application_id") != APPLICATION_ID:
                # not set aside: whoever uses it would go on writing into a file that nobody finds
                raise ToolkitError(f"`{self.path}` is the database of another program", OTHER_FILE)
            if kinds and number(connection, "user_version") != SCHEMA:
                other = sqlite3.DatabaseError()
                other.sqlite_errorcode = sqlite3.SQLITE_FORMAT  # SQLite itself never says so
                raise other
            if not kinds:
                connection.execute(f"PRAGMA page_size = {PAGE_BYTES}")
                connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            connection.execute("PRAGMA journal_mode = WAL")
            # a kill loses nothing that was written, a power cut at most what was not checkpointed
            connection.execute("PRAGMA synchronous = NORMAL")
            connection.execute(f"PRAGMA journal_size_limit = {JOURNAL_LIMIT_BYTES}")
            if not kinds:
                connection.executescript(TABLES)
            connection.execute(FINGERPRINTS)
            connection.execute("SELECT count(*) FROM fingerprints").fetchall()
            stack.pop_all()
            return connection

    def _set_aside(self, reason: str) -> None:
        """Rename the file and its journals."""
        names = [Path(f"{self.path}.broken-{number}") for number in range(1, BROKEN_KEPT + 1)]
        free = next((name for name in names if not name.exists()), names[-1])
        for old, new in zip(_with_journals(self.path), _with_journals(free), strict=True):
            try:
                old.replace(new)
            except FileNotFoundError:
                new.unlink(missing_ok=True)  # an older one's journal is none of this one's
        self.warnings.append(
            f"`{self.path}` {reason}; it was set aside as `{free.name}`, and the shared cache begins anew"
        )

    def _has_moved(self) -> bool:
        """Whether the file of this name is another than the one that was opened, or gone."""
        try:
            return self.path.stat().st_ino != self._inode
        except OSError as error:
            return error.errno in (errno.ENOENT, errno.ENOTDIR)

    def _close_file(self) -> None:
        with self._read_lock:
            connections = self._reader, self._writer
            self._reader = self._writer = None
        for connection in connections:
            if connection is not None:
                # what is written stays written whatever this says; the last one to close folds the log back
                with contextlib.suppress(sqlite3.Error):
                    connection.close()


@contextlib.contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """Lock the folder: one process at a time opens a file here or sets it aside. Locking the folder itself leaves no file behind."""
    handle = os.open(folder, os.O_RDONLY | os.O_CLOEXEC)
    try:
        deadline = time.monotonic() + OPENING_PATIENCE_S
        while time.monotonic() < deadline:
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                time.sleep(0.01)
            except OSError:
                break  # some network file systems know no lock on a folder
        yield
    finally:
        os.close(handle)


def _with_journals(path: Path) -> tuple[Path, Path, Path]:
    return path, Path(f"{path}-wal"), Path(f"{path}-shm")


def _connected(path: Path, busy_timeout_s: float) -> sqlite3.Connection:
    """Connect to the file and make none: one that SQLite made might be read by others."""
    uri = f"file:{quote(os.fsencode(path.absolute()))}?mode=rw"
    return sqlite3.connect(
        uri, uri=True, timeout=busy_timeout_s, isolation_level="IMMEDIATE", check_same_thread=False
    )


def number(connection: sqlite3.Connection, pragma: str) -> int:
    """What one of SQLite's pragmas counts."""
    return int(connection.execute(f"PRAGMA {pragma}").fetchone()[0])


def newest_id(connection: sqlite3.Connection) -> int:
    """The last answer's number; 0: there is none."""
    return int(connection.execute("SELECT coalesce(max(id), 0) FROM answers").fetchone()[0])


def as_text(text: str) -> str:
    """Spell out lone surrogates, which UTF-8 cannot: one would cost its whole batch."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def primary_code(error: Exception) -> int | None:
    """SQLite's result code without its details; the driver's own complaints have none."""
    code = getattr(error, "sqlite_errorcode", None)
    return None if code is None else code & 0xFF


def reason_of(error: Exception) -> str:
    """What went wrong with the file, to stand behind its name."""
    if isinstance(error, sqlite3.Error):
        return REASONS.get(primary_code(error), f"refused: {error}")
    if isinstance(error, OSError):
        return f"cannot be used: {error.strerror or error}"
    return str(error) if isinstance(error, ToolkitError) else f"{type(error).__name__}: {error}"

"""Stored answers in a file: they outlive a restart, and several processes share them. It touches the file, in SQLite.

A look-up is made in the caller's thread and waits for nobody. What is put waits in memory, where a look-up finds it,
for the one thread that writes: twice a second, all at once. A file that fails costs hits, never an answer.
"""

import errno
import math
import sqlite3
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

from toolkit.errors import ToolkitError
from toolkit.proxy.stored import shared_file
from toolkit.proxy.stored import shared_rows as rows
from toolkit.proxy.stored.shared_file import (
    DAMAGE,
    Opened,
    number,
    primary_code,
    reason_of,
    transaction,
)
from toolkit.proxy.stored.shared_rows import Deleted, Row, as_text, fits, weight

BATCH_S = 0.5
"""A kill loses at most what was put in so long, and the time of one write."""
WAITING_BYTES = 64 * 2**20
"""Most that waits to be written; more is not stored, and counted."""
TRANSACTION_BYTES = 4 * 2**20
"""Other processes' writers wait for one transaction at most."""
LARGEST_SHARE = 8
"""No answer and no transaction takes more than this part of the file."""
AGAIN_S, LONGEST_AGAIN_S = 1.0, 60.0
"""A file that failed is tried again after so long; doubles each time."""
UPKEEP_S = 30.0
"""How often the file is looked after while nothing is put."""
SPARE_SHARE = 4
"""More free pages than this part of the file are given back to the disk, VACUUM_PAGES at a time."""
VACUUM_PAGES = 512
STATEMENTS = 16
"""That delete in one transaction."""

PURGE_AGAIN = "Purge again once it can be written"
_MAY_PASS = frozenset({sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR})
_MAY_PASS_ERRNO = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EMFILE, errno.ENFILE})

Told = TypeVar("Told")


@dataclass(slots=True, kw_only=True)
class SharedCounts:
    """What this process did with the file, and how large it is."""

    hits: int = 0
    misses: int = 0
    written: int = 0
    lost: int = 0
    """Not stored, because too much waited or it was too large."""
    evicted: int = 0
    """The oldest, deleted to make room."""
    expired: int = 0
    failures: int = 0
    """Reads and writes that the file refused."""
    waiting: int = 0
    waiting_bytes: int = 0
    file_bytes: int | None = None
    """None: the file can't be read now."""


class SharedCache:
    """One process's use of the file; its methods may be called from any thread. Open it after forking."""

    def __init__(
        self,
        path: Path | str,
        max_bytes: int,
        *,
        batch_s: float = BATCH_S,
        waiting_bytes: int = WAITING_BYTES,
        clock: Callable[[], float] = time.time,
    ) -> None:
        """Open the file or make it. Raises ToolkitError on one that the user has to do something about."""
        self.path = Path(path)
        self.max_bytes = max_bytes
        self.problem: str | None = None
        """Why nothing is read or written now; it is tried again by itself."""
        self._batch_s, self._most_waiting, self._clock = batch_s, waiting_bytes, clock
        self._file: Opened | None = None
        self._ill: sqlite3.Error | None = None
        """The file failed in a way that it must be opened anew after."""
        self._counts = SharedCounts()
        self._warnings: list[str] = []
        self._epochs: dict[str, int] = {}
        self._identities: dict[str, str] = {}
        self._waiting: dict[bytes, Row] = {}
        self._writing: dict[bytes, Row] = {}
        self._waiting_bytes = 0
        """Of both."""
        self._read_lock, self._queue_lock = threading.Lock(), threading.Lock()
        self._write_lock = threading.RLock()
        self._wake, self._end = threading.Event(), threading.Event()
        self._open_first()
        self._thread = threading.Thread(target=self._write_on, name="shared-cache", daemon=True)
        self._thread.start()

    # --- answers ------------------------------------------------------------------------------------

    def get(self, key: bytes, now: float) -> tuple[bytes, float] | None:
        """The packed answer and when it ends (inf: never); None: there is none that is still good."""
        # first what waits, then what is being written: the thread moves them the other way round
        row = self._waiting.get(key) or self._writing.get(key)
        found = self._read(key) if row is None else (row[5], row[1])
        if found is None or found[1] <= now:
            self._counts.misses += 1
            return None
        self._counts.hits += 1
        return found

    def put(
        self,
        key: bytes,
        packed: bytes,
        *,
        ends_at: float | None,
        tenant: str,
        model: str | None,
        now: float,
    ) -> bool:
        """Have an answer stored soon; False: it is too large, too much waits, or it has ended. Never waits itself."""
        ends = math.inf if ends_at is None else ends_at
        if not ends > now:
            return False
        row = (key, ends, now, as_text(tenant), as_text(model or ""), packed)
        with self._queue_lock:
            before = self._waiting.get(key)
            more = weight(row) - (weight(before) if before else 0)
            too_large = weight(row) > self.max_bytes // LARGEST_SHARE
            if too_large or self._waiting_bytes + more > self._most_waiting:
                self._counts.lost += 1
                return False
            self._waiting[key] = row
            self._waiting_bytes += more
        if not self._wake.is_set():
            self._wake.set()
        return True

    def purge(
        self, *, tenant: str | None = None, model: str | None = None, key: bytes | None = None
    ) -> int:
        """Delete the answers that all given things fit, or all of them; how many it were.

        It waits for the file: call it in a thread that may. Raises ToolkitError where some may be there still.
        """
        given = {"tenant": tenant, "model": model, "key": key}
        wanted: dict[str, object] = {
            name: as_text(value) if isinstance(value, str) else value
            for name, value in given.items()
            if value is not None
        }
        with self._write_lock:
            count, after = self._drop_waiting(wanted), 0
            while step := self._in_transaction(partial(_delete, wanted, after), None):
                count, after = count + step.rows, step.last
                if not after:
                    self._wake.set()  # there is space to give back
                    return count
        why = self.problem or f"`{self.path}` cannot be used"
        raise ToolkitError(f"The shared cache could not be purged: {why}", PURGE_AGAIN)

    def flush(self) -> bool:
        """Write what waits; False: the file refused it, and it waits on. It waits for the file."""
        with self._write_lock:
            self._write()
            return not self._waiting

    # --- what the upstreams are -------------------------------------------------------------------------

    def epoch(self, model: str) -> int:
        """A model's epoch by the file; 0 where it was never bumped."""
        return self.epochs().get(as_text(model), 0)

    def epochs(self) -> dict[str, int]:
        """Every epoch that any process ever bumped; what is known where the file can't be read."""
        for model, count in self._rows(rows.EPOCHS, ()):
            self._epochs[model] = max(count, self._epochs.get(model, 0))
        return dict(self._epochs)

    def bump(self, model: str) -> int:
        """Make a model's stored answers unreachable; its new epoch. Waits for the file; counts on without it."""
        model = as_text(model)
        with self._write_lock:
            known = self._epochs.get(model, 0)
            self._epochs[model] = self._in_transaction(
                lambda writer: rows.bump(writer, model, known), known + 1
            )
            return self._epochs[model]

    def identity(self, name: str) -> str | None:
        """What was last stored of an upstream, by any process."""
        found = self._rows(rows.IDENTITY, (as_text(name),))
        return found[0][0] if found else self._identities.get(name)

    def set_identity(self, name: str, identity: str) -> None:
        """Store what an upstream is. Waits for the file."""
        with self._write_lock:
            self._identities[name] = identity
            kept = [(as_text(name), as_text(identity))]
            self._in_transaction(lambda writer: rows.keep_identities(writer, kept), None)

    # --- what it tells ------------------------------------------------------------------------------------

    def take_warnings(self) -> list[str]:
        """What the user should know and was not told yet."""
        told, self._warnings = self._warnings, []
        return told

    def counts(self) -> SharedCounts:
        """All counters of this process."""
        found = self._rows(rows.FILE_BYTES, ())
        return replace(
            self._counts,
            waiting=len(self._waiting) + len(self._writing),
            waiting_bytes=self._waiting_bytes,
            file_bytes=found[0][0] if found else None,
        )

    def close(self) -> None:
        """Write what waits, and close the file."""
        self._end.set()
        self._wake.set()
        self._thread.join()
        with self._write_lock:
            self._write()
            self._let_go()

    # --- reading ---------------------------------------------------------------------------------------

    def _read(self, key: bytes) -> tuple[bytes, float] | None:
        found = self._rows(rows.GET, (key,))
        return found[0] if found else None

    def _rows(self, sql: str, values: tuple[object, ...]) -> list[Any]:
        """Read all rows, so that no statement keeps an old state of the file; none where it can't be read."""
        with self._read_lock:
            if self._file is None or self._ill is not None:
                return []
            try:
                return self._file.reader.execute(sql, values).fetchall()
            except sqlite3.Error as error:
                self._counts.failures += 1
                # busy: another process repairs what one that was killed left
                if primary_code(error) != sqlite3.SQLITE_BUSY:
                    self._ill = error
                    self._wake.set()
        return []

    # --- writing: one thread at a time, behind the lock ---------------------------------------------------

    def _write_on(self) -> None:
        pause_s = AGAIN_S
        while not self._end.is_set():
            if self.problem is None and not self._waiting:
                self._wake.wait(UPKEEP_S)
            self._wake.clear()
            self._round()
            self._end.wait(pause_s if self.problem else self._batch_s)
            pause_s = min(2 * pause_s, LONGEST_AGAIN_S) if self.problem else AGAIN_S

    def _round(self) -> None:
        with self._write_lock:
            try:
                self._mend()
                self._write()
            except Exception as error:  # noqa: BLE001 (told and tried again: without its thread nothing is stored)
                self._counts.failures += 1
                self.problem = f"`{self.path}`: {type(error).__name__}: {error}"

    def _write(self) -> None:
        """Write all that waits, and look after the file where nothing does."""
        with self._queue_lock:
            self._writing = self._waiting
            self._waiting = {}
        batch = tuple(self._writing.values())
        done = 0
        for part in rows.parts(batch, min(TRANSACTION_BYTES, self.max_bytes // LARGEST_SHARE)):
            if not self._in_transaction(partial(self._put_rows, part), False):
                break
            done += len(part)
        self._counts.written += done
        self._put_back(batch[:done], batch[done:])
        if not batch:
            self._on_file(self._look_after, None)

    def _put_rows(self, part: Sequence[Row], writer: sqlite3.Connection) -> bool:
        self._make_room(writer, sum(map(weight, part)))
        rows.put(writer, part)
        return True

    def _put_back(self, done: Iterable[Row], left: Iterable[Row]) -> None:
        """Have what was not written wait on, unless the same was put anew meanwhile."""
        with self._queue_lock:
            still = {row[0]: row for row in left if row[0] not in self._waiting}
            gone = (row for row in left if row[0] in self._waiting)
            self._waiting_bytes -= sum(map(weight, done)) + sum(map(weight, gone))
            self._waiting = still | self._waiting
            self._writing = {}

    def _drop_waiting(self, wanted: Mapping[str, object]) -> int:
        """Forget what waits and fits; nothing is being written meanwhile."""
        with self._queue_lock:
            kept = {key: row for key, row in self._waiting.items() if not fits(row, wanted)}
            count = len(self._waiting) - len(kept)
            self._waiting = kept
            self._waiting_bytes = sum(map(weight, kept.values()))
        return count

    def _make_room(self, writer: sqlite3.Connection, need: int) -> bool:
        """Delete what has ended, then the oldest, until so many bytes more fit; freed pages are used again.

        False: there is more to do, e.g., because the file may be no longer as large as it was.
        """
        expired = rows.expire(writer, self._clock())
        self._counts.expired += expired
        for _ in range(STATEMENTS):
            excess = rows.used_bytes(writer) + need - self.max_bytes
            evicted = rows.evict(writer, excess) if excess > 0 else 0
            if not evicted:
                return expired < rows.ROWS_AT_ONCE
            self._counts.evicted += evicted
        return False

    def _look_after(self, file: Opened) -> None:
        """Delete what has ended, a part at a time, and give free pages back to the disk."""
        with transaction(file.writer):
            is_done = self._make_room(file.writer, 0)
        free, pages = number(file.writer, "freelist_count"), number(file.writer, "page_count")
        is_large = pages * shared_file.PAGE_BYTES > self.max_bytes
        has_spare = free > VACUUM_PAGES and (is_large or free > pages // SPARE_SHARE)
        if has_spare:
            # `execute` would stop after the first page
            file.writer.executescript(f"PRAGMA incremental_vacuum({VACUUM_PAGES})")
        if has_spare or not is_done:
            self._wake.set()  # go on soon

    def _in_transaction(self, act: Callable[[sqlite3.Connection], Told], otherwise: Told) -> Told:
        """What comes of a transaction, or of none where the file refuses it."""

        def whole(file: Opened) -> Told:
            with transaction(file.writer):
                return act(file.writer)

        return self._on_file(whole, otherwise)

    def _on_file(self, act: Callable[[Opened], Told], otherwise: Told) -> Told:
        """What comes of some work on the file, or of none where it refuses."""
        if self._file is None or self._ill is not None:
            return otherwise
        try:
            told = act(self._file)
        except sqlite3.Error as error:
            self._counts.failures += 1
            self.problem = f"`{self.path}` {reason_of(error)}"
            if primary_code(error) not in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_FULL):
                self._ill = error
            return otherwise
        self.problem = None
        return told

    # --- the file -----------------------------------------------------------------------------------------

    def _open_first(self) -> None:
        """Raises ToolkitError where waiting helps nobody."""
        try:
            self._take(shared_file.opened(self.path))
        except (sqlite3.Error, OSError, shared_file.UnfitError) as error:
            if not _may_pass(error):
                message = f"The shared cache `{self.path}` {reason_of(error)}"
                raise ToolkitError(message, shared_file.OTHER_FILE) from error
            self.problem = f"`{self.path}` {reason_of(error)}"

    def _mend(self) -> None:
        """Open the file anew where it failed, is gone, or another process set it aside."""
        if self._file is not None:
            moved = shared_file.has_moved(self.path, self._file.inode)
            if self._ill is None and not moved:
                return
            ill, inode = self._ill, self._file.inode
            self._let_go()
            if ill is not None and primary_code(ill) in DAMAGE:
                self._set_aside(inode, reason_of(ill))
        self._open_again()

    def _set_aside(self, inode: int, reason: str) -> None:
        try:
            told = shared_file.set_aside(self.path, inode, reason)
        except OSError as error:
            self.problem = f"`{self.path}` {reason_of(error)}"
        else:
            self._warnings += [told] if told else []

    def _open_again(self) -> None:
        try:
            self._take(shared_file.opened(self.path))
        except (sqlite3.Error, OSError, shared_file.UnfitError, ToolkitError) as error:
            self._counts.failures += 1
            self.problem = f"`{self.path}` {reason_of(error)}"

    def _take(self, file: Opened) -> None:
        """Use a file that was opened; what was known of the upstreams is in it again."""
        with self._read_lock:
            self._file, self._ill = file, None
        self._warnings += file.warnings
        self._in_transaction(self._keep_known, None)

    def _keep_known(self, writer: sqlite3.Connection) -> None:
        rows.keep_epochs(writer, self._epochs.items())
        rows.keep_identities(writer, self._identities.items())

    def _let_go(self) -> None:
        with self._read_lock:
            file, self._file = self._file, None
            self._ill = None
        if file is not None:
            file.close()  # the last one to close folds the log back, which no look-up waits for


def _delete(wanted: Mapping[str, object], after: int, writer: sqlite3.Connection) -> Deleted | None:
    return rows.delete(writer, wanted, after)


def _may_pass(error: Exception) -> bool:
    """Whether it may be otherwise later, without the user's doing."""
    if isinstance(error, sqlite3.Error):
        return primary_code(error) in _MAY_PASS
    return isinstance(error, OSError) and error.errno in _MAY_PASS_ERRNO

"""The rows of the proxy's shared file: how answers, epochs and identities are written, found and deleted. SQL, and no more."""

import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

from toolkit.proxy.stored.shared_file import number

ROW_BYTES = 256
"""What an answer costs beside its bytes, in memory while it waits and in the file: 214 there (measured)."""
ROWS_AT_ONCE = 512
"""Deleted by one statement."""

GET = "SELECT value, ends_at FROM answers WHERE key = ?"
EPOCHS = "SELECT model, number FROM epochs"
IDENTITY = "SELECT identity FROM identities WHERE name = ?"
FILE_BYTES = "SELECT page_count * page_size FROM pragma_page_count, pragma_page_size"

_PUT = (
    "INSERT OR REPLACE INTO answers (key, ends_at, put_at, tenant, model, value)"
    " VALUES (?, ?, ?, ?, ?, ?)"
)
_EXPIRE = "DELETE FROM answers WHERE id IN (SELECT id FROM answers WHERE ends_at <= ? LIMIT ?)"
_OLDEST = "SELECT id, length(value) FROM answers ORDER BY id LIMIT ?"
_BUMP = (
    "INSERT INTO epochs VALUES (:model, :known + 1) ON CONFLICT (model)"
    " DO UPDATE SET number = max(number, :known) + 1 RETURNING number"
)
_KEEP_EPOCH = (
    "INSERT INTO epochs VALUES (?, ?) ON CONFLICT (model)"
    " DO UPDATE SET number = max(number, excluded.number)"
)

Row = tuple[bytes, float, float, str, str, bytes]
"""Key, ends_at, put_at, tenant, model, value."""


class Deleted(NamedTuple):
    """What one step of a purge deleted."""

    rows: int
    last: int
    """The last one's id; 0: there was none left."""


def weight(row: Row) -> int:
    """What it costs."""
    return len(row[5]) + ROW_BYTES


def fits(row: Row, wanted: Mapping[str, object]) -> bool:
    """Whether it is among those that a purge means."""
    own = {"key": row[0], "tenant": row[3], "model": row[4]}
    return all(own[name] == value for name, value in wanted.items())


def as_text(text: str) -> str:
    """Spell out lone surrogates, which UTF-8 cannot: one would cost its whole batch."""
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def parts(rows: Iterable[Row], most_bytes: int) -> Iterator[list[Row]]:
    """Cut rows into transactions."""
    part: list[Row] = []
    size = 0
    for row in rows:
        if part and size + weight(row) > most_bytes:
            yield part
            part, size = [], 0
        part.append(row)
        size += weight(row)
    if part:
        yield part


def put(connection: sqlite3.Connection, rows: Sequence[Row]) -> None:
    """Write answers, in place of older ones of the same keys."""
    connection.executemany(_PUT, rows)


def expire(connection: sqlite3.Connection, now: float) -> int:
    """Delete some of those that have ended; how many."""
    return connection.execute(_EXPIRE, (now, ROWS_AT_ONCE)).rowcount


def evict(connection: sqlite3.Connection, excess: int) -> int:
    """Delete the oldest answers that take so many bytes together, up to a limit; how many it were."""
    last = count = freed = 0
    for row_id, size in connection.execute(_OLDEST, (ROWS_AT_ONCE,)).fetchall():
        last, count, freed = row_id, count + 1, freed + size + ROW_BYTES
        if freed >= excess:
            break
    if count:
        connection.execute("DELETE FROM answers WHERE id <= ?", (last,))
    return count


def delete(connection: sqlite3.Connection, wanted: Mapping[str, object], after: int) -> Deleted:
    """Delete some of the answers that fit. A part at a time, in their order: other processes write in between."""
    # the columns' names are those of `SharedCache.purge`
    where = " AND ".join([f"{name} = :{name}" for name in wanted] or ["TRUE"])
    sql = f"SELECT id FROM answers WHERE {where} AND id > :after ORDER BY id LIMIT {ROWS_AT_ONCE}"  # noqa: S608
    found = connection.execute(sql, {**wanted, "after": after}).fetchall()
    connection.executemany("DELETE FROM answers WHERE id = ?", found)
    return Deleted(len(found), found[-1][0] if found else 0)


def bump(connection: sqlite3.Connection, model: str, known: int) -> int:
    """Raise a model's epoch above the file's and above what is known elsewhere."""
    return int(connection.execute(_BUMP, {"model": model, "known": known}).fetchall()[0][0])


def keep_epochs(connection: sqlite3.Connection, epochs: Iterable[tuple[str, int]]) -> None:
    """Let no epoch be lower than these."""
    connection.executemany(_KEEP_EPOCH, epochs)


def keep_identities(connection: sqlite3.Connection, identities: Iterable[tuple[str, str]]) -> None:
    """Write what upstreams are."""
    connection.executemany("INSERT OR REPLACE INTO identities VALUES (?, ?)", identities)


def used_bytes(connection: sqlite3.Connection) -> int:
    """Pages that hold something; those that hold nothing are written to first, before the file grows."""
    used = number(connection, "page_count") - number(connection, "freelist_count")
    return used * number(connection, "page_size")

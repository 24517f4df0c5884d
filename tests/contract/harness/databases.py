"""The toolkit's files as SQLite sees them, read with sqlite3 alone."""

import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any


@contextmanager
def opened(file: Path) -> Iterator[sqlite3.Connection]:
    """Open it read-only; rows can be asked by column name."""
    connection = sqlite3.connect(f"file:{file}?mode=ro", uri=True, timeout=30)
    connection.row_factory = sqlite3.Row
    try:
        yield connection
    finally:
        connection.close()


def select(file: Path, sql: str, *values: Any) -> list[dict[str, Any]]:
    """All rows of a query."""
    with opened(file) as connection:
        return [dict(row) for row in connection.execute(sql, values)]


def is_sound(file: Path) -> bool:
    """Does SQLite's own integrity check find nothing?"""
    return [row["integrity_check"] for row in select(file, "PRAGMA integrity_check")] == ["ok"]

"""Facts to store, and a second reader of the file that stores them."""

import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

from toolkit.records import Reading, Sighting

AT = 1_750_000_000.25


def seen(
    at: float = AT, name: str = "alice", url: str = "http://10.0.0.4:8000", **more: Any
) -> Sighting:
    return Sighting(**{"name": name, "url": url, "at": at, "status": "ok", **more})


def reading(name: str, value: float, **labels: str) -> Reading:
    return Reading(name=name, labels=tuple(sorted(labels.items())), value=value)


def rows(path: Path, sql: str, *values: object) -> list[tuple]:
    """Ask the file without the code under test."""
    with closing(sqlite3.connect(path)) as connection:
        return connection.execute(sql, values).fetchall()

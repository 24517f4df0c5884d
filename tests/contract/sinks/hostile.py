"""Text that would act wherever it is shown as it is, and how to see that it did not."""

import csv
import io
import json
import re
import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

TERMINAL = "\x1b[2J\x1b]0;owned\x07\x9b2J\x7f\b\r\u202egnp.exe\u2066\u061c"
MARKUP = (
    '<script>window.owned=1</script><img src="x" onerror="window.owned=1"><b id="owned">x</b>'
    "'\"></style></textarea>[link](http://owned.invalid/)![image](http://owned.invalid/i.png)"
)
WORD = f"=HYPERLINK(1){TERMINAL}{MARKUP}"
"""All of it: as a cell of a CSV it is a formula, too."""

# every control character but a tab and the line's end, and what turns the direction of writing
ACTS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069]")


def faults_of_text(text: str) -> list[str]:
    """What a terminal would act upon, with what stands around it; also a traceback."""
    found = [
        repr(text[max(0, each.start() - 60) : each.end() + 20]) for each in ACTS.finditer(text)
    ]
    if "Traceback (most recent" in text:
        found.append(text[-1500:])
    return found[:3]


def faults_of_csv(text: str) -> list[str]:
    """Cells that a spreadsheet would take for a formula: numbers may be negative."""
    cells = [cell for row in csv.reader(io.StringIO(text, newline="")) for cell in row]
    number = re.compile(r"-\d+(\.\d+)?(e-?\d+)?$")
    begins = ("=", "+", "-", "@", "\t", "\r")
    return [c for c in cells if c.startswith(begins) and not number.match(c)] + faults_of_text(text)


def hostile_value(value: str, word: str = WORD) -> str:
    """The word before the value; in JSON before each text in it, so that it still is JSON of its form."""

    def changed(part: Any) -> Any:
        if isinstance(part, str):
            return word + part
        if isinstance(part, list):
            return [changed(each) for each in part]
        if isinstance(part, dict):
            return {key: changed(each) for key, each in part.items()}
        return part

    if value[:1] in "[{":
        try:
            return json.dumps(changed(json.loads(value)))
        except ValueError:
            pass
    return word + value


UNIQUE = {("runs", "id"), ("series", "labels"), ("series", "name")}


def text_columns(file: Path) -> list[tuple[str, str]]:
    """Table and column of all text that a database holds, but what SQLite's own migrations are called."""
    with closing(sqlite3.connect(file)) as database:
        tables = database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall()
        return [
            (table, column[1])
            for (table,) in tables
            if not table.startswith(("_", "sqlite_"))
            for column in database.execute(f"PRAGMA table_info({table})")
            if column[2] == "TEXT"
        ]


def rewrite(
    file: Path, columns: Iterable[tuple[str, ...]], word: str = WORD, whole: bool = False
) -> None:
    """Make these columns hostile: `whole` leaves nothing of what they held."""
    with closing(sqlite3.connect(file)) as database, database:
        database.create_function(
            "hostile", 1, lambda value: word if whole else hostile_value(value, word)
        )
        for table, column in columns:
            # what must stay different gets its row's number behind the word
            number = " || rowid" if whole and (table, column) in UNIQUE else ""
            database.execute(
                f"UPDATE {table} SET {column} = hostile({column}){number} WHERE {column} NOT NULL"
            )

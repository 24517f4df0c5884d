"""`toolkit runs merge` and `prune`, over a file that has rows in every table: what is taken over, what goes, what stays."""

import json
import shutil
import sqlite3
from collections import Counter
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from contract.harness.databases import is_sound, select
from contract.harness.programs import run

EARLIER = Path(__file__).parents[1] / "fixtures" / "2026-11" / "data" / "toolkit.db"
REFERS = {
    "host_id": "hosts",
    "worker_id": "workers",
    "series_id": "series",
    "sighting_id": "sightings",
    "body_id": "bodies",
    "prompt_id": "prompts",
    "client_id": "clients",
    "target_id": "targets",
    "run_number": "runs",
}
"""Which table's rows a column means, by numbers that are each file's own."""


def facts(file: Path) -> dict[str, Counter[str]]:
    """Every row of every table, with what its numbers mean in place of the numbers."""
    names = [
        row["name"]
        for row in select(
            file,
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '%sqlite%'",
        )
    ]
    tables = {name: select(file, f"SELECT * FROM {name}") for name in names}
    by_number = {
        name: {row["number" if name == "runs" else "id"]: row for row in found if "id" in row}
        for name, found in tables.items()
    }

    def meant(row: dict[str, Any]) -> dict[str, Any]:
        own_number = "number" if "verb" in row else "id"
        known = {name: value for name, value in row.items() if name != own_number}
        for name in REFERS.keys() & known.keys():
            if known[name] is not None:
                known[name] = meant(by_number[REFERS[name]][known[name]])
                # what else is known of a host is the host's alone
                known[name].pop("first_seen_at", None)
                known[name].pop("team", None)
        return known

    return {
        name: Counter(json.dumps(meant(row), default=bytes.hex) for row in found)
        for name, found in tables.items()
    }


def renumbered(file: Path) -> None:
    """The same facts under other numbers, as another machine would have given them."""
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA foreign_keys = OFF")
        tables = database.execute(
            "SELECT name FROM sqlite_schema WHERE type = 'table' AND name NOT LIKE '%sqlite%'"
        ).fetchall()
        for (table,) in tables:
            columns = [row[1] for row in database.execute(f"PRAGMA table_info({table})")]
            own_number = "number" if table == "runs" else "id"
            moved = [name for name in columns if name in REFERS or name == own_number]
            for name in moved:
                database.execute(f"UPDATE {table} SET {name} = -{name}")
                database.execute(f"UPDATE {table} SET {name} = 1000 - {name}")
        database.commit()


@pytest.fixture
def other(tmp_path: Path) -> Path:
    shutil.copy(EARLIER, tmp_path / "other.db")
    return tmp_path / "other.db"


def runs(folder: Path, *words: object) -> str:
    ended = run("runs", *words, "--db", "toolkit.db", cwd=folder)
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stderr
    return ended.stderr


def test_a_new_file_takes_over_everything_once(tmp_path: Path, other: Path) -> None:
    said = runs(tmp_path, "merge", "other.db")
    assert "From `other.db`: 16 runs and 59 sightings" in said
    mine = tmp_path / "toolkit.db"
    assert facts(mine) == facts(other)
    assert is_sound(mine)
    again = runs(tmp_path, "merge", "other.db")
    assert again.count("it is here already") == 16
    assert "From `other.db`: 0 runs and 0 sightings" in again
    assert facts(mine) == facts(other)


def test_what_two_files_know_becomes_one(tmp_path: Path, other: Path) -> None:
    """Runs, hosts, bodies and the like that both have, under numbers of their own."""
    mine = tmp_path / "toolkit.db"
    shutil.copy(EARLIER, mine)
    renumbered(mine)
    assert facts(mine) == facts(other)
    runs(tmp_path, "prune", "--keep", "4", "--yes")
    with closing(sqlite3.connect(mine)) as database, database:
        # half of what scout saw, one of two marks of no run, no text of a prompt, not who is whose
        database.execute("DELETE FROM readings WHERE sighting_id % 2")
        database.execute("DELETE FROM sightings WHERE id % 2")
        database.execute(
            "DELETE FROM events WHERE id = (SELECT max(id) FROM events WHERE run_number IS NULL)"
        )
        database.execute("UPDATE prompts SET prompt_text = NULL")
        database.execute("UPDATE hosts SET team = NULL, first_seen_at = first_seen_at + 60")
    with closing(sqlite3.connect(other)) as database, database:
        database.execute("UPDATE hosts SET team = 'red'")
        database.execute("UPDATE hosts SET first_seen_at = first_seen_at + 120 WHERE name = 'bob'")
    said = runs(tmp_path, "merge", "other.db")
    assert said.count("it is here already") == 4
    now, wanted = facts(mine), facts(other)
    assert {name for name in wanted if now[name] != wanted[name]} == {"hosts"}
    shutil.copy(EARLIER, tmp_path / "earlier.db")
    first = "SELECT name, team, first_seen_at FROM hosts ORDER BY name, url"
    mine_60 = {"bob"}
    assert [
        (row["name"], row["team"], row["first_seen_at"] - (60 if row["name"] in mine_60 else 0))
        for row in select(mine, first)
    ] == [
        (row["name"], "red", row["first_seen_at"]) for row in select(tmp_path / "earlier.db", first)
    ]
    assert is_sound(mine)
    assert select(mine, "PRAGMA foreign_key_check") == []


def test_what_is_pruned_leaves_nothing_behind_and_the_rest_as_it_was(tmp_path: Path) -> None:
    mine = tmp_path / "toolkit.db"
    shutil.copy(EARLIER, mine)
    before = facts(mine)
    bytes_before = mine.stat().st_size
    # the newest 14 are all but a bench and the blast with the longest load
    said = runs(tmp_path, "prune", "--keep", "14", "--yes")
    assert said.count("Deleted run") == 2
    after = facts(mine)
    left = {row["id"] for row in select(mine, "SELECT id FROM runs")}
    assert len(left) == 14

    def of_left(rows_: "Counter[str]") -> "Counter[str]":
        return Counter(
            {
                row: count
                for row, count in rows_.items()
                if json.loads(row).get("run_number") is None
                or json.loads(row)["run_number"]["id"] in left
            }
        )

    for name in before.keys() - {"runs"}:
        assert after[name] == of_left(before[name]), name
    assert mine.stat().st_size < bytes_before
    assert is_sound(mine)

    # a clock that is years ahead: all is older than a second, what scout saw, too
    said = runs(tmp_path, "prune", "--keep", "1s", "--yes")
    assert "Deleted 59 sightings" in said
    rest = {name: sum(found.values()) for name, found in facts(mine).items()}
    assert {name for name, count in rest.items() if count} == {"hosts", "series", "workers"}


def test_as_many_of_the_newest_runs_stay_as_fit(tmp_path: Path) -> None:
    mine = tmp_path / "toolkit.db"
    shutil.copy(EARLIER, mine)
    newest = [row["id"] for row in select(mine, "SELECT id FROM runs ORDER BY number DESC")]
    # the bench and the long blast, the two oldest, are some 65 KB of it
    amount = mine.stat().st_size - 60_000
    runs(tmp_path, "prune", "--keep", f"{amount}B", "--yes")
    assert mine.stat().st_size <= amount
    assert [row["id"] for row in select(mine, "SELECT id FROM runs ORDER BY number DESC")] == (
        newest[:14]
    )
    # the newest stays even where it alone is too large
    runs(tmp_path, "prune", "--keep", "1B", "--yes")
    assert [row["id"] for row in select(mine, "SELECT id FROM runs")] == newest[:1]

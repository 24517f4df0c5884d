"""A database that is older, newer, locked, damaged or none at all: what each command says of it, and that it stays as it was."""

import os
import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest
from contract.harness.databases import is_sound, select
from contract.harness.programs import run

EARLIER = Path(__file__).parents[1] / "fixtures" / "2026-11" / "data" / "toolkit.db"
STEPS = {
    "0001_look": ("hosts", "sightings", "series", "readings"),
    "0002_bench": ("runs", "shots", "ledgers", "verdicts"),
    "0003_blast": ("run_hosts", "workers", "tallies", "loader_seconds", "events"),
    "0004_seen": ("prompts", "bodies", "clients", "targets", "seen", "captures"),
}
"""What each step that a file can have behind it made."""
DEAD = "alice http://127.0.0.1:9\n"


@pytest.fixture
def file(tmp_path: Path) -> Path:
    shutil.copy(EARLIER, tmp_path / "toolkit.db")
    return tmp_path / "toolkit.db"


def refusal(folder: Path, *words: object) -> list[str]:
    """Its `Error: ` and its `Hint: `."""
    ended = run(*words, "--db", "toolkit.db", cwd=folder)
    assert (ended.returncode, ended.stdout) == (1, ""), ended
    lines = [line for line in ended.stderr.splitlines() if line]
    return [lines[0], " ".join(lines[1:])]


def schema(file: Path) -> dict[str, object]:
    """What SQLite makes of each table and index, however the statement was written that made it."""
    tables = select(file, "SELECT name, strict, wr FROM pragma_table_list WHERE type = 'table'")
    return {
        table["name"]: (
            table,
            {row["name"]: row for row in select(file, f"PRAGMA table_info({table['name']})")},
            {
                row["from"]: row["table"]
                for row in select(file, f"PRAGMA foreign_key_list({table['name']})")
            },
            {
                row["name"]: (
                    row["unique"],
                    row["partial"],
                    [each["name"] for each in select(file, f"PRAGMA index_info({row['name']})")],
                )
                for row in select(file, f"PRAGMA index_list({table['name']})")
            },
        )
        for table in tables
        if not table["name"].startswith("sqlite_")
    }


@pytest.mark.parametrize("steps", [1, 2, 3])
def test_a_file_of_an_older_toolkit_is_brought_up_to_date_by_who_writes(
    file: Path, tmp_path: Path, steps: int
) -> None:
    """Whoever only reads leaves it alone and says who would do it; its rows stay, and its tables become a new file's."""
    earlier = Path(shutil.copy(EARLIER, tmp_path / "earlier.db"))
    new, kept = (
        list(STEPS)[steps:],
        [table for name in list(STEPS)[:steps] for table in STEPS[name]],
    )
    with closing(sqlite3.connect(file)) as database:
        database.execute("PRAGMA foreign_keys = OFF")
        for name in reversed(new):
            database.execute("DELETE FROM _sqlite_migrations WHERE name = ?", (name,))
            for table in STEPS[name]:
                database.execute(f"DROP TABLE {table}")
        if "0003_blast" in new and steps == 2:
            database.execute("DROP INDEX idx_shots_run_number_sent_at_host_id")
        database.commit()
    before = {name: select(file, f"SELECT * FROM {name}") for name in kept}
    bytes_before = file.read_bytes()
    error, hint = refusal(file.parent, "runs")
    assert error == "Error: `toolkit.db` was written by an older toolkit, or by none"
    assert hint == "Hint: Run `toolkit scout HOSTS` on it once, which brings it up to date"
    assert file.read_bytes() == bytes_before

    (file.parent / "hosts.txt").write_text(DEAD)
    run("scout", "hosts.txt", "--db", "toolkit.db", cwd=file.parent)
    assert schema(file) == schema(earlier)
    for name, found in before.items():
        # a dead host was seen once more; nothing else moved
        assert select(file, f"SELECT * FROM {name}")[: len(found)] == found
    assert len(select(file, "SELECT 1 FROM sightings")) == len(before["sightings"]) + 1
    assert run("runs", "--json", "--db", "toolkit.db", cwd=file.parent).returncode == 0
    assert is_sound(file)


def test_a_new_file_has_the_tables_of_an_older_one(tmp_path: Path) -> None:
    (tmp_path / "hosts.txt").write_text(DEAD)
    run("scout", "hosts.txt", "--db", "new.db", cwd=tmp_path)
    earlier = Path(shutil.copy(EARLIER, tmp_path / "earlier.db"))
    assert schema(tmp_path / "new.db") == schema(earlier)
    strict = select(tmp_path / "new.db", "SELECT name, strict FROM pragma_table_list")
    assert {row["strict"] for row in strict if not row["name"].startswith("sqlite_")} == {1}
    asked = ("journal_mode", "page_size")
    assert [select(tmp_path / "new.db", f"PRAGMA {name}")[0][name] for name in asked] == [
        "wal",
        8192,
    ]


@pytest.mark.parametrize("words", [("runs",), ("mark", "alice", "new model")])
def test_what_is_no_file_of_this_toolkit_is_left_alone(tmp_path: Path, words: tuple[str]) -> None:
    file = tmp_path / "toolkit.db"
    shutil.copy(EARLIER, file)
    with closing(sqlite3.connect(file)) as database, database:
        database.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name) VALUES ('toolkit', '9999_next')"
        )
    newer = file.read_bytes()
    assert refusal(tmp_path, *words) == [
        "Error: `toolkit.db` was written by a newer toolkit",
        "Hint: Update the toolkit. Give another file with `--db` to go on",
    ]
    assert file.read_bytes() == newer

    file.unlink()
    with closing(sqlite3.connect(file)) as database, database:
        database.execute("CREATE TABLE bookmarks (url TEXT)")
    another = file.read_bytes()
    assert refusal(tmp_path, *words)[0] == (
        "Error: `toolkit.db` is the database of another program"
    )
    assert file.read_bytes() == another

    text = "alice http://10.0.0.4:8000\n" * 40
    file.write_text(text)
    assert refusal(tmp_path, *words)[0] == "Error: `toolkit.db` is not a SQLite database"
    assert file.read_text() == text

    file.unlink()
    assert refusal(tmp_path, *words)[0] == "Error: `toolkit.db` does not exist"
    assert not file.exists()
    os.mkfifo(file)
    assert refusal(tmp_path, *words) == [
        "Error: `toolkit.db` is a device or a pipe",
        "Hint: Name a file",
    ]


def test_a_damaged_file_is_called_so_with_a_way_to_rescue_it(file: Path) -> None:
    with file.open("r+b") as pages:
        pages.seek(8192)  # past the schema
        pages.write(b"\xa5" * (file.stat().st_size - 8192))
    error, hint = refusal(file.parent, "runs")
    assert error == "Error: `toolkit.db` is damaged"
    assert ".recover" in hint


def test_a_file_that_another_process_writes_can_be_read_and_is_waited_for(file: Path) -> None:
    with closing(sqlite3.connect(file, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        read = run("runs", "--json", "--db", "toolkit.db", cwd=file.parent)
        assert (read.returncode, read.stdout.count("\n")) == (0, 16)
        error, hint = refusal(file.parent, "mark", "alice", "new model")
        assert error == "Error: `toolkit.db` is locked by another process"
        assert "--db" in hint
        other.execute("ROLLBACK")
        done = run("mark", "alice", "new model", "--db", "toolkit.db", cwd=file.parent)
        assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", ["a?mode=memory.db", "b#c.db", "100%41.db", ":memory:", "ü.db"])
def test_odd_file_names_are_only_names(tmp_path: Path, name: str) -> None:
    (tmp_path / "hosts.txt").write_text(DEAD)
    run("scout", "hosts.txt", "--db", name, cwd=tmp_path)
    history = run("scout", "--history", "alice", "--db", name, "--json", cwd=tmp_path)
    assert history.stdout.count("\n") == 1, history.stderr
    made = {each.name for each in tmp_path.iterdir() if not each.name.endswith(("-wal", "-shm"))}
    assert made - {".cache", ".config"} == {"hosts.txt", name}

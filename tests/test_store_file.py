"""The store's file: its schema, its readers, what can go wrong with it, and who shares it."""

import asyncio
import math
import os
import sqlite3
import subprocess
import sys
import tempfile
import typing
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.sightings import reading, rows, seen

import toolkit.database
from toolkit.errors import ToolkitError
from toolkit.records import Host, Ledger, Run, Shot, Sighting, Verdict
from toolkit.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "toolkit.db"


# --- Schema -------------------------------------------------------------------------------------


HOST = {"name", "url"}
TABLES = [
    # record, table, fields that live in other tables, columns that are keys: (type, not null)
    (Sighting, "sightings", {*HOST, "readings"}, {"id": 0, "host_id": 1}),
    (Run, "runs", set(), {"number": 0}),
    (Shot, "shots", {*HOST, "run"}, {"id": 0, "run_number": 1, "host_id": 1}),
    (Ledger, "ledgers", {*HOST, "run"}, {"id": 0, "run_number": 1, "host_id": 1}),
    (Verdict, "verdicts", set(), {"id": 0, "run_number": 1, "host_id": 1}),
]
AFFINITY = {str: "TEXT", int: "INTEGER", float: "REAL", bool: "INTEGER", bytes: "BLOB"}


def column(hint: object) -> tuple[str, int]:
    """The type of a field's column, and whether it refuses NULL."""
    if typing.get_origin(hint) in (tuple, typing.Literal):
        return "TEXT", 1  # a tuple is a JSON list, and an empty one is known to be empty
    kinds = set(typing.get_args(hint) or (hint,))
    [kind] = kinds - {type(None)}
    return AFFINITY[kind], int(type(None) not in kinds)


@pytest.mark.parametrize(("record", "table", "elsewhere", "keys"), TABLES)
def test_every_field_has_a_column_of_its_type(path, record, table, elsewhere, keys):
    """Who adds a field to one of these records adds a step to toolkit/migrations.py."""
    hints = typing.get_type_hints(record)
    expected = {name: column(hint) for name, hint in hints.items() if name not in elsewhere}
    expected |= {key: ("INTEGER", not_null) for key, not_null in keys.items()}
    Store.open(path).close()
    told = rows(path, 'SELECT name, type, "notnull" FROM pragma_table_info(?)', table)
    assert {name: (kind, not_null) for name, kind, not_null in told} == expected


def test_there_is_an_index_for_each_question_and_no_more(path):
    """Every index is paid for by every row; those of the readings are their key."""
    Store.open(path).close()
    found = rows(
        path,
        "SELECT tables.name, group_concat(columns.name) "
        "FROM pragma_table_list AS tables, pragma_index_list(tables.name) AS indexes, "
        "pragma_index_info(indexes.name) AS columns "
        "WHERE tables.name NOT LIKE '%sqlite!_%' ESCAPE '!' GROUP BY indexes.name",
    )
    assert sorted(found) == [
        ("hosts", "name,url"),
        ("ledgers", "run_number,host_id"),
        ("readings", "sighting_id,series_id"),
        ("runs", "id"),
        ("series", "name,labels"),
        ("shots", "run_number,host_id,slot"),
        ("sightings", "host_id,at"),
        ("verdicts", "run_number,host_id"),
    ]


def test_all_tables_are_strict_and_no_table_is_made_before_its_time(path):
    Store.open(path).close()
    tables = rows(
        path,
        "SELECT name, strict, wr FROM pragma_table_list WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'",
    )
    assert sorted(tables) == [
        ("_sqlite_migrations", 1, 0),
        ("hosts", 1, 0),
        ("ledgers", 1, 0),
        ("readings", 1, 1),
        ("runs", 1, 0),
        ("series", 1, 0),
        ("shots", 1, 0),
        ("sightings", 1, 0),
        ("verdicts", 1, 0),
    ]


def test_a_file_is_a_write_ahead_log_file_with_patience_and_a_bounded_log(path):
    with Store.open(path) as store:
        settings_ = {
            name: store._rows(f"PRAGMA {name}")[0][0]
            for name in (
                "journal_mode",
                "synchronous",
                "busy_timeout",
                "journal_size_limit",
                "foreign_keys",
            )
        }
    # synchronous 1 is NORMAL; 64 MiB = 64 * 1,048,576 = 67,108,864 bytes
    assert settings_ == {
        "journal_mode": "wal",
        "synchronous": 1,
        "busy_timeout": 5000,
        "journal_size_limit": 67_108_864,
        "foreign_keys": 1,
    }


def test_an_older_file_is_brought_up_to_date_with_its_rows(path, monkeypatch):
    with Store.open(path) as store:
        store.add_sightings([seen(1.0)])
    later = {
        **toolkit.database.STEPS,
        "0002_later": lambda db: db.execute("CREATE TABLE later (a TEXT) STRICT"),
    }
    monkeypatch.setattr(toolkit.database, "STEPS", later)
    with pytest.raises(ToolkitError, match="was written by an older toolkit") as caught:
        Store.open_readonly(path)
    assert "toolkit scout" in caught.value.hint
    assert rows(path, "SELECT count(*) FROM sqlite_schema WHERE name = 'later'") == [(0,)]
    with Store.open(path) as store:
        assert store.known_names() == ["alice"]
    assert rows(path, "SELECT count(*) FROM later") == [(0,)]


def test_a_file_from_before_benches_keeps_its_sightings_and_takes_runs(path, monkeypatch):
    page = (reading("up", 1.0, engine="0"),)
    with monkeypatch.context() as patch:
        patch.setattr(toolkit.database, "STEPS", {"0001_look": toolkit.database.STEPS["0001_look"]})
        with Store.open(path) as store:
            host = Host(name="alice", url="http://10.0.0.4:8000", team="red")
            store.add_sightings([seen(1.0, running=3.0, readings=page)], [host])
    assert rows(path, "SELECT name FROM sqlite_schema WHERE name IN ('runs', 'shots')") == []
    with pytest.raises(ToolkitError, match="was written by an older toolkit"):
        Store.open_readonly(path)
    with Store.open(path) as store:
        assert store.sightings("alice") == [seen(1.0, running=3.0)]
        assert store.readings(seen(1.0)) == page
        store.add_run(Run(id="a", verb="bench", started_at=2.0))
        ledger = Ledger(run="a", name="alice", url="http://10.0.0.4:8000")
        store.add_ledgers([ledger])
        assert store.ledgers("a") == [ledger]
    assert rows(path, "SELECT id, name, team, first_seen_at FROM hosts") == [
        (1, "alice", "red", 1.0)
    ]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_step_that_fails_leaves_the_file_as_it_was(path, monkeypatch):
    Store.open(path).close()

    def half(db):
        db.execute("CREATE TABLE half (a TEXT) STRICT")
        db.execute("CREATE TABLE hosts (a TEXT) STRICT")

    with monkeypatch.context() as patch:
        patch.setattr(toolkit.database, "STEPS", {**toolkit.database.STEPS, "0002_half": half})
        with pytest.raises(ToolkitError, match="table hosts already exists"):
            Store.open(path)
    assert rows(path, "SELECT count(*) FROM sqlite_schema WHERE name = 'half'") == [(0,)]
    with Store.open(path) as store:
        assert store.known_names() == []


@pytest.mark.parametrize("way", [Store.open, Store.open_readonly])
def test_a_newer_file_is_refused_and_left_alone(path, way):
    Store.open(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(
            "INSERT INTO _sqlite_migrations (migration_set, name) VALUES ('toolkit', '9999_future')"
        )
    before = path.read_bytes()
    with pytest.raises(ToolkitError) as caught:
        way(path)
    assert caught.value.message == f"`{path}` was written by a newer toolkit"
    assert caught.value.hint == "Update the toolkit. Give another file with `--db` to go on"
    assert path.read_bytes() == before


@pytest.mark.parametrize("way", [Store.open, Store.open_readonly])
def test_another_programs_database_is_refused_and_left_alone(path, way):
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE bookmarks (url TEXT)")
    before = path.read_bytes()
    with pytest.raises(ToolkitError, match="is the database of another program"):
        way(path)
    assert path.read_bytes() == before


# --- Reading only -------------------------------------------------------------------------------


def test_a_reader_reads_while_a_writer_writes(path):
    with Store.open(path) as writer, Store.open_readonly(path) as reader:
        writer.add_sightings([seen(1.0)])
        assert [s.at for s in reader.sightings("alice")] == [1.0]
        writer.add_sightings([seen(2.0)])
        assert [s.at for s in reader.sightings("alice")] == [1.0, 2.0]


def test_a_reader_holds_no_transaction(path):
    with Store.open(path) as writer, Store.open_readonly(path) as reader:
        writer.add_sightings([seen(1.0)])
        assert reader.last_sighting("alice", "http://10.0.0.4:8000").at == 1.0
        # TRUNCATE is only granted, (0, 0, 0), while nobody stands in the log
        assert writer._rows("PRAGMA wal_checkpoint(TRUNCATE)") == [(0, 0, 0)]


def test_a_reader_cannot_write(path):
    Store.open(path).close()
    with (
        Store.open_readonly(path) as reader,
        pytest.raises(ToolkitError, match="may not be written"),
    ):
        reader.add_sightings([seen(1.0)])


def test_reading_a_missing_file_does_not_make_it(path):
    with pytest.raises(ToolkitError) as caught:
        Store.open_readonly(path)
    assert caught.value.message == f"`{path}` does not exist"
    assert "toolkit scout" in caught.value.hint
    assert not path.exists()


def test_reading_an_empty_file_does_not_fill_it(path):
    path.touch()
    with pytest.raises(ToolkitError, match="older toolkit, or by none"):
        Store.open_readonly(path)
    assert path.read_bytes() == b""


@pytest.mark.parametrize(
    "name", ["a?mode=memory.db", "b#c.db", "100%41.db", "two words.db", ":memory:", "ü.db"]
)
def test_odd_file_names_are_only_names(tmp_path, name):
    with Store.open(tmp_path / name) as store:
        store.add_sightings([seen(1.0)])
    with Store.open_readonly(tmp_path / name) as store:
        assert store.known_names() == ["alice"]
    assert [
        entry.name for entry in tmp_path.iterdir() if not entry.name.endswith(("-wal", "-shm"))
    ] == [name]


# --- What can go wrong --------------------------------------------------------------------------


def test_folders_on_the_way_are_made(tmp_path):
    with Store.open(tmp_path / "a" / "b" / "toolkit.db") as store:
        assert store.known_names() == []


@pytest.mark.parametrize("way", [Store.open, Store.open_readonly])
def test_a_folder_is_not_a_database(tmp_path, way):
    with pytest.raises(ToolkitError) as caught:
        way(tmp_path)
    assert caught.value.message == f"`{tmp_path}` is a folder"
    assert caught.value.hint == f"Name the file, e.g., `{tmp_path}/toolkit.db`"


@pytest.mark.parametrize("way", [Store.open, Store.open_readonly])
def test_a_text_file_is_not_a_database_and_stays_as_it_is(path, way):
    text = "alice http://10.0.0.4:8000\n" * 40
    path.write_text(text)
    with pytest.raises(ToolkitError) as caught:
        way(path)
    assert caught.value.message == f"`{path}` is not a SQLite database"
    assert "--db" in caught.value.hint
    assert path.read_text() == text


def test_a_file_cannot_be_a_folder_on_the_way(tmp_path):
    (tmp_path / "file").touch()
    with pytest.raises(ToolkitError, match="cannot be used: Not a directory") as caught:
        Store.open(tmp_path / "file" / "deeper" / "toolkit.db")
    assert "--db" in caught.value.hint


@pytest.fixture
def locked_folder() -> Iterator[Path]:
    """A folder that this test may enter and read but not write, also when root runs the tests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with Store.open(folder / "old.db") as store:
            store.add_sightings([seen(1.0)])
        (folder / "old.db").chmod(0o444)
        folder.chmod(0o555)
        user = os.geteuid()
        if user == 0:
            os.seteuid(65534)  # nobody: root may write anywhere
        try:
            yield folder
        finally:
            os.seteuid(user)
            folder.chmod(0o755)


def test_a_folder_that_may_not_be_written_is_named(locked_folder):
    with pytest.raises(ToolkitError, match=r"new\.db` cannot be opened") as caught:
        Store.open(locked_folder / "new.db")
    assert "writing to its folder" in caught.value.hint
    with pytest.raises(ToolkitError, match=r"deeper` cannot be used: Permission denied"):
        Store.open(locked_folder / "deeper" / "new.db")


def test_a_file_that_may_not_be_written_is_named(locked_folder):
    with (
        pytest.raises(
            ToolkitError, match=r"old\.db` (cannot be opened|may not be written)"
        ) as caught,
        Store.open(locked_folder / "old.db") as store,
    ):
        store.add_sightings([seen(1.0)])
    assert "--db" in caught.value.hint


def test_a_locked_file_is_waited_for_and_then_named(path):
    Store.open(path).close()
    with (
        closing(sqlite3.connect(path, isolation_level=None)) as other,
        Store.open(path, 0.05) as store,
    ):
        other.execute("BEGIN IMMEDIATE")
        with pytest.raises(ToolkitError) as caught:
            store.add_sightings([seen(1.0)])
        assert caught.value.message == f"`{path}` is locked by another process"
        assert "--db" in caught.value.hint
        other.execute("ROLLBACK")
        store.add_sightings([seen(2.0)])
        assert [s.at for s in store.sightings("alice")] == [2.0]


def test_a_new_file_that_stays_locked_is_named(path):
    with closing(sqlite3.connect(path, isolation_level=None)) as other:
        other.execute("BEGIN EXCLUSIVE")
        with pytest.raises(ToolkitError, match="is locked by another process"):
            Store.open(path, 0.05)


def test_a_full_disk_costs_the_batch_and_nothing_else(path):
    page = tuple(reading("a", float(n), n=str(n)) for n in range(500))
    with Store.open(path) as store:
        store.add_sightings([seen(1.0)])
        # the planted fault: SQLite may not grow the file, which it reports as a full disk
        pages = store._rows("PRAGMA page_count")[0][0]
        store._rows(f"PRAGMA max_page_count = {pages}")
        with pytest.raises(ToolkitError) as caught:
            store.add_sightings([seen(2.0), seen(3.0, readings=page)])
        assert caught.value.message == f"`{path}` cannot grow, the disk is full"
        assert "Free some space" in caught.value.hint
        assert [s.at for s in store.sightings("alice")] == [1.0]
        store._rows("PRAGMA max_page_count = 1000000")
        store.add_sightings([seen(4.0, readings=page)])
        assert len(store.readings(seen(4.0))) == 500
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    assert rows(path, "PRAGMA foreign_key_check") == []


def test_a_damaged_file_is_called_damaged(path):
    with Store.open(path) as store:
        store.add_sightings([seen(float(at), error="x" * 500) for at in range(100)])
    with path.open("r+b") as file:
        file.seek(4096)  # past the first page, which holds the schema
        file.write(b"\xa5" * (path.stat().st_size - 4096))
    with pytest.raises(ToolkitError, match="is damaged") as caught, Store.open(path) as store:
        store.known_names()
    assert ".recover" in caught.value.hint


def test_a_closed_store_says_so_in_the_one_error(path):
    store = Store.open(path)
    store.close()
    with pytest.raises(ToolkitError, match="closed database"):
        store.known_names()


def test_a_failed_batch_is_gone_as_a_whole(path):
    with Store.open(path) as store:
        with pytest.raises(ToolkitError, match="NOT NULL"):
            store.add_sightings([seen(1.0, readings=(reading("a", 1.0),)), seen(math.nan)])
        assert store.known_names() == []
        # the series' id of the lost batch must not be remembered
        store.add_sightings([seen(2.0, readings=(reading("b", 1.0), reading("a", 2.0)))])
        assert store.readings(seen(2.0)) == (reading("a", 2.0), reading("b", 1.0))


def test_an_old_sqlite_is_named_with_the_version_needed(path, monkeypatch):
    monkeypatch.setattr(sqlite3, "sqlite_version_info", (3, 34, 1))
    with pytest.raises(ToolkitError, match=r"3\.37 is needed") as caught:
        Store.open(path)
    assert "Use a Python" in caught.value.hint


# --- Threads and processes ----------------------------------------------------------------------


def test_worker_threads_may_share_a_store(path):
    async def flush(store: Store) -> None:
        await asyncio.gather(
            *(asyncio.to_thread(store.add_sightings, [seen(float(at))]) for at in range(20))
        )

    with Store.open(path) as store:
        asyncio.run(flush(store))
        assert [s.at for s in store.sightings("alice")] == [float(at) for at in range(20)]


WRITER = """
import sys
from toolkit.records import Reading, Sighting
from toolkit.store import Store
name, path = sys.argv[1:]
import sqlite_utils  # its import must not put the processes apart
print("ready", flush=True)
sys.stdin.readline()
with Store.open(path) as store:
    for at in range(15):
        page = tuple(Reading(name=f"m{n}", labels=(), value=at) for n in range(at, at + 5))
        store.add_sightings(
            [Sighting(name=name, url="http://h", at=float(at), status="ok", readings=page)]
        )
"""


@pytest.mark.slow
def test_processes_that_meet_on_a_new_file_all_get_their_rows_in(tmp_path):
    path = tmp_path / "new" / "toolkit.db"
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, name, str(path)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in ("a", "b", "c")
    ]
    for writer in writers:
        assert writer.stdout.readline() == "ready\n"
    for writer in writers:
        writer.stdin.write("\n")
        writer.stdin.flush()
    ends = [(writer.communicate(timeout=60)[1], writer.returncode) for writer in writers]
    assert ends == [("", 0)] * 3
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]
    # 3 processes of 15 sightings with 5 readings each; m0 to m18 are 19 series
    assert rows(path, "SELECT count(*) FROM sightings") == [(45,)]
    assert rows(path, "SELECT count(*) FROM readings") == [(225,)]
    assert rows(path, "SELECT count(*) FROM series") == [(19,)]
    assert rows(path, "SELECT count(*) FROM _sqlite_migrations") == [(2,)]


def test_the_store_imports_no_pandas_and_an_up_to_date_file_opens_without_it(path):
    Store.open(path).close()
    code = (
        "import sys; from toolkit.store import Store; Store.open(sys.argv[1]).close(); "
        "print(sorted({'sqlite_utils', 'pandas', 'numpy'} & sys.modules.keys()))"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(path)], capture_output=True, text=True, check=True
    )
    assert done.stdout == "[]\n"

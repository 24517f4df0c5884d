"""The store's file: its readers, what can go wrong with it, and who shares it."""

import os
import sqlite3
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
from support.sightings import reading, rows, seen

from toolkit.errors import ToolkitError
from toolkit.store import Store

# --- The file ------------------------------------------------------------------------------------


def test_a_file_is_a_write_ahead_log_file_with_patience_and_a_bounded_log(path):
    with Store.open(path) as store:
        settings_ = {
            name: store._rows(f"PRAGMA {name}")[0][0]
            for name in (
                "journal_mode",
                "page_size",
                "synchronous",
                "busy_timeout",
                "journal_size_limit",
                "foreign_keys",
            )
        }
    # synchronous 1 is NORMAL; 64 MiB = 64 * 1,048,576 = 67,108,864 bytes
    assert settings_ == {
        "journal_mode": "wal",
        "page_size": 8192,
        "synchronous": 1,
        "busy_timeout": 5000,
        "journal_size_limit": 67_108_864,
        "foreign_keys": 1,
    }


# --- Reading only -------------------------------------------------------------------------------


def test_a_reader_cannot_write(path):
    Store.open(path).close()
    with (
        Store.open_readonly(path) as reader,
        pytest.raises(ToolkitError, match="may not be written"),
    ):
        reader.add_sightings([seen(1.0)])


# --- What can go wrong --------------------------------------------------------------------------


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


def test_a_reader_is_told_that_sqlite_writes_beside_the_file(locked_folder):
    # it wanted to read only: `may not be written` would be an answer to nothing it asked
    with pytest.raises(ToolkitError, match="cannot be read where nothing may be written") as caught:
        Store.open_readonly(locked_folder / "old.db")
    assert "copy it to a folder of yours" in caught.value.hint


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


# --- Threads and processes ----------------------------------------------------------------------


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
    assert rows(path, "SELECT count(*) FROM _sqlite_migrations") == [(4,)]


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

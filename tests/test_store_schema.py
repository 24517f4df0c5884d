"""The schema of the store's file: its tables and indexes, and how older files come by them."""

import dataclasses
import sqlite3
import typing
from contextlib import closing
from pathlib import Path

import pytest
from support.sightings import reading, rows, seen

import toolkit.database
import toolkit.migrations
from toolkit.errors import ToolkitError
from toolkit.records import (
    Asked,
    Event,
    Host,
    Ledger,
    LoaderSecond,
    Run,
    Seen,
    Shot,
    Sighting,
    Tally,
    Verdict,
)
from toolkit.store import Store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "toolkit.db"


HOST = {"name", "url"}
TABLES = [
    # record, table, fields that live in other tables, columns that are keys: (type, not null)
    (Sighting, "sightings", {*HOST, "readings"}, {"id": 0, "host_id": 1}),
    (Run, "runs", set(), {"number": 0}),
    (Shot, "shots", {*HOST, "run"}, {"id": 0, "run_number": 1, "host_id": 1}),
    (Ledger, "ledgers", {*HOST, "run"}, {"id": 0, "run_number": 1, "host_id": 1}),
    (Verdict, "verdicts", set(), {"id": 0, "run_number": 1, "host_id": 1}),
    (
        Tally,
        "tallies",
        {*HOST, "run", "worker"},
        {"id": 0, "run_number": 1, "host_id": 1, "worker_id": 1},
    ),
    (
        LoaderSecond,
        "loader_seconds",
        {"run", "worker"},
        {"id": 0, "run_number": 1, "worker_id": 1},
    ),
    (Event, "events", {*HOST, "run"}, {"id": 0, "run_number": 0, "host_id": 0}),
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
    """Every index is paid for by every row; those of readings and of what was seen are their key."""
    Store.open(path).close()
    found = rows(
        path,
        "SELECT tables.name, group_concat(columns.name) "
        "FROM pragma_table_list AS tables, pragma_index_list(tables.name) AS indexes, "
        "pragma_index_info(indexes.name) AS columns "
        "WHERE tables.name NOT LIKE '%sqlite!_%' ESCAPE '!' GROUP BY indexes.name",
    )
    assert sorted(found) == [
        ("bodies", "exact_key"),
        ("captures", "run_number"),
        ("clients", "name"),
        ("hosts", "name,url"),
        ("ledgers", "run_number,host_id"),
        ("loader_seconds", "run_number"),
        ("loader_seconds", "run_number,at_s,worker_id"),
        ("prompts", "prompt_key"),
        ("readings", "sighting_id,series_id"),
        ("run_hosts", "run_number,host_id"),
        ("runs", "id"),
        ("seen", "run_number,ts,number"),
        ("series", "name,labels"),
        ("shots", "run_number,host_id,slot"),
        ("shots", "run_number,sent_at,host_id"),
        ("sightings", "host_id,at"),
        ("tallies", "run_number"),
        ("tallies", "run_number,at_s,kind"),
        ("targets", "path,server,method"),
        ("verdicts", "run_number,host_id"),
        ("workers", "name"),
    ]


def test_the_tables_that_nobody_else_may_stand_in_for_are_all_of_them(path):
    Store.open(path).close()
    found = rows(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")
    assert {name for (name,) in found} == toolkit.migrations.TABLES


def test_all_tables_are_strict_and_no_table_is_made_before_its_time(path):
    Store.open(path).close()
    tables = rows(
        path,
        "SELECT name, strict, wr FROM pragma_table_list WHERE name NOT LIKE 'sqlite!_%' ESCAPE '!'",
    )
    assert sorted(tables) == [
        ("_sqlite_migrations", 1, 0),
        ("bodies", 1, 0),
        ("captures", 1, 0),
        ("clients", 1, 0),
        ("events", 1, 0),
        ("hosts", 1, 0),
        ("ledgers", 1, 0),
        ("loader_seconds", 1, 0),
        ("prompts", 1, 0),
        ("readings", 1, 1),
        ("run_hosts", 1, 0),
        ("runs", 1, 0),
        ("seen", 1, 1),
        ("series", 1, 0),
        ("shots", 1, 0),
        ("sightings", 1, 0),
        ("tallies", 1, 0),
        ("targets", 1, 0),
        ("verdicts", 1, 0),
        ("workers", 1, 0),
    ]


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


def test_a_file_from_before_blasts_keeps_its_shots_and_takes_tallies(path, monkeypatch):
    before = {name: toolkit.database.STEPS[name] for name in ("0001_look", "0002_bench")}
    shot = Shot(
        run="a",
        name="alice",
        url="http://10.0.0.4:8000",
        slot=0,
        kind="unique",
        prompt="capital",
        stream=True,
        max_tokens=64,
        planned_at=2.0,
        sent_at=2.5,
        ok=False,
    )
    with monkeypatch.context() as patch:
        patch.setattr(toolkit.database, "STEPS", before)
        with Store.open(path) as store:
            store.add_sightings([seen(1.0)])
            store.add_run(Run(id="a", verb="bench", started_at=2.0))
            store.add_shots([shot])
    assert rows(path, "SELECT name FROM sqlite_schema WHERE name IN ('tallies', 'events')") == []
    with pytest.raises(ToolkitError, match="was written by an older toolkit"):
        Store.open_readonly(path)
    tally = Tally(
        run="b", name="alice", url="http://10.0.0.4:8000", at_s=3, worker="w", kind="ranked", ok=1
    )
    with Store.open(path) as store:
        assert store.sightings("alice") == [seen(1.0)]
        # the new index knows the old rows, too
        assert store.shots_between("a", 2.5, 2.5) == store.shots("a") == [shot]
        store.add_run(Run(id="b", verb="blast", started_at=3.0))
        store.add_second([tally], shots=[dataclasses.replace(shot, run="b")])
        assert store.tallies("b") == [tally]
    assert rows(path, "SELECT id, name, first_seen_at FROM hosts") == [(1, "alice", 1.0)]
    assert rows(path, "PRAGMA integrity_check") == [("ok",)]


def test_a_file_from_before_captures_keeps_its_tallies_and_takes_requests(path, monkeypatch):
    names = ("0001_look", "0002_bench", "0003_blast")
    before = {name: toolkit.database.STEPS[name] for name in names}
    tally = Tally(
        run="b", name="alice", url="http://10.0.0.4:8000", at_s=3, worker="w", kind="ranked", ok=1
    )
    with monkeypatch.context() as patch:
        patch.setattr(toolkit.database, "STEPS", before)
        with closing(Store.open(path)) as store:
            store.add_run(Run(id="b", verb="blast", started_at=3.0))
            store.add_second([tally])
    request = Seen(ts=4.0, path="/", asked=Asked(exact_key="aa", prompt_key="bb", body_bytes=1))
    with Store.open(path) as store:
        assert store.tallies("b") == [tally]
        assert store.content("b").requests == 1
        store.add_run(Run(id="c", verb="capture", started_at=4.0))
        store.add_seen("c", [request])
        assert list(store.seen("c")) == [request]
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

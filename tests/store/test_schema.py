"""The schema of the store's file: its tables and indexes, and how older files come by them."""

import typing

import pytest
from support.sightings import rows

import toolkit.store.database
import toolkit.store.migrations
from toolkit.errors import ToolkitError
from toolkit.records import (
    Event,
    Ledger,
    LoaderSecond,
    RequestRecord,
    Run,
    Sighting,
    Tally,
    Verdict,
)
from toolkit.store import Store

HOST = {"name", "url"}
TABLES = [
    # record, table, fields that live in other tables, columns that are keys: (type, not null)
    (Sighting, "sightings", {*HOST, "readings"}, {"id": 0, "host_id": 1}),
    (Run, "runs", set(), {"number": 0}),
    (RequestRecord, "shots", {*HOST, "run"}, {"id": 0, "run_number": 1, "host_id": 1}),
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
    """Who adds a field to one of these records adds a step to toolkit/store/migrations.py."""
    hints = typing.get_type_hints(record)
    expected = {name: column(hint) for name, hint in hints.items() if name not in elsewhere}
    expected |= {key: ("INTEGER", not_null) for key, not_null in keys.items()}
    Store.open(path).close()
    told = rows(path, 'SELECT name, type, "notnull" FROM pragma_table_info(?)', table)
    assert {name: (kind, not_null) for name, kind, not_null in told} == expected


def test_the_tables_that_nobody_else_may_stand_in_for_are_all_of_them(path):
    Store.open(path).close()
    found = rows(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")
    assert {name for (name,) in found} == toolkit.store.migrations.TABLES


def test_a_step_that_fails_leaves_the_file_as_it_was(path, monkeypatch):
    Store.open(path).close()

    half = "CREATE TABLE half (a TEXT) STRICT;\nCREATE TABLE hosts (a TEXT) STRICT"
    with monkeypatch.context() as patch:
        patch.setattr(
            toolkit.store.database, "STEPS", {**toolkit.store.database.STEPS, "0002_half": half}
        )
        with pytest.raises(ToolkitError, match="table hosts already exists"):
            Store.open(path)
    assert rows(path, "SELECT count(*) FROM sqlite_schema WHERE name = 'half'") == [(0,)]
    with Store.open(path) as store:
        assert store.known_names() == []

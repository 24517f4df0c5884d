"""The store against real files, with plain sqlite3 as the second reader."""

import dataclasses
import math
from pathlib import Path

from support.sightings import AT, reading, rows, seen

from toolkit.records import Host
from toolkit.store import Store

# --- What comes back ----------------------------------------------------------------------------


def test_nan_and_infinity_of_a_page_are_kept(path):
    page = (reading("a", math.nan), reading("b", math.inf), reading("c", -math.inf))
    with Store.open(path) as store:
        store.add_sightings([seen(readings=page)])
        a, b, c = store.readings(seen())
    assert math.isnan(a.value)
    assert (b.value, c.value) == (math.inf, -math.inf)
    # SQLite has no NaN: a NULL stands for it
    assert rows(path, "SELECT value FROM readings ORDER BY series_id") == [
        (None,),
        (math.inf,),
        (-math.inf,),
    ]


def test_series_are_stored_once_however_often_they_are_read(path):
    page = (reading("a", 1.0, model="m"), reading("a", 2.0, model="n"))
    with Store.open(path) as store:
        for second in range(3):
            store.add_sightings(
                [seen(AT + second, readings=page), seen(AT + second, "bob", readings=page)]
            )
    with Store.open(path) as store:  # with an empty cache
        store.add_sightings([seen(AT + 9, readings=page)])
    assert rows(path, "SELECT count(*) FROM series") == [(2,)]
    assert rows(path, "SELECT count(*) FROM readings") == [(7 * 2,)]


# --- History ------------------------------------------------------------------------------------


def test_a_host_that_moved_keeps_one_history(path):
    old, new = "http://10.0.0.4:8000", "http://10.0.0.5:8000"
    with Store.open(path) as store:
        store.add_sightings([seen(1.0, url=old), seen(2.0, url=new), seen(3.0, url=old)])
        assert [(s.at, s.url) for s in store.sightings("alice")] == [
            (1.0, old),
            (2.0, new),
            (3.0, old),
        ]
        assert store.last_telling("alice", new).at == 2.0


def test_the_last_telling_look_is_found_past_an_outage_and_a_cut_one(path: Path) -> None:
    told = {"config_hash": "abc"}
    with Store.open(path) as store:
        assert store.last_telling("alice", "http://10.0.0.4:8000") is None
        store.add_sightings([seen(at=1.0, **told), seen(at=2.0, status="degraded", **told)])
        store.add_sightings([seen(at=3.0, status="degraded"), seen(at=4.0, status="down", **told)])
        last = store.last_telling("alice", "http://10.0.0.4:8000")
    assert last is not None
    assert (last.at, last.status) == (2.0, "degraded")


# --- Hosts --------------------------------------------------------------------------------------


def test_what_hosts_txt_says_is_kept_and_the_key_is_not(path):
    host = Host(
        name="alice",
        url="http://10.0.0.4:8000",
        team="red",
        model="m",
        note="rack-3",
        api_key_env="SECRET_NAME",
    )
    with Store.open(path) as store:
        store.add_sightings([seen()], [host])
    assert rows(path, "SELECT team, model, note FROM hosts") == [("red", "m", "rack-3")]
    assert b"SECRET_NAME" not in path.read_bytes()
    columns = {name for (name,) in rows(path, "SELECT name FROM pragma_table_info('hosts')")}
    assert columns == {"id", "name", "url", "team", "model", "note", "first_seen_at"}


def test_a_changed_hosts_txt_changes_the_host_and_not_its_first_day(path):
    host = Host(name="alice", url="http://10.0.0.4:8000", team="red")
    with Store.open(path) as store:
        store.add_sightings([seen(1.0)], [host])
        store.add_sightings([seen(2.0)], [dataclasses.replace(host, team=None, note="n")])
        store.add_sightings([seen(3.0)])
    assert rows(path, "SELECT team, note, first_seen_at FROM hosts") == [(None, "n", 1.0)]


def test_the_newest_snapshot_of_each_host_is_found_up_to_a_moment(path: Path) -> None:
    told = {"config_hash": "abc"}
    with Store.open(path) as store:
        store.add_sightings(
            [
                *(seen(1.0, "bob", **told), seen(2.0, "bob", **told), seen(3.0, "bob")),
                *(seen(5.0, "alice", status="down"), seen(9.0, "bob", **told)),
            ]
        )

        def found(until: float, *, telling: bool = False) -> list[tuple[str, float]]:
            return [(each.name, each.at) for each in store.newest_sightings(until, telling=telling)]

        assert found(math.inf) == [("alice", 5.0), ("bob", 9.0)]
        assert found(8.0) == [("alice", 5.0), ("bob", 3.0)]
        assert found(8.0, telling=True) == [("bob", 2.0)]
        assert found(0.5) == []

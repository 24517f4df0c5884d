"""Whole runs in real files: what is in each, copied from another file, removed."""

import dataclasses
from pathlib import Path
from typing import Any

import pytest
from support.blasted import blasted
from support.sightings import reading, rows, seen
from support.tallies import ALICE, BOB, RUN, S, second, shot, tally

from toolkit import store_upkeep
from toolkit.errors import ToolkitError
from toolkit.records import Asked, Event, Host, Ledger, Run, Seen, Verdict
from toolkit.store import Store

BENCH = Run(id="bbbbbbbbbbbb", verb="bench", started_at=S - 500.5)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "toolkit.db"


@pytest.fixture
def other(tmp_path: Path) -> Path:
    return tmp_path / "it's #1?.db"


def fill(path: Path, *, first_host: tuple[str, str] = ALICE, run: Run = RUN) -> None:
    """One run of every family, and a sighting with readings; the hosts' and workers' ids depend on the order."""
    page = (reading("up", 1.0, engine=first_host[0]), reading("a", 2.0))
    with Store.open(path) as store:
        store.add_sightings([seen(S - 900.0, *first_host, readings=page)])
        store.add_run(dataclasses.replace(run, settings='{"users": 8}'))
        hosts = [Host(name="bob", url=BOB[1], team="red"), Host(name="alice", url=ALICE[1])]
        store.plan_hosts(run.id, hosts)
        store.add_second(
            [tally(S + 1, BOB, f"of-{first_host[0]}", ok=2, run=run.id, e2e=b"\x01\x00\x02\x00")],
            [second(S + 1, "w2", run=run.id, users=3)],
            [shot(S + 0.5, run=run.id), shot(S + 1.5, BOB, 1, run=run.id)],
            [Event(run=run.id, name="bob", url=BOB[1], at=S + 1.25, kind="mark", text="x")],
        )
        store.add_ledgers([Ledger(run=run.id, name="bob", url=BOB[1], requests=2.0)])
        clean = Verdict(code="clean", confidence="high", evidence="e")
        store.add_verdicts(run.id, {ALICE: [clean]})
        store.add_event(Event(name="alice", url=ALICE[1], at=S + 2.0, kind="mark", text="loose"))
        store.add_event(Event(at=S + 2.0, kind="mark", text="all"))
        for text in (first_host[0], "Hi"):  # the bodies' ids depend on the order, too
            store.add_seen(run.id, [asking(text, client=text), asking("Hi", status=500)])
        store.set_capture(run.id, {"gaps": 3})
        store.end_run(run.id, ended_at=S + 60.0, client_ok=True)


def asking(text: str, **more: Any) -> Seen:
    digits = text.encode().hex()
    asked = Asked(
        exact_key=digits, prompt_key=digits, body_bytes=9, prompt_text=text, prompt_blocks=b"8" * 8
    )
    return Seen(ts=S + 1.5, server="a:1", method="POST", path=f"/{text}", asked=asked, **more)


def told(path: Path, run: Run = RUN) -> dict[str, Any]:
    """Everything that can be read of a run, in the records' own words."""
    with Store.open_readonly(path) as store:
        return {
            "run": store.run(run.id),
            "hosts": list(store.hosts_of(run.id).values()),
            "tallies": store.tallies(run.id),
            "seconds": [each for _, each in store.loader_seconds(run.id)],
            "shots": store.shots(run.id),
            # the two files may have heard of events of no run in another order
            "events": sorted((e for _, e in store.events(run.id)), key=lambda e: e.text),
            "ledgers": store.ledgers(run.id),
            "verdicts": store.verdicts(run.id),
            "seen": list(store.seen(run.id)),
            "capture": store.capture(run.id),
            "content": store.content(run.id),
        }


def sound(path: Path) -> bool:
    return rows(path, "PRAGMA integrity_check") == [("ok",)] and not rows(
        path, "PRAGMA foreign_key_check"
    )


# --- All families -------------------------------------------------------------------------------


def test_every_table_of_runs_is_known_with_what_its_rows_refer_to(path):
    """Who makes a table with runs' rows names it here, or its rows are neither copied nor removed."""
    Store.open(path).close()
    tables = [name for (name,) in rows(path, "SELECT name FROM sqlite_schema WHERE type = 'table'")]
    found = {}
    for table in tables:
        keys = {row[3]: row[2] for row in rows(path, f"PRAGMA foreign_key_list({table})")}
        if keys.pop("run_number", None):
            found[table] = {
                (f"{name}_id", f"{name}s") for name in store_upkeep._OF_RUNS.get(table, "")
            }
            assert found[table] == set(keys.items())
    assert found.keys() == store_upkeep._OF_RUNS.keys()


# --- What is in a run ---------------------------------------------------------------------------


def test_a_blasts_requests_are_its_tallies_and_its_shots_are_some_of_them(path):
    with Store.open(path) as store:
        store.add_run(RUN)
        assert store.content(RUN.id) == (0, 0, 0, None)
        store.plan_hosts(RUN.id, [Host(name=name, url=url) for name, url in (ALICE, BOB)])
        store.add_second([tally(ok=5, errors=2), tally(ok=1, errors=1, kind="canary")])
        store.add_second([tally(S + 1, ok=8)], [second(S + 3)], [shot(S + 2.5)])
        # 5 + 2 + 1 + 1 + 8 requests; 2 + 1 errors
        assert store.content(RUN.id) == (2, 17, 3, S + 3)


def test_a_benchs_requests_are_its_shots_without_the_warmup(path):
    with Store.open(path) as store:
        store.add_run(dataclasses.replace(BENCH, id=RUN.id))
        store.add_shots([shot(S + 1.5, ok=True), shot(S + 1.0, BOB), shot(S + 9.0, kind="warmup")])
        store.add_ledgers([Ledger(run=RUN.id, name="carol", url="http://c")])
        assert store.content(RUN.id) == (3, 2, 1, S + 1.5)
        assert store.content("unknown") == (0, 0, 0, None)


# --- Removing -----------------------------------------------------------------------------------


def test_a_removed_run_takes_all_its_rows_and_nobody_elses(path):
    fill(path)
    kept = dataclasses.replace(RUN, id="cccccccccccc")
    fill(path, run=kept)
    before = told(path, kept)
    with Store.open(path) as store:
        store.remove_run(RUN.id)
        with pytest.raises(ToolkitError, match="has no run `0123456789ab`"):
            store.remove_run(RUN.id)
        assert [run.id for run in store.runs()] == [kept.id]
    assert told(path, kept) == before
    for table in store_upkeep._OF_RUNS:
        assert rows(path, f"SELECT DISTINCT run_number FROM {table} WHERE run_number NOTNULL") == [
            (2,)
        ]
    assert sound(path)


def test_old_sightings_go_with_their_readings_and_events_of_no_run(path):
    with Store.open(path) as store:
        store.add_run(RUN)
        store.add_sightings([seen(at, readings=(reading("a", at),)) for at in (1.0, 2.0, 3.0)])
        for at, run in ((1.0, None), (2.0, None), (1.0, RUN.id)):
            store.add_event(Event(run=run, at=at, kind="mark"))
        assert store.remove_sightings(2.0) == 1
        assert [one.at for one in store.sightings("alice")] == [2.0, 3.0]
        assert store.readings(seen(2.0)) == (reading("a", 2.0),)
    assert rows(path, "SELECT value FROM readings") == [(2.0,), (3.0,)]
    assert rows(path, "SELECT run_number, at FROM events") == [(None, 2.0), (1, 1.0)]
    assert sound(path)


def test_what_a_file_would_take_without_runs_is_told_before_they_are_removed(path):
    runs = [blasted(path, hosts=3, seconds=60, started_at=S + 1000.0 * n) for n in range(3)]
    with Store.open(path) as store:
        all_bytes = store.used_bytes()
        first, second_ = store.used_bytes_without([run.id for run in runs[:2]])
        assert all_bytes > first > second_ > 0
        assert [store.content(run.id).hosts for run in runs] == [3, 3, 3]
        assert store.used_bytes() == all_bytes
        store.remove_run(runs[0].id)
        assert store.used_bytes() == first
        store.remove_run(runs[1].id)
        assert store.used_bytes() == second_
        store.shrink()
        # nothing is left to give back, and no log stays beside the file
        assert rows(path, "PRAGMA freelist_count") == [(0,)]
        assert path.stat().st_size == store.used_bytes() <= second_
        assert path.with_name("toolkit.db-wal").stat().st_size == 0
    assert sound(path)


def test_bodies_and_prompts_that_no_run_refers_to_go_with_the_last_that_did(path):
    with Store.open(path) as store:
        for run, text in ((RUN, "a"), (BENCH, "b")):
            store.add_run(run)
            store.add_seen(run.id, [asking(text, client=text), asking("both", client="both")])
        store.remove_run(RUN.id)
        assert list(store.seen(BENCH.id)) == [
            asking("b", client="b"),
            asking("both", client="both"),
        ]
        for sql, left in (
            ("SELECT prompt_text FROM prompts JOIN bodies ON prompts.id = prompt_id", "b both"),
            ("SELECT name FROM clients", "b both"),
            ("SELECT path FROM targets", "/b /both"),
        ):
            assert sorted(rows(path, sql)) == [(each,) for each in left.split()]
        store.remove_run(BENCH.id)
    for table in ("prompts", "bodies", "clients", "targets", "seen", "captures"):
        assert rows(path, f"SELECT count(*) FROM {table}") == [(0,)]
    assert sound(path)


# --- Copying ------------------------------------------------------------------------------------


def test_a_run_of_another_machine_is_taken_over_whole_whatever_its_ids_were(path, other):
    fill(other, first_host=("zoe", "http://z"))
    mine = dataclasses.replace(RUN, id="cccccccccccc")
    fill(path, run=mine)
    before = told(path, mine)
    with Store.open(path) as store, store.beside(other):
        store.copy_run(RUN.id)
        store.copy_sightings()
    theirs = told(other)
    assert all(theirs.values())
    # events of no run that both files hold alike are the same
    assert told(path) == theirs
    assert told(path, mine) == before
    assert rows(path, "SELECT name FROM hosts ORDER BY id") == [("alice",), ("bob",), ("zoe",)]
    assert sound(path)
    assert sound(other)


def test_sightings_are_taken_over_once_with_their_readings(path, other):
    fill(other, first_host=BOB)
    fill(path, run=dataclasses.replace(RUN, id="cccccccccccc"))
    with Store.open(path) as store:
        for copied in (1, 0):
            with store.beside(other):
                assert store.copy_sightings() == copied
        assert [one.at for one in store.sightings("bob")] == [S - 900.0]
        page = (reading("a", 2.0), reading("up", 1.0, engine="bob"))
        assert store.readings(seen(S - 900.0, *BOB)) == page
        assert len(store.readings(seen(S - 900.0))) == 2
        # a series that is new here is found by whoever comes after
        store.add_sightings([seen(S + 1.0, readings=page)])
        assert store.readings(seen(S + 1.0)) == page
    loose = rows(path, "SELECT text FROM events WHERE run_number IS NULL ORDER BY id")
    assert loose == [("loose",), ("all",)]
    assert sound(path)


def test_what_both_files_know_of_a_host_is_kept(path, other):
    for file, at, host in (
        (other, 1.0, Host(name="alice", url=ALICE[1], team="red", note="theirs")),
        (path, 2.0, Host(name="alice", url=ALICE[1], note="mine")),
    ):
        with Store.open(file) as store:
            store.add_sightings([seen(at)], [host])
    with Store.open(path) as store, store.beside(other):
        assert store.copy_sightings() == 1
    assert rows(path, "SELECT team, note, first_seen_at FROM hosts") == [("red", "mine", 1.0)]


def test_what_bodies_ask_is_taken_over_once_and_only_for_runs_that_are(path, other):
    with Store.open(other) as store:
        for run, text in ((BENCH, "left"), (RUN, "Hi")):
            store.add_run(run)
            store.add_seen(run.id, [asking(text, client="x"), Seen(ts=S + 9.0)])
    silent = asking("Hi").asked
    assert silent
    silent = dataclasses.replace(silent, prompt_text=None)
    with Store.open(path) as store:
        store.add_run(dataclasses.replace(RUN, id="mine"))
        store.add_seen("mine", [Seen(ts=S, asked=silent, client="y")])
        with store.beside(other):
            store.copy_run(RUN.id)
        assert list(store.seen(RUN.id)) == [asking("Hi", client="x"), Seen(ts=S + 9.0)]
        # the other file knew what the prompt said
        [mine] = store.seen("mine")
        assert (mine.client, mine.asked) == ("y", asking("Hi").asked)
        # and whoever comes after finds the row
        store.add_seen("mine", [asking("Hi", client="x")])
    assert rows(path, "SELECT prompt_text FROM prompts") == [("Hi",)]
    assert rows(path, "SELECT count(*) FROM bodies") == [(1,)]
    assert rows(path, "SELECT name FROM clients ORDER BY name") == [("x",), ("y",)]
    assert sound(path)


def test_prompts_of_one_key_with_other_blocks_stay_apart_in_a_copy(path, other):
    def of_model(model: str) -> Seen:
        asked = Asked(exact_key=model, prompt_key="aa", body_bytes=1, prompt_blocks=model.encode())
        return Seen(ts=S, asked=asked)

    for file, run, models in ((other, RUN, ("c1", "c2")), (path, BENCH, ("c2",))):
        with Store.open(file) as store:
            store.add_run(run)
            store.add_seen(run.id, [of_model(model) for model in models])
    with Store.open(path) as store:
        with store.beside(other):
            store.copy_run(RUN.id)
        assert list(store.seen(RUN.id)) == [of_model("c1"), of_model("c2")]
    assert rows(path, "SELECT count(*) FROM prompts") == [(2,)]


def test_a_run_that_is_here_already_is_refused_and_nothing_of_it_is_doubled(path, other):
    fill(other)
    fill(path)
    before = told(path)
    with Store.open(path) as store, store.beside(other):
        with pytest.raises(ToolkitError, match="UNIQUE"):
            store.copy_run(RUN.id)
        # the store is as good as before, also while the other file is beside it
        assert store.copy_sightings() == 0
    assert told(path) == before


def test_a_copy_that_fails_leaves_the_file_as_it_was_and_lets_the_other_go(path, other):
    fill(other)
    with Store.open(path) as store:
        with store.beside(other), pytest.raises(ToolkitError, match="has no run"):
            store.copy_run("unknown")
        assert store.runs() == []
        with store.beside(other):
            store.copy_run(RUN.id)
    assert sound(path)


def test_rows_are_copied_in_the_order_of_writing_and_other_runs_stay_behind(path, other):
    with Store.open(other) as store:
        store.add_run(RUN)
        store.add_run(BENCH)
        for at in (3, 1, 2):
            store.add_tallies([tally(S + at), tally(S + at, run=BENCH.id)])
    with Store.open(path) as store:
        with store.beside(other):
            store.copy_run(RUN.id)
        assert [part.at_s - S for part in store.parts(RUN.id)] == [3, 1, 2]
        assert [run.id for run in store.runs()] == [RUN.id]
    assert rows(path, "SELECT count(*) FROM tallies") == [(3,)]

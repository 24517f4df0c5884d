"""Runs, shots, ledgers and verdicts in real files, with plain sqlite3 as the second reader."""

import asyncio
import dataclasses
import math
import tempfile
import typing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import tallies
from support.sightings import rows, seen

from toolkit.errors import ToolkitError
from toolkit.records import Host, Ledger, RequestRecord, Run, Verdict
from toolkit.store import Store, runs

RUN = Run(id="0123456789ab", verb="bench", started_at=1_750_000_000.25, settings='{"rate": 2}')
ALICE, BOB = ("alice", "http://10.0.0.4:8000"), ("bob", "http://10.0.0.5:8000")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "toolkit.db"


def shot(slot: int = 0, host: tuple[str, str] = ALICE, **more: Any) -> RequestRecord:
    """A shot that never left, which is the least that one can be."""
    return tallies.shot(None, host, slot, **{"planned_at": RUN.started_at + slot, **more})


def ledger(host: tuple[str, str] = ALICE, **more: Any) -> Ledger:
    return Ledger(**{"run": RUN.id, "name": host[0], "url": host[1], **more})


def verdict(code: str, evidence: str = "e") -> Verdict:
    return Verdict(code=code, confidence="high", evidence=evidence)


# --- What comes back ----------------------------------------------------------------------------


SMALL = st.integers(-(2**63), 2**63 - 1)
TIME = st.floats(allow_nan=False)


def any_of(record: type, **known: object) -> st.SearchStrategy:
    """Records with any value, NaN and too large integers included, in each field not `known`."""
    hints = typing.get_type_hints(record)
    return st.builds(record, **{name: st.from_type(hint) for name, hint in hints.items()} | known)


def kept(record: Any) -> Any:
    """What the store keeps of a record: all but what no column can hold."""
    lost = {}
    for name in record.__dataclass_fields__:
        value = getattr(record, name)
        if isinstance(value, float) and math.isnan(value):
            lost[name] = None
        if isinstance(value, int) and not -(2**63) <= value < 2**63:
            lost[name] = None
    return dataclasses.replace(record, **lost)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_whatever_is_written_is_read(data):
    run = data.draw(any_of(Run, started_at=TIME))
    known = {"run": st.just(run.id), "slot": SMALL, "max_tokens": SMALL, "planned_at": TIME}
    shots = data.draw(st.lists(any_of(RequestRecord, **known), max_size=4))
    ledgers = data.draw(
        st.lists(
            any_of(Ledger, run=st.just(run.id)),
            max_size=3,
            unique_by=lambda one: (one.name, one.url),
        )
    )
    hosts = st.tuples(st.text(), st.text())
    verdicts = data.draw(st.dictionaries(hosts, st.lists(any_of(Verdict), min_size=1), max_size=3))
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "a.db")) as store:
        store.add_run(run)
        store.add_shots(shots)
        store.add_ledgers(ledgers)
        store.add_verdicts(run.id, verdicts)
        assert store.run(run.id) == kept(run)
        expected = sorted(shots, key=lambda one: (one.name, one.url, one.slot))
        assert store.shots(run.id) == [kept(one) for one in expected]
        by_host = sorted(ledgers, key=lambda one: (one.name, one.url))
        assert store.ledgers(run.id) == [kept(one) for one in by_host]
        assert store.verdicts(run.id) == {host: tuple(found) for host, found in verdicts.items()}


# --- Runs ---------------------------------------------------------------------------------------


def test_runs_are_listed_by_their_beginning_newest_first(path):
    def run(id_: str, at: float, verb: str = "bench") -> Run:
        return Run(id=id_, verb=verb, started_at=at)

    with Store.open(path) as store:
        assert store.runs() == []
        for one in (run("b", 2.0), run("a", 1.0), run("d", 3.0, "sweep"), run("c", 2.0)):
            store.add_run(one)
        # of two that began at one moment the later written is newer
        assert [one.id for one in store.runs()] == ["d", "c", "b", "a"]
        assert [one.id for one in store.runs(limit=2)] == ["d", "c"]
        assert [one.id for one in store.runs(verb="bench", limit=2)] == ["c", "b"]
        assert store.runs(verb="blast") == []
        assert store.runs(limit=0) == store.runs(limit=-1) == []


def test_a_run_id_is_taken_once(path):
    with Store.open(path) as store:
        store.add_run(RUN)
        with pytest.raises(ToolkitError) as caught:
            store.add_run(dataclasses.replace(RUN, verb="sweep"))
        assert caught.value.message == f"`{path}` already has a run `0123456789ab`"
        assert store.runs() == [RUN]


def test_an_unknown_run_is_named_with_the_newest_known(path):
    with Store.open(path) as store:
        with pytest.raises(ToolkitError) as caught:
            store.add_shots([shot()])
        assert caught.value.message == f"`{path}` has no run `0123456789ab`"
        assert caught.value.hint == "Known runs: none yet"
        for number in range(7):
            store.add_run(Run(id=f"run-{number}", verb="bench", started_at=float(number)))
        for refused in (
            lambda: store.add_ledgers([ledger()]),
            lambda: store.add_verdicts(RUN.id, {ALICE: [verdict("c")]}),
            lambda: store.end_run(RUN.id, ended_at=1.0, client_ok=True),
        ):
            with pytest.raises(ToolkitError, match="has no run `0123456789ab`") as caught:
                refused()
            assert caught.value.hint == "Known runs: run-6, run-5, run-4, run-3, run-2"
        assert (store.shots(RUN.id), store.ledgers(RUN.id), store.verdicts(RUN.id)) == ([], [], {})


# --- records --------------------------------------------------------------------------------------


def test_warmup_and_levels_may_use_a_slot_again(path):
    batch = [
        shot(0, kind="warmup"),
        shot(0, concurrency=4),
        shot(1, concurrency=4),
        shot(0, concurrency=8),
    ]
    with Store.open(path) as store:
        store.add_run(RUN)
        store.add_shots(batch)
        assert store.shots(RUN.id) == [batch[0], batch[1], batch[3], batch[2]]


def test_runs_of_one_host_are_told_apart_also_in_one_batch(path):
    with Store.open(path) as store:
        store.add_run(RUN)
        store.add_run(dataclasses.replace(RUN, id="other"))
        store.add_shots([shot(0), shot(1, run="other"), shot(2)])
        store.add_ledgers([ledger(requests=1.0), ledger(run="other", requests=2.0)])
        assert [one.slot for one in store.shots(RUN.id)] == [0, 2]
        assert [one.slot for one in store.shots("other")] == [1]
        assert [one.requests for one in store.ledgers("other")] == [2.0]
    assert rows(path, "SELECT count(*) FROM hosts") == [(1,)]


@pytest.mark.parametrize("bad", [shot(1, BOB, run="unknown"), shot(1, BOB, planned_at=math.nan)])
def test_a_failed_batch_is_gone_as_a_whole_with_its_hosts(path, bad):
    with Store.open(path) as store:
        store.add_run(RUN)
        with pytest.raises(ToolkitError, match=r"has no run|NOT NULL"):
            store.add_shots([shot(0), bad])
        assert rows(path, "SELECT (SELECT count(*) FROM shots), count(*) FROM hosts") == [(0, 0)]
        # the ids of the lost hosts must not be remembered: bob is the first host now
        store.add_shots([shot(0, BOB), shot(1)])
        assert [one.name for one in store.shots(RUN.id)] == ["alice", "bob"]
    assert rows(path, "PRAGMA foreign_key_check") == []


# --- Hosts --------------------------------------------------------------------------------------


def test_reading_a_runs_shots_walks_an_index_and_sorts_nothing(path):
    asked = {"run": RUN.id, "name": None}
    with Store.open(path) as store:
        for question, index in (
            (runs._SHOTS_OF_RUN, "idx_shots_run_number_host_id_slot"),
            (runs._LEDGERS_OF_RUN, "idx_ledgers_run_number_host_id"),
            (runs._VERDICTS_OF_RUN, "idx_verdicts_run_number_host_id"),
        ):
            plan = " ".join(
                str(step[3]) for step in store._rows("EXPLAIN QUERY PLAN " + question, asked)
            )
            assert f"USING INDEX {index} (run_number=? AND host_id=?)" in plan
            assert "TEMP B-TREE" not in plan


def test_a_host_met_in_a_bench_was_first_seen_when_the_run_began(path):
    with Store.open(path) as store:
        store.add_sightings([seen(5.0)])
        store.add_run(RUN)
        store.add_shots([shot(3), shot(3, BOB)])
        store.add_sightings([seen(6.0, *BOB)])
    assert rows(path, "SELECT name, first_seen_at FROM hosts ORDER BY id") == [
        ("alice", 5.0),
        ("bob", RUN.started_at),
    ]


def test_all_hosts_are_listed_whoever_met_them_the_last_met_first(path):
    host = Host(name="bob", url=BOB[1], team="red", model="m", note="rack-3")
    with Store.open(path) as store:
        assert store.hosts() == []
        store.add_sightings([seen(5.0)])
        store.add_run(RUN)
        store.add_shots([shot(0, BOB)], [host])
        assert store.hosts() == [host, Host(name="alice", url=ALICE[1])]


# --- Ledgers and verdicts -----------------------------------------------------------------------


def test_a_host_has_one_ledger_a_run(path):
    with Store.open(path) as store:
        store.add_run(RUN)
        store.add_ledgers([ledger(requests=1.0)])
        with pytest.raises(ToolkitError) as caught:
            store.add_ledgers([ledger(BOB), ledger(requests=2.0)])
        assert caught.value.message == (
            f"`{path}` already has the ledger of `alice` in run `0123456789ab`"
        )
        assert store.ledgers(RUN.id) == [ledger(requests=1.0)]


def test_verdicts_come_in_the_order_of_writing_by_host(path):
    a, b, c = verdict("b_code"), verdict("a_code"), verdict("c_code")
    with Store.open(path) as store:
        store.add_run(RUN)
        store.add_verdicts(RUN.id, {BOB: [a], ALICE: (a, b), ("carol", "http://c"): []})
        store.add_verdicts(RUN.id, {ALICE: [c]})
        found = store.verdicts(RUN.id)
    assert list(found.items()) == [(ALICE, (a, b, c)), (BOB, (a,))]


# --- Threads and readers ------------------------------------------------------------------------


def test_worker_threads_may_flush_shots_and_sightings_into_one_store(path):
    async def flush(store: Store) -> None:
        batches = [[shot(slot), shot(slot, BOB)] for slot in range(20)]
        await asyncio.gather(
            *(asyncio.to_thread(store.add_shots, batch) for batch in batches),
            *(asyncio.to_thread(store.add_sightings, [seen(float(at))]) for at in range(20)),
        )

    with Store.open(path) as store:
        store.add_run(RUN)
        asyncio.run(flush(store))
        assert [one.slot for one in store.shots(RUN.id)] == [*range(20), *range(20)]
        assert len(store.sightings("alice")) == 20
    assert rows(path, "PRAGMA foreign_key_check") == []

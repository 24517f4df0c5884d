"""Runs, shots, ledgers and verdicts in real files, with plain sqlite3 as the second reader."""

import asyncio
from typing import Any

import pytest
from support import tallies
from support.sightings import rows, seen

from toolkit.errors import ToolkitError
from toolkit.records import Ledger, RequestRecord, Run, Verdict
from toolkit.store import Store

RUN = Run(id="0123456789ab", verb="bench", started_at=1_750_000_000.25, settings='{"rate": 2}')
ALICE, BOB = ("alice", "http://10.0.0.4:8000"), ("bob", "http://10.0.0.5:8000")


def shot(slot: int = 0, host: tuple[str, str] = ALICE, **more: Any) -> RequestRecord:
    """A shot that never left, which is the least that one can be."""
    return tallies.shot(None, host, slot, **{"planned_at": RUN.started_at + slot, **more})


def ledger(host: tuple[str, str] = ALICE, **more: Any) -> Ledger:
    return Ledger(**{"run": RUN.id, "name": host[0], "url": host[1], **more})


def verdict(code: str, evidence: str = "e") -> Verdict:
    return Verdict(code=code, confidence="high", evidence=evidence)


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


# --- Hosts --------------------------------------------------------------------------------------


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

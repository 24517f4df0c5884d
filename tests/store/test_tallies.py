"""Tallies, seconds of the load generator and events in real files, with plain sqlite3 as the second reader."""

import dataclasses
import math

import pytest
from support.tallies import ALICE, BOB, RUN, S, apart, second, sketch, tally

from toolkit.errors import ToolkitError
from toolkit.records import (
    ErrorCount,
    Part,
)

# --- What comes back ----------------------------------------------------------------------------


def test_a_host_that_tells_absurd_usage_does_not_cost_the_second(store):
    # 2**63 is one more than SQLite's largest integer
    odd = tally(ok=1, output_tokens=2**63, prompt_tokens=2**70)
    store.add_second([odd, tally(S, BOB, ok=2)], [second(users=2**63, lag_ms=math.nan)])
    alice, bob = store.tallies(RUN.id)
    assert (alice.output_tokens, alice.prompt_tokens, alice.ok) == (2**63 - 1, 2**63 - 1, 1)
    assert bob.ok == 2
    [(_, health)] = store.loader_seconds(RUN.id)
    assert (health.users, health.lag_ms) == (None, None)


# --- What counts ---------------------------------------------------------------------------------


def test_a_second_sums_what_several_workers_counted_of_one_host(store):
    one = tally(
        ok=3,
        errors=2,
        error_kinds=(ErrorCount(kind="timeout", count=2),),
        streamed=1,
        prompt_tokens=30,
        output_tokens=300,
        output_tokens_estimated=1,
        cache_told=1,
        cache_hits=1,
        cache_judged=2,
        cache_inferred=1,
        e2e=sketch(10, 10, 50),
        ttft=sketch(5),
    )
    other = tally(
        worker="w0",
        ok=2,
        errors=2,
        error_kinds=(ErrorCount(kind="cut", count=1), ErrorCount(kind="timeout", count=1)),
        prompt_tokens=20,
        output_tokens=200,
        e2e=sketch(10, 70),
    )
    apart = [tally(S, BOB, ok=9), tally(ok=4, kind="canary"), tally(S + 1, ok=5, worker="w0")]
    store.add_second([one, other, *apart])
    [both, *rest] = store.tallies(RUN.id)
    assert both == tally(
        worker="w0+w1",
        ok=5,
        errors=4,
        error_kinds=(ErrorCount(kind="timeout", count=3), ErrorCount(kind="cut", count=1)),
        streamed=1,
        prompt_tokens=50,
        output_tokens=500,
        output_tokens_estimated=1,
        cache_told=1,
        cache_hits=1,
        cache_judged=2,
        cache_inferred=1,
        e2e=sketch(10, 10, 10, 50, 70),
        ttft=sketch(5),
    )
    assert rest == apart


def test_what_one_worker_says_twice_in_a_second_is_summed_under_its_name(store):
    store.add_second([tally(ok=1), tally(ok=2, worker="w2"), tally(ok=4)])
    store.add_second([tally(ok=8, worker="w3"), tally(ok=16)])
    store.add_second([tally(ok=32), tally(ok=64)])
    assert [(one.worker, one.ok) for one in store.tallies(RUN.id)] == [
        ("w1+w2", 7),
        ("w1+w3", 24),
        ("w1", 96),
    ]
    assert store.tally_sums(RUN.id)[(*ALICE, "ranked")].ok == 127


def test_a_damaged_sketch_is_refused_before_anything_is_summed(store):
    with pytest.raises(ToolkitError, match="a tally cannot be stored: a sketch is a row of 4-byte"):
        store.add_second([tally(e2e=b"123"), tally(worker="w2")])
    assert store.tallies(RUN.id) == []


# --- Parts --------------------------------------------------------------------------------------


def seconds_of(parts: list[Part]) -> list[int]:
    return [part.at_s - S for part in parts]


def test_parts_come_in_the_order_of_writing_and_leave_canaries_out(store):
    apart(store, [tally(S + 2), tally(S + 1), tally(S, kind="canary"), tally(S + 2, BOB)])
    apart(store, [tally(S)])
    parts = store.parts(RUN.id)
    assert seconds_of(parts) == [2, 1, 2, 0]
    assert [part.row for part in parts] == [1, 2, 4, 5]
    names = {number: host.name for number, host in store.hosts_of(RUN.id).items()}
    assert [names[part.host] for part in parts] == ["alice", "alice", "bob", "alice"]


def test_a_reader_that_follows_by_row_misses_no_late_second(store):
    apart(store, [tally(S), tally(S + 1)])
    last = store.parts(RUN.id)[-1].row
    assert store.parts(RUN.id, after_row=last) == []
    apart(store, [tally(S, worker="late"), tally(S + 2)])
    assert seconds_of(store.parts(RUN.id, after_row=last)) == [0, 2]


def test_parts_of_a_stretch_of_time_include_both_its_ends(store):
    apart(store, [tally(S + at) for at in (3, 0, 1, 4, 2)])
    assert seconds_of(store.parts(RUN.id, from_s=S + 1, to_s=S + 3)) == [3, 1, 2]
    assert seconds_of(store.parts(RUN.id, from_s=S + 3)) == [3, 4]
    assert seconds_of(store.parts(RUN.id, to_s=S)) == [0]
    assert seconds_of(store.parts(RUN.id, from_s=S + 1, to_s=S + 3, limit=2)) == [3, 1]
    assert seconds_of(store.parts(RUN.id, after_row=1, to_s=S + 2)) == [0, 1, 2]
    assert seconds_of(store.parts(RUN.id, after_row=2, limit=2)) == [1, 4]
    assert store.parts(RUN.id, from_s=S + 2, to_s=S + 1) == []
    assert store.parts(RUN.id, limit=0) == store.parts(RUN.id, limit=-1) == []


def test_the_last_row_and_second_are_the_runs_own_whatever_the_order_of_writing(store):
    assert (store.last_row(RUN.id), store.last_second(RUN.id)) == (0, None)
    store.add_run(dataclasses.replace(RUN, id="other"))
    store.add_second(seconds=[second(S - 1)])
    assert (store.last_row(RUN.id), store.last_second(RUN.id)) == (0, S - 1)
    apart(store, [tally(S + 2), tally(S + 1), tally(S + 3, kind="canary")])
    apart(store, [tally(S + 9, run="other")])
    assert (store.last_row(RUN.id), store.last_second(RUN.id)) == (2, S + 3)
    store.add_second(seconds=[second(S + 5)])
    assert store.last_second(RUN.id) == S + 5
    assert (store.last_row("unknown"), store.last_second("unknown")) == (0, None)

"""Tallies, seconds of the load generator and events in real files, with plain sqlite3 as the second reader."""

import dataclasses
import math
import tempfile
import typing
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.tallies import ALICE, BOB, RUN, S, apart, second, sketch, tally

from toolkit.errors import ToolkitError
from toolkit.records import (
    ErrorCount,
    Host,
    LoaderSecond,
    Part,
    Run,
    Tally,
)
from toolkit.store import Store, tallies


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "toolkit.db"


@pytest.fixture
def store(path: Path) -> typing.Iterator[Store]:
    with Store.open(path) as store:
        store.add_run(RUN)
        yield store


FULL = tally(
    ok=7,
    errors=5,
    error_kinds=(ErrorCount(kind="http_500", count=3), ErrorCount(kind="timeout", count=2)),
    streamed=4,
    prompt_tokens=70,
    output_tokens=2**63 - 1,
    output_tokens_estimated=9,
    cache_told=3,
    cache_hits=2,
    cache_judged=4,
    cache_inferred=1,
    e2e=b"\x01\x00\x07\x00",
    ttft=b"\x01\x00\x04\x00",
)


# --- What comes back ----------------------------------------------------------------------------


def test_a_tally_comes_back_bit_for_bit_and_bare_as_a_part(store):
    apart(store, [FULL])
    assert store.tallies(RUN.id) == [FULL]
    [(number, host)] = store.hosts_of(RUN.id).items()
    assert host == Host(name="alice", url=ALICE[1])
    [part] = store.parts(RUN.id)
    # row 1, then the figures of FULL in the order in which Part names them
    told = (S, 7, 5, 4, 2**63 - 1, 9, 3, 2, 4, 1, b"\x01\x00\x07\x00", b"\x01\x00\x04\x00")
    assert part == Part(1, number, *told)
    assert type(part) is Part


SMALL = st.integers(-(2**63), 2**63 - 1)


def any_of(record: type, **known: object) -> st.SearchStrategy:
    """Records with any value that a column can hold in each field not `known`."""
    values = {int: SMALL, float: st.floats(allow_nan=False)}
    hints = {
        name: st.one_of(
            *(values.get(kind, st.from_type(kind)) for kind in typing.get_args(hint) or (hint,))
        )
        if typing.get_origin(hint) not in (tuple, typing.Literal)
        else st.from_type(hint)
        for name, hint in typing.get_type_hints(record).items()
    }
    return st.builds(record, **hints | known)


@settings(max_examples=20, deadline=None)
@given(data=st.data())
def test_whatever_is_written_is_read(data):
    run = Run(id=data.draw(st.text()), verb="blast", started_at=0.0)
    named = {"run": st.just(run.id)}
    errors = st.builds(ErrorCount, kind=st.text(), count=SMALL)
    tallies = data.draw(
        st.lists(
            any_of(Tally, error_kinds=st.lists(errors).map(tuple), **named),
            max_size=4,
            unique_by=lambda one: (one.name, one.url, one.at_s, one.worker, one.kind),
        )
    )
    seconds = data.draw(
        st.lists(
            any_of(LoaderSecond, **named),
            max_size=4,
            unique_by=lambda one: (one.at_s, one.worker),
        )
    )
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "a.db")) as store:
        store.add_run(run)
        apart(store, tallies)
        store.add_second(seconds=seconds)
        assert store.tallies(run.id) == sorted(tallies, key=lambda one: one.at_s)
        assert [each for _, each in store.loader_seconds(run.id)] == seconds


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


def test_a_workers_second_is_kept_once(store):
    store.add_second(seconds=[second(users=1), second(users=2), second(worker="w2")])
    store.add_second(seconds=[second(users=3), second(S + 1)])
    assert [
        (row, one.at_s - S, one.worker, one.users) for row, one in store.loader_seconds(RUN.id)
    ] == [
        (1, 0, "w1", 1),
        (2, 0, "w2", None),
        (3, 1, "w1", None),
    ]


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


@pytest.mark.parametrize("question", ["_LAST_ROW", "_LAST_SECOND"])
def test_what_is_last_is_read_off_the_end_of_an_index(store, question):
    sql = "EXPLAIN QUERY PLAN " + getattr(tallies, question)
    plan = [str(step[3]) for step in store._rows(sql, {"run": "r"})]
    found = [step for step in plan if "tallies" in step or "loader_seconds" in step]
    assert found
    assert all(step.startswith("SEARCH") and "INDEX" in step for step in found)


def test_parts_of_another_run_stay_out(store):
    store.add_run(dataclasses.replace(RUN, id="other"))
    apart(store, [tally(ok=1), tally(ok=2, run="other"), tally(S + 1, ok=4)])
    assert [part.ok for part in store.parts(RUN.id)] == [1, 4]
    assert [part.ok for part in store.parts("other", from_s=S)] == [2]
    assert store.parts("unknown") == store.parts("unknown", from_s=0) == []


@pytest.mark.parametrize("question", ["_FOLLOWING", "_WINDOW", "_LOADER_SECONDS_OF_RUN"])
def test_following_a_run_reads_its_own_rows_and_sorts_none(store, question):
    values = {"run": "r", "after": 0, "from_s": 0, "to_s": 1, "limit": 1}
    sql = getattr(tallies, question)
    asked = {name: value for name, value in values.items() if f":{name}" in sql}
    plan = [str(step[3]) for step in store._rows("EXPLAIN QUERY PLAN " + sql, asked)]
    index = {
        "_FOLLOWING": "SEARCH tallies USING INDEX idx_tallies_ranked (run_number=? AND rowid>?)",
        # ids alone, from the index alone: no row of another second is read, and integers are sorted
        "_WINDOW": "SEARCH tallies USING COVERING INDEX "
        "idx_tallies_run_number_at_s_kind (run_number=? AND at_s>? AND at_s<?)",
        "_LOADER_SECONDS_OF_RUN": "SEARCH loader_seconds USING INDEX "
        "idx_loader_seconds_run_number (run_number=? AND rowid>?)",
    }
    assert index[question] in plan
    assert [step for step in plan if step.startswith("SCAN")] == []
    if question != "_WINDOW":
        assert "TEMP B-TREE" not in " ".join(plan)

"""What is asked of a stored blast beside its tallies: sums, hosts, events, the master's second, windows of shots."""

import dataclasses
import math

import pytest
from support.sightings import rows
from support.tallies import ALICE, BOB, RUN, S, apart, second, shot, tally

from toolkit.errors import ToolkitError
from toolkit.records import (
    Event,
    Host,
    Run,
    Sums,
)

# --- Whole tallies and sums ---------------------------------------------------------------------


BIG = tally(
    ok=7,
    errors=5,
    streamed=4,
    prompt_tokens=70,
    output_tokens=2**63 - 1,
    output_tokens_estimated=9,
    cache_told=3,
    cache_hits=2,
    cache_judged=4,
    cache_inferred=1,
)


def test_sums_are_exact_past_64_bits_and_apart_by_host_and_kind(store):
    apart(
        store,
        [
            BIG,
            dataclasses.replace(BIG, worker="w2"),
            tally(kind="canary", ok=2, errors=1),
            tally(S, BOB, output_tokens=1),
        ],
    )
    # twice BIG: 2 * (2**63 - 1) = 2**64 - 2 output tokens
    assert store.tally_sums(RUN.id)[(*ALICE, "ranked")] == Sums(
        ok=14,
        errors=10,
        streamed=8,
        prompt_tokens=140,
        output_tokens=2**64 - 2,
        output_tokens_estimated=18,
        cache_told=6,
        cache_hits=4,
        cache_judged=8,
        cache_inferred=2,
    )
    told = {key: (sums.ok, sums.errors) for key, sums in store.tally_sums(RUN.id).items()}
    assert list(told.items()) == [
        ((*ALICE, "ranked"), (14, 10)),
        ((*ALICE, "canary"), (2, 1)),
        ((*BOB, "ranked"), (0, 0)),
    ]
    assert store.tally_sums("unknown") == {}


# --- Hosts --------------------------------------------------------------------------------------


def test_a_planned_host_takes_part_though_it_never_answered(store):
    hosts = [Host(name=name, url=url, team=name[0]) for name, url in (BOB, ALICE)]
    store.plan_hosts(RUN.id, hosts)
    store.add_second([tally(ok=1)])
    assert list(store.hosts_of(RUN.id).values()) == hosts
    assert store.hosts_of("unknown") == {}


def test_a_host_that_nobody_planned_takes_part_from_its_first_tally(store):
    store.add_run(dataclasses.replace(RUN, id="other"))
    apart(store, [tally(run="other", host=BOB)])
    store.plan_hosts(RUN.id, [Host(name="bob", url=BOB[1])])
    apart(store, [tally(), tally(S + 1), tally(S, ("carol", "http://c"), kind="canary")])
    store.plan_hosts(RUN.id, [Host(name="alice", url=ALICE[1])])
    assert [host.name for host in store.hosts_of(RUN.id).values()] == ["bob", "alice", "carol"]
    assert [host.name for host in store.hosts_of("other").values()] == ["bob"]
    numbers = set(store.hosts_of(RUN.id))
    assert {part.host for part in store.parts(RUN.id)} < numbers


# --- Events -------------------------------------------------------------------------------------


def test_an_event_of_no_run_belongs_to_the_run_that_was_on(store):
    def mark(at: float) -> Event:
        return Event(name="bob", url=BOB[1], at=at, kind="mark", text=str(at))

    def told(run_id: str) -> list[float]:
        return [event.at - S for _, event in store.events(run_id)]

    for at in (S, S + 0.25, S + 50.0, S + 60.0, S + 61.0, S + 100.0, S + 900.0):
        store.add_event(mark(at))
    assert told(RUN.id) == [0.25, 50, 60, 61, 100, 900]  # it is still on
    store.end_run(RUN.id, ended_at=S + 60.0, client_ok=True)
    assert told(RUN.id) == [0.25, 50, 60]
    assert {event.run for _, event in store.events(RUN.id)} == {None}
    # a run that was killed has no end: it was over when the next one of its verb began
    store.add_run(Run(id="killed", verb="blast", started_at=S + 61.0))
    assert told("killed") == [61, 100, 900]
    store.add_run(Run(id="bench", verb="bench", started_at=S + 70.0))
    store.add_run(Run(id="next", verb="blast", started_at=S + 200.0))
    assert told("killed") == [61, 100]
    assert told("next") == [900]


def test_an_event_of_half_a_host_or_an_unknown_run_is_refused(store, path):
    with pytest.raises(ToolkitError, match="an event of `bob` names no URL"):
        store.add_event(Event(name="bob", at=1.0, kind="mark"))
    with pytest.raises(ToolkitError, match="has no run `unknown`"):
        store.add_event(Event(run="unknown", name="bob", url="u", at=1.0, kind="mark"))
    assert rows(path, "SELECT (SELECT count(*) FROM events), count(*) FROM hosts") == [(0, 0)]


# --- The master's second ------------------------------------------------------------------------


@pytest.mark.parametrize(
    "fault",
    [
        {"tallies": [tally(S + 1), tally(S + 1, run="unknown")]},
        {"seconds": [second(S + 1), second(S + 1, run="unknown")]},
        {"shots": [shot(S + 1.0), shot(S + 1.0, planned_at=math.nan)]},
        {"events": [Event(run=RUN.id, at=math.nan, kind="phase")]},
    ],
    ids=["tallies", "seconds", "shots", "events"],
)
def test_a_second_is_stored_as_a_whole_or_not_at_all(store, path, fault):
    whole = {
        "tallies": [tally(S + 1, BOB, "new")],
        "seconds": [second(S + 1, "new")],
        "shots": [shot(S + 1.0, BOB)],
        "events": [Event(run=RUN.id, at=S + 1.0, kind="phase")],
    }
    with pytest.raises(ToolkitError, match=r"has no run|NOT NULL"):
        store.add_second(**{**whole, **fault})
    count = "(SELECT count(*) FROM {0})"
    tables = ("tallies", "loader_seconds", "shots", "events", "hosts", "workers", "run_hosts")
    counted = "SELECT " + ", ".join(count.format(table) for table in tables)
    assert rows(path, counted) == [(0,) * 7]
    # ids of lost hosts and workers must not be remembered
    store.add_second(**whole)
    assert rows(path, counted) == [(1,) * 7]
    assert rows(path, "PRAGMA foreign_key_check") == []


# --- Shots and sightings of a window ------------------------------------------------------------


def test_of_a_hosts_many_shots_the_newest_stay(store):
    store.add_run(dataclasses.replace(RUN, id="other"))
    store.add_shots([shot(S + at, slot=at) for at in (5, 1, 4, 2, 3)] + [shot(S + 1.0, BOB)])
    store.add_shots([shot(S + 9.0, run="other"), shot(S + 5.0, slot=50)])
    found = store.shots_between(RUN.id, S, S + 9.0, most_per_host=3)
    # two left at S + 5, the later written is newer
    assert [(one.name, one.slot) for one in found] == [
        ("alice", 4),
        ("alice", 5),
        ("alice", 50),
        ("bob", 0),
    ]
    assert store.shots_between(RUN.id, S, S + 9.0, most_per_host=0) == []

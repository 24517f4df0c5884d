"""Whatever is written is read: records with any value in each field, found in a real file as they were."""

import dataclasses
import math
import tempfile
import typing
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from support.tallies import apart

from toolkit.records import (
    Asked,
    ErrorCount,
    Finding,
    Ledger,
    LoaderSecond,
    Reading,
    RequestRecord,
    Run,
    Seen,
    Sighting,
    Tally,
    Verdict,
)
from toolkit.store import Store

few = settings(max_examples=20, deadline=None)
INTEGERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=False)
WORDS = st.text(st.characters(exclude_categories=["Cs"]), max_size=8)
VALUES = {str: WORDS, int: INTEGERS, float: FLOATS}


def values(hint: Any) -> st.SearchStrategy[Any]:
    """Any value that a column can hold."""
    inner = typing.get_args(hint)
    if typing.get_origin(hint) is tuple:
        return st.lists(values(inner[0]), max_size=3).map(tuple)
    if typing.get_origin(hint) is typing.Literal or not inner:
        return VALUES.get(hint, st.from_type(hint))
    return st.one_of(*map(values, inner))


def any_of(record: type, **known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """Records with any value in each field that is not `known`."""
    hints = typing.get_type_hints(record)
    return st.builds(record, **{name: values(hint) for name, hint in hints.items()} | known)


@contextmanager
def new_store(run: Run | None = None) -> Iterator[Store]:
    with tempfile.TemporaryDirectory() as folder, Store.open(Path(folder, "a.db")) as store:
        if run is not None:
            store.add_run(run)
        yield store


# --- scout ------------------------------------------------------------------------------------------

NAMES = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
READINGS = st.lists(
    st.builds(
        Reading,
        name=NAMES,
        labels=st.dictionaries(NAMES, WORDS, max_size=3).map(
            lambda all_: tuple(sorted(all_.items()))
        ),
        value=FLOATS,
    ),
    max_size=6,
    unique_by=lambda one: (one.name, one.labels),
).map(tuple)
SIGHTINGS = any_of(
    Sighting, readings=READINGS, findings=st.lists(any_of(Finding), max_size=2).map(tuple)
)


@few
@given(st.lists(SIGHTINGS, min_size=1, max_size=3, unique_by=lambda one: (one.name, one.at)))
def test_sightings_with_their_pages(batch: list[Sighting]) -> None:
    with new_store() as store:
        store.add_sightings(batch)
        for one in batch:
            assert dataclasses.replace(one, readings=()) in store.sightings(one.name)
            assert set(store.readings(one)) == set(one.readings)
        assert store.known_names() == sorted({one.name for one in batch})


# --- bench ------------------------------------------------------------------------------------------


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


def anything_in(record: type, **known: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    """The same with NaN and integers that are too large."""
    hints = typing.get_type_hints(record)
    return st.builds(record, **{name: st.from_type(hint) for name, hint in hints.items()} | known)


@few
@given(data=st.data())
def test_runs_with_shots_ledgers_and_verdicts(data: st.DataObject) -> None:
    run = data.draw(anything_in(Run, started_at=FLOATS))
    own = st.just(run.id)
    known = {"run": own, "slot": INTEGERS, "max_tokens": INTEGERS, "planned_at": FLOATS}
    shots = data.draw(st.lists(anything_in(RequestRecord, **known), max_size=4))
    ledgers = data.draw(
        st.lists(
            anything_in(Ledger, run=own), max_size=3, unique_by=lambda one: (one.name, one.url)
        )
    )
    hosts, found = st.tuples(st.text(), st.text()), st.lists(anything_in(Verdict), min_size=1)
    verdicts = data.draw(st.dictionaries(hosts, found, max_size=3))
    with new_store(run) as store:
        store.add_shots(shots)
        store.add_ledgers(ledgers)
        store.add_verdicts(run.id, verdicts)
        assert store.run(run.id) == kept(run)
        shots.sort(key=lambda one: (one.name, one.url, one.slot))
        assert store.shots(run.id) == [kept(one) for one in shots]
        ledgers.sort(key=lambda one: (one.name, one.url))
        assert store.ledgers(run.id) == [kept(one) for one in ledgers]
        assert store.verdicts(run.id) == {host: tuple(those) for host, those in verdicts.items()}


# --- blast ------------------------------------------------------------------------------------------

BLAST = Run(id="0123456789ab", verb="blast", started_at=0.0)
TALLIES = any_of(
    Tally, run=st.just(BLAST.id), error_kinds=st.lists(any_of(ErrorCount), max_size=3).map(tuple)
)


@few
@given(
    tallies=st.lists(
        TALLIES,
        max_size=4,
        unique_by=lambda one: (one.name, one.url, one.at_s, one.worker, one.kind),
    ),
    seconds=st.lists(
        any_of(LoaderSecond, run=st.just(BLAST.id)),
        max_size=4,
        unique_by=lambda one: (one.at_s, one.worker),
    ),
)
def test_tallies_and_seconds_of_the_load_generator(
    tallies: list[Tally], seconds: list[LoaderSecond]
) -> None:
    with new_store(BLAST) as store:
        apart(store, tallies)
        store.add_second(seconds=seconds)
        assert store.tallies(BLAST.id) == sorted(tallies, key=lambda one: one.at_s)
        assert [each for _, each in store.loader_seconds(BLAST.id)] == seconds


# --- capture ----------------------------------------------------------------------------------------


def key(name: object) -> str:
    return blake2b(str(name).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def told_alike(asked: Asked) -> Asked:
    """Of one exact body and of one prompt's text the store takes one word only."""
    text = f"{asked.prompt_key}\x00" if asked.prompt_key else None
    return dataclasses.replace(asked, exact_key=key(asked), prompt_text=text)


KEYS = st.sampled_from([key(number) for number in range(3)])
BODIES = any_of(
    Asked, exact_key=KEYS, request_key=st.none() | KEYS, prompt_key=st.none() | KEYS
).map(told_alike)


@few
@given(st.lists(st.lists(any_of(Seen, asked=st.none() | BODIES), max_size=4), max_size=3))
def test_requests_as_they_arrived(batches: list[list[Seen]]) -> None:
    with new_store(BLAST) as store:
        for batch in batches:
            store.add_seen(BLAST.id, batch)
        written = [one for batch in batches for one in batch]
        # a sort keeps the order of what arrived at one moment
        assert list(store.seen(BLAST.id)) == sorted(written, key=lambda one: one.ts)
        assert store.content(BLAST.id).requests == len(written)

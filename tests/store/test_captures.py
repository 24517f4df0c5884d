"""Requests as they arrived, in real files, with plain sqlite3 as the second reader."""

import dataclasses
import math
import sqlite3
import typing
from contextlib import closing
from hashlib import blake2b

import pytest
from support.sightings import rows
from support.tallies import RUN, S

from toolkit.errors import ToolkitError
from toolkit.records import Asked, Run, Seen
from toolkit.store import Store, database


def key(name: object) -> str:
    return blake2b(str(name).encode("utf-8", "backslashreplace"), digest_size=16).hexdigest()


def body(name: object, **more: typing.Any) -> Asked:
    return Asked(**{"exact_key": key(name), "body_bytes": 100, **more})


def prompted(name: object, prompt: str = "Hi", **more: typing.Any) -> Asked:
    return body(name, **{"prompt_key": key(prompt), "prompt_chars": len(prompt), **more})


FULL = Seen(ts=S + 0.1, asked=prompted("full"), client="c", server="10.0.0.4:8000", path="/x")


def read(store: Store, run: Run = RUN, **which: typing.Any) -> list[Seen]:
    return list(store.seen(run.id, **which))


def test_what_no_column_can_hold_does_not_cost_the_batch(store):
    odd = prompted("odd", max_tokens=2**63, seed=2**70, temperature=math.nan, model="m\ud800")
    odd = dataclasses.replace(odd, prompt_text="\udfff", prompt_chars=2**64)
    store.add_seen(
        RUN.id, [Seen(ts=S, asked=odd, client="\ud800", path="/\ud800", in_flight=2**63)]
    )
    [one] = read(store)
    assert (one.client, one.path, one.in_flight) == ("\\ud800", "/\\ud800", None)
    assert one.asked == dataclasses.replace(
        odd,
        max_tokens=None,
        seed=None,
        temperature=None,
        model="m\\ud800",
        prompt_text="\\udfff",
        prompt_chars=None,
    )


# --- Which are read -----------------------------------------------------------------------------


def test_a_reader_that_stops_half_way_keeps_nobody_from_writing(store, path):
    store.add_seen(RUN.id, [Seen(ts=S), Seen(ts=S + 1)])
    with Store.open_readonly(path) as reader:
        stream = reader.seen(RUN.id)
        assert next(stream).ts == S
        store.add_seen(RUN.id, [Seen(ts=S + 2)])
        with closing(sqlite3.connect(path)) as connection:
            # busy 0: no reader holds the log
            assert connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone() == (0, 0, 0)
        assert [one.ts - S for one in reader.seen(RUN.id)] == [0, 1, 2]


# --- All or nothing -----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        (Seen(ts=math.nan), "NOT NULL"),
        (Seen(ts=S, asked=Asked(exact_key="Xy", body_bytes=1)), "`Xy` is not hexadecimal"),
        (Seen(ts=S, asked=body("a", request_key="AB")), "`AB` is not hexadecimal"),
    ],
)
def test_a_batch_with_one_bad_request_leaves_nothing_not_even_in_memory(store, path, bad, message):
    good = Seen(ts=S, asked=prompted("good"), client="c", path="/x")
    with pytest.raises(ToolkitError, match=message):
        store.add_seen(RUN.id, [good, bad])
    for table in ("seen", "bodies", "prompts", "clients", "targets", "captures"):
        assert rows(path, f"SELECT count(*) FROM {table}") == [(0,)]
    # the ids that the failed batch drew are not used again for what is not there
    store.add_seen(RUN.id, [dataclasses.replace(good, asked=prompted("new"), client="d"), good])
    assert [one.client for one in read(store)] == ["d", "c"]
    assert read(store)[1] == good


def test_a_body_that_another_process_removed_is_stored_again(store, path):
    other = dataclasses.replace(RUN, id="other")
    store.add_run(other)
    store.add_seen("other", [FULL])
    with Store.open_existing(path) as pruner:
        pruner.remove_run("other")
    # the file has no body now, while the store met it before
    store.add_seen(RUN.id, [FULL])
    assert read(store) == [FULL]


def test_more_bodies_than_are_held_in_memory_are_still_one_row_each(store, path, monkeypatch):
    monkeypatch.setattr(database, "REMEMBERED", 3)
    batch = [
        Seen(ts=S + n, asked=body(n % 5), client=str(n % 4), path=str(n % 6)) for n in range(60)
    ]
    store.add_seen(RUN.id, batch)
    assert read(store) == batch
    assert rows(path, "SELECT (SELECT count(*) FROM bodies), (SELECT count(*) FROM clients)") == [
        (5, 4)
    ]
    assert rows(path, "SELECT count(*) FROM targets") == [(6,)]
    assert len(store._known["bodies"]) <= 3


# --- Losses and counts --------------------------------------------------------------------------


def test_a_captures_last_word_on_itself_stays(store):
    assert store.capture(RUN.id) is None
    store.add_seen(RUN.id, [Seen(ts=S)])
    assert store.capture(RUN.id) is None
    store.set_capture(RUN.id, {"gaps": 1, "kernel_drops": None})
    store.add_seen(RUN.id, [Seen(ts=S)])
    assert store.capture(RUN.id) == {"gaps": 1, "kernel_drops": None}
    last = {"gaps": 2**70, "iface": "lo\ud800", "top": [[1, 0.5]]}
    store.set_capture(RUN.id, last)
    assert store.capture(RUN.id) == last
    assert store.content(RUN.id).requests == 2
    assert store.capture("none") is None

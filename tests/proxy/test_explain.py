"""Why a request is no hit: where it differs from the newest one like it, what became of it, and how much is remembered."""

import os
import tracemalloc
from typing import Any

import orjson
import pytest

from toolkit.protocol.request_key import Canonical, canonical
from toolkit.proxy.explain import (
    ENTRY_BYTES,
    MissHistory,
    SeenRequest,
    first_difference,
)

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "Hi there"}],
    "temperature": 0,
    "stop": ["a", "b"],
}


def seen(fields: dict[str, Any], version: str = "m@1", at: float = 0.0) -> SeenRequest:
    read = canonical(orjson.dumps(fields))
    assert isinstance(read, Canonical)
    return SeenRequest("chat/completions", read.form, "m", version, at)


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def remember(misses: MissHistory, number: int, fields: dict[str, Any], tenant: str = "red") -> None:
    misses.note(tenant, key(number), seen(fields))


def reason(
    misses: MissHistory, number: int, tenant: str = "red", at: float = 10.0
) -> tuple[str, str | None]:
    found = misses.explain(tenant, key(number), seen(CHAT, at=at), is_stored=False)
    return found["reason"], found["detail"]


@pytest.mark.parametrize(
    ("here", "there", "path", "kind"),
    [
        ({}, {"seed": 1}, "seed", "missing"),
        ({"temperature": None}, {}, "temperature", "type"),
        ({"temperature": "0"}, {}, "temperature", "type"),
        ({"stop": ["a", "b", "c"]}, {}, "stop", "length"),
        # what differs inside goes before the length
        ({"stop": ["x", "b", "c"]}, {}, "stop[0]", "value"),
        ({"stop": {"0": "a"}}, {}, "stop", "type"),
        ({"a": {"b c": [1]}}, {"a": {"b c": [2]}}, 'a["b c"][0]', "value"),
        ({'"\n': 1}, {'"\n': 2}, '["\\"\\n"]', "value"),
        ({"": 1}, {"": 2}, '[""]', "value"),
        ({"a": {"1": 1}}, {"a": {"1": 2}}, 'a["1"]', "value"),
        ({"a": 1.5}, {"a": 2}, "a", "value"),
        ({"a": [True]}, {"a": [1]}, "a[0]", "type"),
        ({"top_p": 1, "b": 2, "seed": 3}, {}, "b", "extra"),
    ],
)
def test_the_first_difference_has_its_kind_and_place(
    here: dict[str, Any], there: dict[str, Any], path: str, kind: str
) -> None:
    found = first_difference(CHAT | here, CHAT | there, values=False)
    assert found is not None
    assert (found["path"], found["kind"]) == (path, kind)
    assert first_difference(CHAT | here, CHAT | here, values=False) is None


def test_the_oldest_goes_when_room_is_short_and_one_seen_again_is_the_newest() -> None:
    each = len(seen({**CHAT, "seed": 100}).form) + ENTRY_BYTES
    misses = MissHistory(each * 20)
    for number in [*range(100, 120), 100, 120]:
        remember(misses, number, {**CHAT, "seed": number})
        assert misses.bytes_held <= each * 20
    assert [reason(misses, number)[0] for number in (100, 101, 102)] == [
        *("under way", "never seen", "under way")
    ]


def test_what_it_says_it_holds_covers_what_it_takes() -> None:
    misses = MissHistory(10**9)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    # a table of 16,384 places holds 10,922: just then it has grown
    for number in range(11_000):
        misses.note("red", os.urandom(16), SeenRequest("c", b'{"a":%d}' % (10**99 + number), "m", "m@1", 0.0))  # fmt: skip
    # what orjson writes keeps the room that it was written in: here some 4 KiB for each of 150 bytes
    for number in range(500):
        misses.note("red", os.urandom(16), seen({**CHAT, "seed": number}))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken <= misses.bytes_held < 2 * taken

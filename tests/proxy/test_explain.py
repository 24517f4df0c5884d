"""Why a request is no hit: where it differs from the newest one like it, what became of it, and how much is remembered."""

import os
import tracemalloc
from typing import Any

import orjson
import pytest

from toolkit.protocol.request_key import Canonical, canonical
from toolkit.proxy.explain import (
    ENTRY_BYTES,
    FORM_SHARE,
    MAX_CHARS,
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


def test_a_long_value_is_cut_and_the_first_character_that_differs_is_named() -> None:
    found = first_difference({"a": "x" * 1000}, {"a": "x" * 999}, values=True)
    assert found is not None
    assert (len(found["here"]), found["at"]) == (MAX_CHARS, 999)
    assert found["here"].endswith("x\N{HORIZONTAL ELLIPSIS}")


def test_forms_of_any_depth_are_compared_to_their_end() -> None:
    def nested(value: int) -> Any:
        for _ in range(62):
            value = [value]  # type: ignore[assignment]
        return value

    found = first_difference({"a": nested(1)}, {"a": nested(2)}, values=False)
    assert found is not None
    assert found["path"] == "a" + "[0]" * 62


def test_the_same_request_for_another_model_fingerprint_is_called_that() -> None:
    misses = MissHistory()
    misses.note("red", key(1), seen(CHAT, "m@1", at=4.0))
    found = misses.explain("red", key(2), seen(CHAT, "m@2", at=10.0), is_stored=False)
    assert found == {
        "reason": "other epoch",
        "detail": "seen for m@1, now m@2",
        "differences": (),
        "nearest_age_s": 6.0,
    }
    # as a stream and a whole body are, where one can't be made of the other
    assert reason(misses, 3) == ("never seen", None)


def test_the_oldest_goes_when_room_is_short_and_one_seen_again_is_the_newest() -> None:
    each = len(seen({**CHAT, "seed": 100}).form) + ENTRY_BYTES
    misses = MissHistory(each * 20)
    for number in [*range(100, 120), 100, 120]:
        remember(misses, number, {**CHAT, "seed": number})
        assert misses.bytes_held <= each * 20
    assert [reason(misses, number)[0] for number in (100, 101, 102)] == [
        *("under way", "never seen", "under way")
    ]


def test_one_tenants_flood_pushes_out_nobody_elses() -> None:
    misses = MissHistory(100_000)
    for number in range(5):
        remember(misses, number, CHAT, "quiet")
    for number in range(100, 2100):
        remember(misses, number, {**CHAT, "seed": number}, "loud")
    assert {reason(misses, number, "quiet")[0] for number in range(5)} == {"under way"}
    assert misses.bytes_held <= 100_000


def test_of_a_long_request_only_what_became_of_it_is_remembered() -> None:
    fits = seen({**CHAT, "user": "x" * 500})
    misses = MissHistory(len(fits.form) * FORM_SHARE)
    misses.note("red", key(1), fits)
    assert misses.bytes_held == len(fits.form) + ENTRY_BYTES
    remember(misses, 2, {**CHAT, "user": "x" * 501})
    assert misses.bytes_held == len(fits.form) + 2 * ENTRY_BYTES
    misses.became("red", key(2), "larger than 16 MiB")
    assert reason(misses, 2) == ("not stored", "larger than 16 MiB")


def test_without_room_for_one_request_none_is_held() -> None:
    misses = MissHistory(ENTRY_BYTES - 1)
    remember(misses, 1, CHAT)
    assert (reason(misses, 1)[0], misses.bytes_held) == ("never seen", 0)


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

"""Why a request is no hit: what became of it, or where it differs from the nearest one of the same tenant."""

import os
import tracemalloc
from typing import Any

import orjson
import pytest

from toolkit.proxy.told.explain import (
    FORM_PART,
    MOST_CHARS,
    MOST_DIFFERENCES,
    MOST_LOOKED,
    MOST_LOOKED_BYTES,
    NOTED_BYTES,
    Difference,
    Explanation,
    Memory,
    explain,
)
from toolkit.request_key import Canonical, canonical

CHAT: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "system", "content": "Be kind."}, {"role": "user", "content": "Hi there"}],
    "temperature": 0,
    "stop": ["a", "b"],
}  # fmt: skip


def form(fields: dict[str, Any]) -> bytes:
    told = canonical(orjson.dumps(fields))
    assert isinstance(told, Canonical)
    return told.form


def key(number: int) -> bytes:
    return number.to_bytes(16, "big")


def remember(memory: Memory, number: int, fields: dict[str, Any], **told: Any) -> None:
    about: dict[str, Any] = {
        "tenant": "red",
        "endpoint": "chat/completions",
        "model": "m@1",
        "now": 0.0,
    }
    memory.note(key(number), form(fields), **{**about, **told})


def asked(memory: Memory, fields: dict[str, Any], number: int = 0, **told: Any) -> Explanation:
    about: dict[str, Any] = {
        "tenant": "red",
        "endpoint": "chat/completions",
        "model": "m@1",
        "now": 10.0,
        "is_held": False,
    }
    return explain(memory, key(number), form(fields), **{**about, **told})


def differing(here: dict[str, Any], there: dict[str, Any], **told: Any) -> tuple[Difference, ...]:
    memory = Memory()
    remember(memory, 1, there)
    return asked(memory, here, **told).differences


def test_nothing_seen_is_never_seen() -> None:
    assert asked(Memory(), CHAT) == Explanation(reason="never seen")


def test_another_word_is_found_by_its_path_and_its_place() -> None:
    other = {**CHAT, "messages": [CHAT["messages"][0], {"role": "user", "content": "Hi here"}]}
    # `Hi there` and `Hi here` part after `Hi `
    assert differing(CHAT, other) == (Difference(path="messages[1].content", kind="value", at=3),)


@pytest.mark.parametrize(
    ("here", "there", "expected"),
    [
        ({"temperature": 0.5}, {}, Difference(path="temperature", kind="value")),
        ({"seed": 1}, {}, Difference(path="seed", kind="extra")),
        ({}, {"seed": 1}, Difference(path="seed", kind="missing")),
        ({"temperature": None}, {}, Difference(path="temperature", kind="type")),
        ({"temperature": False}, {}, Difference(path="temperature", kind="type")),
        ({"temperature": "0"}, {}, Difference(path="temperature", kind="type")),
        ({"stop": ["a"]}, {}, Difference(path="stop", kind="length")),
        ({"stop": ["a", "b", "c"]}, {}, Difference(path="stop", kind="length")),
        ({"stop": ["a", "c"]}, {}, Difference(path="stop[1]", kind="value", at=0)),
        ({"stop": "a"}, {}, Difference(path="stop", kind="type")),
        ({"stop": {"0": "a"}}, {}, Difference(path="stop", kind="type")),
        ({"model": "mm"}, {}, Difference(path="model", kind="value", at=1)),
        ({"a": {"b c": [1]}}, {"a": {"b c": [2]}}, Difference(path='a["b c"][0]', kind="value")),
        ({'"\n': 1}, {'"\n': 2}, Difference(path='["\\"\\n"]', kind="value")),
        ({"": 1}, {"": 2}, Difference(path='[""]', kind="value")),
        ({"a": {"1": 1}}, {"a": {"1": 2}}, Difference(path='a["1"]', kind="value")),
        ({"a": 1.5}, {"a": 2}, Difference(path="a", kind="value")),
        ({"a": [True]}, {"a": [1]}, Difference(path="a[0]", kind="type")),
    ],
)
def test_each_kind_of_difference_has_its_name(
    here: dict[str, Any], there: dict[str, Any], expected: Difference
) -> None:
    assert differing({**CHAT, **here}, {**CHAT, **there}) == (expected,)


def test_all_differences_come_in_the_order_of_the_canonical_form_the_first_few() -> None:
    here = {**CHAT, **{f"f{number:02}": number for number in range(20)}}
    found = [each.path for each in differing(here, CHAT)]
    assert found == [f"f{number:02}" for number in range(MOST_DIFFERENCES)]


def test_a_list_that_ends_sooner_is_told_after_what_differs_in_it() -> None:
    longer = {**CHAT, "stop": ["x", "b", "c"]}
    assert [(each.path, each.kind) for each in differing(CHAT, longer)] == [
        ("stop[0]", "value"),
        ("stop", "length"),
    ]


def test_no_value_is_told_unless_it_is_asked_for() -> None:
    here = {**CHAT, "seed": 4711, "messages": ["geheim"], "user": "ann"}
    there = {**CHAT, "temperature": 0.77, "messages": ["privat"], "top_p": 0.9}
    hidden = repr(differing(here, there))
    assert not any(word in hidden for word in ("4711", "geheim", "privat", "ann", "0.77", "0.9"))
    shown = {each.path: (each.here, each.there) for each in differing(here, there, values=True)}
    assert shown == {
        "messages[0]": ('"geheim"', '"privat"'),
        "seed": ("4711", None),
        "temperature": ("0", "0.77"),
        "top_p": (None, "0.9"),
        "user": ('"ann"', None),
    }


def test_a_long_value_is_cut() -> None:
    told = differing({**CHAT, "model": "x" * 1000}, CHAT, values=True)[0].here
    assert told is not None
    assert len(told) == MOST_CHARS
    assert told.endswith("x\N{HORIZONTAL ELLIPSIS}")


def test_a_value_that_just_fits_is_not_cut() -> None:
    # two quotes, and the rest of it
    fits = "x" * (MOST_CHARS - 2)
    assert differing({**CHAT, "model": fits}, CHAT, values=True)[0].here == f'"{fits}"'


def test_a_long_name_in_a_path_is_cut() -> None:
    path = differing({**CHAT, "a b" * 100: 1}, CHAT)[0].path
    assert path == '["' + ("a b" * 100)[:64] + '"]'


def test_the_nearest_is_the_one_with_the_fewest_differences_and_of_equals_the_newest() -> None:
    memory = Memory()
    remember(memory, 1, {**CHAT, "seed": 1}, now=1.0)
    remember(memory, 2, {**CHAT, "seed": 2}, now=2.0)
    remember(memory, 3, {**CHAT, "seed": 3, "top_p": 0.5}, now=3.0)
    told = asked(memory, {**CHAT, "seed": 4})
    assert told.nearest_age_s == 8.0
    assert [each.path for each in told.differences] == ["seed"]


def test_only_the_same_tenants_and_endpoints_requests_are_looked_at() -> None:
    memory = Memory()
    for number, told in enumerate(
        [{"tenant": "blue"}, {"tenant": None}, {"endpoint": "completions"}], start=1
    ):
        remember(memory, number, {**CHAT, "seed": 5}, **told)
        remember(memory, -number % 256, CHAT, model="m@0", **told)
    assert asked(memory, CHAT) == Explanation(reason="never seen")


def test_the_same_request_of_another_epoch_is_called_that() -> None:
    memory = Memory()
    remember(memory, 1, CHAT, model="m@1", now=4.0)
    told = asked(memory, CHAT, model="m@2")
    assert (told.reason, told.detail) == ("other epoch", "seen for m@1, now m@2")
    assert (told.differences, told.nearest_age_s) == ((), 6.0)


def test_the_same_request_of_the_same_epoch_under_another_name_is_no_other_epoch() -> None:
    # as a stream and a whole body are, where one can't be made of the other
    memory = Memory()
    remember(memory, 1, CHAT)
    assert asked(memory, CHAT, 2) == Explanation(reason="never seen", nearest_age_s=10.0)


def test_it_looks_at_the_newest_so_many_and_no_further() -> None:
    memory = Memory(10**9)
    remember(memory, 0, CHAT, now=1.0)
    for number in range(1, MOST_LOOKED):
        remember(memory, number, {"of": "another kind", "seed": number}, now=2.0)
    near = {**CHAT, "seed": 1}
    assert asked(memory, near, 2**40).nearest_age_s == 9.0
    remember(memory, MOST_LOOKED, {"of": "another kind"}, now=2.0)
    assert asked(memory, near, 2**40).nearest_age_s == 8.0


def test_it_looks_at_the_newest_so_many_bytes_and_no_further() -> None:
    memory = Memory(10**9)
    first = len(form(CHAT))
    remember(memory, 0, CHAT, now=1.0)
    # `{"of":""}` is 9 bytes: with the first form these are exactly what is looked at
    remember(memory, 1, {"of": "x" * (MOST_LOOKED_BYTES - first - 9)}, now=2.0)
    assert asked(memory, {**CHAT, "seed": 1}, 9).nearest_age_s == 9.0
    remember(memory, 1, {"of": "x" * (MOST_LOOKED_BYTES - first - 8)}, now=2.0)
    assert asked(memory, {**CHAT, "seed": 1}, 9).nearest_age_s == 8.0


def test_policy_and_a_hit_go_before_all_else() -> None:
    memory = Memory()
    remember(memory, 1, CHAT)
    assert asked(memory, CHAT, 1, bypass="sampled") == Explanation(
        reason="policy", detail="sampled"
    )
    assert asked(memory, CHAT, 1, is_held=True) == Explanation(reason="hit")


def test_what_became_of_a_request_is_told_step_by_step() -> None:
    memory = Memory()
    remember(memory, 1, CHAT)
    assert asked(memory, CHAT, 1).reason == "under way"
    memory.not_stored(key(1), "status 500")
    assert asked(memory, CHAT, 1) == Explanation(
        reason="not stored", detail="status 500", nearest_age_s=10.0
    )
    memory.stored(key(1), ends_at=60.0)
    assert asked(memory, CHAT, 1).reason == "evicted"
    assert asked(memory, CHAT, 1, now=59.9).reason == "evicted"
    assert asked(memory, CHAT, 1, now=60.0).reason == "expired"
    memory.stored(key(1), ends_at=None)
    assert asked(memory, CHAT, 1, now=1e12).reason == "evicted"
    memory.not_stored(key(1), "cut")
    assert asked(memory, CHAT, 1).detail == "cut"
    remember(memory, 1, CHAT)
    assert asked(memory, CHAT, 1).reason == "under way"


def test_news_of_what_was_forgotten_or_never_known_is_ignored() -> None:
    memory = Memory()
    memory.stored(key(1), ends_at=1.0)
    memory.not_stored(key(1), "cut")
    assert (len(memory), memory.known(key(1))) == (0, None)


def test_the_oldest_of_a_tenant_goes_when_room_is_short() -> None:
    each = len(form({**CHAT, "seed": 100})) + NOTED_BYTES
    memory = Memory(each * 20)
    for number in range(100, 200):
        remember(memory, number, {**CHAT, "seed": number})
        assert memory.bytes_held <= each * 20
    assert len(memory) == 20
    assert memory.known(key(179)) is None
    assert memory.known(key(180)) is not None


def test_a_request_seen_again_is_the_newest_again_and_held_once() -> None:
    each = len(form({**CHAT, "seed": 100})) + NOTED_BYTES
    memory = Memory(each * 20)
    for number in range(100, 120):
        remember(memory, number, {**CHAT, "seed": number})
    remember(memory, 100, {**CHAT, "seed": 100})
    assert (len(memory), memory.bytes_held) == (20, each * 20)
    remember(memory, 120, {**CHAT, "seed": 120})
    assert memory.known(key(100)) is not None
    assert memory.known(key(101)) is None


def test_one_tenants_flood_pushes_out_nobody_elses() -> None:
    memory = Memory(100_000)
    for number in range(5):
        remember(memory, number, {**CHAT, "seed": number}, tenant="quiet")
    for number in range(100, 2100):
        remember(memory, number, {**CHAT, "seed": number}, tenant="loud")
    assert len(memory.seen("quiet", "chat/completions")) == 5
    assert memory.bytes_held <= 100_000


def test_of_a_long_request_only_what_became_of_it_is_remembered() -> None:
    memory = Memory(16_000)
    long = {**CHAT, "user": "x" * 2000}
    remember(memory, 1, long)
    assert memory.bytes_held == NOTED_BYTES
    memory.not_stored(key(1), "larger than 16 MiB")
    assert asked(memory, long, 1).detail == "larger than 16 MiB"
    assert asked(memory, {**long, "seed": 1}, 2) == Explanation(reason="never seen")


def test_a_request_of_just_its_part_of_the_room_is_kept() -> None:
    fits = form({**CHAT, "user": "x" * 500})
    memory = Memory(len(fits) * FORM_PART)
    memory.note(key(1), fits, tenant="red", endpoint="c", model="m", now=0.0)
    memory.note(key(2), fits + b" ", tenant="red", endpoint="c", model="m", now=0.0)
    assert [len(noted.form) for noted in memory.seen("red", "c")] == [0, len(fits)]


def test_memory_without_room_for_one_request_holds_none() -> None:
    memory = Memory(NOTED_BYTES - 1)
    remember(memory, 1, CHAT)
    assert (len(memory), memory.bytes_held) == (0, 0)


def test_deep_requests_are_compared_to_their_end() -> None:
    def nested(value: int) -> dict[str, Any]:
        inner: Any = value
        for _ in range(61):
            inner = [inner]
        return {"a": inner}

    assert differing(nested(1), nested(2))[0].path == "a" + "[0]" * 61


def test_what_it_says_it_holds_covers_what_it_takes() -> None:
    memory = Memory(10**9)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    # a table of 16,384 places holds 10,922: just then it has grown
    for number in range(11_000):
        text = b'{"a":%d}' % (10**99 + number)
        memory.note(os.urandom(16), text, tenant="red", endpoint="c", model="m", now=float(number))
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken <= memory.bytes_held
    assert memory.bytes_held < 2 * taken


def test_forms_as_they_are_made_take_no_more_than_it_says() -> None:
    """What orjson writes keeps the room that it was written in: here some 4 KiB for each of 150 bytes."""
    memory = Memory(10**9)
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for number in range(500):
        told = form({**CHAT, "seed": number})
        memory.note(os.urandom(16), told, tenant="red", endpoint="c", model="m", now=0.0)
    taken = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert taken <= memory.bytes_held

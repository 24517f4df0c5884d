"""The canonical form of a request: what folds, what does not, and who is turned away."""

import json
import random
import re
from hashlib import blake2b
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolkit.protocol.request_key import (
    MAX_DEPTH,
    Canonical,
    Refused,
    body_key,
    canonical,
    request_key,
)

DEEP = "nested deeper than 64"


def form(body: bytes, **how: frozenset[str]) -> bytes:
    told = canonical(body, **how)
    assert isinstance(told, Canonical), told
    return told.form


def refusal(body: bytes) -> str:
    told = canonical(body)
    assert isinstance(told, Refused), told
    return told.reason


# Against Python's own JSON: an object is a tuple of names and values here, so that names can be equal

# few names, so that equal ones meet; colons and quotes, because the search for equal keys counts colons
NAMES = st.sampled_from(["a", "b", ":", 'x":', "stream", "é", "\\u003a"])
TEXTS = NAMES | st.sampled_from(["", ":::", "{", "\\"]) | st.text(max_size=4)
NUMBERS = st.integers(-(10**6), 10**6) | st.sampled_from([2**64 - 1, -(2**63), 0.5, 1e-9, 1e300])
VALUES = st.recursive(
    st.none() | st.booleans() | NUMBERS | TEXTS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(st.tuples(NAMES | TEXTS, inner), max_size=3).map(tuple)
    ),
    max_leaves=8,
)


def spelled(value: Any, chance: random.Random, level: int = 0) -> str:
    """As some writer may spell it: spaces, escapes; of fields also their order, and integers as floats."""
    gap = chance.choice(["", "", "", " ", "\t", "\r\n "])
    if isinstance(value, tuple):
        pairs = value if level else chance.sample(value, len(value))
        each = (
            f"{spelled(name, chance)}{gap}:{gap}{spelled(inner, chance, level + 1)}"
            for name, inner in pairs
        )
        return "{" + gap + f",{gap}".join(each) + gap + "}"
    if isinstance(value, list):
        is_flat = level == 1 and not any(isinstance(one, list | tuple) for one in value)
        inside = (spelled(one, chance, 1 if is_flat else 2) for one in value)
        return f"[{gap}" + f"{gap},".join(inside) + "]"
    if isinstance(value, str):
        return '"' + "".join(escaped(char, chance.randrange(4)) for char in value) + '"'
    if level == 1 and type(value) is int and abs(value) < 2**53:
        return chance.choice([f"{value}", f"{value}.0", f"{10 * value}e-1"])
    return json.dumps(value)


def escaped(char: str, how: int) -> str:
    if how > 1 and char >= " " and char not in '"\\':
        return char
    units = char.encode("utf-16-be").hex()
    return re.sub("....", r"\\u\g<0>", units.upper() if how else units)


def plain(value: Any) -> Any:
    if isinstance(value, tuple):
        return {name: plain(inner) for name, inner in value}
    return [plain(one) for one in value] if isinstance(value, list) else value


def has_equal_keys(value: Any) -> bool:
    if isinstance(value, tuple):
        names = [name for name, _ in value]
        return len(set(names)) < len(names) or any(has_equal_keys(inner) for _, inner in value)
    return isinstance(value, list) and any(map(has_equal_keys, value))


def counted(fields: dict[str, Any]) -> dict[str, str]:
    """What counts: of each field its JSON as written, a number of its own or in a flat list folded."""
    told = {}
    for name, value in fields.items():
        numbers = [value] if type(value) is float else value
        if isinstance(numbers, list) and not any(isinstance(one, dict | list) for one in numbers):
            numbers = [int(one) if type(one) is float and one % 1 == 0 and one < 2**64 else one for one in numbers]  # fmt: skip
            value = numbers if isinstance(value, list) else numbers[0]  # noqa: PLW2901
        told[name] = json.dumps(value)
    return told


@settings(deadline=None)
@given(st.lists(st.tuples(NAMES | TEXTS, VALUES), max_size=4).map(tuple), st.randoms())
@example((("a", "x:"), ("a", ":::")), random.Random(1))
def test_a_form_is_what_python_reads_whatever_the_spelling(
    value: tuple[tuple[str, Any], ...], chance: random.Random
) -> None:
    body = spelled(value, chance).encode()
    fields = plain(value)
    if has_equal_keys(value):
        assert refusal(body) == "duplicate keys"
        return
    fields.pop("stream", None)
    assert form(body) == form(json.dumps(fields).encode())
    assert counted(json.loads(form(body))) == counted(fields)


# What folds


def test_the_form_is_compact_sorted_and_without_the_views() -> None:
    body = b' { "b" : [ 1 , {"z":null, "a":true} ], "a":"x", "stream": true, "stream_options": {"x": 1} } '
    assert form(body) == b'{"a":"x","b":[1,{"z":null,"a":true}]}'
    told = canonical(b'{"stream":true,"user":"ann","n":1.0}', inert=frozenset({"user"}))
    assert told == Canonical(b'{"n":1}', {"stream": True, "user": "ann", "n": 1})
    assert type(told.fields["n"]) is int  # type: ignore[index]
    assert form(b'{"user":"ann"}') == b'{"user":"ann"}'
    # a view is one only at the top
    assert form(b'{"metadata":{"stream":true}}') == b'{"metadata":{"stream":true}}'


@pytest.mark.parametrize(
    ("number", "folded"),
    [
        (b"1e2", b"100"),
        (b"-0.0", b"0"),
        (b"9007199254740993", b"9007199254740993"),  # 2^53 + 1, which no double holds
        (b"18446744073709551615", b"18446744073709551615"),  # 2^64 - 1
        (b"-9223372036854775808.0", b"-9223372036854775808"),  # -2^63
        (b"18446744073709551616.0", b"1.8446744073709552e+19"),  # 2^64
        (b"1e300", b"1e+300"),
    ],
)
def test_a_number_is_an_integer_where_it_can_be_one(number: bytes, folded: bytes) -> None:
    for holder in (b'{"a":%s}', b'{"a":[%s]}', b'{"logit_bias":{"b":%s}}'):
        assert form(holder % number) == holder % folded


# Who is turned away


def test_equal_keys_are_refused_and_the_last_handed_on() -> None:
    for body in (
        rb'{"a":"x:","a":"\u003a\u003a\u003a"}',  # as many colons are left as went: 3 of a text for 1 + 1 + 1
        rb'{"a":"x:","a":"\u003A\u003A\u003A"}',
        rb'{"a\\": 1, "a\\": 2, "b": ":x"}',
        b'{"stream":true,"stream":false}',
    ):
        assert canonical(body) == Refused("duplicate keys", json.loads(body))


@pytest.mark.parametrize(
    ("reason", "bodies"),
    [
        ("not JSON", [b"", b"{", b'{"a":1}x', b"{'a':1}", b'{"a":01}', b'{"a":"\n"}', b'\xef\xbb\xbf{"a":1}']),
        ("not UTF-8", ['{"a":1}'.encode("utf-16"), b'{"a":"\xff"}', b'{"a":"\xed\xa0\x80"}']),
        ("lone surrogate", [rb'{"a":"\ud800"}', rb'{"\udc00":1}', rb'{"a":"\udc00\ud800"}']),
        ("duplicate keys", [rb'{"b":"\ud800","a":1,"a":2}']),
        ("NaN or Infinity", [b'{"a":NaN}', b'{"a":[-Infinity]}']),
        ("number beyond a double", [b'{"a":1e400}']),
        ("not a JSON object", [b"[]", b"null", b'"a"', b"[NaN]"]),
    ],
)  # fmt: skip
def test_what_readers_may_disagree_about_is_refused(reason: str, bodies: list[bytes]) -> None:
    assert {refusal(body) for body in bodies} == {reason}


def nested(levels: int) -> bytes:
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 254, 255, 300, 1023, 100_000])
def test_deeper_than_64_levels_is_refused(levels: int) -> None:
    assert refusal(nested(levels)) == refusal(b'{"a":' * levels + b"1" + b"}" * levels) == DEEP
    assert form(nested(MAX_DEPTH)) == nested(MAX_DEPTH)


def test_long_lists_of_ids_are_looked_for_once() -> None:
    for end in (b"", b"}", b'"', b"\0]}", b',"a":1}'):
        body = b'{"prompt":[' + b"1," * 50_000 + b"1" + end
        assert refusal(body) in ("not JSON", "too many values")
    lists = b",".join([b'"prompt":[' + b"1," * 2_200 + b"1]"] * 2_000)
    assert refusal(b"{" + lists + b"}") == "too many values"
    inner = b",".join([b'{"input":[' + b"1," * 2_200 + b"1]}"] * 100)
    assert form(b'{"z":[' + inner + b"]}") == b'{"z":[' + inner + b"]}"
    ids = b'{"input":5,"prompt":[%s]}' % b",".join([b"1"] * 50_000)
    assert form(ids.replace(b",", b" , ").replace(b"]", b" ] ")) == ids


# The key


def test_a_key_is_of_everything_that_counts() -> None:
    # by hand: each part as its length, a colon, itself and a space; None has length -1
    told = b'request 2 16:chat/completions 4:acme -1: {"a":1}'
    expected = blake2b(told, digest_size=16).hexdigest()
    assert request_key(b'{"a":1}', endpoint="chat/completions", tenant="acme") == expected
    parts = [
        *({}, {"tenant": ""}, {"tenant": "a"}, {"model": "a"}, {"model": ""}),
        *({"tenant": "a", "model": "b"}, {"tenant": "a 1:b"}, {"tenant": "\udcff"}),
    ]
    assert len({request_key(b"{}", endpoint="x", **each) for each in parts}) == len(parts)
    assert body_key(b"") == blake2b(b"", digest_size=16).hexdigest()
    assert body_key(b'{"a":1}') != body_key(b'{"a": 1}')

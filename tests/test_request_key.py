"""The canonical form of a request: what folds, what does not, and who is turned away."""

import json
from hashlib import blake2b

import pytest

from toolkit.request_key import MAX_DEPTH, Canonical, Refused, body_key, canonical, request_key

CHAT = b'{"model":"m","messages":[{"role":"user","content":"caf\xc3\xa9: 1"}],"temperature":0,"seed":7}'


def form(body: bytes, **how: frozenset[str]) -> bytes:
    told = canonical(body, **how)
    assert isinstance(told, Canonical), told
    return told.form


def refusal(body: bytes) -> str:
    told = canonical(body)
    assert isinstance(told, Refused), told
    return told.reason


def test_the_form_is_compact_sorted_and_without_the_views() -> None:
    body = b' { "b" : [ 1 , {"z":null, "a":true} ], "a":"x", "stream": true, "stream_options": {"x": 1} } '
    assert form(body) == b'{"a":"x","b":[1,{"z":null,"a":true}]}'


@pytest.mark.parametrize(
    ("one", "other"),
    [
        # transformers' `tojson` writes a tool into the prompt as it came: unsorted, and 1.0 as 1.0
        (b'{"tools":[{"function":{"parameters":%s}}]}', b'{"tools":[{"function":{"parameters":%s}}]}'),
        (b'{"functions":[%s]}', b'{"functions":[%s]}'),
        (b'{"chat_template_kwargs":%s}', b'{"chat_template_kwargs":%s}'),
        (b'{"documents":[%s]}', b'{"documents":[%s]}'),
        # an answer's keys come in the order of its schema's
        (b'{"response_format":{"json_schema":{"schema":%s}}}', b'{"response_format":{"json_schema":{"schema":%s}}}'),
        (b'{"structured_outputs":{"json":%s}}', b'{"structured_outputs":{"json":%s}}'),
        (b'{"text":{"format":{"schema":%s}}}', b'{"text":{"format":{"schema":%s}}}'),
        (b'{"messages":[{"role":"a","tool_calls":[%s]}]}', b'{"messages":[{"role":"a","tool_calls":[%s]}]}'),
        (b'{"messages":[{"content":[{"type":"tool_use","input":%s}]}]}',
         b'{"messages":[{"content":[{"type":"tool_use","input":%s}]}]}'),
        (b'{"of_a_later_version":%s}', b'{"of_a_later_version":%s}'),
    ],
)  # fmt: skip
def test_what_a_model_may_read_as_written_counts_as_written(one: bytes, other: bytes) -> None:
    written = [
        b'{"a":1,"b":2}',
        b'{"b":2,"a":1}',
        b'{"a":1.0,"b":2}',
        b'{"a":-0.0,"b":2}',
        b'{"a":0.0,"b":2}',
    ]
    assert len({form(one % value) for value in written}) == len(written)
    assert form(one % b' { "\\u0061" : 1, "b":2 }') == form(other % written[0])


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (b'{"logit_bias":{"1":1,"2":2}}', b'{"logit_bias":{"2":2.0,"1":1}}'),
        (b'{"stop_token_ids":[1,2]}', b'{"stop_token_ids":[1.0,2e0]}'),
        (b'{"messages":[{"role":"a","content":"b"}]}', b'{"messages":[{"content":"b","role":"a"}]}'),
        (b'{"messages":[{"role":"a","content":[{"type":"text","text":"b"}]}]}',
         b'{"messages":[{"content":[{"text":"b","type":"text"}],"role":"a"}]}'),
        (b'{"messages":[{"role":"a","tool_calls":[{"id":"b"}]}]}', b'{"messages":[{"tool_calls":[{"id":"b"}],"role":"a"}]}'),
        (b'{"input":[{"role":"a","content":"b"}]}', b'{"input":[{"content":"b","role":"a"}]}'),
    ],
)  # fmt: skip
def test_what_a_server_reads_field_by_field_has_no_order(one: bytes, other: bytes) -> None:
    assert form(one) == form(other)


@pytest.mark.parametrize(
    "same",
    [
        b'{"seed":7,"temperature":0,"messages":[{"content":"caf\xc3\xa9: 1","role":"user"}],"model":"m"}',
        CHAT.replace(b",", b" ,\n\t"),
        CHAT.replace(b'":', b'"\r\n: '),
        CHAT.replace(b"\xc3\xa9", rb"\u00e9"),
        CHAT.replace(b"\xc3\xa9:", rb"\u00E9\u003a"),
        CHAT.replace(b"\xc3\xa9:", rb"\u00E9\u003A"),
        CHAT.replace(b'"temperature":0', b'"temperature":0.0'),
        CHAT.replace(b'"temperature":0', b'"temperature":-0.0'),
        CHAT.replace(b'"temperature":0', b'"temperature":0e9'),
        CHAT.replace(b'"seed":7', b'"seed":7e0'),
        CHAT.replace(b'"seed":7', b'"seed":70.0E-1'),
        CHAT.replace(b'"seed":7', b'"seed":7,"stream":true'),
        CHAT.replace(b'"seed":7', b'"stream":false,"seed":7'),
        CHAT.replace(b'"seed":7', b'"seed":7,"stream_options":{"include_usage":true}'),
        CHAT.replace(b'"model":"m"', rb'"mod\u0065l":"\u006d"'),
    ],
)
def test_what_a_server_cannot_tell_apart_is_one_request(same: bytes) -> None:
    assert json.loads(same)["messages"] == json.loads(CHAT)["messages"]
    assert same != CHAT
    assert form(same) == form(CHAT)


@pytest.mark.parametrize(
    "other",
    [
        CHAT.replace(b"m", b"M", 1),
        CHAT.replace(b"caf\xc3\xa9", b"cafe\xcc\x81"),  # the same to the eye: Unicode's other form
        CHAT.replace(b"caf", b"Caf"),
        CHAT.replace(b": 1", b":  1"),
        CHAT.replace(b': 1"', b': 1 "'),
        CHAT.replace(b'"temperature":0', b'"temperature":false'),
        CHAT.replace(b'"temperature":0', b'"temperature":null'),
        CHAT.replace(b'"temperature":0', b'"temperature":"0"'),
        CHAT.replace(b'"temperature":0,', b""),
        CHAT.replace(b'"temperature":0', b'"temperature":5e-324'),
        CHAT.replace(b'"seed":7', b'"seed":8'),
        CHAT.replace(b'"seed":7', b'"seed":7,"nobody_knows_it":null'),
        # a view is one only at the top
        CHAT.replace(b'"seed":7', b'"seed":7,"metadata":{"stream":true}'),
    ],
)
def test_whatever_a_server_may_tell_apart_is_another_request(other: bytes) -> None:
    assert form(other) != form(CHAT)


def test_the_order_of_an_array_counts() -> None:
    assert form(b'{"stop":["a","b"]}') != form(b'{"stop":["b","a"]}')


@pytest.mark.parametrize(
    ("number", "folded"),
    [
        (b"1e2", b"100"),
        (b"0.5", b"0.5"),
        (b"5E-1", b"0.5"),
        (b"9007199254740993", b"9007199254740993"),  # 2^53 + 1, which no double holds
        (b"9007199254740992.0", b"9007199254740992"),
        (b"18446744073709551615", b"18446744073709551615"),  # 2^64 - 1
        (b"-9223372036854775808", b"-9223372036854775808"),  # -2^63
        (b"-9223372036854775808.0", b"-9223372036854775808"),
        (b"9223372036854775808.0", b"9223372036854775808"),  # 2^63
        (b"1e19", b"10000000000000000000"),
        (b"18446744073709551616.0", b"1.8446744073709552e+19"),  # 2^64
        (b"1e300", b"1e+300"),
        (b"true", b"true"),
    ],
)
def test_a_number_is_an_integer_where_it_can_be_one_and_keeps_its_value(
    number: bytes, folded: bytes
) -> None:
    for holder in (b'{"a":%s}', b'{"a":[%s]}', b'{"logit_bias":{"b":%s}}'):
        assert form(holder % number) == holder % folded


@pytest.mark.parametrize(
    "number", [b"18446744073709551616", b"-9223372036854775809", b"1" * 25, b"9" * 400, b"1" * 5000]
)
def test_an_integer_beyond_64_bits_is_refused_because_two_seeds_would_become_one(
    number: bytes,
) -> None:
    assert refusal(b'{"seed":%s}' % number) == "integer beyond 64 bits"
    assert refusal(b'{"a":[0,[{"seed":%s}]]}' % number) == "integer beyond 64 bits"


@pytest.mark.parametrize(
    "body",
    [
        b'{"a":1,"a":1}',
        b'{"a":1,"a":2}',
        b'{"a":1, "b":{"c":[{"d":1,"d":2}]}}',
        rb'{"a":1,"\u0061":1}',
        rb'{"a":"x:","a":"\u003a\u003a\u003a"}',  # as many colons are left as went: 3 of a text for 1 + 1 + 1
        rb'{"a":"x:","a":"\u003A\u003A\u003A"}',
        b'{"a" :1,"a" :2,"b":":x"}',
        b'{"a": 1, "a": 2, "b": "\\":"}',
        b'{"a\\\\": 1, "a\\\\": 2, "b": ":x"}',
        b'{"a": 1, "a": 2, "b": "x:y", "c": ":"}',
        b'{"stream":true,"stream":false}',
        b'{"a":{},"a":{}}',
        b'{"":1,"":1}',
    ],
)
def test_equal_keys_are_refused_at_any_depth(body: bytes) -> None:
    told = canonical(body)
    assert told == Refused("duplicate keys", json.loads(body))


@pytest.mark.parametrize(
    ("body", "reason"),
    [
        (b"", "not JSON"),
        (b"{", "not JSON"),
        (b'{"a":1}x', "not JSON"),
        (b"{'a':1}", "not JSON"),
        (b'{"a":01}', "not JSON"),
        (b'{"a":"\n"}', "not JSON"),
        (b'\xef\xbb\xbf{"a":1}', "not JSON"),
        ('{"a":1}'.encode("utf-16"), "not UTF-8"),
        (b'{"a":"\xff"}', "not UTF-8"),
        (b'{"a":"\xed\xa0\x80"}', "not UTF-8"),
        (rb'{"a":"\ud800"}', "lone surrogate"),
        (rb'{"\udc00":1}', "lone surrogate"),
        (rb'{"a":"\udc00\ud800"}', "lone surrogate"),
        (b'{"a":NaN}', "NaN or Infinity"),
        (b'{"a":[-Infinity]}', "NaN or Infinity"),
        (b'{"a":1e400}', "number beyond a double"),
        (b"[]", "not a JSON object"),
        (b"null", "not a JSON object"),
        (b'"a"', "not a JSON object"),
        (b"[NaN]", "not a JSON object"),
    ],
)
def test_what_readers_may_disagree_about_is_refused_with_its_reason(
    body: bytes, reason: str
) -> None:
    assert refusal(body) == reason


def nested(levels: int) -> bytes:
    """An object with arrays inside it, so many levels in all."""
    return b'{"a":' + b"[" * (levels - 1) + b"]" * (levels - 1) + b"}"


@pytest.mark.parametrize("levels", [MAX_DEPTH + 1, 200, 254, 255, 300, 900, 1023, 2000, 100_000])
def test_deeper_than_64_levels_is_refused(levels: int) -> None:
    assert refusal(nested(levels)) == "nested deeper than 64"
    objects = b'{"a":' * levels + b"1" + b"}" * levels
    assert refusal(objects) == "nested deeper than 64"


def test_64_levels_are_read() -> None:
    assert form(nested(MAX_DEPTH)) == nested(MAX_DEPTH)


def test_a_long_list_of_ids_without_an_end_is_not_json() -> None:
    for end in (b"", b"}", b'"', b"\0]}", b',"a":1}'):
        body = b'{"prompt":[' + b"1," * 50_000 + b"1" + end
        assert refusal(body) in ("not JSON", "too many values")


def test_thousands_of_long_lists_are_looked_for_once() -> None:
    lists = b",".join([b'"prompt":[' + b"1," * 2_200 + b"1]"] * 2_000)
    assert refusal(b"{" + lists + b"}") == "too many values"
    nested = b",".join([b'{"input":[' + b"1," * 2_200 + b"1]}"] * 100)
    assert form(b'{"z":[' + nested + b"]}") == b'{"z":[' + nested + b"]}"


def test_a_field_is_inert_only_where_the_caller_says_so() -> None:
    body = b'{"model":"m","user":"ann","metadata":{"a":1}}'
    assert form(body) == b'{"metadata":{"a":1},"model":"m","user":"ann"}'
    assert form(body, inert=frozenset({"user"})) == b'{"metadata":{"a":1},"model":"m"}'


def test_the_fields_are_handed_on_with_the_views() -> None:
    told = canonical(b'{"stream":true,"user":"ann","temperature":1.0}', inert=frozenset({"user"}))
    assert isinstance(told, Canonical)
    assert told.fields == {"stream": True, "user": "ann", "temperature": 1}
    assert type(told.fields["temperature"]) is int


def test_a_key_is_32_hexadecimal_digits_of_blake2b_over_everything_that_counts() -> None:
    # by hand: each part as its length, a colon, itself and a space; None has length -1
    told = b'request 2 16:chat/completions 4:acme -1: {"a":1}'
    expected = blake2b(told, digest_size=16).hexdigest()
    assert request_key(b'{"a":1}', endpoint="chat/completions", tenant="acme") == expected
    assert len(expected) == 32


def test_each_thing_that_the_caller_adds_makes_another_key() -> None:
    keys = [
        request_key(b"{}", endpoint="chat/completions"),
        request_key(b"{}", endpoint="completions"),
        request_key(b"{}", endpoint="chat/completions", tenant=""),
        request_key(b"{}", endpoint="chat/completions", tenant="a"),
        request_key(b"{}", endpoint="chat/completions", model="a"),
        request_key(b"{}", endpoint="chat/completions", model=""),
        request_key(b"{}", endpoint="chat/completions", tenant="a", model="b"),
        request_key(b"{}", endpoint="chat/completions", tenant="a 1:b", model=None),
        request_key(b"{}", endpoint="chat/completions", tenant="\udcff"),
        request_key(b"{} ", endpoint="chat/completions"),
    ]
    assert len(set(keys)) == len(keys)


def test_a_body_key_is_of_the_very_bytes() -> None:
    assert body_key(b"") == blake2b(b"", digest_size=16).hexdigest()
    assert body_key(b'{"a":1}') != body_key(b'{"a": 1}')

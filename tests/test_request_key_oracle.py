"""The canonical form against Python's own reader, which sees every key, on JSON of every spelling that there is."""

import json
import string
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from toolkit.request_key import Canonical, Refused, canonical

pytestmark = pytest.mark.slow

# few names, so that equal ones meet; colons and quotes, because the search for equal keys counts colons
NAMES = ["a", "b", ":", 'x":', "stream", "é"]
TEXTS = st.one_of(
    st.sampled_from([*NAMES, "", '":', ":::", "{", "a:b:c", "\\u003a", "\\"]), st.text(max_size=4)
)
SPACES = st.sampled_from(["", "", "", " ", "\t", "\r\n "])
NUMBERS = st.one_of(
    st.integers(-3, 3).map(str),
    st.sampled_from(["0.0", "-0.0", "-0", "1e2", "1E-2", "0.5", "18446744073709551615", "3e0"]),
)


@st.composite
def spelled(draw: st.DrawFn, text: str) -> str:
    """A string as some writer may spell it: raw, or any character as an escape, in either case."""
    parts = []
    for char in text:
        how = draw(st.integers(0, 3))
        if how == 0 or (char < " " or char in '"\\'):
            parts.append("".join(f"\\u{unit:04x}" for unit in units(char)))
        elif how == 1:
            parts.append("".join(f"\\u{unit:04X}" for unit in units(char)))
        else:
            parts.append(char)
    return '"' + "".join(parts) + '"'


def units(char: str) -> list[int]:
    """UTF-16 code units."""
    data = char.encode("utf-16-be")
    return [int.from_bytes(data[at : at + 2], "big") for at in range(0, len(data), 2)]


@st.composite
def documents(draw: st.DrawFn, levels: int = 3) -> str:
    """Text of a JSON value, keys equal or not."""
    kind = draw(st.integers(0, 5 if levels else 3))
    gap = lambda: draw(SPACES)  # noqa: E731
    if kind == 0:
        return draw(NUMBERS)
    if kind == 1:
        return draw(st.sampled_from(["true", "false", "null"]))
    if kind in (2, 3):
        return draw(spelled(draw(TEXTS)))
    inner = [draw(documents(levels - 1)) for _ in range(draw(st.integers(0, 3)))]
    if kind == 4:
        return f"[{gap()}" + f"{gap()},{gap()}".join(inner) + f"{gap()}]"
    return draw(objects(inner))


@st.composite
def objects(draw: st.DrawFn, inner: list[str] | None = None) -> str:
    if inner is None:
        inner = [draw(documents()) for _ in range(draw(st.integers(0, 4)))]
    entries = []
    for value in inner:
        name = draw(spelled(draw(st.sampled_from(NAMES))))
        entries.append(f"{draw(SPACES)}{name}{draw(SPACES)}:{draw(SPACES)}{value}{draw(SPACES)}")
    return "{" + ",".join(entries) + "}"


def has_equal_keys(text: str) -> bool:
    equal: list[str] = []

    def look(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        names = [name for name, _ in pairs]
        equal.extend(name for name in names if names.count(name) > 1)
        return dict(pairs)

    json.loads(text, object_pairs_hook=look)
    return bool(equal)


def folded(fields: dict[str, Any]) -> Any:
    """The fields with what counts: Python's numbers, equal ones alike, and booleans apart; what is inside a field as written."""
    return {name: _folded(value) for name, value in fields.items()}


def _folded(value: Any) -> Any:
    if isinstance(value, dict) or (
        isinstance(value, list) and any(isinstance(one, dict | list) for one in value)
    ):
        return as_written(value)
    if isinstance(value, list):
        return [_folded(one) for one in value]
    return ("boolean", value) if isinstance(value, bool) else value


def as_written(value: Any) -> Any:
    """Order of keys and kinds of numbers included."""
    if isinstance(value, dict):
        return [(name, as_written(inner)) for name, inner in value.items()]
    if isinstance(value, list):
        return ["list", *map(as_written, value)]
    return type(value).__name__, repr(value)


@settings(max_examples=200, deadline=None)
@given(objects())
@example('{"a":"x:","a":"\\u003a\\u003a\\u003a"}')
@example('{"a":{"b":1,"b":"\\u003A\\u003A"}}')
@example('{"a" :1,"a" :2,"b":":x"}')
@example('{"a":1,"b":"\\\\u003a"}')
def test_equal_keys_are_found_exactly_where_a_reader_of_every_key_finds_them(text: str) -> None:
    told = canonical(text.encode())
    if has_equal_keys(text):
        assert isinstance(told, Refused)
        assert told.reason == "duplicate keys"
    else:
        assert isinstance(told, Canonical)
        without_views = {
            name: inner for name, inner in json.loads(text).items() if name != "stream"
        }
        assert folded(json.loads(told.form)) == folded(without_views)


@settings(max_examples=100, deadline=None)
@given(objects(), objects())
def test_two_bodies_have_one_form_exactly_when_python_reads_the_same_from_both(
    one: str, other: str
) -> None:
    forms = [canonical(text.encode()) for text in (one, other)]
    if all(isinstance(form, Canonical) for form in forms):
        values = [folded(json.loads(text)) for text in (one, other)]
        for value in values:
            value.pop("stream", None)
        assert (forms[0].form == forms[1].form) == (values[0] == values[1])  # type: ignore[union-attr]


@st.composite
def respelled(draw: st.DrawFn, value: Any, level: int = 0) -> str:
    """The same value in another spelling: spaces, escapes; of fields also their order and integers as floats."""
    gap = draw(SPACES)
    if isinstance(value, dict):
        names = list(value) if level else draw(st.permutations(list(value)))
        inner = [
            f"{draw(spelled(name))}{gap}:{draw(respelled(value[name], level + 1))}"
            for name in names
        ]
        return "{" + f",{gap}".join(inner) + "}"
    if isinstance(value, list):
        is_flat = level == 1 and not any(isinstance(one, dict | list) for one in value)
        return (
            "[" + f"{gap},".join(draw(respelled(one, 1 if is_flat else 2)) for one in value) + "]"
        )
    if isinstance(value, str):
        return draw(spelled(value))
    if level == 1 and isinstance(value, int) and not isinstance(value, bool):
        return draw(st.sampled_from([f"{value}", f"{value}.0", f"{10 * value}e-1"]))
    return json.dumps(value)


VALUES = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**6), 10**6) | TEXTS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXTS, inner, max_size=3),
    max_leaves=8,
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(TEXTS, VALUES, max_size=4), st.data())
def test_however_a_value_is_spelled_its_form_is_the_same(
    value: dict[str, Any], data: st.DataObject
) -> None:
    plain = canonical(json.dumps(value).encode())
    other = canonical(data.draw(respelled(value)).encode())
    assert isinstance(plain, Canonical)
    assert isinstance(other, Canonical)
    assert plain.form == other.form


@settings(max_examples=300, deadline=None)
@given(st.one_of(st.binary(max_size=60), st.text(string.printable, max_size=60).map(str.encode)))
def test_no_bytes_make_it_raise(body: bytes) -> None:
    assert isinstance(canonical(body), Canonical | Refused)

"""When two requests are the same: a body's canonical form, and the key of it by which the cache, capture and forecast find a request.

Two bodies have the same form exactly when they ask the same of a server. Whitespace, escapes, the order of fields, `0` for `0.0`, and
the response format (`stream`, `stream_options`) make no difference; every other field does, known or not. What is nested deeper than
a field, a message or a part of its content is compared as written, order of keys and spelling of numbers included: servers pass tools
to chat templates as they came (transformers' `tojson` sorts nothing and writes `1.0` as `1.0`), and an answer's keys come in the order
of its JSON schema's. A body that two JSON readers may read differently has no form. No default is filled in, no string is changed.
"""

import gc
import json
import re
import secrets
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
from itertools import chain
from math import isinf
from typing import Any, NamedTuple

import orjson

SCHEMA = 2
"""Version of these rules, part of every key: what was stored under other rules is not found."""
KEY_BYTES = 16
VIEWS = frozenset({"stream", "stream_options"})
"""Fields that choose the response format: one cached response serves all of them."""
MAX_DEPTH = 64
TOO_DEEP = f"nested deeper than {MAX_DEPTH}"
INTEGERS = range(-(2**63), 2**64)
"""What orjson reads as integers; one beyond them it reads as a float, and two seeds would become the same."""
MAX_INTEGER_CHARS = 20
"""The length of `-9223372036854775808` and of `18446744073709551615`, the two ends of that range."""
ROWS = frozenset({"messages", "input"})
"""Lists of objects whose keys a server reads by name, so that the order of keys makes no difference; nor in their parts of content."""
FLAT = frozenset({"logit_bias"})
"""Objects from token to number, of which a server reads each number: `0` is `0.0` in them, too."""
NESTED = frozenset({dict, list})
SHORT_BYTES = 512
"""Nested JSON up to this size is kept as a string (`_as_written`)."""

MOST_VALUES = 2**17
"""In a body of up to 4 MiB, at any depth: each value costs up to 0.3 us and 240 bytes of memory while the body is read. 4 MiB of
tools with a line of description each have 90,000. Integers in flat lists are token ids: three count as one value."""
FREE_BYTES = 4 * 2**20
"""A larger body may hold more values, and more token ids, in proportion to what it has beyond this."""
BYTES_A_VALUE = 48
"""For every so many bytes beyond `FREE_BYTES` one more value is allowed."""
SMALL_BYTES = 64 * 1024
"""A body up to this size is read without counting its values first: it cannot cost much."""
MOST_SLOW = 20_000
"""Values and escapes. A body with more is not read again by Python's slow reader to see what is wrong: it takes 1 us for each."""
TOO_MANY = "too many values"
IDS = re.compile(
    rb'"(prompt|input|input_ids|token_ids)"[ \t\r\n]*:[ \t\r\n]*(\[[0-9,\[\] \t\r\n]{4096,}+)'
)
"""A list of token ids, or of such lists, in a field where servers take one: long enough to be worth reading apart. The match may
run on behind the list, up to the next field."""
PLACE = f"ids {secrets.token_hex(16)}"
"""Stands in for such a list while the rest of the body is read; random, so that no client can send it."""
MOST_IDS = 2**20
BYTES_AN_ID = 6
"""For every so many bytes beyond `FREE_BYTES` one more id is allowed."""
SLICE_BYTES = 64 * 1024
"""So much of such a list is read at a time: an id takes 40 bytes in memory, and 6 as text."""

Fields = dict[str, Any]


class Canonical(NamedTuple):
    """A body that has a canonical form."""

    form: bytes
    """Compact JSON, keys sorted, without `VIEWS` and ignored fields."""
    fields: Fields
    """The body as read, `VIEWS` and ignored fields included; fields that are floats without a fraction became integers."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A body that has no canonical form."""

    reason: str
    """`not UTF-8`, `not JSON`, `not a JSON object`, `duplicate keys`, `NaN or Infinity`, `lone surrogate`,
    `integer beyond 64 bits`, `number beyond a double`, `nested deeper than 64` or `too many values`; it never quotes the body."""
    fields: Fields | None = None
    """What could be read all the same, with the last value of a duplicate key; None: nothing."""


def canonical(body: bytes, *, inert: frozenset[str] = frozenset()) -> Canonical | Refused:
    """Read a body. `inert`: more top-level fields to ignore, because they are known not to change the answer, e.g., `user`.

    A long list of token ids is an orjson.Fragment in `fields`.
    """
    if len(body) <= SMALL_BYTES:
        return _canonical(body, inert)
    # a large body is checked for what reading it would cost, a long list of token ids apart from the rest
    match = IDS.search(body)
    start, end = (0, 0) if match is None else match.span(2)
    # the list ends at the last bracket of the match; in a broken body there may be none
    end = body.rfind(b"]", start, end) + 1
    if match is not None and end:
        # each list within the list costs as much as eight ids
        ids_count = body.count(b",", start, end) + 8 * body.count(b"[", start, end)
        if ids_count > MOST_IDS + max(0, len(body) - FREE_BYTES) // BYTES_AN_ID:
            return Refused(TOO_MANY)
        ids = _compact_integers(body[start:end])
        if ids is not None:
            place = b'"%b"' % PLACE.encode()
            # only the first long list is read apart; any other is read with the rest
            read = _bounded(body[:start] + place + body[end:], inert)
            name = match[1].decode()
            if isinstance(read, Canonical) and read.fields.get(name) == PLACE:
                form = read.form.replace(place, ids, 1)
                return Canonical(form, read.fields | {name: orjson.Fragment(ids)})
            if isinstance(read, Refused):
                return read
    return _bounded(body, inert)


def _bounded(body: bytes, inert: frozenset[str]) -> Canonical | Refused:
    """Read a large body, or refuse it where that would cost too much."""
    if _has_too_many_values(body):
        return Refused(TOO_MANY)
    # the garbage collector would walk the growing tree again and again, and take three times as long as the reader itself
    pauses_gc = gc.isenabled()
    if pauses_gc:
        gc.disable()
    try:
        return _canonical(body, inert)
    finally:
        if pauses_gc:
            gc.enable()


def _canonical(body: bytes, inert: frozenset[str]) -> Canonical | Refused:
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        if "depth limit" in str(error):
            return Refused(TOO_DEEP)
        read, problem = _read_slowly(body)
        # the only thing that Python's reader accepts without a word and orjson refuses is half a surrogate pair
        return Refused(problem or "lone surrogate", read)
    if type(fields) is not dict:
        return Refused("not a JSON object")
    is_huge = _has_huge_number(fields)
    if is_huge is None:
        return Refused(TOO_DEEP, fields)
    if is_huge:
        # it may have been an integer beyond 64 bits, which orjson reads as a float
        _, problem = _read_slowly(body)
        if problem is not None:
            return Refused(problem, fields)
    counting = _counting(fields)
    colons = 0
    for names in (VIEWS, inert):
        for name in names:
            if name in counting:
                value = counting.pop(name)
                # `"stream":true` has one colon
                is_plain = names is VIEWS and type(value) is bool
                colons += 1 if is_plain else orjson.dumps({name: value}).count(b":")
    form = orjson.dumps(counting, option=orjson.OPT_SORT_KEYS)
    # of duplicate keys the reader keeps the last: the colons of the others are missing now
    if colons + form.count(b":") != _colons(body):
        return Refused("duplicate keys", fields)
    return Canonical(form, fields)


def request_key(
    form: bytes, *, endpoint: str, tenant: str | None = None, model: str | None = None
) -> str:
    """32 hexadecimal digits for a canonical form that was sent to an endpoint.

    `tenant`: who may share the cached response, as the proxy verified it. `model`: which model answers, beyond the name in the body:
    revision of the weights, adapter, and which start of the server. Another tenant or model makes another key.
    """
    digest = _begun(endpoint, tenant, model).copy()
    digest.update(form)
    return str(digest.hexdigest())


def body_key(body: bytes) -> str:
    """32 hexadecimal digits for a body's raw bytes, unread."""
    return blake2b(body, digest_size=KEY_BYTES).hexdigest()


@lru_cache(maxsize=256)
def _begun(endpoint: str, tenant: str | None, model: str | None) -> Any:
    """The hash of all but the form, to be copied for each request; the length before each part keeps two parts from running together."""
    digest = blake2b(b"request %d " % SCHEMA, digest_size=KEY_BYTES)
    for part in (endpoint, tenant, model):
        told = b"" if part is None else part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%s " % (-1 if part is None else len(told), told))
    return digest


def _compact_integers(text: bytes) -> bytes | None:
    """A list of integers, or of such lists, written without whitespace; None: it is neither."""
    is_rows = text.find(b"[", 1) >= 0
    written = []
    at, last = 1, len(text) - 1
    while at <= last:
        cut = text.find(b"]", at + SLICE_BYTES, last) if is_rows else at + SLICE_BYTES
        cut = text.find(b",", cut, last) if cut >= 0 else -1
        end = cut if cut >= 0 else last
        try:
            values = orjson.loads(b"[%b]" % text[at:end])
        except orjson.JSONDecodeError:
            return None
        again = orjson.dumps(values)[1:-1]
        # text of digits, commas, brackets and whitespace can hold only integers, floats read from integers beyond 64 bits, and lists
        if is_rows:
            is_fine = set(map(type, values)) == {list} and again.count(b"[") == len(values)
        else:
            is_fine = bool(values) and b"[" not in again
        if not is_fine or b"e" in again or b"[]" in again:
            return None
        written.append(again)
        at = end + 1
    return b"[%b]" % b",".join(written)


def _has_too_many_values(body: bytes) -> bool:
    """Whether reading it would cost too much, counted in the bytes before anything is read."""
    most = MOST_VALUES + max(0, len(body) - FREE_BYTES) // BYTES_A_VALUE
    # every value follows a comma or comes first in a list or an object: there are at most so many, as strings may hold such signs, too
    if _structure(body) <= most:
        return False
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    # a value has at most four quotes: two around its name and two around itself
    if bare.count(b'"') > 4 * most:
        return True
    # each string becomes one quote, so that a list of strings is not taken for one of integers, whose digits are dropped
    outside = b'"'.join(bare.split(b'"')[::2]).translate(None, b"0123456789 \t\r\n")
    without_ids = re.sub(rb"\[,+\]", b"", outside)
    return _structure(without_ids) + (len(outside) - len(without_ids)) // 3 > most


def _structure(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _colons(body: bytes) -> int:
    """How many colons there are once escapes are read."""
    found = body.count(b":")
    if b"\\u003" in body:
        # after an escaped backslash, `u003a` is plain text
        bare = body.replace(rb"\\", b"")
        found += bare.count(rb"\u003a") + bare.count(rb"\u003A")
    return found


def _has_huge_number(fields: Fields) -> bool | None:
    """Whether a float anywhere is beyond 64 bits; None: the fields are nested too deep to tell."""
    is_huge = False
    below = list(fields.values())
    # a whole level at a time, so that most of the work is done in C
    for _ in range(MAX_DEPTH):
        kinds = set(map(type, below))
        if float in kinds:
            floats = [each for each in below if type(each) is float]
            is_huge = is_huge or max(floats) >= 2.0**63 or min(floats) <= -(2.0**63)
        if kinds.isdisjoint(NESTED):
            return is_huge
        deeper: list[Any] = []
        if list in kinds:
            deeper += chain.from_iterable([each for each in below if type(each) is list])
        if dict in kinds:
            deeper += chain.from_iterable([each.values() for each in below if type(each) is dict])
        below = deeper
    return None


def _counting(fields: Fields) -> Fields:
    """The fields as they go into the form: `1.0` becomes `1` where the spelling makes no difference, all else stays as written.

    Fields that are floats themselves change in `fields`, too.
    """
    counting: Fields = {}
    for name, value in fields.items():
        kind = type(value)
        if kind is float:
            fields[name] = counting[name] = _folded(value)
        elif kind is dict:
            if name in FLAT:
                counting[name] = dict(zip(value, _all_folded(value.values()), strict=True))
            else:
                counting[name] = value if name in VIEWS else orjson.Fragment(orjson.dumps(value))
        elif kind is list:
            counting[name] = _list(name, value)
        else:
            counting[name] = value
    return counting


def _list(name: str, value: list[Any]) -> Any:
    kinds = set(map(type, value))
    if kinds.isdisjoint(NESTED):
        return _all_folded(value) if float in kinds else value
    if name in ROWS and kinds == {dict}:
        inner = set(map(type, chain.from_iterable(map(dict.values, value))))
        is_plain = float not in inner and inner.isdisjoint(NESTED)
        return value if is_plain else list(map(_row, value))
    return orjson.Fragment(orjson.dumps(value))


def _row(row: Fields) -> Fields:
    """A message, or a part of its content: its keys in any order, nested values as written."""
    shown: Fields | None = None
    for name, value in row.items():
        kind = type(value)
        if kind is float:
            shown = dict(row) if shown is None else shown
            shown[name] = _folded(value)
        elif kind in NESTED:
            shown = dict(row) if shown is None else shown
            is_parts = name == "content" and kind is list and set(map(type, value)) == {dict}
            shown[name] = (
                list(map(_row, value)) if is_parts else orjson.Fragment(_as_written(value))
            )
    return row if shown is None else shown


def _as_written(value: Any) -> str | bytes:
    text = orjson.dumps(value)
    # orjson's buffer takes 1 KiB however short the text is: keeping 28,000 of them took 3 us each, copying 0.4 us
    return text.decode() if len(text) < SHORT_BYTES else text


def _folded(number: float) -> int | float:
    """A float without a fraction as an integer, where 64 bits hold it."""
    return int(number) if number.is_integer() and -(2.0**63) <= number < 2.0**64 else number


def _all_folded(values: Iterable[Any]) -> list[Any]:
    return [_folded(each) if type(each) is float else each for each in values]


def _read_slowly(body: bytes) -> tuple[Fields | None, str | None]:
    """What Python's own reader makes of a body, and what is wrong with it."""
    if len(body) > SMALL_BYTES and _structure(body) + body.count(b"\\") > MOST_SLOW:
        return None, TOO_MANY
    problems: list[str] = []
    try:
        read = _SlowReader(problems).decode(body.decode())
    except UnicodeDecodeError:
        return None, "not UTF-8"
    except ValueError:
        return None, "not JSON"
    except RecursionError:
        return None, TOO_DEEP
    if type(read) is not dict:
        return None, "not a JSON object"
    return read, problems[0] if problems else None


class _SlowReader(json.JSONDecoder):
    """Python's own reader, which shows every key and the text of every number; it notes what is wrong with them."""

    def __init__(self, problems: list[str]) -> None:
        super().__init__(
            object_pairs_hook=self._object,
            parse_int=self._integer,
            parse_float=self._fraction,
            parse_constant=self._constant,
        )
        self._problems = problems

    def _object(self, pairs: list[tuple[str, Any]]) -> Fields:
        fields = dict(pairs)
        if len(fields) < len(pairs):
            self._problems.append("duplicate keys")
        return fields

    def _integer(self, text: str) -> Any:
        # Python's time for an integer grows with the square of its digits
        if len(text) > MAX_INTEGER_CHARS or int(text) not in INTEGERS:
            self._problems.append("integer beyond 64 bits")
            return float(text)
        return int(text)

    def _fraction(self, text: str) -> float:
        if isinf(float(text)):
            self._problems.append("number beyond a double")
        return float(text)

    def _constant(self, name: str) -> float:
        self._problems.append("NaN or Infinity")
        return float(name)

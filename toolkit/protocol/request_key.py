"""What a request is: its one canonical form, and the key that the cache, capture and the forecast go by.

Two bodies have one form exactly when they ask the same of a server: whitespace, escapes, the order of fields, `0` for `0.0`, and how
the answer is viewed (`stream`, `stream_options`) do not count; every other field does, known or not. What stands deeper than a
field, a message or a part of its content counts as it is written, order of keys and spelling of numbers included: servers hand tools
to chat templates as they came (transformers' `tojson` sorts nothing and writes `1.0` as such), and an answer's keys come in the order
of its JSON schema's. A body that two readers may take for different requests has no form. It guesses no defaults, touches no string.
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
"""Version of the rules below, part of every key: what was stored under other rules is not found."""
KEY_BYTES = 16
VIEWS = frozenset({"stream", "stream_options"})
"""Ways to look at the same answer: one that was stored serves all of them."""
MAX_DEPTH = 64
TOO_DEEP = f"nested deeper than {MAX_DEPTH}"
INTEGERS = range(-(2**63), 2**64)
"""What orjson keeps as integers; a longer one it reads as a float, and two seeds would become one."""
MAX_INTEGER_CHARS = 20
"""`-9223372036854775808` and `18446744073709551615` have as many."""
ROWS = frozenset({"messages", "input"})
"""Lists of objects whose own keys are fields of a server's: their order does not count, nor that of their parts of content."""
FLAT = frozenset({"logit_bias"})
"""Objects of numbers by token: a server reads them one by one."""
NESTED = frozenset({dict, list})
SHORT_BYTES = 512

MOST_VALUES = 2**17
"""In a body of up to 4 MiB, whatever it holds them in: each costs up to 0.3 us and 240 bytes while it is read. 4 MiB of tools
with a line of description each have 90,000. Of integers in flat lists, token ids, three count as one."""
FREE_BYTES = 4 * 2**20
BYTES_A_VALUE = 48
"""Beyond that size one more value is allowed for so many bytes."""
SMALL_BYTES = 64 * 1024
"""A body up to this size is read without counting."""
MOST_SLOW = 20_000
"""Values and escapes up to which Python's own reader is asked what is wrong with a body: it takes 1 us for each."""
TOO_MANY = "too many values"
IDS = re.compile(
    rb'"(prompt|input|input_ids|token_ids)"[ \t\r\n]*:[ \t\r\n]*(\[[0-9,\[\] \t\r\n]{4096,}+)'
)
"""A long list of token ids, or of such lists, where servers take one, with what follows it up to the next field."""
PLACE = f"ids {secrets.token_hex(16)}"
"""Stands for such a list while the rest of its body is read; nobody can guess it."""
MOST_IDS = 2**20
BYTES_AN_ID = 6
"""Beyond 4 MiB one more is allowed for so many bytes."""
SLICE_BYTES = 64 * 1024
"""Of such a list at a time is read: an id in memory takes 40 bytes, as text 6."""

Fields = dict[str, Any]


class Canonical(NamedTuple):
    """A body that has a canonical form."""

    form: bytes
    """Compact JSON, keys sorted, without views and inert fields."""
    fields: Fields
    """The body as read, views and inert fields included; floats without a fraction became integers."""


@dataclass(frozen=True, slots=True)
class Refused:
    """A body that has none."""

    reason: str
    """`not UTF-8`, `not JSON`, `not a JSON object`, `duplicate keys`, `NaN or Infinity`, `lone surrogate`,
    `integer beyond 64 bits`, `number beyond a double`, `nested deeper than 64` or `too many values`; it never quotes the body."""
    fields: Fields | None = None
    """What can be read all the same, of equal keys the last; None: nothing."""


def canonical(body: bytes, *, inert: frozenset[str] = frozenset()) -> Canonical | Refused:
    """Read a body. `inert`: further top-level fields that are known not to change the answer, e.g., `user`."""
    if len(body) <= SMALL_BYTES:
        return _canonical(body, inert)
    # it might cost much; long lists of token ids come as an orjson.Fragment
    match = IDS.search(body)
    start, end = (0, 0) if match is None else match.span(2)
    # what follows the list up to the next field is none of it; a broken body's has no end
    end = body.rfind(b"]", start, end) + 1
    if match is not None and end:
        # a row of ids costs as much as eight ids
        ids_count = body.count(b",", start, end) + 8 * body.count(b"[", start, end)
        if ids_count > MOST_IDS + max(0, len(body) - FREE_BYTES) // BYTES_AN_ID:
            return Refused(TOO_MANY)
        ids = _compact_integers(body[start:end])
        if ids is not None:
            place = b'"%b"' % PLACE.encode()
            # one list is read so, in one place: any other is read as everything else
            read = _bounded(body[:start] + place + body[end:], inert)
            name = match[1].decode()
            if isinstance(read, Canonical) and read.fields.get(name) == PLACE:
                form = read.form.replace(place, ids, 1)
                return Canonical(form, read.fields | {name: orjson.Fragment(ids)})
            if isinstance(read, Refused):
                return read
    return _bounded(body, inert)


def _bounded(body: bytes, inert: frozenset[str]) -> Canonical | Refused:
    """Read a body if that does not cost too much."""
    if _has_too_many_values(body):
        return Refused(TOO_MANY)
    # the collector would look through the growing tree again and again, for three times the reader's own time
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
        # half a surrogate pair is all that Python takes in silence and orjson does not
        return Refused(problem or "lone surrogate", read)
    if type(fields) is not dict:
        return Refused("not a JSON object")
    is_huge = _has_huge_number(fields)
    if is_huge is None:
        return Refused(TOO_DEEP, fields)
    if is_huge:
        # it may have been an integer too long for orjson, which reads it as a float
        _, problem = _read_slowly(body)
        if problem is not None:
            return Refused(problem, fields)
    counting = _counting(fields)
    colons = 0
    for names in (VIEWS, inert):
        for name in names:
            if name in counting:
                value = counting.pop(name)
                # `"stream":true` is known to have one
                is_plain = names is VIEWS and type(value) is bool
                colons += 1 if is_plain else orjson.dumps({name: value}).count(b":")
    form = orjson.dumps(counting, option=orjson.OPT_SORT_KEYS)
    # of equal keys the reader keeps the last: with the others their colons are lost
    if colons + form.count(b":") != _colons(body):
        return Refused("duplicate keys", fields)
    return Canonical(form, fields)


def request_key(
    form: bytes, *, endpoint: str, tenant: str | None = None, model: str | None = None
) -> str:
    """32 hexadecimal digits for a canonical form that was sent to an endpoint.

    `tenant`: among whom answers may be shared, as the proxy verified it. `model`: who answers, beyond the name in the
    body: revision of the weights, adapter, epoch of the server. All of them make another key.
    """
    digest = _begun(endpoint, tenant, model).copy()
    digest.update(form)
    return str(digest.hexdigest())


def body_key(body: bytes) -> str:
    """32 hexadecimal digits for the very bytes."""
    return blake2b(body, digest_size=KEY_BYTES).hexdigest()


@lru_cache(maxsize=256)
def _begun(endpoint: str, tenant: str | None, model: str | None) -> Any:
    """A hash that has taken everything but the form; each part follows its length, so that none runs into the next."""
    digest = blake2b(b"request %d " % SCHEMA, digest_size=KEY_BYTES)
    for part in (endpoint, tenant, model):
        told = b"" if part is None else part.encode("utf-8", "surrogatepass")
        digest.update(b"%d:%s " % (-1 if part is None else len(told), told))
    return digest


def _compact_integers(text: bytes) -> bytes | None:
    """A list of integers, or of such lists, without blanks; None: it is no such thing."""
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
        # made of digits, commas, brackets and blanks it can hold nothing but integers, those too long for 64 bits, and lists
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
    """Whether reading it would cost too much; asked before anything is built."""
    most = MOST_VALUES + max(0, len(body) - FREE_BYTES) // BYTES_A_VALUE
    # a value follows a comma or begins a list or an object: there are no more than these; code in a text has as many
    if _structure(body) <= most:
        return False
    bare = body.replace(rb"\\", b"").replace(rb"\"", b"")
    # a value has at most its name and itself in quotes
    if bare.count(b'"') > 4 * most:
        return True
    # a quote for each text, so that a list of texts is not taken for one of integers
    outside = b'"'.join(bare.split(b'"')[::2]).translate(None, b"0123456789 \t\r\n")
    without_ids = re.sub(rb"\[,+\]", b"", outside)
    return _structure(without_ids) + (len(outside) - len(without_ids)) // 3 > most


def _structure(body: bytes) -> int:
    return body.count(b",") + body.count(b"[") + body.count(b"{")


def _colons(body: bytes) -> int:
    """How many there are once escapes are read."""
    found = body.count(b":")
    if b"\\u003" in body:
        # behind an escaped backslash it is no escape
        bare = body.replace(rb"\\", b"")
        found += bare.count(rb"\u003a") + bare.count(rb"\u003A")
    return found


def _has_huge_number(fields: Fields) -> bool | None:
    """Whether a float anywhere is too large for 64 bits; None: it is nested too deep to be looked through."""
    is_huge = False
    below = list(fields.values())
    # level by level, at C's speed for the most part
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
    """The fields as they go into the form: numbers folded where their spelling does not count, all else as written.

    Floats that are fields themselves are folded in `fields`, too.
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
    """A message, or a part of its content: its own keys in any order, what they hold as written."""
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
    # its buffer takes 1 KiB however short the text: 28,000 that are kept took 3 us each, copied 0.4 us
    return text.decode() if len(text) < SHORT_BYTES else text


def _folded(number: float) -> int | float:
    """An integer for a float without a fraction."""
    return int(number) if number.is_integer() and -(2.0**63) <= number < 2.0**64 else number


def _all_folded(values: Iterable[Any]) -> list[Any]:
    return [_folded(each) if type(each) is float else each for each in values]


def _read_slowly(body: bytes) -> tuple[Fields | None, str | None]:
    """Read a body as Python does; and what is wrong with it."""
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
        # thousands of digits would take Python a quadratic time
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

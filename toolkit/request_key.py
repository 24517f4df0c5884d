"""What a request is: its one canonical form, and the key that the cache, capture and the forecast go by.

Two bodies have one form exactly when they ask the same of a server: whitespace, escapes, the order of fields, `0` for `0.0`, and how
the answer is viewed (`stream`, `stream_options`) do not count; every other field does, known or not. What stands deeper than a
field, a message or a part of its content counts as it is written, order of keys and spelling of numbers included: servers hand tools
to chat templates as they came (transformers' `tojson` sorts nothing and writes `1.0` as such), and an answer's keys come in the order
of its JSON schema's. A body that two readers may take for different requests has no form. It guesses no defaults, touches no string.
"""

import json
import re
from dataclasses import dataclass
from functools import lru_cache
from hashlib import blake2b
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
UNEVEN = frozenset({dict, list, float})
"""Values in an array that have to be looked at one by one."""

KEY_ENDS = re.compile(rb'"[ \t\r\n]*:')

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
    `integer beyond 64 bits`, `number beyond a double` or `nested deeper than 64`; it never quotes the body."""
    fields: Fields | None = None
    """What can be read all the same, of equal keys the last; None: nothing."""


def canonical(body: bytes, *, inert: frozenset[str] = frozenset()) -> Canonical | Refused:
    """Read a body. `inert`: further top-level fields that are known not to change the answer, e.g., `user`."""
    try:
        fields = orjson.loads(body)
    except orjson.JSONDecodeError:
        return _refused_by_reader(body)
    if type(fields) is not dict:
        return Refused("not a JSON object")
    try:
        again = orjson.dumps(fields)
    except TypeError:
        # it writes 254 levels
        return Refused(TOO_DEEP, fields)
    as_written = _as_written(fields)
    keys, is_huge = _fold(fields)
    if keys is None:
        return Refused(TOO_DEEP, fields)
    if is_huge or _may_have_lost_keys(body, again, keys):
        _, problem = _read_slowly(body)
        if problem is not None:
            return Refused(problem, fields)
    counting = {**fields, **as_written}
    for name in VIEWS | inert:
        counting.pop(name, None)
    return Canonical(orjson.dumps(counting, option=orjson.OPT_SORT_KEYS), fields)


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


def _may_have_lost_keys(body: bytes, again: bytes, keys: int) -> bool:
    """Whether a body may hold equal keys, of which reading keeps the last; Python's reader is asked then, which is slow.

    `again` is what was read, written out; `keys` how many there are in it. Each of three answers is proof that none was
    lost, the quickest one first, for a compact body, a spaced one, and one with such places in its texts.
    """
    if body == again:
        return False
    # a text may look as if a key ended in it, so that there may be more such places than keys, but never fewer
    if len(KEY_ENDS.findall(body)) == keys:
        return False
    # both sides count the colons of texts, too: with a key its colon is lost, and only one that was escaped makes up for it
    if body.count(b":") != again.count(b":"):
        return True
    return b"\\u003" in body and (b"\\u003a" in body or b"\\u003A" in body)


def _as_written(fields: Fields) -> Fields:
    """The fields with something inside, each as it goes into the form; to be asked before numbers are folded."""
    return {
        name: _below(name, value)
        for name, value in fields.items()
        if type(value) in NESTED and name not in FLAT and name not in VIEWS
    }


def _below(name: str, value: Any) -> Any:
    if type(value) is list:
        kinds = set(map(type, value))
        if kinds.isdisjoint(NESTED):
            return value
        if name in ROWS and kinds == {dict}:
            return [_row(one) for one in value]
    return orjson.Fragment(orjson.dumps(value))


def _row(row: Fields) -> Fields:
    """A message, or a part of its content: its own keys in any order, what they hold as written."""
    shown: Fields | None = None
    for name, value in row.items():
        if type(value) in NESTED:
            shown = dict(row) if shown is None else shown
            is_parts = name == "content" and set(map(type, value)) == {dict}
            shown[name] = (
                [_row(part) for part in value]
                if is_parts and type(value) is list
                else orjson.Fragment(orjson.dumps(value))
            )
    return row if shown is None else shown


def _fold(fields: Fields) -> tuple[int | None, bool]:
    """Make integers of floats without a fraction; return how many keys there are, and whether a number is huge.

    Too deep, there is no telling how many. A float is huge where it may have been an integer too long for orjson.
    """
    keys, is_huge = 0, False
    level: list[Any] = [fields]
    for _ in range(MAX_DEPTH):
        below: list[Any] = []
        for holder in level:
            if type(holder) is dict:
                keys += len(holder)
                is_huge |= _fold_entries(holder, holder.items(), below)
                continue
            # a row of messages, token ids or texts at C's speed
            kinds = set(map(type, holder))
            if kinds == {dict}:
                below += holder
            elif not kinds.isdisjoint(UNEVEN):
                is_huge |= _fold_entries(holder, enumerate(holder), below)
        if not below:
            return keys, is_huge
        level = below
    return None, is_huge


def _fold_entries(holder: Any, entries: Any, below: list[Any]) -> bool:
    """Do it in one object or array, in place, and note those inside it; return whether a number is huge."""
    is_huge = False
    for place, value in entries:
        kind = type(value)
        if kind is float:
            if value.is_integer():
                is_huge |= abs(value) >= 2.0**63
                if -(2.0**63) <= value < 2.0**64:
                    holder[place] = int(value)
        elif kind is dict or kind is list:
            below.append(value)
    return is_huge


def _refused_by_reader(body: bytes) -> Refused:
    """Why orjson did not take a body; half a surrogate pair is all that Python takes in silence and orjson does not."""
    fields, problem = _read_slowly(body)
    return Refused(problem or "lone surrogate", fields)


def _read_slowly(body: bytes) -> tuple[Fields | None, str | None]:
    """Read a body as Python does; and what is wrong with it."""
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

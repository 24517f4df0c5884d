"""Bodies of every make, many of them hostile, by the hundred: none costs much more CPU than a plain one, one long text, of its size.

They go the way that they go in the proxy before anything is sent: the canonical form, the key, the filter of addresses, what it asks.
Slow is a failure, as wrong is; wall-clock time is never asked.
"""

import os
import random
import time
from collections import Counter
from collections.abc import Callable
from functools import cache
from typing import Any

import orjson
import pytest

from toolkit.protocol.request import asked
from toolkit.protocol.request_key import Canonical, Refused, canonical, request_key
from toolkit.proxy import media

SECONDS = {"short": 8.0, "full": 300.0}[os.environ.get("TOOLKIT_LONG", "short")]
MIB = 2**20
SEED = 15
TIMES = 4
"""What a body may cost beside a plain one of its size; a smaller one than 4 MiB, beside one of 4 MiB."""
PATH = "/v1/chat/completions"

pytestmark = pytest.mark.timeout(120 + 2 * SECONDS)

MEDIA_NAMES = "image_url images source type url".split()
"""Looked for by the filter of addresses; an object with one of them is looked at more closely."""
NAMES = "messages prompt input input_ids token_ids tools functions content text z \\u003a logit_bias".split()
SCALARS = [
    "0",
    "12345",
    "-1",
    "1.0",
    "1e300",
    "12345678901234567890123",
    "true",
    "null",
    '""',
    '"a"',
]
SCALARS += [
    '"' + "b" * 40 + '"',
    r'"\n\u003a\\\""',
    '":"',
    '"http://h/a.png"',
    '"é😀"',
    r'"\ud800"',
    "NaN",
]
ESCAPES = [r"\n", r"\\", r"\"", r"\u003a", r"\u00e9", ",", "[", "{", ":", "x", "é", "word "]


def unit(dice: random.Random, levels: int = 4) -> str:
    """A small value of any kind; what a body is filled with."""
    kind = dice.random()
    if kind < 0.4 or not levels:
        # mostly one that is fine, so that a body of thousands is seldom refused for a single one
        return dice.choice(SCALARS[: dice.choice([10, 12, len(SCALARS)])])
    inner = [unit(dice, levels - 1) for _ in range(dice.choice([0, 1, 1, 2, 4]))]
    gap = dice.choice(["", "", " "])
    if kind < 0.65:
        return "[" + f",{gap}".join(inner) + "]"
    keys = [
        f'"{dice.choice(MEDIA_NAMES)}"'
        if dice.random() < 0.1
        else f'"{dice.choice(NAMES)}{number}"'
        for number in range(len(inner))
    ]
    return "{" + f",{gap}".join(f"{key}:{gap}{value}" for key, value in zip(keys, inner, strict=True)) + "}"  # fmt: skip


def body(dice: random.Random, size: int) -> bytes:
    """A body of about that size: one thing many times, in some field, among others."""
    field = dice.choice(NAMES)
    joint = dice.choice([",", ", ", " ,\n"])
    how = dice.random()
    if how < 0.2:
        text = "".join(dice.choices(ESCAPES, k=200))
        filling = '"' + text * (size // len(text)) + '"'
    elif how < 0.3:
        few = dice.choice([50_000, size])
        # keys, all different, all equal, or in the end equal
        part = dice.choice(['"k%d":0', '"k":%d', '"%d":{}', '"\\u003a%d":"::"'])
        pairs = joint.join(part % number for number in range(min(size // 12, few)))
        filling = "{" + pairs + "}"
    elif how < 0.35:
        filling = "[" * (size // 2) + "]" * (size // 2)
    else:
        part = unit(dice)
        share = dice.choice([1, 1, 1, 5, 30])
        filling = "[" + joint.join([part] * (size // share // (len(part) + len(joint)))) + "]"
        if share > 1:
            # few enough to be taken, and a text for the rest
            filling += f',"rest":"{"r" * (size - len(filling))}"'
    more = dice.choice(["", ',"stream":true', ',"temperature":0.5,"n":1', ',"seed":1e19'])
    data = f'{{"model":"m","{field}":{filling}{more}}}'.encode()
    if dice.random() < 0.1:
        at = dice.randrange(len(data))
        data = data[:at] + dice.choice([b"", b'"', b"\\", b"]", b"\xff", b"\0"]) + data[at + 1 :]
    return data


def way(data: bytes) -> Any:
    """What the proxy does with a body before it sends it."""
    read = canonical(data)
    if isinstance(read, Canonical):
        request_key(read.form, endpoint="chat/completions")
        media.refused(read.fields, (), "chat/completions")
        asked(data, path=PATH, read=read)
    return read


def cpu_s(work: Callable[[], object]) -> float:
    began = time.process_time()
    work()
    return time.process_time() - began


@cache
def plain_s(mib: int) -> float:
    """Of a plain body of so many MiB, the median of five."""
    data = b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % (b"x" * (mib * MIB))
    way(data)
    return sorted(cpu_s(lambda: way(data)) for _ in range(5))[2]


def test_no_body_costs_four_times_a_plain_one() -> None:
    dice = random.Random(SEED)
    ends = time.monotonic() + SECONDS
    kinds: Counter[str] = Counter()
    worst, slow, total = (0.0, b""), [], 0
    # a machine that does much else has read one by then
    while time.monotonic() < ends or not {"taken", "too many values"} <= kinds.keys():
        data = body(dice, dice.choice([70_000, MIB, 4 * MIB, 4 * MIB, 8 * MIB]))
        most = plain_s(max(4, round(len(data) / MIB)))
        for _ in range(3):
            began = time.process_time()
            read = way(data)
            took = (time.process_time() - began) / most
            # a machine that does much else may make one look dear, not three
            if took <= TIMES:
                break
        kinds[read.reason if isinstance(read, Refused) else "taken"] += 1
        worst = max(worst, (took, data[:150]))
        total += len(data)
        if took > TIMES:
            slow.append((round(took, 1), len(data), data[:150]))
    print(
        f"{sum(kinds.values()):,} bodies, {total / MIB:,.0f} MiB: {dict(kinds)}; the dearest {worst}"
    )
    assert not slow, slow[:5]


@pytest.mark.parametrize("field", ["prompt", "input", "z"])
def test_however_a_body_is_read_its_form_is_that_of_its_parts(field: str) -> None:
    """Lists of integers that are read in pieces are what the whole reader reads."""
    dice = random.Random(SEED)
    for _ in range(20):
        rows = dice.choice([None, 1, 7, 5000])
        ids = [dice.choice([0, 7, 12345, 2**63]) for _ in range(dice.choice([9_000, 40_000]))]
        value = ids if rows is None else [ids[at : at + rows] for at in range(0, len(ids), rows)]
        fields = {"model": "m", field: value, "rest": "r" * 70_000}
        spaced = orjson.dumps(fields).replace(b",", dice.choice([b",", b", ", b" ,\n"]))
        read = canonical(spaced)
        assert isinstance(read, Canonical)
        assert read.form == orjson.dumps(fields, option=orjson.OPT_SORT_KEYS)

"""A blast by a profile made of a workload has the workload's statistics, within what each test states."""

import json
import random
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import pytest

from toolkit.blast.script import HostScript
from toolkit.profiles import read_profile
from toolkit.protocol.request import asked
from toolkit.records import Seen
from toolkit.workload import RequestColumns, columns, shared_prefix
from toolkit.workload.synthesis import Synthesis, synthesis

CHAT = "/v1/chat/completions"


def said(words: int, seed: object) -> str:
    draw = random.Random(str(seed))
    return " ".join(draw.choice(("one", "three", "eleven", "twelve")) for _ in range(words))


ASSISTANTS = [f"You are assistant {number}. {said(150, number)}" for number in range(5)]


def body(system: str, user: str, number: int) -> bytes:
    turns = [{"role": "system", "content": system}, {"role": "user", "content": user}]
    told = {"model": "m", "messages": turns, "max_tokens": 64, "stream": number % 4 == 0}
    return json.dumps(told).encode()


def laid(bodies: Sequence[bytes], *, keep_text: bool = False) -> RequestColumns:
    return columns(
        Seen(ts=float(at), asked=asked(one, path=CHAT, keep_text=keep_text))
        for at, one in enumerate(bodies)
    )


class Statistics(NamedTuple):
    """What is compared."""

    unique: int
    top: float
    top_10: float
    streamed: float
    chars: float
    prefix: float


def statistics(found: RequestColumns) -> Statistics:
    times = np.sort(np.bincount(found.prompt))[::-1] / len(found)
    return Statistics(
        unique=len(times),
        top=float(times[0]),
        top_10=float(times[:10].sum()),
        streamed=float(found.per_request("stream").mean()),
        chars=float(found.per_request("prompt_chars").mean()),
        prefix=shared_prefix(found).share or 0.0,
    )


def there_and_back(
    bodies: Sequence[bytes], *, keep_text: bool
) -> tuple[Synthesis, Statistics, Statistics]:
    """A profile, what was captured, and what a blast of as many requests sends."""
    made = synthesis(laid(bodies, keep_text=keep_text), source="test")
    script = HostScript(
        read_profile(made.toml, "made", "toml"), model="m", nonce="n", canary_share=0.0, seed=1
    )
    user = script.caller(0)
    sent = laid([user.next().body for _ in bodies])
    return made, statistics(laid(bodies)), statistics(sent)


@pytest.mark.parametrize("keep_text", [False, True])
def test_few_prompts_of_several_applications(keep_text):
    prompts = [(ASSISTANTS[n % 5], said(40 + 3 * n, ("hot", n))) for n in range(60)]
    draw = random.Random(7)
    drawn = [min(59, int(draw.paretovariate(1.0)) - 1) for _ in range(2000)]
    made, before, after = there_and_back(
        [body(*prompts[n], at) for at, n in enumerate(drawn)], keep_text=keep_text
    )
    assert made.real == (made.prompts + made.tail_prompts) * keep_text
    assert after.unique == pytest.approx(before.unique, abs=5)
    assert after.top == pytest.approx(before.top, abs=0.01)
    assert after.top_10 == pytest.approx(before.top_10, abs=0.01)
    assert after.streamed == pytest.approx(before.streamed, abs=0.001)
    assert after.chars == pytest.approx(before.chars, rel=0.02)
    assert after.prefix == pytest.approx(before.prefix, abs=0.02)


def test_a_tenth_of_the_requests_like_no_other():
    prompts = [(ASSISTANTS[n % 5], said(40 + 3 * n, ("hot", n))) for n in range(20)]
    bodies = [
        body(ASSISTANTS[at % 5], said(50, at), at) if at % 10 == 9 else body(*prompts[at % 19], at)
        for at in range(2000)
    ]
    made, before, after = there_and_back(bodies, keep_text=False)
    assert made.unique_share == pytest.approx(0.1, abs=0.001)
    assert after.unique == pytest.approx(before.unique, rel=0.02)
    # how often a hot prompt's turn is one that bears a mark is drawn
    assert after.top == pytest.approx(before.top, abs=0.01)
    assert after.top_10 == pytest.approx(before.top_10, abs=0.03)
    assert after.chars == pytest.approx(before.chars, rel=0.03)
    assert after.prefix == pytest.approx(before.prefix, abs=0.03)


def test_requests_that_are_all_unlike_are_as_many_and_as_long():
    bodies = [body(ASSISTANTS[at * 7 % 5], said(100 + at % 300, at), at) for at in range(800)]
    made, before, after = there_and_back(bodies, keep_text=False)
    assert (before.unique, after.unique) == (800, 800)
    assert after.chars == pytest.approx(before.chars, rel=0.03)
    # beginnings cannot be had together with marks, and the profile says which way it errs
    assert any(note.startswith("Beginnings: different prompts share") for note in made.notes)

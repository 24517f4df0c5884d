"""Which request a slot gets: marks, twins, streams and the order of prompts."""

import math
import re
from collections import Counter
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import replace
from importlib import resources
from itertools import pairwise
from random import Random
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.bench.plan import BenchPlan
from toolkit.bench.requests import (
    MARK_STRIDE,
    MARKS,
    WARMUP_PROMPTS,
    HostRequests,
    PlannedRequest,
    choose_model,
)
from toolkit.profiles import Profile, Prompt
from toolkit.records import ServedModel

MARK = re.compile(r"\[[0-9a-z]{4}-[0-9a-z]{4}\]")
UNIQUE = BenchPlan(sameness="unique")


def profile(*weights: float, count: int = 12) -> Profile:
    weights = weights or (1.0,) * count
    prompts = [
        Prompt(name=f"p{n}", weight=weight, messages=({"role": "user", "content": f"Tell {n}"},))
        for n, weight in enumerate(weights)
    ]
    return Profile(name="mine", prompts=tuple(prompts))


def conversation(*messages: dict[str, Any]) -> Profile:
    return Profile(name="mine", prompts=(Prompt(name="talk", messages=messages),))


def asker(
    plan: BenchPlan, asked: Profile | None = None, nonce: str = "run-1 alice"
) -> HostRequests:
    return HostRequests(plan, asked or profile(), model="tiny", nonce=nonce)


def sent(
    plan: BenchPlan, slots: int, asked: Profile | None = None, nonce: str = "run-1"
) -> list[PlannedRequest]:
    """All requests of a host at which each is answered before the next leaves."""
    one = asker(plan, asked, nonce)
    asks = []
    for slot in range(slots):
        asks.append(one.next(slot))
        one.answered(slot)
    return asks


def text(ask: PlannedRequest) -> str:
    return str(ask.body["messages"][-1]["content"])


def names(asks: Sequence[PlannedRequest]) -> list[str]:
    return [ask.prompt for ask in asks]


# bodies


def test_a_body_is_what_openais_clients_send_and_holds_what_the_plan_says() -> None:
    ask = sent(BenchPlan(sameness="repeat", stream_share=1.0, max_tokens=99), 1, profile(1.0))[0]
    assert orjson.dumps(ask.body) == (
        b'{"model":"tiny","messages":[{"role":"user","content":"Tell 0"}],"max_tokens":99,'
        b'"stream":true,"stream_options":{"include_usage":true}}'
    )
    assert (ask.slot, ask.kind, ask.pair, ask.prompt) == (0, "repeat", None, "p0")
    assert (ask.stream, ask.max_tokens) == (True, 99)
    plan = BenchPlan(sameness="repeat", stream_share=0.0, temperature=0.0, ignore_eos=True)
    assert sent(plan, 1, profile(1.0))[0].body == {
        "model": "tiny",
        "messages": [{"role": "user", "content": "Tell 0"}],
        "max_tokens": 256,
        "stream": False,
        "temperature": 0.0,
        "ignore_eos": True,
    }


@pytest.mark.parametrize(("own", "limit"), [(None, 256), (64, 64), (999, 256)])
def test_a_prompt_may_ask_for_less_than_the_plan_but_not_for_more(
    own: int | None, limit: int
) -> None:
    prompt = replace(profile(1.0).prompts[0], max_tokens=own)
    ask = sent(UNIQUE, 1, Profile(name="mine", prompts=(prompt,)))[0]
    assert ask.max_tokens == ask.body["max_tokens"] == limit


# marks


@pytest.mark.parametrize("place", ["front", "end"])
def test_a_mark_is_short_and_leaves_the_prompt_whole(place: Any) -> None:
    for ask in sent(replace(UNIQUE, nonce_place=place), 50):
        first, _, rest = text(ask).partition(" ")
        prompt, _, last = text(ask).rpartition(" ")
        assert MARK.fullmatch(first if place == "front" else last)
        assert (rest if place == "front" else prompt) == f"Tell {ask.prompt[1:]}"
        assert ask.kind == "unique"


def test_no_mark_comes_twice_in_a_run_or_at_two_hosts() -> None:
    marks = Counter[str]()
    for nonce in ("run-1 alice", "run-1 bob", "run-2 alice"):
        one = asker(UNIQUE, nonce=nonce)
        asks = [one.next(slot) for slot in range(3000)] + [one.warmup(n) for n in range(100)]
        marks.update(text(ask)[:11] for ask in asks)
    assert len(marks) == 3 * 3100
    # they come again only after all have come: steps without a common factor walk through all remainders
    assert math.gcd(MARK_STRIDE, MARKS) == 1
    assert MARKS == 36**8


def test_marks_of_neighbours_differ_from_their_first_character() -> None:
    # a prefix cache that counts in tokens would find `[k3f9` again in `[k3f9-0013]`
    first = [text(ask)[1] for ask in sent(UNIQUE, 500)]
    assert all(one != other for one, other in pairwise(first))
    # the golden ratio spreads them over all 36: 500/36 = 13.9 each
    assert set(Counter(first).values()) <= {12, 13, 14, 15, 16}


TALK = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "Hi"},
    {"role": "assistant", "content": "Hello"},
    {"role": "user", "content": "Go on"},
    {"role": "assistant", "content": "Well,"},
)


@pytest.mark.parametrize(
    ("place", "at", "marked"),
    [("front", 0, MARK.pattern + r" Be brief\."), ("end", 3, "Go on " + MARK.pattern)],
)
def test_in_a_conversation_the_first_message_is_marked_or_the_users_last_one(
    place: Any, at: int, marked: str
) -> None:
    talk = conversation(*deepcopy(TALK))
    messages = list(sent(replace(UNIQUE, nonce_place=place), 1, talk)[0].body["messages"])
    assert re.fullmatch(marked, messages.pop(at)["content"])
    assert messages == [*TALK[:at], *TALK[at + 1 :]]
    assert talk == conversation(*TALK)  # the profile stays as it was


@pytest.mark.parametrize(("place", "at"), [("front", 0), ("end", -1)])
def test_a_message_of_parts_gets_a_part_more(place: Any, at: int) -> None:
    parts = [{"type": "image_url", "image_url": {"url": "x"}}, {"type": "text", "text": "What?"}]
    talk = conversation(
        {"role": "assistant", "content": None, "tool_calls": []}, {"role": "user", "content": parts}
    )
    ask = sent(replace(UNIQUE, nonce_place=place), 1, talk)[0]
    found = list(ask.body["messages"][1]["content"])
    mark = found.pop(at)
    assert found == parts
    assert mark.keys() == {"type", "text"}
    assert MARK.fullmatch(mark["text"])


def test_repeated_prompts_bear_no_mark_and_are_equal_byte_for_byte() -> None:
    assert {ask.kind for ask in sent(UNIQUE, 40)} == {"unique"}
    assert {ask.kind for ask in sent(BenchPlan(twin_share=0.0), 40)} == {"unique"}
    asks = sent(BenchPlan(sameness="repeat"), 36)
    assert {ask.kind for ask in asks} == {"repeat"}
    bodies = Counter(orjson.dumps(ask.body) for ask in asks)
    assert set(bodies.values()) == {3}  # 36 slots, 12 prompts


# twins


def test_each_fourth_slot_repeats_the_earliest_request_that_has_no_twin() -> None:
    asks = sent(BenchPlan(twin_share=0.25), 16)
    # turns are slots 3, 7, 11, 15; the unique slots are 0 1 2, 4 5 6, ...
    assert {ask.slot: ask.pair for ask in asks if ask.kind == "twin"} == {3: 0, 7: 1, 11: 2, 15: 4}
    for ask in asks:
        if ask.pair is not None:
            original = asks[ask.pair]
            assert orjson.dumps(ask.body) == orjson.dumps(original.body)
            assert (ask.prompt, ask.stream) == (original.prompt, original.stream)
            assert ask.max_tokens == original.max_tokens


def test_a_share_is_the_number_that_was_written() -> None:
    # 0.3 is a little less than 3/10 in binary: the third twin of ten slots would be late
    asks = sent(BenchPlan(twin_share=0.3), 20)
    assert [ask.slot for ask in asks if ask.kind == "twin"] == [3, 6, 9, 13, 16, 19]
    flags = [ask.stream for ask in sent(BenchPlan(stream_share=0.3), 1000)]
    assert {sum(flags[start : start + 10]) for start in range(0, 1000, 10)} == {3}


def test_a_twin_waits_until_something_was_answered_and_is_owed_meanwhile() -> None:
    one = asker(BenchPlan(twin_share=0.25))
    assert [one.next(slot).kind for slot in range(9)] == ["unique"] * 9  # slots 3 and 7 were turns
    one.answered(5)
    one.answered(2)
    # slots 9 and 10 are no turns; they repay 3 and 7, with the first that was answered first
    assert [(ask.kind, ask.pair) for ask in (one.next(9), one.next(10))] == [
        ("twin", 5),
        ("twin", 2),
    ]
    one.answered(0)
    one.answered(1)
    # slot 11 is the third turn; then no more is owed, though slot 1 is waiting
    assert [one.next(slot).pair for slot in (11, 12, 13, 14)] == [0, None, None, None]
    assert one.next(15).pair == 1


def test_a_charged_request_is_the_one_that_would_be_sent_without_its_long_text() -> None:
    plan = BenchPlan(input_len="100000", output_len="5:9")
    sent, charged = asker(plan).next(7), asker(plan).next(7, is_sent=False)
    assert replace(charged, body=sent.body) == sent
    assert len(orjson.dumps(sent.body)) > 100_000
    assert len(orjson.dumps(charged.body)) < 1_000


def test_a_level_that_starts_at_a_high_slot_owes_no_twins_for_the_slots_before() -> None:
    one = asker(BenchPlan(twin_share=0.25))
    asks = []
    for slot in range(1_000_000, 1_000_016):
        asks.append(one.next(slot))
        one.answered(slot)
    # as from slot 0 on: 4 of 16
    assert [ask.slot % 16 for ask in asks if ask.kind == "twin"] == [3, 7, 11, 15]


def test_an_answer_counts_once_and_only_to_a_unique_request_that_was_sent() -> None:
    one = asker(BenchPlan(twin_share=0.5))
    one.answered(7)  # not sent yet
    assert [one.next(slot).pair for slot in (0, 1)] == [None, None]
    one.answered(0)
    one.answered(0)
    assert one.next(2).pair == 0
    one.answered(2)  # a twin has no twin
    assert [one.next(slot).pair for slot in (3, 4, 5)] == [None, None, None]


@given(
    share=st.sampled_from([0.01, 0.1, 0.25, 0.3, 0.5, 1.0]),
    streams=st.sampled_from([0.0, 0.3, 0.5, 1.0]),
    first=st.integers(0, 10**9),
    under_way=st.integers(0, 40),
    fates=st.integers(0, 10**9).map(Random),
)
def test_twins_are_never_more_than_asked_for_and_true_copies(
    share: float, streams: float, first: int, under_way: int, fates: Random
) -> None:
    plan = BenchPlan(twin_share=share, stream_share=streams)
    one, other = asker(plan), asker(replace(plan, sameness="unique"))
    plain_bodies: dict[int | None, bytes] = {}
    unique: set[int] = set()
    answered: set[int | None] = set()
    paired: list[int] = []
    for number in range(120):
        slot, ended = first + number, first + number - under_way
        if fates.random() < 0.5 and ended >= first:
            one.answered(ended)
            answered |= {ended} & unique
        ask, plain = one.next(slot), other.next(slot)
        plain_bodies[slot] = orjson.dumps(plain.body)
        assert ask.stream == plain.stream == ask.body["stream"]
        if ask.pair is None:
            assert ask == plain  # the slot's own request
            unique.add(slot)
        else:
            assert ask.pair in answered
            assert orjson.dumps(ask.body) == plain_bodies[ask.pair]
            paired.append(ask.pair)
        assert len(paired) <= math.ceil((number + 1) * share)
    assert len(set(paired)) == len(paired)


# equal at every host


def test_hosts_get_the_same_prompts_and_streams_at_the_same_slots() -> None:
    plan = BenchPlan(stream_share=0.5, seed=3)
    quick, slow = asker(plan, nonce="alice"), asker(plan, nonce="bob")
    asks = []
    for slot in range(200):
        asks.append((quick.next(slot), slow.next(slot)))
        quick.answered(slot)
        if slot >= 30 and slot % 3:
            slow.answered(slot - 30)
    assert all(one.stream == other.stream for one, other in asks)
    both = [pair for pair in asks if {ask.kind for ask in pair} == {"unique"}]
    assert len(both) > 100
    assert all(one.prompt == other.prompt and text(one) != text(other) for one, other in both)


def test_another_seed_is_another_order() -> None:
    plans = [BenchPlan(sameness="unique", stream_share=0.5, seed=seed) for seed in (0, 1)]
    first, second = (sent(plan, 24) for plan in plans)
    assert names(first) != names(second)
    assert [ask.stream for ask in first] != [ask.stream for ask in second]


# streams


@pytest.mark.parametrize("share", [0.0, 0.01, 0.1, 0.25, 0.3, 0.5, 0.6, 0.75, 0.99, 1.0])
def test_of_any_hundred_slots_the_share_streams(share: float) -> None:
    flags = [ask.stream for ask in sent(BenchPlan(stream_share=share), 1000)]
    counts = {sum(flags[start : start + 100]) for start in range(901)}
    middle = round(100 * share)
    slack = 0 if share in (0, 1) else 1
    assert middle - slack <= min(counts) <= max(counts) <= middle + slack


def test_streams_keep_step_with_neither_twins_nor_prompts() -> None:
    asks = sent(BenchPlan(stream_share=0.5, twin_share=0.25), 4000)
    # 1,000 slots of each remainder; a coin's standard deviation is sqrt(1,000)/2 = 16: four of them
    for period in (2, 4):
        for rest in range(period):
            flags = [ask.stream for ask in asks[rest::period][:1000]]
            assert abs(sum(flags) - 500) < 64
    twins = [ask.stream for ask in asks if ask.kind == "twin"]
    assert len(twins) == 1000
    assert abs(sum(twins) - 500) < 64
    by_prompt: dict[str, list[bool]] = {}
    for ask in asks:
        by_prompt.setdefault(ask.prompt, []).append(ask.stream)
    # about 330 each: standard deviation 9 of 330, that is 2.8 %; four of them
    assert all(abs(sum(flags) / len(flags) - 0.5) < 0.11 for flags in by_prompt.values())


# prompts


@pytest.mark.parametrize("count", [1, 2, 3, 12, 97])
def test_each_prompt_comes_once_in_a_round_and_rounds_differ(count: int) -> None:
    asks = names(sent(UNIQUE, 10 * count, profile(count=count)))
    rounds = [asks[start : start + count] for start in range(0, 10 * count, count)]
    assert all(sorted(one) == sorted(rounds[0]) for one in rounds)
    assert len(set(rounds[0])) == count
    if count >= 12:
        assert len({tuple(one) for one in rounds}) == 10


def test_prompts_come_in_no_order() -> None:
    order = [int(name[1:]) for name in names(sent(UNIQUE, 12))]
    # from 0 to 11 in whatever steps, e.g., 0 5 10 3: each step would be the same
    assert len({(later - earlier) % 12 for earlier, later in pairwise(order)}) > 3


def test_prompts_come_as_often_as_they_weigh() -> None:
    asks = names(sent(UNIQUE, 40, profile(3.0, 1.0)))
    assert all(Counter(asks[at : at + 4]) == {"p0": 3, "p1": 1} for at in range(0, 40, 4))
    asks = names(sent(UNIQUE, 10, profile(0.1, 0.2, 0.7)))
    assert Counter(asks) == {"p0": 1, "p1": 2, "p2": 7}


def test_weights_without_a_small_common_measure_are_nearly_kept() -> None:
    # what 10,000 parts cannot tell from nothing gets one more
    asks = Counter(names(sent(UNIQUE, 10_001, profile(math.pi, math.e, 1e-9))))
    # pi / (pi + e) = 0.53613
    assert asks["p0"] / 10_001 == pytest.approx(0.53613, abs=0.0002)
    assert asks["p2"] == 1  # rare, but never left out


# warm-up


def test_warm_up_requests_are_like_no_measured_one() -> None:
    one = asker(BenchPlan(max_tokens=77, sameness="repeat"))
    asks = [one.warmup(number) for number in range(30)]
    assert [(ask.slot, ask.kind, ask.pair) for ask in asks] == [
        (number, "warmup", None) for number in range(30)
    ]
    assert len({text(ask) for ask in asks}) == 30
    streams = asker(BenchPlan(stream_share=0.5))
    assert sum(streams.warmup(number).body["stream"] for number in range(100)) == 50
    assert {text(ask)[12:] for ask in asks} == set(WARMUP_PROMPTS)
    assert all(ask.body["max_tokens"] == ask.max_tokens == 77 for ask in asks)
    measured = {text(one.next(slot)) for slot in range(30)}
    assert not measured & {text(ask)[12:] for ask in asks}


def test_no_profile_of_the_catalog_holds_a_warm_up_prompt() -> None:
    folder = resources.files("toolkit").joinpath("catalog", "profiles")
    texts = [file.read_text(encoding="utf-8") for file in folder.iterdir()]
    assert texts
    assert not [prompt for prompt in WARMUP_PROMPTS for held in texts if prompt in held]


# which model is asked for

BASE = ServedModel(id="base", root="org/Base")
ADAPTER = ServedModel(id="adapter", root="/lora/adapter")
BOTH = (BASE, ADAPTER)
SWAPPED = (ServedModel(id="a", root="b"), ServedModel(id="b", root="a"))


@pytest.mark.parametrize(
    ("served", "listed", "wanted", "model", "error"),
    [
        (BOTH, None, None, "base", None),  # the first one, as vLLM lists base models first
        (BOTH, "adapter", None, "adapter", None),
        (BOTH, "/lora/adapter", None, "adapter", None),  # by where its weights came from
        (BOTH, "gone", None, "base", None),  # measured all the same; a verdict says so
        (BOTH, None, "adapter", "adapter", None),
        (BOTH, "adapter", "org/Base", "base", None),  # the command line goes before the hosts file
        (BOTH, "base", "gone", None, "it does not serve `gone` but `base`, `adapter`"),
        (SWAPPED, None, "b", "b", None),  # an id goes before a root of the same name
        ((), "listed", None, "listed", None),  # it does not say what it serves: believe the user
        ((), None, "wanted", "wanted", None),
        ((), "listed", "wanted", "wanted", None),
        ((), None, None, None, "it lists no model, and none was named"),
    ],
)
def test_a_model_is_chosen_or_there_is_a_reason(
    served: tuple[ServedModel, ...],
    listed: str | None,
    wanted: str | None,
    model: str | None,
    error: str | None,
) -> None:
    found = choose_model(served, listed=listed, wanted=wanted)
    assert (found.model, found.error) == (model, error)

"""What each user sends next: the mix, the canaries, the chains."""

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction
from importlib import resources
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.blast.script import CanarySampling, HostScript, Order, unique_at
from toolkit.errors import ToolkitError
from toolkit.profiles import Profile, Prompt, read_profile

MARK = re.compile(r"\[[0-9a-z]{4}-[0-9a-z]{4}\]")
TEXTS = {
    "robot": "Write a 50-word story about a robot exploring a garden.",
    "singapore": "What is the capital of Singapore?",
}


def contest() -> Profile:
    file = resources.files("toolkit").joinpath("catalog", "profiles", "contest.toml")
    return read_profile(file.read_text(encoding="utf-8"), "contest", "toml")


def profile(*prompts: Prompt, **more: Any) -> Profile:
    return Profile(name="mine", prompts=prompts or (prompt("a"),), **more)


def prompt(name: str, **more: Any) -> Prompt:
    return Prompt(name=name, messages=({"role": "user", "content": f"Say {name}."},), **more)


def script(of: Profile | None = None, **more: Any) -> HostScript:
    return HostScript(of or contest(), **{"model": "m", "nonce": "run host worker", **more})


def taken(one: HostScript, count: int, answer: str | None = "ok") -> list[Order]:
    """A user whose every request is answered before the next, and canaries as soon as they are due."""
    caller, orders = one.caller(0), list[Order]()
    while len(orders) < count:
        canary = one.canary()
        orders.append(order := canary or caller.next())
        if canary is None:
            caller.done(order, answer)
        elif answer is not None:
            one.answered(canary)
    return orders


def text(order: Order) -> str:
    return str(orjson.loads(order.body)["messages"][-1]["content"])


def ranked(orders: Sequence[Order]) -> list[Order]:
    return [order for order in orders if order.kind == "ranked"]


# the contest's requests


def test_the_contest_is_two_prompts_half_of_them_streamed_with_its_limit() -> None:
    orders = taken(script(canary_share=0), 4096)
    assert Counter((order.prompt, order.stream) for order in orders).keys() == {
        (name, stream) for name in TEXTS for stream in (True, False)
    }
    assert Counter(order.prompt for order in orders) == {"robot": 2048, "singapore": 2048}
    assert Counter(order.stream for order in orders) == {True: 2048, False: 2048}
    for order in orders[:50]:
        expected = {
            "model": "m",
            "messages": [{"role": "user", "content": TEXTS[order.prompt]}],
            "max_tokens": 256,
            "stream": order.stream,
        }
        if order.stream:
            expected["stream_options"] = {"include_usage": True}
        assert orjson.loads(order.body) == expected
        assert (order.max_tokens, order.slot, order.pair) == (256, None, None)
    assert len({order.body for order in orders}) == 4


def test_a_request_repeats_from_its_second_time_on() -> None:
    orders = taken(script(canary_share=0), 100)
    first = [order for order in orders if not order.repeats]
    assert len(first) == 4
    assert len({order.body for order in first}) == 4


def test_all_users_of_a_host_take_from_one_order_and_other_hosts_get_the_same() -> None:
    one, other = script(nonce="a"), script(nonce="b")
    alone, two = other.caller(0), [one.caller(0), one.caller(1)]
    shared = [two[at % 2].next().body for at in range(300)]
    assert shared == [alone.next().body for _ in range(300)]


def test_another_seed_is_another_order() -> None:
    one, other = (
        [(o.prompt, o.stream) for o in taken(script(canary_share=0, seed=seed), 40)]
        for seed in (0, 1)
    )
    assert one != other


def test_what_the_user_says_goes_before_the_profile() -> None:
    orders = taken(script(stream_share=1.0, max_tokens=9), 9)
    assert all(order.stream and order.max_tokens == 9 for order in orders)


def test_a_silent_profile_is_streamed_by_half_and_limited_to_256() -> None:
    orders = taken(script(profile(), canary_share=0), 100)
    assert Counter(order.stream for order in orders) == {True: 50, False: 50}
    assert {order.max_tokens for order in orders} == {256}


def test_a_prompt_may_ask_for_less_but_not_for_more() -> None:
    mine = profile(prompt("short", max_tokens=5), prompt("long", max_tokens=900), max_tokens=64)
    orders = taken(script(mine, canary_share=0), 50)
    assert {(order.prompt, order.max_tokens) for order in orders} == {("short", 5), ("long", 64)}
    assert all(orjson.loads(order.body)["max_tokens"] == order.max_tokens for order in orders)


def test_prompts_come_by_their_weight_and_every_prompt_of_a_long_profile_comes() -> None:
    mine = profile(prompt("rare"), prompt("often", weight=3))
    orders = taken(script(mine, canary_share=0), 400)
    assert Counter(order.prompt for order in orders) == {"rare": 100, "often": 300}
    many = profile(*(prompt(f"p{number}") for number in range(5000)))
    orders = taken(script(many, canary_share=0), 5000)
    assert len({order.prompt for order in orders}) == 5000


def test_bodies_beyond_the_bound_are_made_anew_and_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = taken(script(canary_share=0), 200)
    monkeypatch.setattr("toolkit.blast.script.MOST_KEPT_BYTES", 0)
    one = script(canary_share=0)
    orders = taken(one, 200)
    assert orders == expected
    assert not one._kept


# canaries


def test_of_one_per_cent_every_two_hundredth_request_is_unique_after_two_early_ones() -> None:
    # half of 1 % is 1 of 200: the third one completes the third stretch of 200, at place 599
    places = [unique_at(number, Fraction(1, 100)) for number in range(5)]
    assert places == [1, 4, 599, 799, 999]


def test_without_a_share_there_is_none() -> None:
    assert unique_at(0, Fraction(0)) is None


@pytest.mark.parametrize(
    "share", [Fraction(1, 1000), Fraction(1, 100), Fraction(3, 100), Fraction(1, 2), Fraction(1)]
)
def test_places_rise_and_never_pass_half_of_the_share_but_for_the_first_two(
    share: Fraction,
) -> None:
    places = [unique_at(number, share) or 0 for number in range(200)]
    assert places == sorted(set(places))
    for number, place in enumerate(places):
        assert number + 1 <= max(2, share / 2 * (place + 1))


def test_one_per_cent_are_canaries_half_unique_half_their_exact_twins() -> None:
    orders = taken(script(), 100_001)  # the last one is the twin of the one before
    assert Counter(order.kind for order in orders) == {"ranked": 99_001, "unique": 500, "twin": 500}
    unique = {order.slot: order for order in orders if order.kind == "unique"}
    for order in orders:
        if order.kind == "twin":
            original = unique.pop(order.pair)
            assert (order.body, order.stream) == (original.body, original.stream)
            assert (order.prompt, order.max_tokens) == (original.prompt, original.max_tokens)
            assert (order.repeats, original.repeats) == (True, False)
    assert not unique


def test_two_pairs_come_within_the_first_ten_requests() -> None:
    kinds = [order.kind for order in taken(script(), 10)]
    assert Counter(kinds) == {"ranked": 6, "unique": 2, "twin": 2}
    assert kinds[0] == "ranked"


def test_a_canary_is_a_profiles_prompt_with_a_mark_in_front() -> None:
    marks = set()
    for nonce in ("run-1 alice w0", "run-1 bob w0", "run-1 alice w1", "run-2 alice w0"):
        orders = taken(script(nonce=nonce, canary_share=0.5), 2000)
        unique = [order for order in orders if order.kind == "unique"]
        assert Counter(order.prompt for order in unique) == {"robot": 250, "singapore": 250}
        assert Counter(order.stream for order in unique) == {True: 250, False: 250}
        for order in unique:
            word, _, rest = text(order).partition(" ")
            assert MARK.fullmatch(word)
            assert rest == TEXTS[order.prompt]
            marks.add(word)
    assert len(marks) == 4 * 500


def test_a_twin_comes_next_once_its_unique_request_was_answered_and_never_without() -> None:
    one = script()
    caller = one.caller(0)
    assert one.canary() is None
    caller.next()
    unique = one.canary()
    assert unique is not None
    assert unique.kind == "unique"
    assert one.canary() is None
    assert caller.next().kind == "ranked"
    one.answered(unique)
    twin = one.canary()
    assert twin is not None
    assert (twin.kind, twin.pair, twin.body) == ("twin", unique.slot, unique.body)
    one.answered(twin)
    second = (
        one.canary()
    )  # four requests were sent, and the second pair is due: a twin has none of its own
    assert second is not None
    assert (second.kind, second.body != unique.body) == ("unique", True)
    assert {order.kind for order in taken(script(), 3000, None)} == {"ranked", "unique"}


def test_users_send_ranked_requests_only_and_all_of_them_whatever_canaries_do() -> None:
    one, other = script(canary_share=0.3), script(canary_share=0)
    orders = [order for order in taken(one, 300) if order.kind == "ranked"]
    assert orders == taken(other, len(orders))


def test_slots_and_templates_of_canaries_are_equal_at_all_hosts_and_unlike_for_workers() -> None:
    def canaries(nonce: str, fate: str | None, **more: Any) -> dict[int | None, tuple[str, bool]]:
        orders = taken(script(nonce=nonce, **more), 3000, fate)
        return {o.slot: (o.prompt, o.stream) for o in orders if o.kind == "unique"}

    good, bad = canaries("a", "ok"), canaries("b", None)
    assert good == bad
    assert len(good) == 15
    assert not good.keys() & canaries("a", "ok", seed=1, first_slot=10**9).keys()


def test_no_canaries_are_sent_where_none_are_wanted() -> None:
    assert {order.kind for order in taken(script(canary_share=0), 500)} == {"ranked"}


@pytest.mark.parametrize("share", [-0.1, 1.1, float("nan")])
def test_a_share_that_cannot_be_is_refused(share: float) -> None:
    for key in ("canary_share", "stream_share"):
        with pytest.raises(ToolkitError, match="no blast can have a share of") as caught:
            script(**{key: share})
        assert caught.value.hint


@given(
    share=st.sampled_from([0.0, 0.001, 0.01, 0.05, 0.3, 1.0]),
    users=st.integers(1, 9),
    count=st.integers(0, 700),
    seed=st.integers(0, 10**6),
)
def test_canaries_never_pass_their_share_but_for_the_first_two_pairs(
    share: float, users: int, count: int, seed: int
) -> None:
    draw, one = random.Random(seed), script(canary_share=share, seed=seed)
    callers = [one.caller(number) for number in range(users)]
    under_way: Order | None = None
    canaries = sent = 0
    while sent < count:
        callers[draw.randrange(users)].next()
        sent += 1
        if under_way is not None and draw.random() < 0.5:
            if draw.random() < 0.5:
                one.answered(under_way)
            under_way = None
        if under_way is None and (under_way := one.canary()) is not None:
            canaries, sent = canaries + 1, sent + 1
        assert canaries <= max(4 if share else 0, share * sent)


def test_after_the_first_few_one_pair_in_five_seconds_is_stored_whole() -> None:
    keeping = CanarySampling(5.0)
    # the first four however soon, the fourth at 100.3; then one 4.6 s later is too soon, and one 5 s later is not
    moments = (100.0, 100.1, 100.2, 100.3, 100.4, 104.9, 105.3)
    began = [keeping.begins(2 * number, at) for number, at in enumerate(moments)]
    assert began == [True, True, True, True, False, False, True]
    assert [keeping.completes(2 * number) for number in range(len(moments))] == began


def test_a_twin_that_ends_after_later_pairs_began_is_stored_with_its_unique() -> None:
    keeping = CanarySampling(5.0)
    # a host that takes 20 s: the twin of slot 0 is on its way while three more uniques end
    began = [keeping.begins(slot, at) for slot, at in ((0, 20.0), (2, 26.0), (4, 32.0), (6, 38.0))]
    assert began == [True, True, True, True]
    assert keeping.completes(0)
    assert not keeping.completes(0), "a twin is stored once"


# what a profile may say for a blast


def test_a_unique_share_makes_ranked_requests_like_no_other() -> None:
    mine = replace(contest(), unique_share=0.25)
    orders = taken(script(mine, canary_share=0.1), 4000)
    unique = [order for order in ranked(orders) if MARK.match(text(order))]
    assert len(unique) / len(ranked(orders)) == pytest.approx(0.25, abs=0.001)
    assert not any(order.repeats for order in unique)
    marks = [
        text(order)[:11] for order in orders if order.kind != "twin" and MARK.match(text(order))
    ]
    assert len(marks) == len(set(marks)) > 1000
    streamed = sum(order.stream for order in unique)
    assert streamed / len(unique) == pytest.approx(0.5, abs=0.1)


def test_behind_a_shared_prefix_marks_stand_at_the_end() -> None:
    system = {"role": "system", "content": "A long manual."}
    shared = Prompt(name="a", messages=(system, {"role": "user", "content": "Why?"}))
    mine = profile(shared, shared_prefix="manual", unique_share=1.0)
    for order in taken(script(mine, canary_share=0.5), 20):
        messages = orjson.loads(order.body)["messages"]
        assert messages[0] == system
        assert re.fullmatch("Why\\? " + MARK.pattern, messages[1]["content"])


def test_a_chain_is_its_users_business_and_others_go_on() -> None:
    mine = profile(prompt("plan", then=("Check {answer}.", "Print {answer}."), max_tokens=7))
    one = script(mine, canary_share=0, stream_share=0.0)
    caller, other = one.caller(0), one.caller(1)
    told = []
    for answer in ("one", "two", "three", "four"):
        told.append(order := caller.next())
        assert other.next().prompt == "plan"
        caller.done(order, answer)
    assert [(order.prompt, text(order)) for order in told] == [
        ("plan", "Say plan."),
        ("plan/2", "Check one."),
        ("plan/3", "Print two."),
        ("plan", "Say plan."),
    ]
    assert all((o.kind, o.stream, o.max_tokens) == ("ranked", False, 7) for o in told)
    assert [order.repeats for order in told] == [False, False, False, True]


def test_a_failed_step_ends_the_chain() -> None:
    caller = script(profile(prompt("plan", then=("Check {answer}.",))), canary_share=0).caller(0)
    for _ in range(2):
        first = caller.next()
        assert first.prompt == "plan"
        caller.done(first, None)
    caller.done(caller.next(), "x")
    step = caller.next()
    assert step.prompt == "plan/2"
    caller.done(step, None)
    assert caller.next().prompt == "plan"
    # an order that nobody reported on has failed, too
    caller.done(caller.next(), "x")
    assert caller.next().prompt == "plan/2"
    assert caller.next().prompt == "plan"


@pytest.mark.parametrize(
    ("template", "answer", "expected"),
    [
        ("<{answer}>", "", "<>"),
        (
            "Fix {answer}, {answer}; {other} {}",
            "A {answer} b",
            "Fix A {answer} b, A {answer} b; {other} {}",
        ),
        ("<{answer}>", "x" * 5000, "<" + "x" * 2000 + ">"),
        ("{answer}!", "a\ud83d", "a?!"),
    ],
)
def test_a_step_holds_the_answer_before_it_and_the_firsts_system_message(
    template: str, answer: str, expected: str
) -> None:
    system = {"role": "system", "content": "Be brief."}
    earlier = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"})
    mine = profile(Prompt(name="plan", messages=(system, *earlier), then=(template,)))
    caller = script(mine, canary_share=0).caller(0)
    caller.done(caller.next(), answer)
    assert orjson.loads(caller.next().body)["messages"] == [
        system,
        {"role": "user", "content": expected},
    ]


def test_canaries_come_beside_a_chain_and_begin_none() -> None:
    mine = profile(prompt("plan", then=("Check {answer}.",)))
    orders = taken(script(mine, canary_share=0.2), 405)
    kinds = Counter(order.kind for order in orders)
    # a tenth of all requests, steps included; the next one is due at the 410th
    assert kinds["unique"] == kinds["twin"] == 40
    steps = [order.prompt for order in orders if order.kind == "ranked"]
    assert steps == ["plan", "plan/2"] * 162 + ["plan"]


def test_users_think_between_requests_but_not_within_a_chain() -> None:
    mine = profile(prompt("plan", then=("Check {answer}.",)), think_time_s=(1.0, 3.0))
    one = script(mine, canary_share=0)
    caller = one.caller(0)
    pauses = []
    for order in (caller.next() for _ in range(400)):
        caller.done(order, "x")
        pauses.append((order.prompt, caller.pause_s()))
    assert {pause for name, pause in pauses if name == "plan"} == {0.0}
    thought = [pause for name, pause in pauses if name == "plan/2"]
    assert len(set(thought)) == len(thought) == 200
    assert all(1.0 <= pause <= 3.0 for pause in thought)
    assert sum(thought) / 200 == pytest.approx(2.0, abs=0.2)  # sd of the mean 0.58/sqrt(200) = 0.04
    assert one.caller(1).pause_s() != one.caller(2).pause_s()


def test_without_a_think_time_nobody_waits() -> None:
    assert script().caller(0).pause_s() == 0.0

"""What each user sends next: the mix, the canaries, the chains."""

import random
import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from importlib import resources
from typing import Any

import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.bench.random_prompts import Words
from toolkit.blast.script import CanarySampling, HostScript, Order
from toolkit.errors import ToolkitError
from toolkit.profiles import Profile, Prompt, read_profile

MARK = re.compile(r"\[[0-9a-z]{4}-[0-9a-z]{4}\]")
TEXTS = {
    "robot": "Write a 50-word story about a robot exploring a garden.",
    "singapore": "What is the capital of Singapore?",
}
FILE = resources.files("toolkit").joinpath("catalog", "profiles", "contest.toml")
CONTEST = read_profile(FILE.read_text(encoding="utf-8"), "contest", "toml")


def profile(*prompts: Prompt, **more: Any) -> Profile:
    return Profile(name="mine", prompts=prompts or (prompt("a"),), **more)


def prompt(name: str, **more: Any) -> Prompt:
    return Prompt(name=name, messages=({"role": "user", "content": f"Say {name}."},), **more)


def script(of: Profile | None = None, **more: Any) -> HostScript:
    return HostScript(of or CONTEST, **{"model": "m", "nonce": "run host worker", **more})


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


def of_kind(orders: Sequence[Order], kind: str) -> list[Order]:
    return [order for order in orders if order.kind == kind]


# --- the profile's requests ---------------------------------------------------------------------------


def test_random_prompts_are_as_long_as_wanted_and_no_two_are_equal() -> None:
    words = Words(words=("a", "b", "c", "d"), around=10, is_exact=True)
    lengths = {"input_len": "30:40", "output_len": "5:9", "words": words}
    orders = taken(script(canary_share=0.1, **lengths), 200)
    ranked, uniques = of_kind(orders, "ranked"), of_kind(orders, "unique")
    # 10 tokens stand around a prompt, its first word among them
    for order in (*ranked, *uniques):
        body = orjson.loads(order.body)
        assert 21 <= len(text(order).split(" ")) <= 31
        assert (body["max_tokens"], body["ignore_eos"]) == (order.max_tokens, True)
        assert 5 <= order.max_tokens <= 9
    assert len({text(order) for order in (*ranked, *uniques)}) == len(ranked) + len(uniques)
    assert len({order.max_tokens for order in ranked}) == 5
    assert not any(order.repeats for order in ranked)
    bodies = {order.slot: order.body for order in uniques}
    assert all(bodies[order.pair] == order.body for order in of_kind(orders, "twin"))
    # another host gets other texts of the same lengths
    other = taken(script(canary_share=0.1, nonce="another", **lengths), 200)
    assert [len(text(order).split(" ")) for order in other] == [
        len(text(order).split(" ")) for order in orders
    ]
    assert text(other[0]) != text(orders[0])


def test_a_recorded_body_is_sent_whole_and_streams_as_it_did() -> None:
    tools = [{"type": "function", "function": {"name": "f"}}]
    recorded = profile(prompt("a", stream=True, more={"tools": tools}), prompt("b", stream=False))
    streams = {order.prompt: order.stream for order in taken(script(recorded, canary_share=0), 8)}
    assert streams == {"a": True, "b": False}
    bodies = {
        order.prompt: orjson.loads(order.body)
        for order in taken(script(recorded, canary_share=0, stream_share=0.0), 8)
    }
    assert (bodies["a"]["tools"], bodies["a"]["stream"]) == (tools, False)
    assert "tools" not in bodies["b"]


@pytest.mark.parametrize(
    ("endpoint", "expected"),
    [
        ("/v1/completions", {"prompt": "Say a.", "max_tokens": 256, "stream": False}),
        ("/v1/embeddings", {"input": "Say a."}),
    ],
)
def test_completions_and_embeddings_have_bodies_of_their_own(
    endpoint: str, expected: dict[str, Any]
) -> None:
    (order,) = taken(script(profile(), canary_share=0, stream_share=0.0, endpoint=endpoint), 1)
    assert orjson.loads(order.body) == {"model": "m", **expected}


def test_the_contest_is_two_prompts_half_of_them_streamed_with_its_limit() -> None:
    orders = taken(script(canary_share=0), 4096)
    of_each = Counter((order.prompt, order.stream) for order in orders)
    assert of_each.keys() == {(name, stream) for name in TEXTS for stream in (True, False)}
    assert Counter(order.prompt for order in orders) == {"robot": 2048, "singapore": 2048}
    assert Counter(order.stream for order in orders) == {True: 2048, False: 2048}
    for order in orders[:50]:
        messages = [{"role": "user", "content": TEXTS[order.prompt]}]
        expected = {"model": "m", "messages": messages, "max_tokens": 256, "stream": order.stream}
        if order.stream:
            expected["stream_options"] = {"include_usage": True}
        assert orjson.loads(order.body) == expected
        assert (order.max_tokens, order.slot, order.pair) == (256, None, None)
    # a request repeats from its second time on
    first = [order for order in orders if not order.repeats]
    assert len(first) == len({order.body for order in first}) == 4


def test_all_users_of_a_host_take_from_one_order_and_other_hosts_get_the_same() -> None:
    one, other = script(nonce="a"), script(nonce="b")
    alone, two = other.caller(0), [one.caller(0), one.caller(1)]
    shared = [two[at % 2].next().body for at in range(300)]
    assert shared == [alone.next().body for _ in range(300)]
    another = script(seed=1).caller(0)
    assert shared != [another.next().body for _ in range(300)]


@pytest.mark.parametrize(
    ("of", "more", "streamed", "limits"),
    [
        (CONTEST, {"stream_share": 1.0, "max_tokens": 9}, 100, {9}),
        # a silent profile is streamed by half and limited to 256
        (profile(), {}, 50, {256}),
        # a prompt may ask for less but not for more
        (profile(prompt("a", max_tokens=5), prompt("b", max_tokens=900), max_tokens=64), {}, 50, {5, 64}),
    ],
)  # fmt: skip
def test_what_the_user_says_goes_before_the_profile_and_that_before_the_defaults(
    of: Profile, more: dict[str, Any], streamed: int, limits: set[int]
) -> None:
    orders = taken(script(of, canary_share=0, **more), 100)
    assert sum(order.stream for order in orders) == streamed
    assert {order.max_tokens for order in orders} == limits
    assert all(orjson.loads(order.body)["max_tokens"] == order.max_tokens for order in orders)


def test_prompts_come_by_their_weight_and_every_prompt_of_a_long_profile_comes() -> None:
    orders = taken(script(profile(prompt("rare"), prompt("often", weight=3)), canary_share=0), 400)
    assert Counter(order.prompt for order in orders) == {"rare": 100, "often": 300}
    many = profile(*(prompt(f"p{number}") for number in range(5000)))
    assert len({order.prompt for order in taken(script(many, canary_share=0), 5000)}) == 5000


def test_bodies_beyond_the_bound_are_made_anew_and_are_the_same(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    expected = taken(script(canary_share=0), 200)
    monkeypatch.setattr("toolkit.blast.script.MOST_KEPT_BYTES", 0)
    assert taken(script(canary_share=0), 200) == expected


def test_a_unique_share_makes_ranked_requests_like_no_other() -> None:
    orders = taken(script(replace(CONTEST, unique_share=0.25), canary_share=0.1), 4000)
    unique = [order for order in of_kind(orders, "ranked") if MARK.match(text(order))]
    share = len(unique) / len(of_kind(orders, "ranked"))
    assert share == pytest.approx(0.25, abs=0.001)
    assert not any(order.repeats for order in unique)
    marked = [o for o in orders if o.kind != "twin" and MARK.match(text(o))]
    assert len(marked) == len({text(order)[:11] for order in marked}) > 1000


def test_behind_a_shared_prefix_marks_stand_at_the_end() -> None:
    system = {"role": "system", "content": "A long manual."}
    shared = Prompt(name="a", messages=(system, {"role": "user", "content": "Why?"}))
    mine = profile(shared, shared_prefix="manual", unique_share=1.0)
    for order in taken(script(mine, canary_share=0.5), 20):
        messages = orjson.loads(order.body)["messages"]
        assert messages[0] == system
        assert re.fullmatch("Why\\? " + MARK.pattern, messages[1]["content"])


# --- canaries -----------------------------------------------------------------------------------------


def test_one_per_cent_are_canaries_half_unique_half_their_exact_twins() -> None:
    orders = taken(script(), 100_001)  # the last one is the twin of the one before
    assert Counter(order.kind for order in orders) == {"ranked": 99_001, "unique": 500, "twin": 500}
    # two pairs come within the first ten requests, behind a ranked one
    assert Counter(order.kind for order in orders[:10]) == {"ranked": 6, "unique": 2, "twin": 2}
    assert orders[0].kind == "ranked"
    unique = {order.slot: order for order in of_kind(orders, "unique")}
    for order in of_kind(orders, "twin"):
        original = unique.pop(order.pair)
        alike = ("body", "stream", "prompt", "max_tokens")
        assert [getattr(order, f) for f in alike] == [getattr(original, f) for f in alike]
        assert (order.repeats, original.repeats) == (True, False)
        assert order.slot == (original.slot or 0) + 1
    assert not unique


def test_a_canary_is_a_profiles_prompt_with_a_mark_in_front() -> None:
    marks = set()
    for nonce in ("run-1 alice w0", "run-1 bob w0", "run-1 alice w1", "run-2 alice w0"):
        unique = of_kind(taken(script(nonce=nonce, canary_share=0.5), 2000), "unique")
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
    assert one.canary() is None
    assert caller.next().kind == "ranked"
    one.answered(unique)
    twin = one.canary()
    assert twin is not None
    assert (twin.kind, twin.pair, twin.body) == ("twin", unique.slot, unique.body)
    one.answered(twin)
    # four requests were sent, and the second pair is due: a twin has none of its own
    second = one.canary()
    assert second is not None
    assert (second.kind, second.body != unique.body) == ("unique", True)
    assert {order.kind for order in taken(script(), 3000, None)} == {"ranked", "unique"}


def test_canaries_change_nothing_of_the_ranked_requests_and_none_are_sent_where_none_are_wanted() -> (
    None
):
    orders = of_kind(taken(script(canary_share=0.3), 300), "ranked")
    assert orders == taken(script(canary_share=0), len(orders))


def test_slots_and_templates_of_canaries_are_equal_at_all_hosts_and_unlike_for_workers() -> None:
    def canaries(nonce: str, answer: str | None, **more: Any) -> dict[int | None, tuple[str, bool]]:
        orders = taken(script(nonce=nonce, **more), 3000, answer)
        return {o.slot: (o.prompt, o.stream) for o in of_kind(orders, "unique")}

    good, bad = canaries("a", "ok"), canaries("b", None)
    assert good == bad
    assert len(good) == 15
    assert not good.keys() & canaries("a", "ok", seed=1, first_slot=10**9).keys()


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


@pytest.mark.parametrize(
    ("moments_s", "kept"),
    [
        # the first four however soon, the fourth at 100.3; then one 4.6 s later is too soon, and one 5 s later is not
        ((100.0, 100.1, 100.2, 100.3, 100.4, 104.9, 105.3), (1, 1, 1, 1, 0, 0, 1)),
        # a host that takes 20 s: the twin of the first is on its way while three more uniques end
        ((20.0, 26.0, 32.0, 38.0), (1, 1, 1, 1)),
    ],
)
def test_after_the_first_few_one_pair_in_five_seconds_is_stored_whole(
    moments_s: tuple[float, ...], kept: tuple[int, ...]
) -> None:
    keeping = CanarySampling(5.0)
    slots = range(0, 2 * len(moments_s), 2)
    assert [keeping.begins(s, at) for s, at in zip(slots, moments_s, strict=True)] == list(kept)
    assert [keeping.completes(slot) for slot in slots] == list(kept)
    assert not any(keeping.completes(slot) for slot in slots), "a twin is stored once"


# --- chains and thinking ------------------------------------------------------------------------------


def test_a_chain_is_its_users_business_and_others_go_on() -> None:
    mine = profile(prompt("plan", then=("Check {answer}.", "Print {answer}."), max_tokens=7))
    one = script(mine, canary_share=0, stream_share=0.0)
    caller, other = one.caller(0), one.caller(1)
    orders = []
    for answer in ("one", "two", "three", "four"):
        orders.append(order := caller.next())
        assert other.next().prompt == "plan"
        caller.done(order, answer)
    assert [(order.prompt, text(order)) for order in orders] == [
        ("plan", "Say plan."),
        ("plan/2", "Check one."),
        ("plan/3", "Print two."),
        ("plan", "Say plan."),
    ]
    assert all((o.kind, o.stream, o.max_tokens) == ("ranked", False, 7) for o in orders)
    assert [order.repeats for order in orders] == [False, False, False, True]


def test_a_failed_step_ends_the_chain() -> None:
    mine = profile(prompt("plan", then=("Check {answer}.",)))
    caller, prompts = script(mine, canary_share=0).caller(0), []
    # an order that nobody reported on has failed, too
    for answer in (None, "x", None, "x", "unreported", "x"):
        order = caller.next()
        prompts.append(order.prompt)
        if answer != "unreported":
            caller.done(order, answer)
    assert prompts == ["plan", "plan", "plan/2", "plan", "plan/2", "plan"]


@pytest.mark.parametrize(
    ("template", "answer", "expected"),
    [
        ("<{answer}>", "", "<>"),
        ("Fix {answer}, {answer}; {} {x}", "A {answer} b", "Fix A {answer} b, A {answer} b; {} {x}"),
        ("<{answer}>", "x" * 5000, "<" + "x" * 2000 + ">"),
        ("{answer}!", "a\ud83d", "a?!"),
    ],
)  # fmt: skip
def test_a_step_holds_the_answer_before_it_and_the_firsts_system_message(
    template: str, answer: str, expected: str
) -> None:
    system = {"role": "system", "content": "Be brief."}
    earlier = ({"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"})
    mine = profile(Prompt(name="plan", messages=(system, *earlier), then=(template,)))
    caller = script(mine, canary_share=0).caller(0)
    caller.done(caller.next(), answer)
    sent = orjson.loads(caller.next().body)["messages"]
    assert sent == [system, {"role": "user", "content": expected}]


def test_canaries_come_beside_a_chain_and_begin_none() -> None:
    mine = profile(prompt("plan", then=("Check {answer}.",)))
    orders = taken(script(mine, canary_share=0.2), 405)
    # a tenth of all requests, steps included; the next one is due at the 410th
    assert len(of_kind(orders, "unique")) == len(of_kind(orders, "twin")) == 40
    steps = [order.prompt for order in of_kind(orders, "ranked")]
    assert steps == ["plan", "plan/2"] * 162 + ["plan"]


def test_users_think_between_requests_but_not_within_a_chain() -> None:
    mine = profile(prompt("plan", then=("Check {answer}.",)), think_time_s=(1.0, 3.0))
    one = script(mine, canary_share=0)
    caller = one.caller(0)
    pauses: dict[str, list[float]] = {"plan": [], "plan/2": []}
    for order in (caller.next() for _ in range(400)):
        caller.done(order, "x")
        pauses[order.prompt].append(caller.pause_s())
    assert set(pauses["plan"]) == {0.0}
    thought = pauses["plan/2"]
    assert len(set(thought)) == len(thought) == 200
    assert all(1.0 <= pause <= 3.0 for pause in thought)
    assert sum(thought) / 200 == pytest.approx(2.0, abs=0.2)  # sd of the mean 0.58/sqrt(200) = 0.04
    assert one.caller(1).pause_s() != one.caller(2).pause_s()
    assert script().caller(0).pause_s() == 0.0

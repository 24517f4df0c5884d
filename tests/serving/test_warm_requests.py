"""What a warm-up asks: requests that no cache knows, and the clients' own at the end."""

import orjson
import pytest

from toolkit.blast.script import HostScript
from toolkit.cli.catalog import profile_from
from toolkit.profiles import Profile, Prompt
from toolkit.protocol.request_key import Canonical, canonical
from toolkit.serving.warm_requests import LONG_SHARES, PLAIN, WarmRequests


def asker(which: Profile | None = None, **changes: object) -> WarmRequests:
    settings: dict = {"model": "m", "nonce": "n", "max_tokens": 32} | changes
    return WarmRequests(which, **settings)


def prompt_chars(ask) -> int:
    return sum(len(message["content"]) for message in ask.body["messages"])


def text_of(ask) -> str:
    return ask.body["messages"][0]["content"]


def user(text: str, **more: object) -> Prompt:
    return Prompt(name=text, messages=({"role": "user", "content": text},), **more)


TWO = Profile(name="two", prompts=(user("rare", weight=1), user("often", weight=3)), max_tokens=256)


def test_streams_and_whole_answers_come_in_turns_a_stream_first() -> None:
    assert [ask.stream for ask in asker().plain(5)] == [True, False, True, False, True]
    assert [ask.body["stream"] for ask in asker().plain(2)] == [True, False]


def test_only_streams_or_none_where_somebody_said_so() -> None:
    assert {ask.stream for ask in asker(stream=True).plain(4)} == {True}
    assert {ask.stream for ask in asker(stream=False).plain(4)} == {False}
    assert {ask.stream for ask in asker(stream=False).plain(4, streams=True)} == {False}
    assert {ask.stream for ask in asker().plain(4, streams=True)} == {True}


def test_distinct_prompts_are_the_workloads_own_behind_a_mark() -> None:
    texts = {text_of(ask)[12:] for ask in asker(TWO).plain(16)}
    assert texts == {"rare", "often"}
    assert {text_of(ask)[12:] for ask in asker().plain(64)} == {
        prompt.messages[0]["content"] for prompt in PLAIN.prompts
    }


def test_answers_are_short_and_shorter_where_the_prompt_wants_that() -> None:
    limited = Profile(name="p", prompts=(user("x", max_tokens=5),))
    assert {ask.body["max_tokens"] for ask in asker().plain(4)} == {32}
    assert {ask.body["max_tokens"] for ask in asker(limited).plain(4)} == {5}


def test_long_prompts_have_the_shares_of_the_room_that_the_answer_leaves() -> None:
    one = asker()
    # (1,032 - 32) tokens at 3 characters: 750, 1,500 and 2,700 characters
    assert [prompt_chars(ask) for ask in one.long(1032)] == [750, 1500, 2700]
    assert LONG_SHARES == (0.25, 0.5, 0.9)
    # what was answered says how long a token is here: 4 characters, and the last of 3,600 is a blank
    (first,) = one.plain(1)
    one.learn(first, prompt_chars(first) // 4)
    lengths = [prompt_chars(ask) for ask in one.long(1032)]
    assert lengths == pytest.approx([1000, 2000, 3600], rel=0.1)


def test_long_prompts_stay_bounded_and_are_never_shorter_than_their_own_text() -> None:
    # (131,072 - 32) * 0.9 * 3 characters, though ten million tokens would fit
    assert prompt_chars(asker().long(10_000_000)[2]) == int(0.9 * 131_040 * 3)
    assert all(prompt_chars(ask) > 20 for ask in asker().long(40))
    assert prompt_chars(asker().long(None)[2]) == int(0.9 * (4096 - 32) * 3)


def test_long_prompts_are_whole_answers_where_nothing_is_to_stream() -> None:
    assert {ask.body["stream"] for ask in asker(stream=False).long(1032)} == {False}
    assert {ask.stream for ask in asker().long(1032)} == {True}


def test_a_message_of_parts_is_asked_for_like_any_other() -> None:
    parts = Profile(
        name="p",
        prompts=(
            Prompt(
                name="x", messages=({"role": "user", "content": [{"type": "text", "text": "x"}]},)
            ),
        ),
    )
    one = asker(parts)
    assert len(one.plain(3)) == 3
    assert all(isinstance(text_of(ask), str) for ask in one.long(1000))
    one.learn(one.plain(1)[0], 5)  # parts have no length in characters


def test_seeds_are_exactly_what_a_blast_of_the_profile_sends_most_frequent_first() -> None:
    seeds = asker(TWO).seeds()
    assert [(text_of(ask), ask.stream) for ask in seeds] == [
        ("often", False),
        ("often", True),
        ("rare", False),
        ("rare", True),
    ]
    assert seeds[0].body == {
        "model": "m",
        "messages": [{"role": "user", "content": "often"}],
        "max_tokens": 256,
        "stream": False,
    }
    assert seeds[1].body["stream_options"] == {"include_usage": True}


def test_a_seed_has_the_key_of_a_blasts_request() -> None:
    told = profile_from("contest")
    user = HostScript(told, model="m", nonce="x", seed=0).caller(0)
    blasted = {key_of(user.next().body) for _ in range(64)}
    seeded = {key_of(orjson.dumps(ask.body)) for ask in asker(told).seeds()}
    assert len(seeded) == 2, "the contest had two prompts, and the views of an answer are one"
    assert seeded <= blasted


def key_of(body: bytes) -> bytes:
    found = canonical(body)
    assert isinstance(found, Canonical)
    return found.form


def test_a_seed_s_limit_is_the_prompt_s_own_where_that_is_lower_and_256_where_nobody_says() -> None:
    prompts = (user("a", max_tokens=5, weight=3), user("b", max_tokens=999, weight=2), user("c"))
    one = asker(Profile(name="p", prompts=prompts), stream=False)
    assert [ask.body["max_tokens"] for ask in one.seeds()] == [5, 256, 256]
    assert [ask.max_tokens for ask in one.seeds()] == [5, 256, 256]


def test_exact_bodies_go_before_the_profile_and_are_sent_as_they_are() -> None:
    body = {"model": "theirs", "messages": [], "temperature": 0.5, "max_completion_tokens": 9}
    (ask,) = asker(TWO).seeds([body])
    assert (ask.body, ask.stream, ask.max_tokens) == (body, False, 9)
    (ask,) = asker().seeds([{"messages": [], "stream": True}])
    assert (ask.body["model"], ask.stream) == ("m", True)


def test_of_a_long_profile_the_256_most_frequent_are_seeded() -> None:
    many = Profile(name="many", prompts=tuple(user(f"p{n}", weight=1 + n) for n in range(300)))
    seeds = asker(many, stream=False).seeds()
    assert [text_of(ask) for ask in (seeds[0], seeds[-1])] == ["p299", "p44"]
    assert len(seeds) == 256

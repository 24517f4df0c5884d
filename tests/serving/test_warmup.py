"""Warming up: which levels there are, whether two rounds agree, and what is asked: the workload's own prompts, seeds and what clients sent before."""

import json
from typing import Any

import orjson
import pytest
from support.shots import shot

from toolkit.blast.script import HostScript
from toolkit.cli.catalog import profile_from
from toolkit.profiles import Profile, Prompt
from toolkit.protocol.request import asked
from toolkit.protocol.request_key import Canonical, canonical
from toolkit.records import Asked
from toolkit.serving.seen_requests import CHAT, workload
from toolkit.serving.warm_requests import LONG_SHARES, PLAIN, WarmRequests
from toolkit.serving.warmup import (
    Round,
    agree,
    doubling,
    levels_of,
    round_of,
)


def a_round(**changes: Any) -> Round:
    plain: dict[str, Any] = {
        "phase": "cold",
        "kind": "plain",
        "concurrency": 1,
        "requests": 1,
        "ok": 1,
        "took_s": 1.0,
    }
    return Round(**(plain | changes))


# --- which loads ------------------------------------------------------------------------------------------


def test_levels_double_up_to_the_last_one() -> None:
    assert doubling(64) == (1, 2, 4, 8, 16, 32, 64)
    assert doubling(48) == (1, 2, 4, 8, 16, 32, 48)
    assert doubling(1) == (1,)
    assert doubling(2) == (1, 2)


@pytest.mark.parametrize(
    ("most", "expected"),
    [
        (None, (1, 2, 64)),
        (64, (1, 2, 64)),
        (100, (1, 2, 64)),
        (16, (1, 2, 16)),
        (2, (1, 2)),
        (1, (1,)),
    ],
)
def test_no_level_is_above_what_the_engine_runs_at_once(
    most: int | None, expected: tuple[int, ...]
) -> None:
    assert levels_of((2, 64, 1, 2), most) == expected


# --- one round --------------------------------------------------------------------------------------------


def test_a_round_sums_up_its_requests() -> None:
    shots = [
        shot(stream=True, ttft_ms=30.0, e2e_ms=300.0),
        shot(stream=True, ttft_ms=10.0, e2e_ms=100.0),
        shot(stream=False, ttft_ms=None, e2e_ms=250.0),
        shot(ok=False, error_kind="http_500", error="it said 500", ttft_ms=None, e2e_ms=None),
        shot(ok=False, error_kind="timeout", error="late", ttft_ms=None, e2e_ms=None),
        shot(ok=False, error_kind="http_500", error="again", ttft_ms=None, e2e_ms=None),
    ]
    told = round_of(shots, "cold", "plain", 6, 2.0)
    assert (told.requests, told.ok, told.took_s) == (6, 3, 2.0)
    assert told.ttft_ms == 30.0, "of two the higher: the cold one"
    assert told.e2e_ms == 250.0, "of whole answers alone"
    assert told.error_kinds == {"http_500": 2, "timeout": 1}
    assert told.error == "it said 500"


# --- agreement ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (100.0, 119.0, True),  # 19 <= 0.2 * 100
        (119.0, 100.0, True),  # whichever came first
        (100.0, 121.0, False),
        (121.0, 100.0, False),
        (1.0, 5.9, True),  # below 5 ms apart: a client's own noise
        (1.0, 6.1, False),
        (89_000.0, 219.0, False),
    ],
)
def test_two_rounds_agree_within_a_fifth_of_the_lower(
    before: float, after: float, *, expected: bool
) -> None:
    one, other = a_round(ttft_ms=before), a_round(ttft_ms=after)
    assert agree(one, other, 0.2) is expected


# --- cold against warm ----------------------------------------------------------------------------------------


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


def test_distinct_prompts_are_the_workloads_own_behind_a_mark() -> None:
    texts = {text_of(ask)[12:] for ask in asker(TWO).plain(16)}
    assert texts == {"rare", "often"}
    assert {text_of(ask)[12:] for ask in asker().plain(64)} == {
        prompt.messages[0]["content"] for prompt in PLAIN.prompts
    }


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


def test_exact_bodies_go_before_the_profile_and_are_sent_as_they_are() -> None:
    body = {"model": "theirs", "messages": [], "temperature": 0.5, "max_completion_tokens": 9}
    (ask,) = asker(TWO).seeds([body])
    assert (ask.body, ask.stream, ask.max_tokens) == (body, False, 9)
    (ask,) = asker().seeds([{"messages": [], "stream": True}])
    assert (ask.body["model"], ask.stream) == ("m", True)


def seen(**body: Any) -> Asked:
    """As a capture with --store-prompts keeps a chat request."""
    return asked(json.dumps({"model": "m"} | body).encode(), path=CHAT, keep_text=True)


def chat(*texts: str, **more: Any) -> Asked:
    roles = ("user",) if len(texts) == 1 else ("system", "user", "assistant", "user")
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return seen(messages=messages, **more)


def test_a_chat_is_built_anew_with_its_messages_and_sampling() -> None:
    one = chat("Be brief.", "Hi\nthere", max_tokens=9, temperature=0.5, seed=3, stream=True)
    found = workload([one], "w")
    (body,) = found.exact
    assert body["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Hi\nthere"},
    ]
    assert (body["max_tokens"], body["temperature"], body["seed"], body["stream"]) == (
        9,
        0.5,
        3,
        True,
    )
    assert found.left_out == 0
    again = asked(json.dumps(body).encode(), path=CHAT)
    assert again.request_key == one.request_key


def test_prompts_come_by_frequency_and_weigh_as_much() -> None:
    found = workload([chat("rare"), chat("often"), chat("often"), chat("often")], "w")
    assert found.profile is not None
    assert [(p.messages[0]["content"], p.weight) for p in found.profile.prompts] == [
        ("often", 3),
        ("rare", 1),
    ]
    assert [body["messages"][0]["content"] for body in found.exact] == ["often", "rare"]


def test_what_was_not_kept_makes_no_body_but_its_prompt_still_warms() -> None:
    found = workload([chat("Hi", response_format={"type": "json_object"})], "w")
    assert (found.exact, found.left_out) == ((), 1)
    assert found.profile is not None
    assert found.profile.prompts[0].messages == ({"role": "user", "content": "Hi"},)


def test_a_text_that_looks_like_two_messages_is_never_taken_for_them() -> None:
    # one message of the user, whose second line begins as a role does: the key tells
    tricky = chat("What does this mean?\nsystem: obey")
    found = workload([tricky], "w")
    assert found.exact[0]["messages"] == [
        {"role": "user", "content": "What does this mean?\nsystem: obey"}
    ]
    found = workload([chat("a", "b\nuser: c")], "w")
    assert found.exact == ()
    assert found.left_out == 1

"""Requests that were seen are built anew; only one with the very key that was seen counts as the clients' own."""

import json
from typing import Any

from toolkit.protocol.request import asked
from toolkit.records import Asked
from toolkit.serving.seen_requests import CHAT, workload


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


def test_the_newer_name_of_the_limit_is_found() -> None:
    found = workload([chat("Hi", max_completion_tokens=9)], "w")
    assert found.exact[0]["max_completion_tokens"] == 9
    assert "max_tokens" not in found.exact[0]


def test_prompts_come_by_frequency_and_weigh_as_much() -> None:
    found = workload([chat("rare"), chat("often"), chat("often"), chat("often")], "w")
    assert found.profile is not None
    assert [(p.messages[0]["content"], p.weight) for p in found.profile.prompts] == [
        ("often", 3),
        ("rare", 1),
    ]
    assert [body["messages"][0]["content"] for body in found.exact] == ["often", "rare"]


def test_streamed_and_whole_are_one_request() -> None:
    found = workload([chat("Hi", stream=True), chat("Hi", stream=False), chat("Hi")], "w")
    assert len(found.exact) == 1


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


def test_without_texts_there_is_no_profile() -> None:
    bare = asked(b'{"messages": [{"role": "user", "content": "Hi"}]}', path=CHAT)
    assert workload([bare], "w").profile is None
    assert workload([], "w").profile is None
    completion = asked(b'{"prompt": "Hi"}', path="/v1/completions", keep_text=True)
    assert workload([completion], "w").profile is None, "it is no chat"


def test_the_text_counts_though_another_of_the_same_key_came_without_it() -> None:
    bare = asked(b'{"model": "m", "messages": [{"role": "user", "content": "Hi"}]}', path=CHAT)
    assert len(workload([bare, chat("Hi")], "w").exact) == 1

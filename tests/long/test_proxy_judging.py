"""Whether the judge of the long tests sees a wrong answer when there is one."""

import asyncio
from dataclasses import replace
from typing import Any

import pytest
from support.judging import verdict
from support.proxied import Answer, Client
from support.truthful import MODEL, Fields, Truthful, Ways

WAYS: dict[str, Fields] = {
    "whole": {},
    "two choices": {"n": 2},
    "a call": {"tools": [{"type": "function", "function": {"name": "look"}}]},
    "stream": {"stream": True},
    "stream of two": {"stream": True, "n": 2, "stream_options": {"include_usage": True}},
    "stream of a call": {"stream": True, "tools": [{}]},
}


def asked(text: str, more: Fields) -> Fields:
    messages = [{"role": "user", "content": text}]
    return {"model": MODEL, "messages": messages, "max_tokens": 6} | more


def answers(*bodies: Fields) -> list[Answer]:
    async def run() -> list[Answer]:
        async with Truthful(Ways(step_s=0.0)) as server:
            client = Client(*await asyncio.open_connection(*server.url[7:].split(":")))
            found = [await client.ask(body) for body in bodies]
            client.close()
            await client.writer.wait_closed()
            await server.until(lambda: not server.open)
            return found

    return asyncio.run(run())


@pytest.mark.parametrize("more", WAYS.values(), ids=WAYS)
def test_an_answer_is_whole_for_its_own_request_and_wrong_for_any_other(more: Any) -> None:
    one, other = asked("one", more), asked("other", more)
    mine, theirs = answers(one, other)
    assert [verdict(one, mine).kind, verdict(other, theirs).kind] == ["whole", "whole"]
    assert [verdict(one, theirs).kind, verdict(other, mine).kind] == ["wrong", "wrong"]


@pytest.mark.parametrize("more", WAYS.values(), ids=WAYS)
def test_what_is_cut_doubled_changed_or_without_its_end_is_wrong(more: Any) -> None:
    body = asked("one", more)
    (answer,) = answers(body)
    damaged = (
        answer.body[:-20],
        answer.body + answer.body,
        answer.body.replace(b"tiny", b"tony"),
        answer.body.replace(b'"assistant"', b'"user"'),
        answer.body.replace(b'"finish_reason": "', b'"finish_reason": "x'),
        answer.body.replace(b"data: [DONE]\n\n", b"") if "stream" in more else b"{}",
    )
    assert {verdict(body, replace(answer, body=each)).kind for each in damaged} == {"wrong"}
    assert verdict(body, replace(answer, is_whole=False)).kind == "wrong"
    assert verdict(body, replace(answer, status=418)).kind == "wrong"

"""One call's answer in the views of several clients: with the usage or without, whole or as a stream."""

import json

import pytest
from support.replies import DONE, FINISH, JSON, ROLE, SSE, USAGE, Dictated, said

from toolkit.proxy.answers import views
from toolkit.proxy.answers.views import Shown
from toolkit.proxy.calls import delivery
from toolkit.proxy.calls.delivery import fits
from toolkit.proxy.exchange import Kept, View
from toolkit.proxy.faults import Fault

STREAM = View(stream=True)
WITH_USAGE = View(stream=True, usage=True)
WHOLE = View()
CUT = Fault(kind="cut", message="the upstream's connection ended before the answer did")
BODY = {
    "id": "chatcmpl-1",
    "object": "chat.completion",
    "created": 1,
    "model": "tiny",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "Hello there"},
            "finish_reason": "stop",
        }
    ],
    "usage": {"prompt_tokens": 7, "completion_tokens": 2, "total_tokens": 9},
}


def test_the_usage_that_the_proxy_asked_for_reaches_only_who_asked_for_it() -> None:
    dictated = Dictated(STREAM, usage_is_ours=True)
    mine, asks = dictated.client(), dictated.client(WITH_USAGE)
    dictated.begin()
    for part in (ROLE, said("Hello"), FINISH, USAGE, DONE):
        dictated.feed(part)
    late = dictated.client()
    dictated.end()
    later = dictated.client()
    expected = ROLE + said("Hello") + FINISH + DONE
    assert mine.reply.body == late.reply.body == later.reply.body == expected
    assert b"" not in mine.reply.writes
    assert asks.reply.body == ROLE + said("Hello") + FINISH + USAGE + DONE


def test_usage_that_nobody_asked_upstream_for_is_no_reason_to_wait_unless_it_is_wanted() -> None:
    assert fits(STREAM, STREAM, usage_is_ours=False)
    assert fits(WITH_USAGE, STREAM, usage_is_ours=False)
    assert not fits(STREAM, WITH_USAGE, usage_is_ours=False)
    assert fits(STREAM, WITH_USAGE, usage_is_ours=True)
    continuous = View(stream=True, usage=True, continuous_usage=True)
    assert fits(continuous, continuous, usage_is_ours=False)
    assert not fits(continuous, WITH_USAGE, usage_is_ours=False)
    assert not fits(WITH_USAGE, continuous, usage_is_ours=True)
    assert fits(WHOLE, WHOLE, usage_is_ours=False)
    assert not fits(WHOLE, STREAM, usage_is_ours=True)
    assert not fits(STREAM, WHOLE, usage_is_ours=True)


# --- one view of another's call ------------------------------------------------------------------


def test_a_json_client_of_a_stream_gets_the_whole_at_its_end() -> None:
    dictated = Dictated(STREAM, usage_is_ours=True)
    dictated.client()
    client = dictated.client(WHOLE)
    dictated.begin()
    for part in (ROLE, said("Hello", " there"), FINISH, USAGE):
        dictated.feed(part)
    assert client.reply.calls == []
    dictated.feed(DONE)
    dictated.end()
    assert client.reply.calls == ["whole"]
    assert client.reply.header(b"content-type") == JSON.encode()
    whole = json.loads(client.reply.body)
    assert whole["choices"][0]["message"]["content"] == "Hello there"
    assert whole["choices"][0]["finish_reason"] == "stop"
    assert whole["usage"]["completion_tokens"] == 2
    assert client.sent.first_token_s is None
    assert client.again == 0


def test_a_view_is_made_once_for_all_who_want_it(monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[View] = []

    def counted(kept: Kept, view: View) -> Shown | None:
        made.append(view)
        return views.shown(kept, view)

    monkeypatch.setattr(delivery, "shown", counted)
    dictated = Dictated(STREAM, usage_is_ours=True)
    dictated.client()
    waiting = [dictated.client(WHOLE) for _ in range(31)]
    dictated.begin()
    dictated.feed(ROLE + said("Hello") + FINISH + USAGE + DONE)
    dictated.end()
    assert made == [WHOLE]
    assert len({client.reply.body for client in waiting}) == 1
    # the very same bytes: 31 clients who read slowly hold one body
    assert len({id(client.reply.writes[0]) for client in waiting}) == 1


def test_a_streaming_client_of_a_whole_gets_it_as_a_stream_at_its_end() -> None:
    dictated = Dictated(WHOLE)
    client = dictated.client(STREAM)
    dictated.begin(content_type=JSON)
    dictated.feed(json.dumps(BODY).encode())
    assert client.reply.calls == []
    dictated.end()
    assert client.reply.calls == ["whole"]
    assert client.reply.header(b"content-type").startswith(b"text/event-stream")
    events = client.reply.body.split(b"\n\n")
    assert events[-2:] == [b"data: [DONE]", b""]
    chunks = [json.loads(each.removeprefix(b"data: ")) for each in events[:-2]]
    texts = [choice["delta"].get("content") for each in chunks for choice in each["choices"]]
    assert "".join(text or "" for text in texts) == "Hello there"
    assert client.sent.first_token_s == dictated.now


def test_a_server_that_streams_unasked_is_passed_on_to_who_led() -> None:
    dictated = Dictated(WHOLE)
    client = dictated.client()
    dictated.begin(content_type=SSE)
    dictated.feed(ROLE)
    assert client.reply.body == ROLE
    dictated.feed(FINISH + DONE)
    dictated.end()
    assert client.reply.body == ROLE + FINISH + DONE


def test_a_server_that_does_not_stream_is_passed_on_to_who_led() -> None:
    dictated = Dictated(STREAM)
    client = dictated.client()
    dictated.begin(content_type=JSON)
    dictated.feed(b'{"choices": []}')
    dictated.end()
    assert client.reply.body == b'{"choices": []}'
    assert client.reply.header(b"content-type") == JSON.encode()


def test_what_was_not_stored_is_asked_for_again_by_who_can_not_see_it_and_nothing_was_sent() -> (
    None
):
    dictated = Dictated(STREAM)
    dictated.client()
    client = dictated.client(WHOLE)
    dictated.begin()
    for part in (ROLE, said("Hello"), DONE):  # no finish reason
        dictated.feed(part)
    dictated.end()
    assert (client.again, client.ended, client.reply.calls) == (1, [], [])
    client.reply.leave()
    assert client.left == 1


def test_who_can_not_see_an_answer_too_large_to_be_kept_leaves_at_once_and_asks_again() -> None:
    dictated = Dictated(STREAM, max_bytes=len(ROLE) + 10)
    streams = dictated.client()
    waits = dictated.client(WHOLE)
    dictated.begin()
    dictated.feed(ROLE)
    assert waits.again == 0
    dictated.feed(said("Hello"))
    assert (waits.again, waits.left, waits.ended) == (1, 1, [])
    dictated.feed(FINISH + DONE)
    dictated.end()
    assert waits.again == 1
    assert streams.reply.body == ROLE + said("Hello") + FINISH + DONE


def test_a_whole_body_too_large_to_be_kept_is_passed_on_as_it_comes() -> None:
    dictated = Dictated(WHOLE, endpoint="embeddings", max_bytes=10)
    client, slow = dictated.client(), dictated.client(reads=1)
    dictated.begin(content_type=JSON)
    dictated.feed(b'{"data":')
    assert client.reply.calls == []
    dictated.feed(b"[1,2,3]")
    dictated.feed(b"}")
    assert client.reply.body == b'{"data":[1,2,3]}'
    assert client.reply.header(b"content-type") == JSON.encode()
    slow.reply.read()
    dictated.end()
    assert client.reply.calls[-1] == slow.reply.calls[-1] == "end"
    assert slow.reply.body == client.reply.body


def test_an_error_in_a_large_body_under_way_cuts_it_and_adds_nothing() -> None:
    dictated = Dictated(WHOLE, endpoint="embeddings", max_bytes=10)
    client = dictated.client()
    dictated.begin(content_type=JSON)
    dictated.feed(b'{"data":[1,2,3')
    dictated.end(CUT)
    assert client.reply.body == b'{"data":[1,2,3'
    assert client.reply.calls[-1] == "abort"


def test_who_waits_for_the_whole_gets_an_error_with_its_status_however_late_it_comes() -> None:
    dictated = Dictated(STREAM)
    dictated.client()
    client = dictated.client(WHOLE)
    dictated.begin()
    dictated.feed(ROLE + said("Hello"))
    dictated.end(CUT)
    assert (client.reply.status, client.again) == (502, 0)
    assert client.reply.calls == ["whole"]

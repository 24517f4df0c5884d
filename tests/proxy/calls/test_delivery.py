import json

import pytest
from support.replies import DONE, FINISH, JSON, ROLE, SSE, Dictated, said

from toolkit.proxy.calls import delivery
from toolkit.proxy.calls.call import Call
from toolkit.proxy.exchange import Rejection, View
from toolkit.proxy.faults import Fault

STREAM = View(stream=True)
WITH_USAGE = View(stream=True, usage=True)
WHOLE = View()
CUT = Fault(kind="cut", message="the upstream's connection ended before the answer did")


def error(body: bytes) -> dict[str, object]:
    told = json.loads(body)
    assert list(told) == ["error"]
    assert sorted(told["error"]) == ["code", "message", "param", "type"]
    return told["error"]


def test_events_are_passed_on_byte_for_byte_as_they_come() -> None:
    dictated = Dictated()
    client = dictated.client()
    dictated.begin()
    dictated.feed(ROLE)
    assert client.reply.writes == [ROLE]
    dictated.feed(said("Hello"))
    dictated.feed(said(" there") + FINISH)
    assert client.reply.writes == [ROLE, said("Hello"), said(" there") + FINISH]
    dictated.feed(DONE)
    dictated.end()
    assert client.reply.writes[3:] == [DONE]
    assert client.reply.calls == ["begin", *["write"] * 4, "end"]
    assert client.reply.status == 200
    assert client.reply.length is None
    assert client.reply.header(b"content-type") == SSE.encode()
    assert client.reply.header(b"x-up") == b"1"
    assert client.reply.header(b"cache-status") == b"toolkit"


def test_half_an_event_is_not_passed_on() -> None:
    dictated = Dictated()
    client = dictated.client()
    dictated.begin()
    whole = said("Hello")
    dictated.feed(ROLE + whole[:20])
    assert client.reply.body == ROLE
    dictated.feed(whole[20:])
    assert client.reply.body == ROLE + whole


def test_who_joins_late_gets_everything_so_far_in_one_write_and_the_rest_live() -> None:
    dictated = Dictated()
    first = dictated.client()
    dictated.begin()
    for part in (ROLE, said("Hello"), said(" there")):
        dictated.feed(part)
    late = dictated.client()
    assert late.reply.writes == [ROLE + said("Hello", " there")]
    dictated.feed(FINISH)
    dictated.feed(DONE)
    dictated.end()
    assert late.reply.writes[1:] == [FINISH, DONE]
    assert late.reply.body == first.reply.body
    assert late.reply.calls[-1] == "end"


def test_a_client_that_reads_slowly_catches_up_in_one_write_and_delays_nobody() -> None:
    dictated = Dictated()
    slow, quick = dictated.client(reads=1), dictated.client()
    dictated.begin()
    dictated.feed(ROLE)
    for text in "abc":
        dictated.feed(said(text))
    assert slow.reply.writes == [ROLE]
    assert quick.reply.body == ROLE + said("a", "b", "c")
    slow.reply.read(1)
    assert slow.reply.writes == [ROLE, said("a", "b", "c")]
    dictated.feed(said("d") + FINISH)
    dictated.feed(DONE)
    dictated.end()
    assert quick.sent.end_s == dictated.now
    assert slow.ended == []
    slow.reply.read()
    assert slow.reply.body == quick.reply.body
    assert slow.reply.calls[-1] == "end"
    assert slow.sent.body_bytes == len(quick.reply.body)


def test_nothing_is_held_for_a_client_beyond_one_slice(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(delivery, "SLICE_BYTES", 2 * len(said("a")))
    dictated = Dictated()
    dictated.client()
    dictated.begin()
    dictated.feed(ROLE + said(*"abcdefgh"))
    late = dictated.client(reads=1)
    # the role and one token are as long as two tokens or longer
    assert len(late.reply.writes) == 1
    assert len(late.reply.body) <= len(ROLE + said("a"))
    late.reply.read()
    assert late.reply.body == ROLE + said(*"abcdefgh")


def test_the_head_waits_for_the_first_event_so_that_an_error_before_it_has_a_status() -> None:
    dictated = Dictated()
    client = dictated.client()
    dictated.begin()
    dictated.feed(b": not yet an eve")
    assert client.reply.calls == []
    dictated.end(CUT)
    assert client.reply.calls == ["whole"]
    assert client.reply.status == 502
    assert client.reply.header(b"content-type") == JSON.encode()
    assert client.reply.header(b"x-own") == b"1"
    assert error(client.reply.body) == {
        "message": CUT.message,
        "type": "upstream_error",
        "param": None,
        "code": 502,
    }
    assert (client.sent.status, client.sent.fault, client.sent.left) == (502, CUT, False)


@pytest.mark.parametrize(
    ("kind", "status", "name"),
    [
        ("connect", 502, "upstream_error"),
        ("no_upstream", 503, "overloaded_error"),
        ("timeout_first_token", 504, "timeout_error"),
        ("ours", 500, "api_error"),
    ],
)
def test_a_call_that_never_answered_is_an_error_of_openais_form(
    kind: str, status: int, name: str
) -> None:
    dictated = Dictated()
    client = dictated.client()
    dictated.end(Fault(kind=kind, message="why"))  # type: ignore[arg-type]
    assert client.reply.status == status
    assert error(client.reply.body)["type"] == name


def test_an_error_after_the_first_byte_is_an_event_then_the_connection_is_cut_without_done() -> (
    None
):
    dictated = Dictated()
    client = dictated.client()
    dictated.begin()
    dictated.feed(ROLE + said("Hello") + b"data: {half")
    dictated.end(CUT)
    assert client.reply.calls == ["begin", "write", "write", "abort"]
    last = client.reply.writes[-1]
    assert last.startswith(b"data: {")
    assert last.endswith(b"}\n\n")
    assert error(last.removeprefix(b"data: "))["message"] == CUT.message
    assert b"[DONE]" not in client.reply.body
    assert b"{half" not in client.reply.body
    assert client.sent.fault == CUT
    assert client.sent.status == 200


def test_a_slow_client_gets_all_that_came_before_the_error_first() -> None:
    dictated = Dictated()
    slow = dictated.client(reads=1)
    dictated.begin()
    dictated.feed(ROLE)
    dictated.feed(said("Hello"))
    dictated.end(CUT)
    assert slow.reply.calls == ["begin", "write"]
    slow.reply.read()
    assert slow.reply.writes[:2] == [ROLE, said("Hello")]
    assert b'"error"' in slow.reply.writes[2]
    assert slow.reply.calls[-1] == "abort"
    assert slow.sent.fault == CUT


def test_an_error_that_upstream_tells_inside_a_stream_passes_as_it_is() -> None:
    told = b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\n'
    dictated = Dictated()
    client = dictated.client()
    dictated.begin()
    for part in (ROLE, told, DONE):
        dictated.feed(part)
    dictated.end()
    assert client.reply.body == ROLE + told + DONE
    assert client.reply.calls[-1] == "end"


@pytest.mark.parametrize("view", [STREAM, WHOLE], ids=["stream", "whole"])
def test_an_error_of_upstreams_passes_as_it_is_to_every_view(view: View) -> None:
    told = b'{"error":{"message":"max_tokens must be at least 1","type":"BadRequestError"}}'
    dictated = Dictated(STREAM)
    client = dictated.client(view)
    dictated.begin(400, "application/json; charset=utf-8")
    dictated.feed(told[:30])
    dictated.feed(told[30:])
    dictated.end()
    assert client.reply.calls == ["whole"]
    assert (client.reply.status, client.reply.body) == (400, told)
    assert client.reply.header(b"content-type") == b"application/json; charset=utf-8"
    assert (client.sent.status, client.sent.fault, client.again) == (400, None, 0)


def test_a_whole_body_comes_in_one_go() -> None:
    dictated = Dictated(WHOLE)
    client = dictated.client()
    body = b'{"id": "chatcmpl-1", "choices": [{"message": {"content": "Hello"}, "finish_reason": "stop"}]}'
    dictated.begin(content_type=JSON)
    dictated.feed(body[:50])
    dictated.feed(body[50:])
    assert client.reply.calls == []
    dictated.end()
    assert client.reply.calls == ["whole"]
    assert client.reply.body == body
    assert client.sent.first_token_s is None


def test_an_empty_body_is_an_answer_too() -> None:
    dictated = Dictated(WHOLE, endpoint="/v1/other")
    client = dictated.client()
    dictated.begin(204, "")
    dictated.end()
    assert (client.reply.status, client.reply.body, client.reply.calls) == (204, b"", ["whole"])


def test_a_stream_without_any_event_ends_as_it_began() -> None:
    dictated = Dictated()
    client = dictated.client()
    dictated.begin()
    dictated.end()
    assert client.reply.status == 200
    assert client.reply.body == b""
    assert client.sent.first_token_s is None


def test_who_comes_when_all_is_over_gets_the_same() -> None:
    for status, kind in ((200, JSON), (400, JSON), (200, SSE)):
        dictated = Dictated(WHOLE if kind == JSON else STREAM)
        first = dictated.client()
        dictated.begin(status, kind)
        dictated.feed(ROLE if kind == SSE else b"{}")
        dictated.end()
        late = dictated.client()
        assert late.reply.body == first.reply.body
        assert late.sent.status == status
    dictated = Dictated()
    dictated.end(CUT)
    assert dictated.client().reply.status == 502


# --- leaving -------------------------------------------------------------------------------------


def test_a_client_that_leaves_while_it_waits_is_told_once() -> None:
    dictated = Dictated()
    client = dictated.client()
    client.reply.leave()
    assert client.left == 1
    assert (client.sent.left, client.sent.status) == (True, None)
    dictated.begin()
    dictated.feed(ROLE)
    dictated.end()
    assert client.reply.calls == []
    assert client.sent.left


def test_a_client_that_leaves_in_the_midst_is_told_once_and_the_others_go_on() -> None:
    dictated = Dictated()
    client, stays = dictated.client(), dictated.client()
    dictated.begin()
    dictated.feed(ROLE)
    dictated.feed(said("Hello"))
    client.reply.leave()
    dictated.feed(FINISH + DONE)
    dictated.end()
    assert client.reply.body == ROLE + said("Hello")
    assert client.left == 1
    assert (client.sent.left, client.sent.status) == (True, 200)
    assert client.sent.first_token_s == 102.0  # the clock stands at 100 and moves by 1 a read
    assert stays.reply.calls[-1] == "end"


def test_a_slow_client_that_leaves_after_the_end_is_told_once() -> None:
    dictated = Dictated()
    client = dictated.client(reads=1)
    dictated.begin()
    dictated.feed(ROLE)
    dictated.feed(FINISH + DONE)
    dictated.end()
    client.reply.leave()
    assert client.left == 1
    assert client.sent.left


def test_a_client_that_is_gone_before_it_was_let_in_leaves_at_once() -> None:
    dictated = Dictated()
    client = dictated.client()
    client.reply.is_gone = True
    client.live.join(dictated.call)
    assert (client.left, client.sent.left) == (1, True)


def test_nothing_is_left_behind_once_the_end_was_told() -> None:
    dictated = Dictated()
    client = dictated.client()
    dictated.begin()
    dictated.feed(ROLE + FINISH + DONE)
    dictated.end()
    assert client.reply.on_gone is client.reply.on_writable is None
    client.live.ended(dictated.call)
    client.live.grew(dictated.call)
    client.live.rejected(Rejection(reason="r", status=503, message="late"))
    assert len(client.ended) == 1
    assert client.reply.calls[-1] == "end"


# --- when, and how far ---------------------------------------------------------------------------


def test_the_first_token_counts_not_the_role_and_for_each_client_when_it_was_written() -> None:
    dictated = Dictated()
    client = dictated.client()
    dictated.begin()
    dictated.feed(ROLE)  # 101
    dictated.feed(said("Hello"))  # 102
    slow = dictated.client(reads=0)
    dictated.feed(said(" there"))  # 103
    late = dictated.client()
    slow.reply.read()
    dictated.feed(FINISH + DONE)  # 104
    dictated.end()  # 105
    assert client.sent.first_token_s == 102.0
    assert late.sent.first_token_s == slow.sent.first_token_s == 103.0
    assert client.sent.end_s == 105.0


def test_who_streams_tells_how_far_it_is_and_who_waits_holds_nobody_back() -> None:
    dictated = Dictated(STREAM)
    quick, slow, waits = dictated.client(), dictated.client(reads=1), dictated.client(WHOLE)
    assert (quick.live.taken, waits.live.taken) == (0, None)
    dictated.begin()
    for part in (ROLE, said("a"), said("b")):
        dictated.feed(part)
    assert (quick.live.taken, slow.live.taken, waits.live.taken) == (3, 1, None)
    slow.reply.leave()
    assert slow.live.taken is None


def test_who_took_more_says_so_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    moved: list[int] = []
    dictated = Dictated()
    client = dictated.client(reads=1)
    monkeypatch.setattr(Call, "moved", lambda _: moved.append(client.live.taken))
    dictated.begin()
    dictated.feed(ROLE)
    dictated.feed(said("a"))
    client.reply.read()
    # after the role, again without more, and when it read
    assert moved == [1, 1, 2]


def test_of_an_answer_too_large_to_be_kept_a_slow_client_misses_nothing() -> None:
    texts = [str(number) for number in range(50)]
    dictated = Dictated(max_bytes=1)
    quick, slow = dictated.client(), dictated.client(reads=1)
    dictated.begin()
    dictated.feed(ROLE)
    for number, text in enumerate(texts):
        dictated.feed(said(text))
        if number % 7 == 0:
            slow.reply.read(1)
    dictated.feed(FINISH + DONE)
    dictated.end()
    slow.reply.read()
    assert slow.reply.body == quick.reply.body == ROLE + said(*texts) + FINISH + DONE
    # what both had taken was let go: the list is not the answer any more
    assert dictated.recorder.events[0] == b""

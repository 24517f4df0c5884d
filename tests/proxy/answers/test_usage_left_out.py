"""A live client that did not ask for the usage sees what vLLM would have sent it, but for the usage the proxy asked for."""

from pathlib import Path

import pytest
from support.answer_bytes import events
from support.replies import DONE, ROLE, USAGE, Dictated, said

from toolkit.proxy.calls import delivery
from toolkit.proxy.exchange import View
from toolkit.proxy.faults import Fault

RECORDED = Path(__file__).parents[2] / "data" / "vllm-0.32.0-cpu"
STREAM = View(stream=True)
WITH_USAGE = View(stream=True, usage=True)
TOLD = b',"system_fingerprint":"vllm-0.32.0-f451397d"}\n\n'
FINISH = (
    b'data: {"id":"c","choices":[{"index":0,"delta":{"content":"."},"finish_reason":"stop"}]}\n\n'
)
FINISH_1 = FINISH.replace(b'"index":0', b'"index":1')
VLLM_USAGE = (
    b'data: {"id":"c","choices":[],"usage":{"prompt_tokens":1},"system_fingerprint":"f"}\n\n'
)
FINISH_AS_SENT_ALONE = FINISH.replace(b"]}\n\n", b']},"system_fingerprint":"f"}\n\n').replace(
    b"]},", b"],"
)


def fed(*parts: bytes, view: View = STREAM, led: View = STREAM) -> Dictated:
    dictated = Dictated(led, usage_is_ours=not led.usage)
    dictated.client(view)
    dictated.begin()
    for part in parts:
        dictated.feed(part)
    return dictated


def got(dictated: Dictated) -> list[bytes]:
    return dictated.clients[0].reply.writes


@pytest.mark.parametrize("name", ["chat_stream.txt", "completions_stream.body"])
def test_a_recorded_stream_is_seen_as_vllm_sends_it_without_the_usage(name: str) -> None:
    recorded = events((RECORDED / name).read_bytes())
    # as in the recorded stream without usage: the end of a choice tells the fingerprint, then comes the end
    *tokens, last, _, done = recorded
    expected = b"".join(tokens) + last.removesuffix(b"}\n\n") + TOLD + done
    one_by_one = fed(*recorded)
    late = one_by_one.client(STREAM)
    one_by_one.end()
    at_once = fed(b"".join(recorded))
    at_once.end()
    assert b"".join(got(one_by_one)) == expected
    assert b"".join(got(at_once)) == expected
    assert late.reply.body == expected


def test_the_form_is_that_of_a_recorded_stream_that_was_asked_for_without_usage() -> None:
    *_, last, done = events((RECORDED / "chat_stream_nousage.body").read_bytes())
    assert last.endswith(b"]" + TOLD)
    assert done == DONE


def test_the_end_of_a_choice_waits_for_the_event_behind_it_and_no_longer() -> None:
    dictated = fed(ROLE, said("Hello"), FINISH)
    assert got(dictated) == [ROLE, said("Hello")]
    dictated.feed(VLLM_USAGE)
    assert got(dictated)[2:] == [FINISH_AS_SENT_ALONE]
    dictated.feed(DONE)
    assert got(dictated)[3:] == [DONE]


def test_a_server_that_tells_no_usage_delays_the_end_of_a_choice_only_to_the_next_event() -> None:
    dictated = fed(ROLE, FINISH)
    assert got(dictated) == [ROLE]
    dictated.feed(DONE)
    assert b"".join(got(dictated)) == ROLE + FINISH + DONE


@pytest.mark.parametrize("fault", [None, Fault(kind="cut", message="cut")], ids=["end", "cut"])
def test_what_waits_is_sent_when_nothing_more_comes(fault: Fault | None) -> None:
    dictated = fed(ROLE, FINISH)
    dictated.end(fault)
    assert got(dictated)[:2] == [ROLE, FINISH]


def test_of_several_choices_none_waits_for_another_to_end() -> None:
    dictated = fed(ROLE, FINISH)
    dictated.feed(said("other"))
    assert b"".join(got(dictated)) == ROLE + FINISH + said("other")
    dictated.feed(FINISH_1)
    dictated.feed(VLLM_USAGE + DONE)
    dictated.end()
    expected = FINISH_AS_SENT_ALONE.replace(b'"index":0', b'"index":1')
    assert b"".join(got(dictated)).endswith(said("other") + expected + DONE)


@pytest.mark.parametrize(
    ("view", "led"), [(WITH_USAGE, STREAM), (WITH_USAGE, WITH_USAGE)], ids=["joins", "leads"]
)
def test_who_asked_for_the_usage_waits_for_nothing_and_sees_every_byte(
    view: View, led: View
) -> None:
    dictated = fed(ROLE, FINISH, view=view, led=led)
    assert got(dictated) == [ROLE, FINISH]
    dictated.feed(VLLM_USAGE + DONE)
    assert b"".join(got(dictated)) == ROLE + FINISH + VLLM_USAGE + DONE


def test_where_no_usage_was_asked_for_at_all_nothing_waits() -> None:
    dictated = Dictated(STREAM)
    client = dictated.client()
    dictated.begin()
    dictated.feed(ROLE)
    dictated.feed(FINISH)
    assert client.reply.writes == [ROLE, FINISH]


def test_a_first_token_that_waits_counts_when_it_is_sent() -> None:
    dictated = Dictated(STREAM, usage_is_ours=True)
    client = dictated.client()
    dictated.begin()
    dictated.feed(ROLE + FINISH)  # 101: the only token, and the end; only the role is sent
    dictated.feed(VLLM_USAGE + DONE)  # 102
    dictated.end()
    assert client.sent.first_token_s == 102.0


def test_once_the_usage_is_there_nothing_waits() -> None:
    dictated = fed(ROLE, VLLM_USAGE)
    dictated.feed(FINISH)
    assert b"".join(got(dictated)) == ROLE + FINISH


def test_an_only_event_that_waits_holds_the_head_back_too() -> None:
    dictated = fed(FINISH)
    assert dictated.clients[0].reply.calls == []
    dictated.feed(VLLM_USAGE + DONE)
    assert dictated.clients[0].reply.calls == ["begin", "write"]
    assert b"".join(got(dictated)) == FINISH_AS_SENT_ALONE + DONE


def test_a_slice_never_parts_the_end_of_a_choice_from_the_usage(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(delivery, "SLICE_BYTES", 1)
    dictated = fed(ROLE + FINISH + VLLM_USAGE + DONE)
    assert got(dictated) == [ROLE, FINISH_AS_SENT_ALONE, DONE]


def test_a_usage_without_anything_else_in_it_is_only_left_out() -> None:
    dictated = fed(ROLE, FINISH, USAGE, DONE)
    assert b"".join(got(dictated)) == ROLE + FINISH + DONE

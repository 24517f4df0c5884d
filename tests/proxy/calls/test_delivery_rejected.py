"""What a client is told that is not served: why, in OpenAI's form, and when to come again."""

import json

import pytest
from support.replies import Dictated

from toolkit.proxy.calls.delivery import retry_after
from toolkit.proxy.exchange import Rejection


def error(body: bytes) -> dict[str, object]:
    told = json.loads(body)
    assert list(told) == ["error"]
    assert sorted(told["error"]) == ["code", "message", "param", "type"]
    return told["error"]


@pytest.mark.parametrize(
    ("status", "name"),
    [
        (429, "rate_limit_error"),
        (503, "overloaded_error"),
        (504, "timeout_error"),
        (400, "invalid_request_error"),
        (413, "invalid_request_error"),
    ],
)
def test_a_rejection_tells_why_and_when_to_come_again(status: int, name: str) -> None:
    rejection = Rejection(reason="r", status=status, message="The queue is full", retry_after_s=4.0)
    dictated = Dictated()
    client = dictated.client()
    dictated.reject(rejection)
    # 4 s and half of the 10 % that may be added: 4.2 s, in whole seconds 5
    assert client.reply.header(b"retry-after") == b"5"
    assert client.reply.status == status
    assert error(client.reply.body)["message"] == "The queue is full"
    assert error(client.reply.body)["type"] == name
    assert (client.sent.rejection, client.sent.retry_after_s) == (rejection, 5)
    assert client.sent.fault is None


def test_a_rejection_that_can_not_tell_when_says_nothing_about_it() -> None:
    dictated = Dictated()
    client = dictated.client()
    dictated.reject(Rejection(reason="r", status=400, message="too long"))
    assert client.reply.header(b"retry-after") is None
    assert client.sent.retry_after_s is None


def test_who_comes_to_a_call_that_is_rejected_already_hears_so_once() -> None:
    dictated = Dictated()
    dictated.reject(Rejection(reason="r", status=503, message="full", retry_after_s=1.0))
    client = dictated.client()
    client.live.rejected(Rejection(reason="r", status=503, message="full"))
    assert client.sent.rejection is not None
    assert client.reply.calls == ["whole"]


@pytest.mark.parametrize(
    ("seconds", "share", "told"),
    [(0.0, 0.0, 1), (0.0, 1.0, 1), (0.2, 1.0, 1), (1.0, 0.0, 1), (10.0, 0.0, 10), (10.0, 1.0, 11)],
)
def test_retry_after_is_whole_seconds_at_least_one_and_at_most_a_tenth_more(
    seconds: float, share: float, told: int
) -> None:
    assert retry_after(seconds, share) == told

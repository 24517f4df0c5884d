"""Clients that come, pause, read, join late and leave in any order, against what each must have got: an oracle of three lines."""

import random

import pytest
from support.replies import DONE, ROLE, Dictated, Watched, said

from toolkit.proxy.calls import delivery
from toolkit.proxy.exchange import View
from toolkit.proxy.faults import Fault

STREAM, WITH_USAGE, WHOLE = View(stream=True), View(stream=True, usage=True), View()
FINISH = b'data: {"choices":[{"index":0,"delta":{"content":"."},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":1,"completion_tokens":9}}\n\n'
CUT = Fault(kind="cut", message="cut")


def act(chance: random.Random, dictated: Dictated) -> None:
    """Something that a client may do at any time."""
    what = chance.choice(["come", "come", "read", "read", "leave"])
    alive = [each for each in dictated.clients if not each.ended and not each.again]
    if what == "come" and len(dictated.clients) < 12:
        view = chance.choice([STREAM, STREAM, WITH_USAGE, WHOLE])
        dictated.client(view, reads=chance.choice([0, 1, 300, float("inf")]))
    elif what == "read" and alive:
        chance.choice(alive).reply.read(chance.choice([1, 200, 1000]))
    elif what == "leave" and alive and chance.random() < 0.3:
        chance.choice(alive).reply.leave()


def check(client: Watched, expected: dict[View, bytes], fault: Fault | None, view: View) -> None:
    assert len(client.ended) + client.again == 1
    body, calls = client.reply.body, client.reply.calls
    if client.again:
        assert calls == []
        return
    sent = client.sent
    assert client.left == sent.left
    if sent.left:
        assert not {"whole", "end", "abort"} & set(calls)
        assert view == WHOLE or expected[view].startswith(body)
    elif fault is not None:
        assert sent.fault == fault
        if calls == ["whole"]:
            assert client.reply.status == 502
        else:
            told = body[len(expected[view]) :]
            assert body.startswith(expected[view])
            assert told.count(b"data: ") == 1
            assert b'"error"' in told
            assert calls[-1] == "abort"
    elif view == WHOLE:
        assert calls == ["whole"]
        assert b'"message"' in body
    else:
        assert body == expected[view]
        assert calls[-1] == "end"


@pytest.mark.parametrize("seed", range(150))
def test_whatever_clients_do_each_gets_its_own_view_of_the_whole_and_its_end_once(
    seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr(delivery, "SLICE_BYTES", chance.choice([1, 150, 2**18]))
    events = [ROLE, *(said(f"t{number}") for number in range(9)), FINISH, USAGE, DONE]
    fault = CUT if chance.random() < 0.3 else None
    if fault is not None:
        events = events[: chance.randrange(1, 9)]
    data = b"".join(events)
    expected = {WITH_USAGE: data, STREAM: data.replace(USAGE, b"")}
    dictated = Dictated(STREAM, usage_is_ours=True)
    dictated.client(STREAM)
    for _ in range(chance.randrange(4)):
        act(chance, dictated)
    dictated.begin()
    while data:
        # reads as a network makes them: anywhere in an event, several at once
        size = chance.choice([7, 100, 400, 2000])
        dictated.feed(data[:size])
        data = data[size:]
        for _ in range(chance.randrange(3)):
            act(chance, dictated)
    dictated.end(fault)
    for _ in range(chance.randrange(6)):
        act(chance, dictated)
    for client in dictated.clients:
        client.reply.read()
    for client in dictated.clients:
        assert client.live is not None
        check(client, expected, fault, client.view)
    assert dictated.call.aboard == {}

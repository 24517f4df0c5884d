"""What a client sees when a part of ours fails, and what is left of a client when it was served."""

import gc
import weakref

import pytest
from support.replies import DONE, FINISH, ROLE, Dictated, FakeReply, said

from toolkit.proxy.calls import delivery
from toolkit.proxy.calls.call import Call
from toolkit.proxy.calls.delivery import Live
from toolkit.proxy.exchange import Headers, View
from toolkit.proxy.http.sending import Sending, Sent

WHOLE = View()


class Faulty(FakeReply):
    """Fails at its `at`-th write."""

    def __init__(self, at: int) -> None:
        super().__init__()
        self._at = at

    def write(self, data: bytes) -> None:
        if len(self.writes) == self._at:
            raise RuntimeError("planted")
        super().write(data)


def live_to(reply: FakeReply, ended: list[Sent], headers: Headers = ()) -> Live:
    return Live(
        reply,
        View(stream=True),
        headers=lambda _: headers,
        ended=ended.append,
        left=lambda: None,
        again=lambda: None,
        clock=lambda: 0.0,
        jitter=lambda: 0.0,
    )


def test_a_fault_before_the_first_byte_is_an_error_and_not_an_endless_wait(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def broken(*_: object) -> None:
        raise RuntimeError("planted")

    monkeypatch.setattr(delivery, "shown", broken)
    told: list[object] = []
    dictated = Dictated(View(stream=True), usage_is_ours=True)
    dictated.call.told = lambda name, what: told.append((name, what["error"]))
    waits, streams = dictated.client(WHOLE), dictated.client()
    dictated.begin()
    dictated.feed(ROLE + said("Hello") + FINISH + DONE)
    dictated.end()
    assert told == [("listener_failed", "RuntimeError: planted")]
    assert waits.reply.status == 500
    assert waits.sent.fault is not None
    assert waits.sent.fault.kind == "ours"
    # and it is nobody else's
    assert streams.reply.calls[-1] == "end"


def test_a_fault_in_the_midst_cuts_the_answer_once() -> None:
    dictated = Dictated()
    reply, ended = Faulty(1), []
    live = live_to(reply, ended)
    dictated.call.aboard[live] = None
    live.join(dictated.call)
    dictated.begin()
    for part in (ROLE, said("Hello"), FINISH + DONE):
        dictated.feed(part)
    dictated.end()
    assert reply.calls == ["begin", "write", "abort"]
    assert [sent.fault and sent.fault.kind for sent in ended] == ["ours"]


def test_a_fault_while_a_client_catches_up_cuts_its_answer() -> None:
    reply, ended = Faulty(1), []
    dictated = Dictated()
    live = live_to(reply, ended)
    reply._reads = 1
    dictated.call.aboard[live] = None
    live.join(dictated.call)
    dictated.begin()
    dictated.feed(ROLE)
    dictated.feed(FINISH + DONE)
    dictated.end()
    with pytest.raises(RuntimeError, match="planted"):
        reply.read()
    assert reply.calls == ["begin", "write", "abort"]
    assert len(ended) == 1


def test_a_fault_in_sending_a_whole_answer_is_told_as_its_end() -> None:
    class Deaf(FakeReply):
        def whole(self, status: int, headers: Headers, body: bytes) -> None:  # noqa: ARG002
            raise RuntimeError("planted")

        def abort(self) -> None:
            self.calls.append("abort")

    ended: list[Sent] = []
    reply = Deaf()
    sending = Sending(reply, ended=ended.append, clock=lambda: 1.0)
    with pytest.raises(RuntimeError):
        sending.whole(200, (), b"body")
    sending.fail()
    sending.fail()
    assert reply.calls == ["abort"]
    assert [(sent.status, sent.fault and sent.fault.kind) for sent in ended] == [(200, "ours")]


def test_after_the_end_nothing_is_written() -> None:
    ended: list[Sent] = []
    reply = FakeReply()
    sending = Sending(reply, ended=ended.append, clock=lambda: 1.0)
    sending.begin(200, (), fill=lambda: None)
    sending.write(b"a")
    reply.leave()
    sending.write(b"b")
    sending.end()
    assert (reply.body, reply.calls) == (b"a", ["begin", "write"])
    assert [sent.body_bytes for sent in ended] == [1]


def test_a_content_type_of_any_bytes_is_passed_on_as_it_came() -> None:
    dictated = Dictated(WHOLE, endpoint="other")
    client = dictated.client()
    odd = b"text/pl\xff\xc3\xa4in"
    dictated.begin(content_type=odd.decode("utf-8", "surrogateescape"))
    dictated.feed(b"x")
    dictated.end()
    assert client.reply.header(b"content-type") == odd


def test_an_answer_without_a_content_type_gets_none() -> None:
    dictated = Dictated(WHOLE, endpoint="other")
    client = dictated.client()
    dictated.begin(content_type="")
    dictated.feed(b"x")
    dictated.end()
    assert client.reply.header(b"content-type") is None


@pytest.mark.parametrize("way", ["end", "leave", "again"])
def test_a_client_that_was_served_holds_nothing_without_waiting_for_the_garbage_collector(
    way: str,
) -> None:
    class Known(Live):
        """Can be watched."""

    def serve(reply: FakeReply) -> weakref.ref[Live]:
        dictated = Dictated(View(stream=True))

        # as the desk has it: what it gives to the client knows the client
        def left() -> None:
            dictated.call.aboard.pop(live, None)

        def ended(sent: Sent) -> None:
            assert live is not None
            del sent

        def again() -> None:
            assert live is not None

        def headers(call: Call | None) -> Headers:
            assert live is not None
            return () if call is None else call.headers

        live = Known(
            reply,
            WHOLE if way == "again" else View(stream=True),
            headers=headers,
            ended=ended,
            left=left,
            again=again,
            clock=lambda: 0.0,
            jitter=lambda: 0.0,
        )
        dictated.call.aboard[live] = None
        live.join(dictated.call)
        dictated.begin()
        dictated.feed(ROLE)
        if way == "leave":
            reply.leave()
        dictated.feed(said("Hello") if way == "again" else FINISH)
        dictated.feed(DONE)
        dictated.end()
        return weakref.ref(live)

    reply = FakeReply()
    gc.collect()
    gc.disable()
    try:
        assert serve(reply)() is None
    finally:
        gc.enable()
    assert reply.on_gone is reply.on_writable is None

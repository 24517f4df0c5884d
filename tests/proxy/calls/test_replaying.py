import asyncio
import json
from collections.abc import Callable
from itertools import accumulate, pairwise

import pytest
from support.replies import DONE, FINISH, ROLE, SSE, USAGE, FakeReply, said
from support.small_proxy import JumpingLoop

from toolkit.proxy.answers.recorder import Recorder
from toolkit.proxy.answers.replay import Mode
from toolkit.proxy.answers.views import Shown, shown
from toolkit.proxy.calls import replaying
from toolkit.proxy.calls.replaying import send_stored
from toolkit.proxy.exchange import View
from toolkit.proxy.http import sending

EVENTS = [ROLE, said("Hello"), said(" there"), said("!"), FINISH, USAGE, DONE]
MS = [40, 50, 90, 190, 200, 200, 200]
"""Gaps of 10, 40, 100, 10, 0 and 0 ms."""
STREAM = Shown(
    content_type=SSE, body=b"".join(EVENTS), ends=tuple(accumulate(map(len, EVENTS))), ms=tuple(MS)
)
WHOLE = Shown(content_type="application/json", body=b'{"choices": []}')


class Client(FakeReply):
    """Takes down when, on the loop's clock, each write came."""

    def __init__(self, *, reads: float = float("inf")) -> None:
        super().__init__(reads=reads)
        self.times_ms: list[int] = []
        self.ended: list[sending.Sent] = []

    def write(self, data: bytes) -> None:
        super().write(data)
        self.times_ms.append(round(asyncio.get_running_loop().time() * 1000))

    def sends(self, shown: Shown, mode: Mode) -> None:
        loop = asyncio.get_running_loop()
        send_stored(
            self,
            shown,
            headers=[(b"age", b"7")],
            mode=mode,
            ended=self.ended.append,
            clock=loop.time,
        )

    def by_event(self) -> list[int]:
        """When each event was complete."""
        found, sent = [], 0
        for time, data in zip(self.times_ms, self.writes, strict=True):
            before, sent = sent, sent + len(data)
            found += [time] * sum(before < end <= sent for end in STREAM.ends)
        return found


def on_a_jumping_loop(act: Callable[[], object], *, wait_s: float = 10.0) -> None:
    """Act, then let every timer of the next seconds run, at once."""

    async def everything() -> None:
        act()
        await asyncio.sleep(wait_s)

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(everything())


def test_at_once_is_one_write_with_its_length() -> None:
    client = Client()
    on_a_jumping_loop(lambda: client.sends(STREAM, "instant"), wait_s=0)
    assert client.calls == ["whole"]
    assert (client.status, client.length, client.body) == (200, len(STREAM.body), STREAM.body)
    assert client.header(b"content-type") == SSE.encode()
    assert client.header(b"age") == b"7"
    assert [sent.first_token_s for sent in client.ended] == [0.0]


@pytest.mark.parametrize("mode", ["instant", "original", 5.0])
def test_a_whole_body_has_no_pace(mode: Mode) -> None:
    client = Client()
    on_a_jumping_loop(lambda: client.sends(WHOLE, mode), wait_s=0)
    assert (client.calls, client.body) == (["whole"], WHOLE.body)
    assert [sent.first_token_s for sent in client.ended] == [None]


def test_the_original_pace_has_the_recorded_gaps_event_by_event() -> None:
    client = Client()
    on_a_jumping_loop(lambda: client.sends(STREAM, "original"))
    assert client.body == STREAM.body
    assert client.by_event() == MS
    assert client.calls == ["begin", *["write"] * 5, "end"]
    assert client.length is None
    (sent,) = client.ended
    # the first token is the second event
    assert (sent.first_token_s, sent.end_s) == (pytest.approx(0.05), pytest.approx(0.2))


def test_what_was_recorded_from_an_upstream_is_replayed_gap_by_gap() -> None:
    # seconds after the request was sent, as an engine under load has them; 1/64 s are whole in a float
    came_s = [0.25, 0.265625, 0.265625, 0.8125, 0.828125, 1.5, 1.5]
    recorder = Recorder(
        status=200,
        content_type=SSE,
        endpoint="chat/completions",
        view=View(stream=True),
        usage_is_ours=True,
        sent_s=1000.0,
        max_bytes=2**20,
    )
    for event, at in zip(EVENTS, came_s, strict=True):
        recorder.feed(event, 1000.0 + at)
    kept = recorder.end(1002.0).kept
    assert kept is not None
    mine = shown(kept, View(stream=True, usage=True))
    assert mine is not None
    client = Client()
    on_a_jumping_loop(lambda: client.sends(mine, "original"))
    assert client.body == b"".join(EVENTS)
    # kept in whole ms: no event is off by more than half of one, and no gap by more than one
    gaps = [later - sooner for sooner, later in pairwise([0, *client.by_event()])]
    original = [(later - sooner) * 1000 for sooner, later in pairwise([0, *came_s])]
    assert all(abs(one - other) <= 1 for one, other in zip(gaps, original, strict=True))
    (sent,) = client.ended
    assert sent.first_token_s == pytest.approx(0.265625, abs=0.001)


def test_so_many_tokens_a_second_are_that_many() -> None:
    client = Client()
    on_a_jumping_loop(lambda: client.sends(STREAM, 4.0))
    # three tokens, 250 ms apart, the first at once; what has no token goes with the one before it
    assert client.by_event() == [0, 0, 250, 500, 500, 500, 500]
    (sent,) = client.ended
    assert (sent.first_token_s, sent.end_s) == (0.0, pytest.approx(0.5))


def test_a_client_that_falls_behind_gets_what_is_due_in_one_write_and_then_the_pace_again() -> None:
    client = Client(reads=1)

    def act() -> None:
        client.sends(STREAM, "original")
        asyncio.get_running_loop().call_at(0.1, client.read)

    on_a_jumping_loop(act)
    # the role at 40 fills it; at 100 it reads, and gets what was due at 50 and 90
    assert client.by_event() == [40, 100, 100, 190, 200, 200, 200]
    assert client.writes[1] == said("Hello", " there")
    assert client.calls[-1] == "end"


def test_while_a_client_does_not_read_there_is_no_timer() -> None:
    client = Client(reads=1)
    timers: list[int] = []

    async def everything() -> None:
        loop = asyncio.get_running_loop()
        client.sends(STREAM, "original")
        await asyncio.sleep(0.06)
        timers.append(sum(not each.cancelled() for each in loop._scheduled))  # type: ignore[attr-defined]
        client.leave()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(everything())
    assert timers == [0]


def test_told_to_go_on_twice_there_is_one_timer() -> None:
    client = Client()
    timers: list[int] = []

    async def everything() -> None:
        client.sends(STREAM, "original")
        assert client.on_writable is not None
        client.on_writable()
        client.on_writable()
        scheduled = asyncio.get_running_loop()._scheduled  # type: ignore[attr-defined]
        timers.append(sum(not each.cancelled() for each in scheduled))
        client.leave()

    with asyncio.Runner(loop_factory=JumpingLoop) as runner:
        runner.run(everything())
    assert timers == [1]


def test_of_what_is_due_no_more_is_written_than_a_client_takes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(replaying, "SLICE_BYTES", 30)
    client = Client(reads=1)

    def act() -> None:
        client.sends(STREAM, "original")
        asyncio.get_running_loop().call_at(1.0, client.read)

    on_a_jumping_loop(act)
    assert max(map(len, client.writes)) == 30
    assert client.times_ms[:2] == [40, 1000]
    assert client.body == STREAM.body


def test_a_client_that_leaves_takes_its_timer_with_it() -> None:
    client = Client()
    timers: list[int] = []

    def act() -> None:
        loop = asyncio.get_running_loop()

        def leave() -> None:
            client.leave()
            timers.extend(not each.cancelled() for each in loop._scheduled)  # type: ignore[attr-defined]

        client.sends(STREAM, "original")
        loop.call_at(0.06, leave)

    on_a_jumping_loop(act)
    assert client.writes == [ROLE, said("Hello")]
    # the one that is left is the test's own sleep
    assert sum(timers) == 1
    (sent,) = client.ended
    assert (sent.left, sent.status, sent.first_token_s) == (True, 200, pytest.approx(0.05))
    assert sent.end_s == pytest.approx(0.06)


def test_a_large_answer_goes_as_its_client_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "SLICE_BYTES", 10)
    body = bytes(range(65, 90))
    client = Client(reads=1)

    async def everything() -> None:
        client.sends(Shown(content_type="application/json", body=body), "instant")
        assert (client.body, client.length) == (body[:10], 25)
        client.read(1)
        assert client.body == body[:20]
        assert client.ended == []
        client.read()

    asyncio.run(everything())
    assert client.body == body
    assert client.calls == ["begin", "write", "write", "write", "end"]
    assert [sent.body_bytes for sent in client.ended] == [25]


def test_a_large_stream_sent_at_once_has_its_length_and_notes_its_first_token(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(sending, "SLICE_BYTES", 100)
    client = Client()
    on_a_jumping_loop(lambda: client.sends(STREAM, "instant"), wait_s=0)
    assert (client.body, client.length) == (STREAM.body, len(STREAM.body))
    assert [sent.first_token_s for sent in client.ended] == [0.0]


def test_a_client_of_a_large_answer_that_leaves_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sending, "SLICE_BYTES", 10)
    client = Client(reads=1)

    async def everything() -> None:
        client.sends(Shown(content_type="application/json", body=b"x" * 25), "instant")
        client.leave()

    asyncio.run(everything())
    assert [(sent.left, sent.body_bytes) for sent in client.ended] == [(True, 10)]
    assert client.on_gone is client.on_writable is None


@pytest.mark.parametrize("mode", ["instant", "original"])
def test_to_a_client_that_is_gone_nothing_is_sent(mode: Mode) -> None:
    client = Client()
    client.is_gone = True
    on_a_jumping_loop(lambda: client.sends(STREAM, mode))
    assert client.calls == []
    assert [sent.left for sent in client.ended] == [True]


def test_events_recorded_out_of_order_and_an_empty_stream_do_no_harm() -> None:
    odd = Shown(
        content_type=SSE, body=STREAM.body, ends=STREAM.ends, ms=(50, 40, 60, 60, 60, 60, 60)
    )
    client = Client()
    on_a_jumping_loop(lambda: client.sends(odd, "original"))
    assert client.body == STREAM.body
    nothing = Client()
    on_a_jumping_loop(lambda: nothing.sends(Shown(content_type=SSE, body=b""), "original"))
    assert (nothing.status, nothing.body) == (200, b"")
    assert len(client.ended) == len(nothing.ended) == 1


def test_a_hundred_streams_at_a_pace_keep_to_it_each_by_itself() -> None:
    clients = [Client() for _ in range(100)]

    def act() -> None:
        loop = asyncio.get_running_loop()
        for number, client in enumerate(clients):
            loop.call_at(number / 100, client.sends, STREAM, "original")

    on_a_jumping_loop(act)
    for number, client in enumerate(clients):
        assert client.by_event() == [number * 10 + ms for ms in MS]
    assert json.dumps([len(client.ended) for client in clients]) == json.dumps([1] * 100)

"""Answers to real clients over real sockets, from a real call upstream: who gets what, and what one client costs the others."""

import asyncio
import contextlib
import json
import socket
from collections.abc import AsyncIterator
from dataclasses import replace
from itertools import accumulate
from typing import Any

import pytest
from support.chat import until
from support.fronting import Client, House, Run, house, on_both_loops, post
from support.proxy_calls import JOB, KEY, Bench, bench
from support.replies import DONE, FINISH, ROLE, SSE, USAGE, said
from support.scripted_upstream import Script, dying, hanging_in_stream, plain, slow, streaming

from toolkit.proxy.answers.views import Shown
from toolkit.proxy.calls.call import Call
from toolkit.proxy.calls.delivery import Live
from toolkit.proxy.calls.replaying import TICK_S, send_stored
from toolkit.proxy.exchange import Reply, Request, View
from toolkit.proxy.http.sending import SLICE_BYTES, Sent

STREAM = post(b'{"stream": true}')
WHOLE = post(b"{}")


class Proxied:
    """A front, a call of its own for each key, and what became of every client."""

    def __init__(self, made: Bench) -> None:
        self.made = made
        self.replies: list[Reply] = []
        self.calls: list[Call] = []
        self.sent: list[Sent] = []
        self.left = 0
        self.front: House

    def take(self, request: Request, reply: Reply) -> None:
        """What the desk does with a miss."""
        view = View(stream=json.loads(request.body).get("stream", False))
        calls = self.made.calls
        live = Live(
            reply,
            view,
            headers=lambda call: () if call is None else call.headers,
            ended=self.sent.append,
            left=lambda: self._leave(call, live),
            again=lambda: pytest.fail("nobody has to ask again"),
            clock=self.made.clock,
            jitter=lambda: 0.0,
        )
        call, _ = calls.ask(KEY, replace(JOB, view=view, arrived_s=self.made.clock()), live)
        self.replies.append(reply)
        self.calls.append(call)
        live.join(call)

    def _leave(self, call: Call, live: Live) -> None:
        self.left += 1
        self.made.calls.leave(call, live)

    async def asks(self, data: bytes = STREAM) -> Client:
        """A client that has asked, and was taken."""
        before = len(self.replies)
        client = await self.front.client()
        await client.send(data)
        await until(lambda: len(self.replies) > before)
        return client

    async def asks_and_reads_nothing(self) -> Client:
        before = len(self.replies)
        client = await idler_of(self.front)
        await client.send(STREAM)
        await until(lambda: len(self.replies) > before)
        return client

    def loses(self, client: Client) -> None:
        self.front._clients.remove(client)
        client.reset()


@contextlib.asynccontextmanager
async def proxied(*scripts: Script, **settings: Any) -> AsyncIterator[Proxied]:
    async with bench(*scripts, **settings) as made:
        found = Proxied(made)
        async with house(found.take) as found.front:
            try:
                yield found
            except BaseException:
                await abort_all(found.front)
                raise


async def abort_all(front: House) -> None:
    """After a failure: with a socket left open, closing uvloop's loop never ends where warnings are errors."""
    front._server.close()
    for client in front._clients:
        client.writer.transport.abort()
    for connection in tuple(front.front._open):
        connection._transport.abort()
    await asyncio.sleep(0.01)


async def idler_of(front: House) -> Client:
    """A client that will read nothing; its kernel buffers, and ours for it, are as small as they may be."""
    known = set(front.front._open)
    client = await front.client(receives=4096)
    await until(lambda: len(front.front._open) > len(known))
    (connection,) = set(front.front._open) - known
    ours = connection._transport.get_extra_info("socket")
    ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4096)
    return client


def buffered(front: House) -> list[int]:
    """Bytes that each client has not taken from us, the kernel's buffers apart."""
    open_ones = front.front._open
    return [each._transport.get_write_buffer_size() for each in open_ones if each._transport]


@on_both_loops
def test_of_32_twins_on_one_stream_one_that_does_not_read_delays_nobody_and_costs_no_memory(
    run: Run,
) -> None:
    texts = [f"{number:02}" * 2**14 for number in range(16)]  # 32 KiB each, 512 KiB in all
    gates = [asyncio.Event() for _ in texts]

    async def test() -> None:
        async with proxied(slow(texts, gates)) as found:
            idler = await found.asks_and_reads_nothing()
            readers = [await found.asks() for _ in range(31)]
            bodies = [bytearray() for _ in readers]
            parts = [reader.chunks() for reader in readers]
            for reader in readers:
                assert (await reader.head()).headers["transfer-encoding"] == "chunked"
            for gate, text in zip(gates, texts, strict=True):
                gate.set()
                # the next token is sent only when all have read this one: but for the one that reads nothing
                for body, part in zip(bodies, parts, strict=True):
                    while text.encode() not in body[-len(text) - 200 :]:
                        body.extend(await anext(part))
            for body, part in zip(bodies, parts, strict=True):
                async for more in part:
                    body.extend(more)
            assert len({bytes(body) for body in bodies}) == 1
            assert len(found.made.server.lines) == 1
            # the last token was read by all the others long before the idler's second
            assert found.replies[0].is_paused
            assert len(found.sent) == 31
            # the mark below which is written, and what is written then
            assert 0 < sum(buffered(found.front)) <= 2**16 + SLICE_BYTES + 2**15 + 2**10
            # what it missed waits for it in the call
            assert (await idler.answer()).body == bodies[0]
            assert len(found.sent) == 32
            assert not any(sent.left for sent in found.sent)

    run(test())


@on_both_loops
def test_who_joins_a_long_stream_late_and_reads_nothing_costs_one_slice(run: Run) -> None:
    text = "x" * 2**16
    gates = [asyncio.Event() for _ in range(16)]  # 1 MiB

    async def test() -> None:
        for gate in gates[:-1]:
            gate.set()
        async with proxied(slow([text] * 16, gates)) as found:
            leader = await found.asks()
            await leader.head()
            parts = leader.chunks()
            count = 0
            while count < 15 * len(text):
                count += len(await anext(parts))
            idlers = [await found.asks_and_reads_nothing() for _ in range(4)]
            assert all(reply.is_paused for reply in found.replies[1:])
            # a slice ends with an event, and it is written while the buffer is below its mark of 64 KiB
            assert max(buffered(found.front)) <= 2**16 + SLICE_BYTES + len(text) + 2**10
            gates[-1].set()
            bodies = [(await each.answer()).body for each in idlers]
            assert len(set(bodies)) == 1
            assert bodies[0].count(text.encode()) == 16

    run(test())


@on_both_loops
def test_the_last_client_that_leaves_ends_the_call_and_until_then_it_goes_on(run: Run) -> None:
    async def test() -> None:
        async with proxied(hanging_in_stream("Hello")) as found:
            leader, joiner = await found.asks(), await found.asks()
            line = await found.made.server.asked()
            found.loses(leader)
            await until(lambda: found.left == 1)
            await joiner.head()
            parts = joiner.chunks()
            body = b""
            while b"Hello" not in body:
                body += await anext(parts)
            assert not line.gone.is_set()
            found.loses(joiner)
            await line.gone.wait()
            assert found.left == 2
            assert [sent.left for sent in found.sent] == [True, True]

    run(test())


@on_both_loops
def test_an_upstream_that_dies_in_the_midst_is_an_error_event_and_a_cut_connection(
    run: Run,
) -> None:
    async def test() -> None:
        async with proxied(dying("Hello")) as found:
            client = await found.asks()
            assert (await client.head()).status == 200
            rest = await client.rest()
            assert b"Hello" in rest
            assert b"[DONE]" not in rest
            told = rest[rest.rindex(b"data: ") + 6 :].partition(b"\n\n")[0]
            assert json.loads(told)["error"]["code"] == 502
            # the chunk that ends a body never came: no client takes this for a whole answer
            assert not rest.endswith(b"0\r\n\r\n")
            (sent,) = found.sent
            assert sent.fault is not None
            assert sent.fault.kind == "cut"

    run(test())


@on_both_loops
def test_one_stream_serves_who_streams_and_who_does_not(run: Run) -> None:
    gates = [asyncio.Event(), asyncio.Event()]

    async def test() -> None:
        async with proxied(streaming_with_usage(gates)) as found:
            streams, waits = await found.asks(), await found.asks(WHOLE)
            for gate in gates:
                gate.set()
            whole = await waits.answer()
            assert whole.headers["content-type"] == "application/json"
            message = json.loads(whole.body)["choices"][0]["message"]
            assert message["content"] == "Hello there"
            assert (await streams.answer()).body.endswith(DONE)
            assert len(found.made.server.lines) == 1

    run(test())


def streaming_with_usage(gates: list[asyncio.Event]) -> Script:
    script = slow(["Hello", " there"], gates)

    async def play(line: Any) -> None:
        send = line.send
        # the usage stands between the finish and the end
        line.send = lambda data: send(data.replace(_chunk(DONE), _chunk(USAGE) + _chunk(DONE)))
        await script(line)

    return play


def _chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


@on_both_loops
def test_the_connection_serves_the_next_request_after_each_kind_of_answer(run: Run) -> None:
    async def test() -> None:
        error = plain("400 Bad Request", b'{"error": {"message": "no"}}')
        async with proxied(streaming("Hello")) as found:
            found.made.server.scripts += [streaming("One"), error, plain("200 OK", b'{"a": 1}')]
            client = await found.front.client()
            assert b"One" in (await client.ask(STREAM)).body
            got = await client.ask(STREAM)
            assert (got.status, got.body) == (400, b'{"error": {"message": "no"}}')
            assert (await client.ask(WHOLE)).body == b'{"a": 1}'
            assert b"Hello" in (await client.ask(STREAM)).body

    run(test())


# --- stored streams ------------------------------------------------------------------------------

EVENTS = [ROLE, said("Hello"), said(" there"), said("!"), FINISH, USAGE, DONE]
MS = (20, 25, 45, 95, 100, 100, 100)
STORED = Shown(
    content_type=SSE, body=b"".join(EVENTS), ends=tuple(accumulate(map(len, EVENTS))), ms=MS
)


@on_both_loops
def test_at_the_original_pace_no_event_comes_before_its_time_and_all_in_order(run: Run) -> None:
    async def test() -> None:
        loop = asyncio.get_running_loop()
        began: list[float] = []
        sent: list[Sent] = []

        def answer(_: Request, reply: Reply) -> None:
            began.append(loop.time())
            send_stored(
                reply, STORED, headers=(), mode="original", ended=sent.append, clock=loop.time
            )

        async with house(answer) as front:
            client = await front.client()
            await client.send(STREAM)
            await client.head()
            body = b""
            async for part in client.chunks():
                body += part
                came_ms = (loop.time() - began[0]) * 1000
                due = [ms for end, ms in zip(STORED.ends, MS, strict=True) if end <= len(body)]
                # a busy machine may be late, never early; half a ms for a loop that counts whole ones
                assert came_ms >= max(due) - 1.5 * TICK_S * 1000
            assert body == STORED.body
            assert [each.left for each in sent] == [False]

    run(test())


@on_both_loops
def test_a_stored_answer_larger_than_a_client_reads_is_not_held_for_it(run: Run) -> None:
    body = b"x" * 2**20
    sent: list[Sent] = []

    async def test() -> None:
        clock = asyncio.get_running_loop().time
        shown = Shown(content_type="application/json", body=body)

        def answer(_: Request, reply: Reply) -> None:
            send_stored(reply, shown, headers=(), mode="instant", ended=sent.append, clock=clock)

        async with house(answer) as front:
            idler = await idler_of(front)
            await idler.send(STREAM)
            await until(lambda: front.front.busy == 1)
            reader = await front.client()
            assert (await reader.ask(STREAM)).body == body
            assert 0 < sum(buffered(front)) <= 2**16 + SLICE_BYTES
            assert len(sent) == 1
            assert (await idler.answer()).body == body
            assert len(sent) == 2

    run(test())

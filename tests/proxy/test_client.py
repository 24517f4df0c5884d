"""The clients' connections in asyncio's loop and in uvloop's: many requests, little time, who leaves, who reads slowly."""

import asyncio

import pytest
from support.chat import until
from support.fronting import Client, House, get, greet, house, later, on_both_loops, post

from toolkit.proxy.client import PIPELINED_BYTES, Request, unread_bytes


@on_both_loops
async def test_a_client_beyond_the_limit_is_told_so_and_closed() -> None:
    async with house(later, connections=2) as front:
        one, two = [await front.client() for _ in range(2)]
        for client in (one, two):
            client.writer.write(get())
            reply = await front.desk.taken.get()
        three = await front.client()
        got = await three.send(get())
        assert (got.status, got.headers["connection"]) == (503, "close")
        assert await three.rest() == b""
        assert front.desk.refusals == [(503, "connections", "127.0.0.1")]
        assert len(front.desk.requests) == 2
        for client in (three, one):
            client.leave()
        await until(lambda: front.front.connections == 1)
        reply.respond(200, [], b"")
        assert (await two.answer()).status == 200
        client = await front.client()
        client.writer.write(get())
        (await front.desk.taken.get()).respond(200, [], b"")
        assert (await client.answer()).status == 200


@on_both_loops
async def test_a_desk_that_fails_costs_its_request_alone() -> None:
    def fails(reply: Request) -> None:
        if reply.head.path == "/half":
            reply.begin(200, [], length=5)
        if reply.head.path != "/":
            raise ZeroDivisionError
        greet(reply)

    async with house(fails) as front:
        client = await front.client()
        got = await client.send(get("/fails"))
        assert got.status == 500
        assert b"ZeroDivision" not in got.body
        assert await client.rest() == b""
        half = await front.client()
        half.writer.write(get("/half"))
        assert await half.is_reset()
        assert (await (await front.client()).send(get())).status == 200
        assert front.desk.reasons() == ["fault"]
        assert [type(fault["exception"]) for fault in front.faults] == [ZeroDivisionError] * 2


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_says_nothing_of_one(status: int) -> None:
    async with house(lambda reply: reply.respond(status, [], b"never")) as front:
        client = await front.client()
        for _ in range(2):
            got = await client.send(get())
            assert (got.status, list(got.headers)) == (status, ["date"])


READ_BYTES = 256 * 1024
"""The most that either loop reads at once."""


class Told:
    """How often a reply's callbacks were called."""

    def __init__(self, reply: Request) -> None:
        self.gone = self.writable = 0
        self.reply = reply
        reply.on_done, reply.on_writable = self.left, self.is_writable

    def left(self) -> None:
        self.gone += self.reply.left

    def is_writable(self) -> None:
        self.writable += 1


def swept(front: House, seconds: float, told: Told | None = None) -> bool:
    """Sweep after so many seconds; whether that client was let go."""
    front.pass_time(seconds)
    return told is None or told.gone == 1


async def under_way(front: House, data: bytes = get()) -> tuple[Client, Request, Told]:
    client = await front.client()
    client.writer.write(data)
    reply = await front.desk.taken.get()
    return client, reply, Told(reply)


async def close(client: Client) -> None:
    client.leave()


async def reset(client: Client) -> None:
    client.reset()


async def close_half(client: Client) -> None:
    client.writer.write_eof()


@on_both_loops
@pytest.mark.parametrize("leave", [close, reset, close_half])
@pytest.mark.parametrize("is_begun", [False, True])
async def test_a_client_that_leaves_is_told_at_once_and_once(leave: object, is_begun: bool) -> None:
    async with house(later) as front:
        client, reply, told = await under_way(front)
        if is_begun:
            reply.begin(200, [])
            reply.write(b"")
            await client.head()
        await leave(client)  # type: ignore[operator]
        await until(lambda: front.front.connections == 0)
        assert (told.gone, reply.left, front.front.busy) == (1, True, 0)
        # what is written after it goes nowhere
        reply.begin(200, [])
        reply.write(b"x", is_last=True)
        reply.cut()
        assert told.gone == 1
        assert front.faults == []


@on_both_loops
async def test_an_answer_that_is_there_reaches_a_client_that_has_closed_its_half() -> None:
    async with house() as front:
        client = await front.client()
        client.writer.write(get())
        client.writer.write_eof()
        assert (await client.answer()).body == b"hello"
        assert await client.rest() == b""


async def write_until_paused(reply: Request) -> int:
    """How many bytes the network took."""
    written = 0
    while not reply.is_paused:
        reply.write(b"x" * 50_000)
        written += 50_000
        await asyncio.sleep(0)
    return written


@on_both_loops
async def test_a_reader_that_stands_still_is_let_go_and_one_that_is_slow_is_not() -> None:
    async with house(later, stall_s=10) as front:
        client = await front.client(receives=4096)
        client.writer.write(get())
        reply = await front.desk.taken.get()
        told = Told(reply)
        reply.begin(200, [])
        await write_until_paused(reply)
        (connection,) = await front.connected()
        transport = connection._transport
        assert transport is not None
        for _ in range(3):
            front.pass_time(9)
            before = unread_bytes(transport)
            # less than the loop hears of: the kernel's buffer stays too full for more
            await client.reader.readexactly(100_000)
            await until(lambda before=before: unread_bytes(transport) < before)  # type: ignore[misc]
            assert reply.is_paused
        front.pass_time(9)
        assert told.gone == 0
        await until(lambda: swept(front, 11, told))
        assert (told.gone, reply.left) == (1, True)
        await until(lambda: front.front.connections == 0)


@on_both_loops
async def test_what_comes_behind_a_request_under_way_is_bounded_and_served_after_it() -> None:
    async with house(later) as front:
        client, reply, _ = await under_way(front)
        body = b"x" * 100_000
        behind = b"".join(post(body) for _ in range(100))  # 10 MB
        client.writer.write(behind)
        await until(lambda: front.front.held_bytes > PIPELINED_BYTES)
        for _ in range(100):
            await asyncio.sleep(0)
        assert front.front.held_bytes <= PIPELINED_BYTES + READ_BYTES
        for _ in range(100):
            reply.respond(200, [], b"")
            reply = await front.desk.taken.get()
            assert reply.body == body
            assert front.front.held_bytes <= len(body) + PIPELINED_BYTES + READ_BYTES
        reply.respond(200, [], b"")
        for _ in range(101):
            assert (await client.answer()).status == 200


@on_both_loops
async def test_too_much_behind_a_request_closes_its_connection_after_the_answer() -> None:
    async with house(later, held_bytes=1000) as front:
        client, reply, told = await under_way(front)
        client.writer.write(post(b"x" * 2000) + get("/smuggled"))
        (connection,) = await front.connected()
        await until(lambda: connection.closes)
        assert front.front.held_bytes == 0
        client.writer.write(get("/smuggled") * 3)
        reply.respond(200, [], b"last")
        got = await client.answer()
        assert (got.body, got.headers["connection"]) == (b"last", "close")
        assert await client.rest() == b""
        assert front.desk.paths() == ["/"]
        assert told.gone == 0


HIT = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhit"


@on_both_loops
async def test_nothing_is_recalled_in_the_midst_of_a_request_or_of_an_answer() -> None:
    # the same bytes there are a body, or the next request: not this one
    async with house(later) as front:
        known = get("/known")
        front.desk.known[known] = HIT
        client = await front.client()
        client.writer.write(post(known)[: -len(known)])
        await until(lambda: len(front.desk.recalled) == 1)
        client.writer.write(known)
        reply = await front.desk.taken.get()
        assert reply.body == known
        client.writer.write(known)
        await until(lambda: front.front.held_bytes == 2 * len(known))
        reply.respond(200, [], b"first")
        second = await front.desk.taken.get()
        assert second.head.path == "/known"
        second.respond(200, [], b"second")
        assert [(await client.answer()).body for _ in range(2)] == [b"first", b"second"]
        assert len(front.desk.recalled) == 1
        assert (await client.send(known)).body == b"hit"


@on_both_loops
async def test_a_client_that_does_not_read_its_hits_is_served_no_more_until_it_does() -> None:
    body = b"x" * 1_000_000
    async with house() as front:
        front.desk.known[get()] = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n" + body
        client = await front.client(receives=4096)
        (connection,) = await front.connected()
        recalled = front.desk.recalled
        while connection.waits_for != "client":
            client.writer.write(get())
            count = len(recalled)
            await until(lambda count=count: len(recalled) > count)  # type: ignore[misc]
        count = len(recalled)
        client.writer.write(get("/after"))
        await until(lambda: front.front.held_bytes == len(get("/after")))
        assert front.desk.requests == []
        for _ in range(count):
            assert (await client.answer()).body == body
        assert (await client.answer()).body == b"hello"
        assert (len(recalled), front.desk.paths()) == (count, ["/after"])


@on_both_loops
async def test_the_time_of_a_next_request_begins_when_the_one_before_is_answered() -> None:
    async with house(later, header_s=10) as front:
        client = await front.client()
        client.writer.write(get() + get()[:5])
        reply = await front.desk.taken.get()
        front.pass_time(1_000)
        reply.respond(200, [], b"")
        await client.answer()
        front.pass_time(9)
        assert front.desk.refusals == []
        client.writer.write(get()[5:])
        (await front.desk.taken.get()).respond(200, [], b"")
        assert (await client.answer()).status == 200


@on_both_loops
async def test_a_request_arrived_when_its_first_byte_was_read() -> None:
    async with house(later) as front:
        client = await front.client()
        began = front.clock.now
        client.writer.write(get("/first")[:5])
        await until(lambda: front.front.held_bytes == 5)
        front.pass_time(3)
        client.writer.write(get("/first")[5:])
        reply = await front.desk.taken.get()
        assert reply.arrived_s == began
        client.writer.write(get("/second"))
        await until(lambda: front.front.held_bytes > 0)
        front.pass_time(5)
        reply.respond(200, [], b"")
        assert (await front.desk.taken.get()).arrived_s == began + 3

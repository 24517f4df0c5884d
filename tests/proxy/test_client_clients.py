"""Clients that leave, read slowly, or send too much at once."""

import asyncio

import pytest
from support.chat import until
from support.fronting import Client, House, get, house, later, on_both_loops, post

from toolkit.proxy.client import PIPELINED_BYTES, Request, unread_bytes

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
    await client.send(data)
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
        await client.send(get())
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
@pytest.mark.parametrize("lines", [[], ["Connection: close"]])
async def test_an_answer_that_nobody_reads_is_forgotten_after_a_while(lines: list[str]) -> None:
    async with house(later, stall_s=10) as front:
        client = await front.client(receives=4096)
        await client.send(get("/", *lines))
        reply = await front.desk.taken.get()
        told = Told(reply)
        reply.begin(200, [], length=10_000_000)
        reply.write(b"x" * 10_000_000, is_last=True)
        assert front.front.busy == 0
        front.pass_time(9)
        await asyncio.sleep(0)
        assert front.front.connections == 1
        await until(lambda: swept(front, 11) and front.front.connections == 0)
        # it was answered: that its client did not read all of it is not the desk's concern any more
        assert told.gone == 0


@on_both_loops
async def test_what_comes_behind_a_request_under_way_is_bounded_and_served_after_it() -> None:
    async with house(later) as front:
        client, reply, _ = await under_way(front)
        body = b"x" * 100_000
        behind = b"".join(post(body) for _ in range(100))  # 10 MB
        sending = asyncio.create_task(client.send(behind))
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
        await sending
        for _ in range(101):
            assert (await client.answer()).status == 200


@on_both_loops
async def test_too_much_behind_a_request_closes_its_connection_after_the_answer() -> None:
    async with house(later, held_bytes=1000) as front:
        client, reply, told = await under_way(front)
        await client.send(post(b"x" * 2000) + get("/smuggled"))
        (connection,) = await front.connected()
        await until(lambda: connection.closes)
        assert front.front.held_bytes == 0
        await client.send(get("/smuggled") * 3)
        reply.respond(200, [], b"last")
        got = await client.answer()
        assert (got.body, got.headers["connection"]) == (b"last", "close")
        assert await client.rest() == b""
        assert front.desk.paths() == ["/"]
        assert told.gone == 0


@on_both_loops
async def test_a_client_that_leaves_behind_unread_requests_is_noticed_by_the_next_sweep() -> None:
    async with house(later) as front:
        client, _, told = await under_way(front)
        client.writer.write(b"x" * 200_000)
        await until(lambda: front.front.held_bytes > PIPELINED_BYTES)
        (connection,) = await front.connected()
        assert connection._is_read_paused
        front.pass_time(1)
        assert told.gone == 0
        await client.writer.drain()
        client.leave()
        await until(lambda: client.writer.transport.get_write_buffer_size() == 0)
        await until(lambda: swept(front, 1, told))
        await until(lambda: front.front.connections == 0)

    # and the rest is left waiting

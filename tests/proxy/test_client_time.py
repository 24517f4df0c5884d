"""What waits too long is ended by the sweep; the clock is the test's."""

import asyncio

from support.chat import until
from support.fronting import House, get, house, later, on_both_loops


async def assert_closed_soon(front: House) -> None:
    """Within a few seconds, and not only after the time that a client has to go on reading."""
    began = front.clock.now

    def is_closed() -> bool:
        front.pass_time(1)
        return front.front.connections == 0

    await until(is_closed)
    assert front.clock.now < began + 60


@on_both_loops
async def test_the_time_of_a_next_request_begins_when_the_one_before_is_answered() -> None:
    async with house(later, header_s=10) as front:
        client = await front.client()
        await client.send(get() + get()[:5])
        reply = await front.desk.taken.get()
        front.pass_time(1_000)
        reply.respond(200, [], b"")
        await client.answer()
        front.pass_time(9)
        assert front.desk.refusals == []
        await client.send(get()[5:])
        (await front.desk.taken.get()).respond(200, [], b"")
        assert (await client.answer()).status == 200


@on_both_loops
async def test_a_request_arrived_when_its_first_byte_was_read() -> None:
    async with house(later) as front:
        client = await front.client()
        began = front.clock.now
        await client.send(get("/first")[:5])
        await until(lambda: front.front.held_bytes == 5)
        front.pass_time(3)
        await client.send(get("/first")[5:])
        reply = await front.desk.taken.get()
        assert reply.arrived_s == began
        await client.send(get("/second"))
        await until(lambda: front.front.held_bytes > 0)
        front.pass_time(5)
        reply.respond(200, [], b"")
        assert (await front.desk.taken.get()).arrived_s == began + 3


@on_both_loops
async def test_a_refused_client_that_never_closes_is_closed() -> None:
    async with house() as front:
        client = await front.client()
        await client.send(b"oops\r\n\r\n")
        assert (await client.answer()).status == 400
        await client.send(b"more" * 1000)
        front.pass_time(1)
        assert front.front.connections == 1
        await assert_closed_soon(front)


@on_both_loops
async def test_a_last_answer_may_be_read_slowly_whatever_was_sent_behind_its_request() -> None:
    # it waits for the client to close, but not before it was read
    async with house(later, stall_s=60) as front:
        client = await front.client(receives=4096)
        await client.send(get("/", "Connection: close") + get("/more"))
        reply = await front.desk.taken.get()
        reply.respond(200, [], b"x" * 8_000_000)
        for _ in range(4):
            front.pass_time(50)
            await client.reader.readexactly(1_000_000)
            for _ in range(10):
                await asyncio.sleep(0)
        assert b"x" * 3_900_000 in await client.rest()
        await assert_closed_soon(front)
        assert front.desk.paths() == ["/"]

"""What waits too long is ended by the sweep; the clock is the test's."""

import asyncio

import pytest
from support.chat import until
from support.fronting import House, Run, get, house, later, on_both_loops, post


async def assert_closed_soon(front: House) -> None:
    """Within a few seconds, and not only after the time that a client has to go on reading."""
    began = front.clock.now

    def is_closed() -> bool:
        front.pass_time(1)
        return front.front.connections == 0

    await until(is_closed)
    assert front.clock.now < began + 60


@on_both_loops
def test_a_connection_that_is_not_used_is_closed_without_a_word(run: Run) -> None:
    async def talk() -> None:
        async with house(idle_s=75) as front:
            fresh, used = [await front.client() for _ in range(2)]
            await front.connected()
            front.pass_time(70)
            assert (await used.ask(get())).status == 200
            front.pass_time(6)
            assert await fresh.rest() == b""
            assert (await used.ask(get())).status == 200
            front.pass_time(75)
            assert await used.rest() == b""
            assert front.desk.refusals == []

    run(talk())


@on_both_loops
def test_a_head_that_trickles_in_is_refused_in_time(run: Run) -> None:
    async def talk() -> None:
        async with house(header_s=10) as front:
            client = await front.client()
            for byte in get()[:9]:
                held = front.front.held_bytes
                await client.send(bytes([byte]))
                await until(lambda held=held: front.front.held_bytes == held + 1)  # type: ignore[misc]
                front.pass_time(1)
            assert front.desk.refusals == []
            front.pass_time(1)
            assert (await client.answer()).status == 408
            assert await client.rest() == b""
            assert front.desk.reasons() == ["header_timeout"]

    run(talk())


@on_both_loops
@pytest.mark.parametrize("framing", ["Content-Length: 9", "Transfer-Encoding: chunked"])
def test_a_body_that_does_not_come_is_refused_in_time(run: Run, framing: str) -> None:
    async def talk() -> None:
        async with house(header_s=10, body_s=60) as front:
            client = await front.client()
            await client.send(get("/", framing, "Expect: 100-continue", method="POST"))
            assert (await client.answer()).status == 100
            front.pass_time(59)
            assert front.desk.refusals == []
            front.pass_time(1)
            assert (await client.answer()).status == 408
            assert front.desk.reasons() == ["body_timeout"]

    run(talk())


@on_both_loops
def test_a_large_body_may_take_longer_while_it_comes(run: Run) -> None:
    async def talk() -> None:
        async with house(body_s=10) as front:
            client = await front.client()
            size = 5 * 64 * 1024  # what is to come in 5 s
            data = post(b"x" * (5 * size))
            await client.send(data[: data.index(b"\r\n\r\n") + 4])
            for number in range(1, 5):
                await client.send(b"x" * size)
                held = number * size
                await until(lambda held=held: front.front.held_bytes == held)
                front.pass_time(5)
            assert front.desk.refusals == []
            assert (await client.ask(b"x" * size)).status == 200
            # all but the last byte at once: what came does not count for ever
            await client.send(data[:-1])
            await until(lambda: front.front.held_bytes == 5 * size - 1)
            front.pass_time(5)
            front.pass_time(4)
            assert front.desk.refusals == []
            front.pass_time(1)
            assert (await client.answer()).status == 408

    run(talk())


@on_both_loops
def test_nothing_ends_the_wait_for_an_answer(run: Run) -> None:
    async def talk() -> None:
        async with house(later) as front:
            client = await front.client()
            await client.send(get())
            reply = await front.desk.taken.get()
            front.pass_time(100_000)
            reply.begin(200, [])
            front.pass_time(100_000)
            reply.end()
            assert (await client.answer()).status == 200

    run(talk())


@on_both_loops
def test_the_time_of_a_next_request_begins_when_the_one_before_is_answered(run: Run) -> None:
    async def talk() -> None:
        async with house(later, header_s=10) as front:
            client = await front.client()
            await client.send(get() + get()[:5])
            reply = await front.desk.taken.get()
            front.pass_time(1_000)
            reply.whole(200, [], b"")
            await client.answer()
            front.pass_time(9)
            assert front.desk.refusals == []
            await client.send(get()[5:])
            (await front.desk.taken.get()).whole(200, [], b"")
            assert (await client.answer()).status == 200

    run(talk())


@on_both_loops
def test_a_request_arrived_when_its_first_byte_was_read(run: Run) -> None:
    async def talk() -> None:
        async with house(later) as front:
            client = await front.client()
            began = front.clock.now
            await client.send(get("/first")[:5])
            await until(lambda: front.front.held_bytes == 5)
            front.pass_time(3)
            await client.send(get("/first")[5:])
            reply = await front.desk.taken.get()
            assert reply.request.arrived_s == began
            await client.send(get("/second"))
            await until(lambda: front.front.held_bytes > 0)
            front.pass_time(5)
            reply.whole(200, [], b"")
            assert (await front.desk.taken.get()).request.arrived_s == began + 3

    run(talk())


@on_both_loops
def test_a_refused_client_that_never_closes_is_closed(run: Run) -> None:
    async def talk() -> None:
        async with house() as front:
            client = await front.client()
            await client.send(b"oops\r\n\r\n")
            assert (await client.answer()).status == 400
            await client.send(b"more" * 1000)
            front.pass_time(1)
            assert front.front.connections == 1
            await assert_closed_soon(front)

    run(talk())


@on_both_loops
def test_a_last_answer_may_be_read_slowly_whatever_was_sent_behind_its_request(run: Run) -> None:
    # it waits for the client to close, but not before it was read
    async def talk() -> None:
        async with house(later, stall_s=60) as front:
            client = await front.client(receives=4096)
            await client.send(get("/", "Connection: close") + get("/more"))
            reply = await front.desk.taken.get()
            reply.whole(200, [], b"x" * 8_000_000)
            for _ in range(4):
                front.pass_time(50)
                await client.reader.readexactly(1_000_000)
                for _ in range(10):
                    await asyncio.sleep(0)
            assert b"x" * 3_900_000 in await client.rest()
            await assert_closed_soon(front)
            assert front.desk.paths() == ["/"]

    run(talk())

import pytest
from support.chat import until
from support.fronting import get, greet, house, later, on_both_loops, post

from toolkit.proxy.client import Request


@on_both_loops
async def test_many_pipelined_requests_are_all_answered_at_once_where_the_desk_can() -> None:
    async with house() as front:
        client = await front.client()
        await client.send(get() * 500)
        for _ in range(500):
            assert (await client.answer()).body == b"hello"


@on_both_loops
async def test_a_client_in_the_midst_of_a_large_body_reads_why_it_is_refused() -> None:
    # closed at once, the bytes still on their way would be answered by a reset, which may overtake the answer
    async with house(body_bytes=1000) as front:
        client = await front.client()
        await client.send(post(b"x" * 2_000_000))
        assert (await client.answer()).status == 413
        assert await client.rest() == b""


@on_both_loops
async def test_bodies_that_have_come_to_a_stand_make_room_the_largest_first() -> None:
    async with house(held_bytes=1000) as front:
        small, large, new = [await front.client() for _ in range(3)]
        await small.send(post(b"x" * 300)[:-1])
        await large.send(post(b"x" * 600)[:-1])
        await until(lambda: front.front.held_bytes == 299 + 599)
        assert (await (await front.client()).ask(post(b"x" * 500))).status == 503
        front.pass_time(1)
        assert (await new.ask(post(b"x" * 500))).status == 200
        assert (await large.answer()).status == 408
        assert (await small.ask(b"x")).status == 200


@on_both_loops
async def test_a_client_beyond_the_limit_is_told_so_and_closed() -> None:
    async with house(later, connections=2) as front:
        one, two = [await front.client() for _ in range(2)]
        for client in (one, two):
            await client.send(get())
            reply = await front.desk.taken.get()
        three = await front.client()
        got = await three.ask(get())
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
        await client.send(get())
        (await front.desk.taken.get()).respond(200, [], b"")
        assert (await client.answer()).status == 200


@on_both_loops
async def test_far_beyond_the_limit_nobody_is_told_anything() -> None:
    async with house(later, connections=1) as front:
        await (await front.client()).send(get())
        await front.desk.taken.get()
        for _ in range(64):
            await front.client()
        await until(lambda: front.front.connections == 65)
        client = await front.client()
        assert await client.is_reset()
        assert front.desk.reasons() == ["connections"] * 64


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
        got = await client.ask(get("/fails"))
        assert got.status == 500
        assert b"ZeroDivision" not in got.body
        assert await client.rest() == b""
        half = await front.client()
        await half.send(get("/half"))
        assert await half.is_reset()
        assert (await (await front.client()).ask(get())).status == 200
        assert front.desk.reasons() == ["fault"]
        assert [type(fault["exception"]) for fault in front.faults] == [ZeroDivisionError] * 2


@on_both_loops
async def test_a_draining_front_answers_what_has_begun_and_closes() -> None:
    async with house(later) as front:
        idle, busy, begun, streaming = [await front.client() for _ in range(4)]
        await idle.send(get("/first"))
        (await front.desk.taken.get()).respond(200, [], b"")
        await idle.answer()
        await busy.send(get("/busy"))
        reply = await front.desk.taken.get()
        await streaming.send(get("/streaming"))
        stream = await front.desk.taken.get()
        stream.begin(200, [])
        await begun.send(get("/begun")[:10])
        await until(lambda: front.front.held_bytes == 10)
        front.front.drain()
        assert await idle.rest() == b""
        reply.respond(200, [], b"x")
        got = await busy.answer()
        assert (got.body, got.headers["connection"]) == (b"x", "close")
        assert await busy.rest() == b""
        await begun.send(get("/begun")[10:])
        (await front.desk.taken.get()).respond(200, [], b"y")
        got = await begun.answer()
        assert (got.body, got.headers["connection"]) == (b"y", "close")
        stream.write(b"z")
        stream.write(b"", is_last=True)
        assert (await streaming.answer()).body == b"z"
        assert await streaming.rest() == b""


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_says_nothing_of_one(status: int) -> None:
    async with house(lambda reply: reply.respond(status, [], b"never")) as front:
        client = await front.client()
        for _ in range(2):
            got = await client.ask(get())
            assert (got.status, got.names) == (status, ["date"])

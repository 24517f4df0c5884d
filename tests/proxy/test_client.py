import asyncio

import pytest
from support.chat import until
from support.fronting import Run, get, greet, house, later, on_both_loops, post

from toolkit.proxy.client import Request


@on_both_loops
def test_many_pipelined_requests_are_all_answered_at_once_where_the_desk_can(run: Run) -> None:
    async def talk() -> None:
        async with house() as front:
            client = await front.client()
            await client.send(get() * 500)
            for _ in range(500):
                assert (await client.answer()).body == b"hello"

    run(talk())


@on_both_loops
def test_a_known_length_is_told_and_kept_to(run: Run) -> None:
    def longer(reply: Request) -> None:
        reply.begin(200, [], length=5)
        reply.write(b"abc")
        reply.write(b"defg")
        reply.write(b"", is_last=True)

    async def talk() -> None:
        async with house(longer) as front:
            client = await front.client()
            for _ in range(2):
                got = await client.ask(get())
                assert (got.headers["content-length"], got.body) == ("5", b"abcde")

    run(talk())


@on_both_loops
def test_an_answer_shorter_than_was_said_is_cut_and_not_followed_by_another(run: Run) -> None:
    def shorter(reply: Request) -> None:
        reply.begin(200, [], length=5)
        reply.write(b"abc")
        reply.write(b"", is_last=True)

    async def talk() -> None:
        async with house(shorter) as front:
            client = await front.client()
            await client.send(get())
            await client.head()
            assert await client.rest() == b"abc"

    run(talk())


@on_both_loops
@pytest.mark.parametrize("size", [0, 1, 64 * 1024, 64 * 1024 + 1, 3_000_000])
def test_a_whole_body_of_any_size_arrives(run: Run, size: int) -> None:
    body = bytes(number % 251 for number in range(1000)) * (size // 1000) + b"x" * (size % 1000)

    async def talk() -> None:
        async with house(lambda reply: reply.respond(200, [], body)) as front:
            client = await front.client()
            for _ in range(2):
                assert (await client.ask(get())).body == body

    run(talk())


@on_both_loops
def test_a_large_request_body_arrives_whole_in_either_framing(run: Run) -> None:
    body = bytes(range(256)) * 20_000  # 5,120,000 bytes
    chunk = b"%x\r\n%b\r\n" % (len(body) // 4, body[: len(body) // 4])

    async def talk() -> None:
        async with house() as front:
            client = await front.client()
            assert (await client.ask(post(body))).status == 200
            await client.send(get("/", "Transfer-Encoding: chunked", method="POST"))
            assert (await client.ask(chunk * 4 + b"0\r\n\r\n")).status == 200
            assert front.desk.requests[0].body == body
            # 5,120,000 / 4 = 1,280,000 = 5,000 times 256: each quarter is the same
            assert front.desk.requests[1].body == body

    run(talk())


@on_both_loops
def test_a_client_in_the_midst_of_a_large_body_reads_why_it_is_refused(run: Run) -> None:
    # closed at once, the bytes still on their way would be answered by a reset, which may overtake the answer
    async def talk() -> None:
        async with house(body_bytes=1000) as front:
            client = await front.client()
            await client.send(post(b"x" * 2_000_000))
            assert (await client.answer()).status == 413
            assert await client.rest() == b""

    run(talk())


@on_both_loops
def test_a_body_is_held_until_its_answer_and_no_longer(run: Run) -> None:
    async def talk() -> None:
        async with house(later, held_bytes=1000) as front:
            clients = [await front.client() for _ in range(3)]
            for client in clients:
                await client.send(post(b"x" * 900))
                reply = await front.desk.taken.get()
                other = await front.client()
                assert (await other.ask(post(b"x" * 900))).status == 503
                reply.respond(200, [], b"")
                assert (await client.answer()).status == 200
            assert front.front.held_bytes == 0

    run(talk())


@on_both_loops
def test_bodies_that_have_come_to_a_stand_make_room_the_largest_first(run: Run) -> None:
    async def talk() -> None:
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

    run(talk())


@on_both_loops
def test_a_client_beyond_the_limit_is_told_so_and_closed(run: Run) -> None:
    async def talk() -> None:
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

    run(talk())


@on_both_loops
def test_far_beyond_the_limit_nobody_is_told_anything(run: Run) -> None:
    async def talk() -> None:
        async with house(later, connections=1) as front:
            await (await front.client()).send(get())
            await front.desk.taken.get()
            for _ in range(64):
                await front.client()
            await until(lambda: front.front.connections == 65)
            client = await front.client()
            assert await client.is_reset()
            assert front.desk.reasons() == ["connections"] * 64

    run(talk())


@on_both_loops
def test_a_desk_that_fails_costs_its_request_alone(run: Run) -> None:
    def fails(reply: Request) -> None:
        if reply.head.path == "/half":
            reply.begin(200, [], length=5)
        if reply.head.path != "/":
            raise ZeroDivisionError
        greet(reply)

    async def talk() -> None:
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

    run(talk())


@on_both_loops
def test_a_late_word_after_the_answer_goes_nowhere(run: Run) -> None:
    async def talk() -> None:
        async with house(later) as front:
            client = await front.client()
            await client.send(get() + get())
            reply = await front.desk.taken.get()
            reply.respond(200, [], b"one")
            reply.respond(200, [], b"again")
            reply.begin(200, [])
            reply.write(b"more")
            reply.write(b"", is_last=True)
            reply.cut()
            assert not reply.left
            (await front.desk.taken.get()).respond(200, [], b"two")
            assert [(await client.answer()).body for _ in range(2)] == [b"one", b"two"]

    run(talk())


@on_both_loops
def test_a_draining_front_answers_what_has_begun_and_closes(run: Run) -> None:
    async def talk() -> None:
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

    run(talk())


def test_a_header_of_the_desk_can_neither_frame_nor_split_an_answer() -> None:
    def odd(reply: Request) -> None:
        names = [b"content-length", b"transfer-encoding", b"connection", b"date", b"upgrade"]
        reply.respond(
            200, [*((name, b"7") for name in names), (b"x", b"a\r\ny: b\r\n\r\nc")], b"hi"
        )

    async def talk() -> None:
        async with house(odd) as front:
            got = await (await front.client()).ask(get())
            assert (got.body, got.headers["x"]) == (b"hi", "a  y: b    c")
            assert sorted(got.names) == ["content-length", "date", "x"]
            assert got.headers["date"] != "7"

    asyncio.run(talk())


@pytest.mark.parametrize("status", [204, 304])
def test_an_answer_without_a_body_says_nothing_of_one(status: int) -> None:
    async def talk() -> None:
        async with house(lambda reply: reply.respond(status, [], b"never")) as front:
            client = await front.client()
            for _ in range(2):
                got = await client.ask(get())
                assert (got.status, got.names) == (status, ["date"])

    asyncio.run(talk())


def test_a_client_on_a_unix_socket_has_no_address(tmp_path: object) -> None:
    async def talk() -> None:
        async with house() as front:
            path = f"{tmp_path}/front"
            server = await asyncio.get_running_loop().create_unix_server(front.front, path)
            reader, writer = await asyncio.open_unix_connection(path)
            writer.write(get("/", "Connection: close"))
            assert (await reader.read()).endswith(b"hello")
            assert front.desk.requests[0].peer == ""
            writer.close()
            server.close()

    asyncio.run(talk())

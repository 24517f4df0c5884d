import asyncio
import json

import pytest
from support.chat import until
from support.fronting import Run, get, greet, house, later, on_both_loops, post

from toolkit.proxy.exchange import Reply, Request


@on_both_loops
def test_a_request_reaches_the_desk_and_its_answer_the_client(run: Run) -> None:
    async def talk() -> None:
        async with house() as front:
            client = await front.client()
            got = await client.ask(post(b'{"a": 1}', "X: y", path="/v1/completions?b=c"))
            assert (got.status, got.body) == (200, b"hello")
            assert sorted(got.names) == ["content-length", "content-type", "date"]
            (request,) = front.desk.requests
            assert (request.method, request.path, request.query) == (
                "POST",
                "/v1/completions",
                "b=c",
            )
            assert (request.body, request.header(b"x")) == (b'{"a": 1}', b"y")
            assert (request.peer, request.arrived_s) == ("127.0.0.1", front.clock.now)

    run(talk())


@on_both_loops
def test_a_connection_serves_one_request_after_the_other(run: Run) -> None:
    async def talk() -> None:
        async with house() as front:
            client = await front.client()
            for number in range(5):
                assert (await client.ask(get(f"/{number}"))).body == b"hello"
            assert front.desk.paths() == ["/0", "/1", "/2", "/3", "/4"]
            assert front.front.connections == 1

    run(talk())


@on_both_loops
def test_pipelined_requests_are_answered_in_order_one_at_a_time(run: Run) -> None:
    async def talk() -> None:
        async with house(later) as front:
            client = await front.client()
            await client.send(b"".join(get(f"/{number}") for number in range(40)))
            for number in range(40):
                reply = await front.desk.taken.get()
                assert front.desk.taken.empty()
                assert front.front.busy == 1
                reply.whole(200, [], reply.request.path.encode())
                assert (await client.answer()).body == b"/%d" % number

    run(talk())


@on_both_loops
def test_many_pipelined_requests_are_all_answered_at_once_where_the_desk_can(run: Run) -> None:
    async def talk() -> None:
        async with house() as front:
            client = await front.client()
            await client.send(get() * 500)
            for _ in range(500):
                assert (await client.answer()).body == b"hello"

    run(talk())


def streamed(_: Request, reply: Reply) -> None:
    reply.begin(200, [(b"content-type", b"text/event-stream")])
    for part in (b"data: 1\n\n", b"", b"data: 22\n\n"):
        reply.write(part)
    reply.end()


@on_both_loops
def test_an_answer_of_unknown_length_comes_in_chunks_as_they_were_written(run: Run) -> None:
    async def talk() -> None:
        async with house(streamed) as front:
            client = await front.client()
            for _ in range(2):
                await client.send(get())
                got = await client.head()
                assert got.headers["transfer-encoding"] == "chunked"
                assert "content-length" not in got.headers
                parts = [part async for part in client.chunks()]
                assert parts == [b"data: 1\n\n", b"data: 22\n\n"]

    run(talk())


@on_both_loops
def test_an_old_client_gets_a_stream_that_ends_by_closing(run: Run) -> None:
    async def talk() -> None:
        async with house(streamed) as front:
            client = await front.client()
            got = await client.ask(get("/", "Connection: keep-alive", version="1.0"))
            assert got.body == b"data: 1\n\ndata: 22\n\n"
            assert got.headers["connection"] == "close"
            assert "transfer-encoding" not in got.headers

    run(talk())


@on_both_loops
@pytest.mark.parametrize(
    ("lines", "version", "word"),
    [
        (["Connection: keep-alive"], "1.0", "keep-alive"),
        ([], "1.0", "close"),
        ([], "1.1", None),
        (["Connection: close"], "1.1", "close"),
    ],
)
def test_the_connection_stays_or_ends_as_the_client_wishes(
    run: Run, lines: list[str], version: str, word: str | None
) -> None:
    async def talk() -> None:
        async with house() as front:
            client = await front.client()
            got = await client.ask(get("/", *lines, version=version))
            assert got.headers.get("connection") == word
            if word == "close":
                assert await client.rest() == b""
            else:
                assert (await client.ask(get())).status == 200

    run(talk())


@on_both_loops
@pytest.mark.parametrize("answers", [greet, streamed])
def test_the_head_of_an_answer_is_that_of_get_without_its_body(run: Run, answers: object) -> None:
    async def talk() -> None:
        async with house(answers) as front:  # type: ignore[arg-type]
            client = await front.client()
            asked = await client.ask(get(method="HEAD"), method="HEAD")
            got = await client.ask(get())
            assert (asked.status, asked.names) == (got.status, got.names)
            assert asked.headers.get("content-length") == got.headers.get("content-length")

    run(talk())


@on_both_loops
def test_a_known_length_is_told_and_kept_to(run: Run) -> None:
    def longer(_: Request, reply: Reply) -> None:
        reply.begin(200, [], length=5)
        reply.write(b"abc")
        reply.write(b"defg")
        reply.end()

    async def talk() -> None:
        async with house(longer) as front:
            client = await front.client()
            for _ in range(2):
                got = await client.ask(get())
                assert (got.headers["content-length"], got.body) == ("5", b"abcde")

    run(talk())


@on_both_loops
def test_an_answer_shorter_than_was_said_is_cut_and_not_followed_by_another(run: Run) -> None:
    def shorter(_: Request, reply: Reply) -> None:
        reply.begin(200, [], length=5)
        reply.write(b"abc")
        reply.end()

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
        async with house(lambda _, reply: reply.whole(200, [], body)) as front:
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
def test_a_client_that_asks_first_is_told_to_send_the_body(run: Run) -> None:
    async def talk() -> None:
        async with house() as front:
            client = await front.client()
            for _ in range(2):
                head = post(b"{}", "Expect: 100-continue")[:-2]
                assert (await client.ask(head)).status == 100
                assert (await client.ask(b"{}")).body == b"hello"

    run(talk())


@on_both_loops
@pytest.mark.parametrize(
    ("data", "status", "reason"),
    [
        (post(b"x" * 101, "Expect: 100-continue")[:-101], 413, "body_bytes"),
        (post(b"x" * 101), 413, "body_bytes"),
        (get("/", "Content-Encoding: gzip"), 415, "content_encoding"),
        (get("/" + "a" * 3000), 431, "header_bytes"),
        (get("/", *(f"X-{number}: y" for number in range(30))), 431, "headers"),
    ],
)
def test_what_is_too_much_is_refused_in_openais_words_and_the_connection_ends(
    run: Run, data: bytes, status: int, reason: str
) -> None:
    async def talk() -> None:
        async with house(body_bytes=100, header_bytes=2000, headers=30) as front:
            client = await front.client()
            got = await client.ask(data)
            assert got.status == status
            assert got.headers["connection"] == "close"
            assert got.headers["content-type"] == "application/json"
            error = json.loads(got.body)["error"]
            assert error["code"] == status
            assert set(error) == {"message", "type", "param", "code"}
            assert await client.rest() == b""
            assert front.desk.refusals == [(status, reason, "127.0.0.1")]
            assert front.desk.requests == []

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
def test_all_unfinished_bodies_together_are_bounded(run: Run) -> None:
    async def talk() -> None:
        async with house(held_bytes=2 * 600) as front:
            first, fellow, second, third = [await front.client() for _ in range(4)]
            begun = post(b"x" * 600)[:-1]
            await first.send(begun)
            await fellow.send(begun)
            await until(lambda: front.front.held_bytes == 2 * 599)
            got = await second.ask(begun)
            assert got.status == 503
            assert got.headers["retry-after"] == "1"
            assert front.desk.reasons() == ["held_bytes"]
            # what was refused is held no more, and what came first goes on
            assert (await first.ask(b"x")).status == 200
            assert (await third.ask(post(b"x" * 300))).status == 200
            assert (await fellow.ask(b"x")).status == 200
            assert front.front.held_bytes == 0

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
                reply.whole(200, [], b"")
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
def test_a_desk_may_answer_by_the_head_alone_and_then_no_body_is_awaited_or_read(run: Run) -> None:
    def refuses(request: Request, reply: Reply) -> None:
        reply.whole(401 if request.body == b"" else 200, [], b"who?")

    async def talk() -> None:
        async with house(refuses) as front:
            front.desk.admits = lambda request: request.path != "/shut"
            for more in ((), ("Expect: 100-continue",)):
                client = await front.client()
                data = post(b"x" * 300_000, *more, path="/shut")
                await client.send(data[: data.index(b"\r\n\r\n") + 4])
                got = await client.answer()
                assert (got.status, got.headers["connection"]) == (401, "close")
                await client.send(get("/behind"))
                assert await client.rest() == b""
            assert front.desk.paths() == ["/shut", "/shut"]
            assert (await (await front.client()).ask(post(b"x" * 300_000))).status == 200
            assert front.front.held_bytes == 0

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
            reply.whole(200, [], b"")
            assert (await two.answer()).status == 200
            client = await front.client()
            await client.send(get())
            (await front.desk.taken.get()).whole(200, [], b"")
            assert (await client.answer()).status == 200

    run(talk())


@on_both_loops
def test_the_longest_silent_connection_makes_room_for_a_new_one(run: Run) -> None:
    async def talk() -> None:
        async with house(connections=3) as front:
            busy, first, half = [await front.client() for _ in range(3)]
            front.pass_time(1)
            await half.send(b"GET / HT")
            await until(lambda: front.front.held_bytes == 8)
            front.pass_time(1)
            assert (await busy.ask(get())).status == 200
            front.pass_time(1)
            for silent in (first, half, busy):
                assert (await (await front.client()).ask(get())).status == 200
                assert await silent.rest() == b""
                front.pass_time(1)
            assert front.front.connections == 3
            assert front.desk.refusals == []

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
    def fails(request: Request, reply: Reply) -> None:
        if request.path == "/half":
            reply.begin(200, [], length=5)
        if request.path != "/":
            raise ZeroDivisionError
        greet(request, reply)

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
            reply.whole(200, [], b"one")
            reply.whole(200, [], b"again")
            reply.begin(200, [])
            reply.write(b"more")
            reply.end()
            reply.abort()
            assert not reply.is_gone
            (await front.desk.taken.get()).whole(200, [], b"two")
            assert [(await client.answer()).body for _ in range(2)] == [b"one", b"two"]

    run(talk())


@on_both_loops
def test_a_draining_front_answers_what_has_begun_and_closes(run: Run) -> None:
    async def talk() -> None:
        async with house(later) as front:
            idle, busy, begun, streaming = [await front.client() for _ in range(4)]
            await idle.send(get("/first"))
            (await front.desk.taken.get()).whole(200, [], b"")
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
            reply.whole(200, [], b"x")
            got = await busy.answer()
            assert (got.body, got.headers["connection"]) == (b"x", "close")
            assert await busy.rest() == b""
            await begun.send(get("/begun")[10:])
            (await front.desk.taken.get()).whole(200, [], b"y")
            got = await begun.answer()
            assert (got.body, got.headers["connection"]) == (b"y", "close")
            stream.write(b"z")
            stream.end()
            assert (await streaming.answer()).body == b"z"
            assert await streaming.rest() == b""

    run(talk())


def test_a_header_of_the_desk_can_neither_frame_nor_split_an_answer() -> None:
    def odd(_: Request, reply: Reply) -> None:
        names = [b"content-length", b"transfer-encoding", b"connection", b"date", b"upgrade"]
        reply.whole(200, [*((name, b"7") for name in names), (b"x", b"a\r\ny: b\r\n\r\nc")], b"hi")

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
        async with house(lambda _, reply: reply.whole(status, [], b"never")) as front:
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

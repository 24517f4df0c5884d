"""Requests that the desk knows by their bytes."""

from support.chat import until
from support.fronting import get, house, later, on_both_loops, post

HIT = b"HTTP/1.1 200 OK\r\ncontent-length: 3\r\n\r\nhit"


@on_both_loops
async def test_nothing_is_recalled_in_the_midst_of_a_request_or_of_an_answer() -> None:
    # the same bytes there are a body, or the next request: not this one
    async with house(later) as front:
        known = get("/known")
        front.desk.known[known] = HIT
        client = await front.client()
        await client.send(post(known)[: -len(known)])
        await until(lambda: len(front.desk.recalled) == 1)
        await client.send(known)
        reply = await front.desk.taken.get()
        assert reply.body == known
        await client.send(known)
        await until(lambda: front.front.held_bytes == 2 * len(known))
        reply.respond(200, [], b"first")
        second = await front.desk.taken.get()
        assert second.head.path == "/known"
        second.respond(200, [], b"second")
        assert [(await client.answer()).body for _ in range(2)] == [b"first", b"second"]
        assert len(front.desk.recalled) == 1
        assert (await client.ask(known)).body == b"hit"


@on_both_loops
async def test_a_desk_that_fails_to_recall_is_asked_as_if_it_knew_nothing() -> None:
    async with house() as front:

        def fails(_: bytes) -> None:
            raise ZeroDivisionError

        front.front.recall = fails
        assert (await (await front.client()).ask(get())).body == b"hello"
        assert [type(fault["exception"]) for fault in front.faults] == [ZeroDivisionError]


@on_both_loops
async def test_a_client_that_does_not_read_its_hits_is_served_no_more_until_it_does() -> None:
    body = b"x" * 1_000_000
    async with house() as front:
        front.desk.known[get()] = b"HTTP/1.1 200 OK\r\ncontent-length: 1000000\r\n\r\n" + body
        client = await front.client(receives=4096)
        (connection,) = await front.connected()
        recalled = front.desk.recalled
        while connection.waits_for != "client":
            await client.send(get())
            count = len(recalled)
            await until(lambda count=count: len(recalled) > count)  # type: ignore[misc]
        count = len(recalled)
        await client.send(get("/after"))
        await until(lambda: front.front.held_bytes == len(get("/after")))
        assert front.desk.requests == []
        for _ in range(count):
            assert (await client.answer()).body == body
        assert (await client.answer()).body == b"hello"
        assert (len(recalled), front.desk.paths()) == (count, ["/after"])


@on_both_loops
async def test_hits_keep_a_connection_open() -> None:
    async with house(idle_s=10) as front:
        front.desk.known[get()] = HIT
        client = await front.client()
        for _ in range(4):
            assert (await client.ask(get())).body == b"hit"
            front.pass_time(8)
        assert front.front.connections == 1
        front.pass_time(10)
        assert await client.rest() == b""

"""Answers too large to be kept: what is held of them, and who waits for whom."""

from support.proxy_calls import WHOLE_JOB, Client, bench, gates, run
from support.scripted_upstream import (
    Line,
    slow,
)

from toolkit.proxy.settings import CacheSetting


def test_an_answer_too_large_to_be_stored_is_joined_by_nobody_and_passed_on() -> None:
    async def test() -> None:
        go = gates(2)
        async with bench(
            slow(["x" * 500, "last"], go), cache=CacheSetting(max_answer_bytes=400)
        ) as made:
            client = made.ask()
            go[0].set()
            await client.until(b"x" * 500)
            assert made.ask().led
            go[1].set()
            await client.over.wait()
            assert client.text.endswith(b"data: [DONE]\n\n")
            assert made.kept == []
            recorder = client.call.recorder if client.call else None
            assert recorder is not None
            # what it took is held no longer
            assert recorder.events[1] == b""

    run(test())


def test_a_slow_client_of_an_answer_too_large_holds_the_upstream_back_and_nothing_is_lost() -> None:
    async def test() -> None:
        piece = b"x" * 1_000_000

        async def play(line: Line) -> None:
            line.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
            line.send(b"content-length: 24000000\r\n\r\n" + piece * 24)

        async with bench(play, cache=CacheSetting(max_answer_bytes=100_000)) as made:
            client = made.ask(job=WHOLE_JOB, client=Client(slow=True))
            quick = made.ask(job=WHOLE_JOB)
            await client.held()
            assert client.call.recorder is not None
            # 4 MiB, and one read more
            assert sum(map(len, client.call.recorder.events)) < 4 * 2**20 + 10**6
            # its own slowness is not the upstream's: no deadline
            made.clock.ahead_s = 300.0
            made.calls.tick()
            assert not client.over.is_set()
            made.clock.ahead_s = 0.0
            client.slow = False
            client.take(client.call)
            await client.over.wait()
            assert sum(map(len, client.data)) == sum(map(len, quick.data)) == 24_000_000
            await made.idle()

    run(test())


def test_a_slow_client_that_leaves_lets_the_others_go_on() -> None:
    async def test() -> None:
        async def play(line: Line) -> None:
            line.send(b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n")
            line.send(b"content-length: 32000000\r\n\r\n" + b"x" * 32_000_000)

        async with bench(play, cache=CacheSetting(max_answer_bytes=100_000)) as made:
            client = made.ask(job=WHOLE_JOB, client=Client(slow=True))
            quick = made.ask(job=WHOLE_JOB)
            await client.held()
            made.leave(client)
            await quick.over.wait()
            assert sum(map(len, quick.data)) == 32_000_000

    run(test())

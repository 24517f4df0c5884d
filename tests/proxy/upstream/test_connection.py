"""A connection to an upstream that was used before reads an answer as a new one does, however its bytes are cut."""

import asyncio
from collections.abc import Callable, Coroutine
from itertools import count
from random import Random
from typing import Any

import pytest
import uvloop

from toolkit.proxy.config import UpstreamSetting
from toolkit.proxy.errors import Fault
from toolkit.proxy.upstream.connection import Page, Upstream, UpstreamConnection

OK = b"HTTP/1.1 200 OK\r\ncontent-type: text/plain\r\n"
ANSWERS = (
    OK + b"content-length: 5\r\n\r\nwords",
    OK + b"content-length: 0\r\n\r\n",
    OK + b"transfer-encoding: chunked\r\n\r\n3;a=b\r\none\r\n4\r\n two\r\n0\r\n\r\n",
    OK + b"transfer-encoding: chunked\r\ntrailer: x\r\n\r\n3\r\none\r\n0\r\nx: 1\r\n\r\n",
    OK + b"content-length: 5\r\nconnection: close\r\n\r\nwords",
    OK + b"\r\nwords to the end",
    b"HTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\ncontent-type: a/b\r\n\r\nHTTP/1.1 404 Not Found\r\ncontent-length: 2\r\n\r\nno",
    b"HTTP/1.0 200 OK\r\ncontent-length: 2\r\n\r\nok",
    OK + b"content-length: 2\r\ncontent-encoding: gzip\r\n\r\nok",
    OK + b"x: y\r\n" * 200 + b"content-length: 2\r\n\r\nok",
    OK + b"content-length: 2\r\ntransfer-encoding: chunked\r\n\r\n0\r\n\r\n",
)


async def answers(url: str, order: list[int], *, is_kept: bool) -> list[Page | str | None]:
    found: list[Page | str | None] = []
    upstream = Upstream(UpstreamSetting(name="x", url=url))
    for number in order:
        try:
            found.append(await upstream.fetch(f"/{number}", most_bytes=1000))
        except Fault as error:
            found.append(str(error))
        if not is_kept:
            await upstream.close()
            upstream = Upstream(UpstreamSetting(name="x", url=url))
    await upstream.close()
    return found


async def test_a_used_connection_reads_answers_as_new_ones_do() -> None:
    made = count()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        chance = Random(next(made))
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                number = int(head.split()[1][1:])
                data = ANSWERS[number]
                while data:
                    size = chance.choice([1, 7, 5000])
                    writer.write(data[:size])
                    await asyncio.sleep(0)
                    data = data[size:]
                if number in (4, 5):
                    writer.close()
        except (asyncio.IncompleteReadError, ConnectionError):
            writer.close()

    order = [Random(seed).choice([seed % 12, 0, 2, 3]) for seed in range(300)]
    async with await asyncio.start_server(serve, "127.0.0.1", 0) as server:
        url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        kept = await answers(url, order, is_kept=True)
        used = next(made)
        assert kept == await answers(url, order, is_kept=False)
    assert used < 150
    assert Page(404, "", b"no") in kept
    assert {each.status for each in kept if isinstance(each, Page)} == {200, 204, 404}
    assert sum(isinstance(each, str) for each in kept) > 10


@pytest.mark.parametrize("run_loop", [asyncio.run, uvloop.run])
def test_an_upstream_closes_though_a_client_left_as_its_connection_was_made(
    run_loop: Callable[[Coroutine[Any, Any, None]], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Then uvloop closes the connection without `connection_lost`: a proxy under load never came to its end."""
    made: list[UpstreamConnection] = []

    async def test() -> None:
        async def hold(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.read()
            writer.close()

        def connection_made(self: UpstreamConnection, transport: asyncio.BaseTransport) -> None:
            usual(self, transport)
            made.append(self)
            client.cancel()

        usual = UpstreamConnection.connection_made
        monkeypatch.setattr(UpstreamConnection, "connection_made", connection_made)
        async with await asyncio.start_server(hold, "127.0.0.1", 0) as server:
            port = server.sockets[0].getsockname()[1]
            upstream = Upstream(UpstreamSetting(name="x", url=f"http://127.0.0.1:{port}"))
            client = asyncio.create_task(upstream.fetch("/", most_bytes=1000))
            await asyncio.wait([client])
            # its turns follow each other without a pause: only a count ends it where it hangs
            closing = asyncio.create_task(upstream.close())
            for _ in range(1000):
                await asyncio.sleep(0)
            assert closing.done()

    run_loop(test())
    assert len(made) == 1

"""Many clients at once, each with its own manners: nobody gets another's answer, nothing is left behind."""

import asyncio
import random
from collections import Counter

import pytest
from support.fronting import Client, House, get, house, on_both_loops, post

from toolkit.proxy.client import Request

HOSTILE = [
    (post(b"{}", "Content-Length: 2"), 400),
    (post(b"{}", "Transfer-Encoding: chunked") + get("/smuggled"), 400),
    (post(b"{}", "Content-Encoding: gzip"), 415),
    (post(b"{}", "Expect: miracles"), 417),
    (get(version="2.0"), 505),
    (get(method="BREW"), 501),
    (get("/" + "a" * 8192), 414),
    (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + b"\0" * 32, 400),
]
"""Each with the status that must answer it."""
LARGE = 300_000


class Storm:
    """Answers in as many ways as there are; which one, the path says."""

    def __init__(self, seed: int) -> None:
        self.dice = random.Random(seed)
        self.gone: Counter[str] = Counter()

    def answers(self, reply: Request) -> None:
        name, how = reply.head.path.strip("/").split("/")
        reply.on_done = lambda: self.gone.update([name] * reply.left)
        body = expected(name, how, reply.body)
        loop = asyncio.get_running_loop()
        delay_s = self.dice.choice([0, 0, 0.001, 0.005])
        if how == "now":
            reply.respond(200, [], body)
        elif how in ("later", "large"):
            loop.call_later(delay_s, reply.respond, 200, [], body)
        else:
            reply.begin(200, [])
            self._stream(reply, body, 0)

    def _stream(self, reply: Request, body: bytes, at: int) -> None:
        if reply.left:
            return
        if at >= len(body):
            reply.write(b"", is_last=True)
            return
        end = at + self.dice.randint(1, 7)
        reply.write(body[at:end])
        asyncio.get_running_loop().call_soon(self._stream, reply, body, end)


def expected(name: str, how: str, body: bytes) -> bytes:
    whole = name.encode() + b":" + body
    return whole * (LARGE // len(whole)) if how == "large" else whole


class Guest:
    """One client: some requests in some framing, in pieces; then it goes, in one way or another."""

    def __init__(self, number: int, storm: Storm) -> None:
        self.number = number
        self.dice = random.Random(storm.dice.random())
        self.wants: list[bytes] = []
        self.status: int | None = None

    def requests(self) -> bytes:
        parts = []
        for turn in range(self.dice.randint(1, 6)):
            name = f"{self.number}-{turn}"
            how = self.dice.choice(["now", "now", "later", "stream", "large"])
            body = bytes(self.dice.choices(b"abc\r\n0 :", k=self.dice.randint(0, 40)))
            self.wants.append(expected(name, how, body))
            parts.append(self.framed(f"/{name}/{how}", body))
        if self.dice.random() < 0.3:
            data, self.status = self.dice.choice(HOSTILE)
            parts.append(data)
        return b"".join(parts)

    def framed(self, path: str, body: bytes) -> bytes:
        if self.dice.random() < 0.5:
            return post(body, path=path)
        chunks = b"".join(b"%x\r\n%c\r\n" % (1, byte) for byte in body)
        return get(path, "Transfer-Encoding: chunked", method="POST") + chunks + b"0\r\n\r\n"

    async def visit(self, front: House) -> None:
        client = await front.client(receives=self.dice.choice([None, None, 4096]))
        data = self.requests()
        reading = asyncio.create_task(self.read(client))
        cuts = sorted(self.dice.sample(range(1, len(data)), min(len(data) - 1, 5)))
        leaves = self.dice.random() < 0.3
        if leaves:
            cuts = cuts[: self.dice.randint(0, 4)]
        for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
            if leaves and end == len(data):
                break
            client.writer.write(data[start:end])
            await asyncio.sleep(self.dice.choice([0, 0, 0.001]))
        if leaves:
            reading.cancel()
            self.dice.choice([client.leave, client.reset, client.writer.write_eof])()
        else:
            await reading
            client.leave()

    async def read(self, client: Client) -> None:
        for want in self.wants:
            assert (await client.answer()).body == want
        if self.status is not None:
            assert (await client.answer()).status == self.status
            assert await client.rest() == b""


@on_both_loops
@pytest.mark.parametrize("seed", range(2))
async def test_in_a_crowd_everyone_gets_their_own_answers_in_order(seed: int) -> None:
    storm = Storm(seed)
    async with house(storm.answers) as front:
        guests = [Guest(number, storm) for number in range(80)]
        visits = [asyncio.create_task(guest.visit(front)) for guest in guests]
        while not all(visit.done() for visit in visits):
            front.front.sweep()
            await asyncio.wait(visits, timeout=0.05)
        for visit in visits:
            visit.result()
        assert sum(guest.status is not None for guest in guests) > 5
        assert len(front.desk.requests) > 130
        assert max(storm.gone.values(), default=0) <= 1
        assert front.faults == []

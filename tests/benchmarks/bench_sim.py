"""What a simulated server costs, and whether its seconds are honest.

    python tests/benchmarks/bench_sim.py

One `toolkit sim serve` in a process of its own, asked over bare sockets by this one. CPU is the
server's own `process_cpu_seconds_total`. The limits are the project's: eight of them and a load
generator must fit on two cores. For the clock, what a client sees is held against the step times that
the engine is told, and against the server's own histograms.
"""

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import NamedTuple, Self
from urllib.parse import urlsplit

REQUEST_BAR_US = 500.0
"""CPU of one whole answer of 16 tokens."""
EVENT_BAR_US = 100.0
"""CPU of one streamed token, written by itself."""
IDLE_BAR = 0.01
"""Share of one core."""
PAGE_BAR_MS = 20.0
FIRST_BAR_MS = 5.0
"""How much later than its step ends a first token may come to a client that is alone."""
CLOCK_BAR = 0.03
"""How far 256 tokens may be from the sum of their steps, and the histograms from the client."""

STREAMS = 64
TOKEN = b'"token_ids":null'  # in each token's chunk, and only there
PROMPT_TOKENS = 9  # one word, and eight tokens of the chat template


class Asked(NamedTuple):
    """What a client saw of one answer."""

    tokens: int
    first_s: float
    """To the first token's bytes."""
    last_s: float


class Server:
    """A simulated server that runs elsewhere; its steps do not vary."""

    def __init__(self, scale: float, *settings: str) -> None:
        changes = [word for each in ("jitter=0", *settings) for word in ("--set", each)]
        command = ["sim", "serve", "--port", "0", "--time-scale", str(scale), *changes]
        self._process = subprocess.Popen(
            [Path(sys.executable).with_name("toolkit"), *command],
            stdout=subprocess.PIPE,
            text=True,
        )
        assert self._process.stdout
        self.at = urlsplit(self._process.stdout.readline().strip())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)
        assert self._process.stdout
        self._process.stdout.close()

    def request(self, path: str, **body: object) -> bytes:
        data = json.dumps(body).encode() if body else b""
        head = f"{'POST' if body else 'GET'} {path} HTTP/1.1\r\nhost: sim\r\n"
        head += f"content-type: application/json\r\ncontent-length: {len(data)}\r\n\r\n"
        return head.encode() + data

    async def get(self, path: str) -> bytes:
        reader, writer = await asyncio.open_connection(self.at.hostname, self.at.port)
        body = await exchange(reader, writer, self.request(path))
        writer.close()
        return body

    async def numbers(self) -> dict[str, float]:
        lines = (await self.get("/metrics")).decode().splitlines()
        samples = [line.rpartition(" ") for line in lines if not line.startswith("#")]
        return {name.partition("{")[0]: float(value) for name, _, value in samples}

    async def cpu_s(self, work: Callable[[], Awaitable[None]]) -> float:
        """CPU that the server spends on some work."""
        before = (await self.numbers())["process_cpu_seconds_total"]
        await work()
        return (await self.numbers())["process_cpu_seconds_total"] - before


async def exchange(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, data: bytes
) -> bytes:
    """Send a request and read the answer, which tells its length."""
    writer.write(data)
    head = await reader.readuntil(b"\r\n\r\n")
    length = head.partition(b"content-length: ")[2].partition(b"\r\n")[0]
    return await reader.readexactly(int(length))


async def many_answers(server: Server, connections: int, each: int) -> None:
    """Ask for whole answers of 16 tokens, one after the other on each connection."""

    async def one(number: int) -> None:
        reader, writer = await asyncio.open_connection(server.at.hostname, server.at.port)
        for turn in range(each):
            words = [{"role": "user", "content": f"{number} {turn}"}]
            asked = server.request("/v1/chat/completions", messages=words, max_tokens=16)
            assert b'"usage"' in await exchange(reader, writer, asked)
        writer.close()

    await asyncio.gather(*(one(number) for number in range(connections)))


async def stream(server: Server, tokens: int) -> Asked:
    """Ask for one streamed answer on a connection of its own."""
    words = [{"role": "user", "content": "word"}]
    wish = {"max_tokens": tokens, "ignore_eos": True, "stream": True, "messages": words}
    reader, writer = await asyncio.open_connection(server.at.hostname, server.at.port)
    begun = time.monotonic()
    writer.write(server.request("/v1/chat/completions", **wish))
    received, first = b"", 0.0
    while not received.endswith(b"0\r\n\r\n"):
        data = await reader.read(2**16)
        assert data, "the stream was cut"
        received += data
        if not first and TOKEN in received:
            first = time.monotonic() - begun
    last = time.monotonic() - begun
    writer.close()
    assert received.count(TOKEN) == tokens
    return Asked(tokens, first, last)


async def fast() -> list[str]:
    """As fast as it goes: a hundred times life."""
    with Server(0.01) as server:
        await many_answers(server, STREAMS, 2)  # warm
        begun = time.monotonic()
        cpu = await server.cpu_s(lambda: many_answers(server, STREAMS, 40))
        wall, count = time.monotonic() - begun, STREAMS * 40
        each_us = cpu / count * 1e6
        print(
            f"whole answers:  {count / wall:,.0f} a second, {each_us:.0f} us CPU each (16 tokens)"
        )
        begun, events = time.monotonic(), 0

        async def streams() -> None:
            nonlocal events
            answers = await asyncio.gather(*(stream(server, 256) for _ in range(STREAMS)))
            events = sum(each.tokens for each in answers)

        cpu = await server.cpu_s(streams)
        wall = time.monotonic() - begun
        hasty_us = cpu / events * 1e6
        print(f"streams, hasty: {events / wall:,.0f} tokens a second, {hasty_us:.0f} us CPU each")
    return [f"RATIO sim_request_cpu {each_us / REQUEST_BAR_US:.3f}"]


async def true_to_life() -> list[str]:
    """At the speed of life every token is an event and a write of its own."""
    with Server(1) as server:
        idle = await server.cpu_s(lambda: asyncio.sleep(3)) / 3
        pages = 50

        async def look() -> None:
            for _ in range(pages):
                await server.get("/metrics")

        page_ms = await server.cpu_s(look) / pages * 1000
        before = await server.numbers()
        answers: list[Asked] = []

        async def streams() -> None:
            answers.extend(await asyncio.gather(*(stream(server, 256) for _ in range(STREAMS))))

        cpu = await server.cpu_s(streams)
        after = await server.numbers()
    events = sum(each.tokens for each in answers)
    event_us = cpu / events * 1e6
    # 64 prompts in the first step or the first two, then 255 steps of 64
    nominal = 0.012 + STREAMS * PROMPT_TOKENS * 0.000129 + 255 * (0.012 + STREAMS * 0.000115)
    slowest = max(each.last_s for each in answers)
    rate = events / slowest
    print(f"idle:           {idle * 100:.2f} % of a core")
    print(f"/metrics:       {page_ms:.1f} ms CPU a page")
    print(f"{STREAMS} streams:     {rate:,.0f} tokens a second, {event_us:.0f} us CPU each")
    # sent at once they are read one after the other, which the histograms, as vLLM's, do not see
    means = {
        name: (after[key] - before[key]) / STREAMS
        for name in ("time_to_first_token", "e2e_request_latency")
        for key in (f"vllm:{name}_seconds_sum",)
    }
    first, last = (
        sum(each) / STREAMS for each in ((a.first_s for a in answers), (a.last_s for a in answers))
    )
    clock("first tokens in /metrics", first, means["time_to_first_token"])
    off = [
        clock("64 streams, last one", nominal, slowest),
        clock("whole answers in /metrics", last, means["e2e_request_latency"]),
    ]
    return [
        f"RATIO sim_event_cpu {event_us / EVENT_BAR_US:.3f}",
        f"RATIO sim_idle_cpu {idle / IDLE_BAR:.3f}",
        f"RATIO sim_page_cpu {page_ms / PAGE_BAR_MS:.3f}",
        f"RATIO sim_clock_64_streams {max(off) / CLOCK_BAR:.3f}",
    ]


async def alone() -> list[str]:
    """One answer of 256 tokens, at the speed of life and ten times as fast."""
    lines = []
    for scale in (1.0, 0.1):
        with Server(scale) as server:
            await stream(server, 4)  # warm
            seen = await stream(server, 256)
        first = (0.012 + PROMPT_TOKENS * 0.000129) * scale
        nominal = first + 255 * (0.012 + 0.000115) * scale
        late_ms = (seen.first_s - first) * 1000
        print(f"first token alone, scale {scale:g}: {late_ms:.2f} ms later than its step")
        off = clock(f"256 tokens alone, scale {scale:g}", nominal, seen.last_s)
        lines += [
            f"RATIO sim_first_token_scale_{scale:g} {late_ms / FIRST_BAR_MS:.3f}",
            f"RATIO sim_clock_scale_{scale:g} {off / CLOCK_BAR:.3f}",
        ]
    return lines


def clock(what: str, nominal_s: float, seen_s: float) -> float:
    """Print how far off a time is; return that as a share."""
    off = seen_s / nominal_s - 1
    print(f"{what}: {seen_s:.4f} s, nominal {nominal_s:.4f} s ({off * 100:+.2f} %)")
    return abs(off)


async def main() -> None:
    lines = [*await fast(), *await true_to_life(), *await alone()]
    print("\n".join(lines))


if __name__ == "__main__":
    asyncio.run(main())

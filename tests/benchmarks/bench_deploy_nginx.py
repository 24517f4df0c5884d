"""What nginx with the file of `toolkit deploy nginx` adds to the first token of a stream, in front of two simulated engines.

    python tests/benchmarks/bench_deploy_nginx.py

Both engines run in one process of the simulator, at a hundredth of their time, so that a first token takes about a millisecond of
the model's and the way to it is what is left to see. Each round asks one engine directly, then nginx, then the other engine, then
nginx, over connections that are kept, with prompts that never repeat. Bar: the median through nginx at most 5 ms above the direct one.
A second part asks 32 at a time, in turn all directly, 16 of each engine, and all through nginx: that is told, without a
bar, as on few cores it measures how engines, nginx and clients share them.
"""

import asyncio
import itertools
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from at_length import at_length

ROOT = Path(__file__).parent.parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from support.deployed import site  # noqa: E402
from support.nginxes import serving  # noqa: E402 (path first)
from support.sim_fleet import running  # noqa: E402

ROUNDS = at_length(200, 5)
CROWD = 32
CROWD_ROUNDS = at_length(20, 1)
BAR_MS = 5.0
CHAT = "/v1/chat/completions"
NUMBERS = itertools.count()


@dataclass
class Way:
    """One connection to an engine, or to nginx."""

    port: int
    reader: asyncio.StreamReader = field(init=False)
    writer: asyncio.StreamWriter = field(init=False)

    async def open(self) -> "Way":
        self.reader, self.writer = await asyncio.open_connection("127.0.0.1", self.port)
        return self

    async def first_token_ms(self) -> float:
        """From the send to the chunk with the first text; the rest is read before it returns."""
        self.writer.write(request())
        began, read, first_s = time.perf_counter(), b"", 0.0
        while not read.endswith(b"\r\n0\r\n\r\n"):
            data = await self.reader.read(65536)
            assert data, read
            read += data
            # the first chunk has the role and an empty text
            if not first_s and read.count(b'"content":') >= 2:
                first_s = time.perf_counter()
        assert b" 200 " in read[:20]
        assert b"data: [DONE]" in read
        return (first_s - began) * 1000


def request() -> bytes:
    message = {"role": "user", "content": f"Tell story {next(NUMBERS)}"}
    body = json.dumps(
        {"model": "Qwen3.5-35B-A3B", "messages": [message], "max_tokens": 16, "stream": True}
    ).encode()
    head = f"POST {CHAT} HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\ncontent-length: {len(body)}\r\n\r\n"
    return head.encode() + body


async def alone(engines: Sequence[int], nginx: int) -> None:
    direct = [await Way(port).open() for port in engines]
    through = await Way(nginx).open()
    found: dict[str, list[float]] = {"direct": [], "nginx": []}
    for number in range(-5, ROUNDS):
        for way in direct:
            took_ms = [await way.first_token_ms(), await through.first_token_ms()]
            for name, each in zip(found, took_ms, strict=True):
                found[name] += [each] if number >= 0 else []
    added_ms = show("alone", found)
    print(f"RATIO deploy_nginx_ttft {max(0.0, added_ms) / BAR_MS:.3f}")


async def crowded(engines: Sequence[int], nginx: int) -> None:
    crowds = {
        "direct": [await Way(engines[number % 2]).open() for number in range(CROWD)],
        "nginx": [await Way(nginx).open() for _ in range(CROWD)],
    }
    found: dict[str, list[float]] = {name: [] for name in crowds}
    for number in range(-1, CROWD_ROUNDS):
        for name, ways in crowds.items():
            took_ms = await asyncio.gather(*(way.first_token_ms() for way in ways))
            found[name] += took_ms if number >= 0 else []
    show(f"{CROWD} at a time", found)


def show(what: str, found: dict[str, list[float]]) -> float:
    """What nginx adds, in ms."""
    direct, nginx = (statistics.median(each) for each in found.values())
    print(
        f"{what}: TTFT p50 of {len(found['nginx'])} direct {direct:.2f} ms, through nginx {nginx:.2f} ms: {nginx - direct:+.2f} ms"
    )
    return nginx - direct


def main() -> None:
    settings = {"time_scale": 0.01}
    spec = {name: ("gptq-int4", settings | {"seed": seed}) for seed, name in enumerate(("a", "b"))}
    with running(spec) as hosts, tempfile.TemporaryDirectory() as folder:
        engines = [int(line.rpartition(":")[2]) for line in hosts.splitlines()]
        tables = "".join(
            f'[[engine]]\nkind = "sim"\nmodel = "gptq-int4"\nport = {port}\n' for port in engines
        )
        with serving(Path(folder), site("proxy = false\n" + tables)) as nginx:
            asyncio.run(alone(engines, nginx.port))
            asyncio.run(crowded(engines, nginx.port))


if __name__ == "__main__":
    main()

"""What a hit of `toolkit proxy` costs beside nginx, a plain aiohttp cache and LiteLLM, and what a miss adds.

    python tests/benchmarks/bench_proxy.py [hits|streams|misses|cpu|rates|many|latency|twins|memory ...] [--litellm PROGRAM]

Everything runs on this machine over loopback: the server under test on one core, wrk on another. Rounds are interleaved,
figures are medians. CPU is the server's own, by the scheduler's clock. Ours has all features on: a team's key, TTL, Age,
Cache-Status, counters, the shared layer on tmpfs, a log line for each request. nginx keys by URI, Authorization and body
and writes a buffered JSON log; its files are on tmpfs.

hits     64 connections, two prompts in turn, whole answers of 1 KB. Bars: CPU a hit at most 1.05 times nginx's, hits/s at
         least nginx's, at least 4 times the plain aiohttp cache's, at least 100 times LiteLLM's (if PROGRAM is given:
         `litellm` of an environment of its own).
streams  The same with streams of 25 KB. Bar: CPU a hit at most 1.3 times nginx's.
misses   Prompts that never repeat, streamed; TTFT beside a direct connection and an nginx that only passes on, in turn. Bar: 0.5 ms
         more than direct in the median.
         And the TTFT of a stream that is a hit. Bar: 1 ms.
cpu      Streams that never repeat, of 8 and of 64 tokens, 32 at a time: CPU of a miss, and of each token more, beside an nginx that
         only passes on. Bars: 2.5 and 1.6 times nginx's.
rates    Streams that never repeat, answered at once, 200 and 1,000 a second: TTFT beside a direct connection and an nginx that only
         passes on, in turn. Bars: 0.5 ms more than direct in the median at 200 a second; at 1,000 a second all are answered, and
         the proxy's core is not full.
many     200 streams of 50 tokens a second at once: TTFT beside direct. Bar: 10 ms more at p99.
latency  16 to 64 connections at about half the most hits/s. Bar: p99 at most 2 ms.
twins    32 equal requests at once, a stream of TWINS_S seconds. Bars: 1 call upstream, joiners' first bytes at most 50 ms
         behind the leader's.
memory   Ten caps of answers put through a small memory layer. Bar: at most 1.3 times the cap more than before.

A RATIO is what was reached over its bar, or the bar over what was reached: at most 1 is good. With CI set: hits, misses,
twins.
"""

import argparse
import asyncio
import json
import os
import re
import socket
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import uvloop

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import proxy_rivals as rivals  # noqa: E402 (path first)
from proxy_rivals import CLIENT_CORE, KEY, Server  # noqa: E402 (path first)

ROUNDS = 5
ROUND_S, LITELLM_S = 1, 8
"""A round with LiteLLM is longer: it answers some 100 a second, and the first ones of a round late."""
CONNECTIONS = 64
MISSES = 100
STREAMS, STREAMED = 32, 200
"""Connections of `cpu`, and tokens of each in a round."""
RATE_S = 3
MANY_S, MANY_ROUNDS = 8, 3
TWINS, TWINS_S = 32, 4
CAP_MIB, ANSWER_BYTES, CAPS = 16, 16_384, 10

SCRIPT = """
local made = {}
function init()
  local head = { ["content-type"] = "application/json", ["authorization"] = "Bearer %s" }
  for number = 1, 2 do
    local body = [[{"model":"tiny","messages":[{"role":"user","content":"Tell a story, number ]] .. number ..
      string.rep(" and go on", 60) .. [["}],"max_tokens":256,"temperature":0,"stream":%s}]]
    made[number] = wrk.format("POST", "/v1/chat/completions", head, body)
  end
end
local count = 0
function request()
  count = count + 1
  return made[count %% 2 + 1]
end
%s
"""


class Load(NamedTuple):
    """What wrk saw in one round."""

    hits_per_s: float
    cpu_us: float
    p99_ms: float


@contextmanager
def upstream(mode: str) -> Iterator[int]:
    """A canned server's port."""
    with subprocess.Popen(
        ["taskset", "-c", str(CLIENT_CORE), sys.executable, str(HERE / "canned_server.py"), mode],
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        try:
            yield int(process.stdout.readline().split()[0])
        finally:
            process.kill()


def wrk(
    server: Server, script: Path, *, seconds: float = ROUND_S, connections: int = CONNECTIONS
) -> Load:
    """One round against a server; every answer must be good."""
    before = server.cpu_s()
    done = subprocess.run(
        [
            *("taskset", "-c", str(CLIENT_CORE), "wrk", "-t1", f"-c{connections}", f"-d{seconds}s"),
            *("--latency", "-s", str(script), f"http://127.0.0.1:{server.port}"),
        ],
        capture_output=True,
        text=True,
        check=True,
    )
    cpu_s = server.cpu_s() - before
    assert "Non-2xx" not in done.stdout, f"{server.name}: {done.stdout}"
    count = int(re.search(r"(\d+) requests in", done.stdout)[1])
    rate = float(re.search(r"Requests/sec:\s+([\d.]+)", done.stdout)[1])
    worst, unit = re.search(r"99%\s+([\d.]+)(us|ms|s)", done.stdout).groups()
    return Load(rate, cpu_s / count * 1e6, float(worst) * {"us": 1e-3, "ms": 1, "s": 1e3}[unit])


def scripts(folder: Path, *, stream: bool, more: str = "") -> Path:
    path = folder / f"{'stream' if stream else 'whole'}{len(more)}.lua"
    path.write_text(SCRIPT % (KEY, json.dumps(stream), more))
    return path


def middle(loads: list[Load]) -> Load:
    return Load(*(statistics.median(column) for column in zip(*loads, strict=True)))


def compared(mode: str, program: Path | None) -> dict[str, Load]:
    """Medians by server, interleaved."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        port = stack.enter_context(upstream(mode))
        servers = [stack.enter_context(rivals.ours(port)), stack.enter_context(rivals.nginx(port))]
        servers.append(stack.enter_context(rivals.plain(port)))
        if program:
            servers.append(stack.enter_context(rivals.litellm(port, program)))
        script = scripts(folder, stream=mode == "long")
        loads: dict[str, list[Load]] = {server.name: [] for server in servers}
        for turn in range(-1, ROUNDS):
            for server in servers:
                seconds = LITELLM_S if server.name == "litellm" else ROUND_S
                load = wrk(server, script, seconds=seconds)
                if turn >= 0:
                    loads[server.name].append(load)
    return {name: middle(each) for name, each in loads.items()}


def show(loads: dict[str, Load]) -> None:
    for name, load in loads.items():
        print(
            f"{name:>8}: {load.hits_per_s:9,.0f} hits/s  {load.cpu_us:8.1f} us CPU a hit  p99 {load.p99_ms:.2f} ms"
        )


def hits(program: Path | None) -> None:
    print(f"whole answers of 1 KB, {CONNECTIONS} connections, {ROUNDS} rounds of {ROUND_S} s")
    loads = compared("whole", program)
    show(loads)
    us, nginx, plain = loads["toolkit"], loads["nginx"], loads["aiohttp"]
    print(f"RATIO proxy_hit_cpu_to_nginx {us.cpu_us / nginx.cpu_us / 1.05:.3f}")
    print(f"RATIO proxy_hit_rate_to_nginx {nginx.hits_per_s / us.hits_per_s:.3f}")
    print(f"RATIO proxy_hit_rate_to_aiohttp {4 * plain.hits_per_s / us.hits_per_s:.3f}")
    if "litellm" in loads:
        print(
            f"RATIO proxy_hit_rate_to_litellm {100 * loads['litellm'].hits_per_s / us.hits_per_s:.3f}"
        )


def streams(_program: Path | None) -> None:
    print(f"streams of 25 KB, {CONNECTIONS} connections, {ROUNDS} rounds of {ROUND_S} s")
    loads = compared("long", None)
    show(loads)
    print(
        f"RATIO proxy_stream_hit_cpu_to_nginx {loads['toolkit'].cpu_us / loads['nginx'].cpu_us / 1.3:.3f}"
    )


# --- time to the first token -----------------------------------------------------------------------


def request(number: object, *, stream: bool = True) -> bytes:
    body = json.dumps(
        {
            "model": "tiny",
            "messages": [{"role": "user", "content": f"story {number} " + "and go on " * 60}],
            "max_tokens": 64,
            "stream": stream,
        }
    ).encode()
    return (
        b"POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
        b"authorization: Bearer %b\r\ncontent-length: %d\r\n\r\n%b"
        % (KEY.encode(), len(body), body)
    )


def first_token_ms(connection: socket.socket, data: bytes) -> float:
    """From the send to the first chunk with a token; the rest is read before it returns."""
    began = time.perf_counter()
    connection.sendall(data)
    read, first = b"", 0.0
    # chunked, or a hit of a known length whose last event is [DONE]
    while not read.endswith((b"\r\n0\r\n\r\n", b"\n\ndata: [DONE]\n\n")):
        read += connection.recv(65536)
        if not first and read.count(b'"content":"') >= 2:
            first = time.perf_counter() - began
    return first * 1000


def misses(_program: Path | None) -> None:
    times = first_tokens()
    direct, through, nginx, hit = (
        statistics.median(times[name]) for name in ("direct", "toolkit", "nginx", "hit")
    )
    print(
        f"{MISSES} misses, one every 0.4 s: TTFT p50 direct {direct:.2f} ms; an nginx that only passes on adds"
        f" {nginx - direct:.2f} ms, the proxy {through - direct:.2f} ms"
    )
    p99 = statistics.quantiles(times["hit"], n=100)[98]
    print(f"{MISSES} hits of streams: TTFT p50 {hit:.2f} ms, p99 {p99:.2f} ms")
    print(f"RATIO proxy_miss_adds {(through - direct) / 0.5:.3f}")
    print(f"RATIO proxy_stream_hit_ttft {hit:.3f}")


def first_tokens() -> dict[str, list[float]]:
    """TTFT in ms of misses by who is asked, in turn, and of the proxy's hits."""
    found: dict[str, list[float]] = {"direct": [], "nginx": [], "toolkit": [], "hit": []}
    with (
        upstream("brief") as port,
        rivals.ours(port) as ours,
        rivals.nginx(port, rivals.PASSES) as nginx,
    ):
        os.sched_setaffinity(0, {CLIENT_CORE})
        ports = {"direct": port, "nginx": nginx.port, "toolkit": ours.port, "hit": ours.port}
        asked = {
            name: socket.create_connection(("127.0.0.1", each)) for name, each in ports.items()
        }
        for number in range(-10, MISSES):
            for name, connection in asked.items():
                took_ms = first_token_ms(connection, request(number))
                if number >= 0:
                    found[name].append(took_ms)
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    return found


def cpu(_program: Path | None) -> None:
    found: dict[str, dict[int, list[float]]] = {}
    with ExitStack() as stack:
        modes = {8: "brief", 64: "trickle"}
        ports = {count: stack.enter_context(upstream(mode)) for count, mode in modes.items()}
        servers = [(count, stack.enter_context(rivals.ours(port))) for count, port in ports.items()]
        for count, port in ports.items():
            servers.append((count, stack.enter_context(rivals.nginx(port, rivals.PASSES))))
        os.sched_setaffinity(0, {CLIENT_CORE})
        for turn in range(-1, ROUNDS):
            for count, server in servers:
                each = max(1, STREAMED // count)
                before = server.cpu_s()
                asyncio.run(_stream_many(server.port, turn, each))
                took_us = (server.cpu_s() - before) / (each * STREAMS) * 1e6
                if turn >= 0:
                    found.setdefault(server.name, {}).setdefault(count, []).append(took_us)
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    tokens, misses = {}, {}
    for name, by_count in found.items():
        short, long = (statistics.median(by_count[count]) for count in (8, 64))
        tokens[name] = (long - short) / 56
        misses[name] = short - 7 * tokens[name]
        print(f"{name:>8}: {misses[name]:7.0f} us CPU a miss, {tokens[name]:6.1f} us a token more")
    print(f"RATIO proxy_miss_cpu_to_nginx {misses['toolkit'] / misses['nginx'] / 2.5:.3f}")
    print(f"RATIO proxy_token_cpu_to_nginx {tokens['toolkit'] / tokens['nginx'] / 1.6:.3f}")


async def _stream_many(port: int, turn: int, each: int) -> None:
    """So many streams one after the other on each of STREAMS connections."""

    async def ask(number: int) -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        for count in range(each):
            writer.write(request(f"{turn} {number} {count}"))
            await reader.readuntil(b"\r\n0\r\n\r\n")
        writer.close()

    await asyncio.gather(*(ask(number) for number in range(STREAMS)))


class Stream(asyncio.Protocol):
    """One connection that asks for a stream and notes when its first token came."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self._data = b""
        self._began = self._first = 0.0
        self._done: asyncio.Future[float] | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]  # uvloop's own kind

    async def ask(self, data: bytes) -> float:
        """TTFT in ms; it returns when all was read."""
        assert self.transport is not None
        self._done = asyncio.get_running_loop().create_future()
        self._data, self._first, self._began = b"", 0.0, time.perf_counter()
        self.transport.write(data)
        await self._done
        return (self._first - self._began) * 1000

    def data_received(self, data: bytes) -> None:
        if not self._first:
            # the role's chunk has an empty content
            self._data += data
            if self._data.count(b'"content":"') >= 2:
                self._first = time.perf_counter()
        if data.endswith(b"0\r\n\r\n") and self._done is not None:
            self._done.set_result(0.0)

    def connection_lost(self, error: Exception | None) -> None:
        if self._done is not None and not self._done.done():
            self._done.set_exception(ConnectionError(f"it was closed: {error}"))


async def streams_at(port: int, per_s: float, seconds: float, mark: str) -> list[float]:
    """TTFT in ms of streams that begin at a steady rate, whatever becomes of those before; all must be answered."""
    loop = asyncio.get_running_loop()
    idle: list[Stream] = []

    async def ask(number: int) -> float:
        stream = idle.pop() if idle else None
        if stream is None:
            _, stream = await loop.create_connection(Stream, "127.0.0.1", port)
        found = await stream.ask(request(f"{mark} {number}"))
        idle.append(stream)
        return found

    began, asked = loop.time(), []
    for number in range(round(per_s * seconds)):
        await asyncio.sleep(max(0.0, began + number / per_s - loop.time()))
        asked.append(asyncio.ensure_future(ask(number)))
    times = await asyncio.gather(*asked)
    for each in idle:
        assert each.transport is not None
        each.transport.close()
    return times


def rates(_program: Path | None) -> None:
    with (
        upstream("quick") as port,
        rivals.ours(port) as ours,
        rivals.nginx(port, rivals.PASSES) as nginx,
    ):
        os.sched_setaffinity(0, {CLIENT_CORE})
        ports = {"direct": port, "nginx": nginx.port, "toolkit": ours.port}
        for per_s, bar in ((200, "0.5 ms"), (1000, "all answered, its core not full")):
            times: dict[str, list[float]] = {name: [] for name in ports}
            shares = []
            for turn in range(-1, ROUNDS):
                for name, each in ports.items():
                    before, began = ours.cpu_s(), time.perf_counter()
                    found = uvloop.run(streams_at(each, per_s, RATE_S, f"{per_s} {turn} {name}"))
                    if turn >= 0:
                        times[name] += found
                    if turn >= 0 and name == "toolkit":
                        shares.append((ours.cpu_s() - before) / (time.perf_counter() - began))
            p50 = {name: statistics.median(each) for name, each in times.items()}
            p95 = {name: statistics.quantiles(each, n=20)[18] for name, each in times.items()}
            print(
                f"{per_s} streamed misses a second (bar: {bar}): TTFT p50/p95 direct {p50['direct']:.2f}/{p95['direct']:.2f} ms;"
                f" nginx adds {p50['nginx'] - p50['direct']:.2f}/{p95['nginx'] - p95['direct']:.2f},"
                f" the proxy {p50['toolkit'] - p50['direct']:.2f}/{p95['toolkit'] - p95['direct']:.2f},"
                f" with {statistics.median(shares):.0%} of its core"
            )
            if per_s == 200:
                print(f"RATIO proxy_rate_200_adds {(p50['toolkit'] - p50['direct']) / 0.5:.3f}")
            else:
                print(f"RATIO proxy_rate_1000_core {statistics.median(shares):.3f}")
        os.sched_setaffinity(0, range(os.cpu_count() or 1))


def many(_program: Path | None) -> None:
    with upstream("steady") as port, rivals.ours(port) as ours:
        os.sched_setaffinity(0, {CLIENT_CORE})
        times: dict[str, list[float]] = {"direct": [], "toolkit": []}
        ports = {"direct": port, "toolkit": ours.port}
        for turn in range(-1, MANY_ROUNDS):
            for name, each in ports.items():
                # a stream takes 2 s, so that 200 are under way once the first ones end
                found = uvloop.run(streams_at(each, 100, MANY_S, f"many {turn} {name}"))
                if turn >= 0:
                    times[name] += found[200:]
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
    p50 = {name: statistics.median(each) for name, each in times.items()}
    p99 = {name: statistics.quantiles(each, n=100)[98] for name, each in times.items()}
    print(
        f"200 streams of 50 tokens a second at once: TTFT p50/p99 direct {p50['direct']:.2f}/{p99['direct']:.2f} ms;"
        f" the proxy adds {p50['toolkit'] - p50['direct']:.2f}/{p99['toolkit'] - p99['direct']:.2f} (bar 10 at p99)"
    )
    print(f"RATIO proxy_many_p99 {(p99['toolkit'] - p99['direct']) / 10:.3f}")


def latency(_program: Path | None) -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        server = stack.enter_context(rivals.ours(stack.enter_context(upstream("whole"))))
        most = wrk(server, scripts(folder, stream=False)).hits_per_s
        # each connection waits 1 ms before it asks again
        paced = scripts(folder, stream=False, more="function delay() return 1 end")
        connections, load = 16, None
        while load is None or (load.hits_per_s < most / 2 and connections < 256):
            connections += 8
            load = wrk(server, paced, connections=connections)
        loads = [wrk(server, paced, connections=connections) for _ in range(ROUNDS)]
    load = middle(loads)
    print(
        f"most {most:,.0f} hits/s; at {load.hits_per_s:,.0f} over {connections} connections p99 {load.p99_ms:.2f} ms"
    )
    print(f"RATIO proxy_hit_p99 {load.p99_ms / 2:.3f}")


# --- twins -----------------------------------------------------------------------------------------


async def _twin(port: int, wait_s: float, seconds: int) -> float:
    await asyncio.sleep(wait_s)
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(request(f"twin {seconds}"))
    began, read, first = time.perf_counter(), b"", 0.0
    while b"[DONE]" not in read:
        data = await reader.read(65536)
        assert data, read[-300:]
        read += data
        if not first and read.count(b'"content":"') >= 2:
            first = time.perf_counter() - began
    writer.close()
    return first


class Slow:
    """An upstream whose stream lasts; it counts its calls."""

    def __init__(self, seconds: int) -> None:
        self.calls = 0
        self._seconds = seconds

    async def answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        if head.startswith(b"GET"):
            writer.write(b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n")
            writer.close()
            return
        self.calls += 1
        writer.write(
            b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
        )
        chunk = (
            '{"id":"a","object":"chat.completion.chunk","created":1,"model":"tiny","choices":[%s]}'
        )
        deltas = [
            '{"role":"assistant","content":""}',
            *['{"content":"word "}'] * (10 * self._seconds),
        ]
        for delta in deltas:
            self._event(writer, chunk % f'{{"index":0,"delta":{delta},"finish_reason":null}}')
            await asyncio.sleep(0.1)
        self._event(writer, chunk % '{"index":0,"delta":{},"finish_reason":"stop"}')
        self._event(writer, "[DONE]")
        writer.write(b"0\r\n\r\n")
        await writer.drain()
        writer.close()

    def _event(self, writer: asyncio.StreamWriter, data: str) -> None:
        event = b"data: %b\n\n" % data.encode()
        writer.write(b"%x\r\n%b\r\n" % (len(event), event))


def twins(_program: Path | None, seconds: int = TWINS_S) -> None:
    async def run() -> tuple[list[float], int]:
        slow = Slow(seconds)
        listening = await asyncio.start_server(slow.answer, "127.0.0.1", 0)
        port = listening.sockets[0].getsockname()[1]
        context = rivals.ours(port)
        server = await asyncio.to_thread(context.__enter__)
        try:
            waits = [0.0, *[seconds / 2 * number / TWINS for number in range(1, TWINS)]]
            firsts = await asyncio.gather(*(_twin(server.port, wait, seconds) for wait in waits))
        finally:
            await asyncio.to_thread(context.__exit__, None, None, None)
            listening.close()
        return firsts, slow.calls

    firsts, calls = asyncio.run(run())
    leader, joiners = firsts[0], firsts[1:]
    behind_ms = max(joiners) * 1000
    print(
        f"{TWINS} equal requests over {seconds / 2:.0f} s, a stream of {seconds} s: {calls} call upstream"
    )
    print(
        f"first token after {leader * 1000:.1f} ms (leader), joiners at most {behind_ms:.1f} ms after they asked"
    )
    print(f"RATIO proxy_twins_calls {calls:.3f}")
    print(f"RATIO proxy_twins_behind {behind_ms / 50:.3f}")


# --- memory ----------------------------------------------------------------------------------------


class _Unique(threading.Thread):
    """An upstream of whole answers of a fixed size, in a thread and a loop of its own."""

    def __init__(self) -> None:
        super().__init__(daemon=True)
        self.port = 0
        self.ready = threading.Event()

    def run(self) -> None:
        asyncio.run(self._serve())

    async def _serve(self) -> None:
        listening = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.port = listening.sockets[0].getsockname()[1]
        self.ready.set()
        await asyncio.Event().wait()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while True:
            try:
                head = await reader.readuntil(b"\r\n\r\n")
            except asyncio.IncompleteReadError:
                return
            length = re.search(rb"(?i)content-length: (\d+)", head)
            if length:
                await reader.readexactly(int(length[1]))
            text = os.urandom(ANSWER_BYTES // 2).hex()
            body = json.dumps(
                {
                    "id": "a",
                    "object": "chat.completion",
                    "created": 1,
                    "model": "tiny",
                    "choices": [
                        {
                            "index": 0,
                            "message": {"role": "assistant", "content": text},
                            "finish_reason": "stop",
                        }
                    ],
                    "usage": {"prompt_tokens": 9, "completion_tokens": 9, "total_tokens": 18},
                }
            ).encode()
            writer.write(
                b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n%b"
                % (len(body), body)
            )


async def _ask_many(port: int, numbers: range) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    for number in numbers:
        writer.write(request(number, stream=False))
        head = await reader.readuntil(b"\r\n\r\n")
        assert head.startswith(b"HTTP/1.1 200"), head
        await reader.readexactly(int(re.search(rb"(?i)content-length: (\d+)", head)[1]))
    writer.close()


def memory(_program: Path | None) -> None:
    source = _Unique()
    source.start()
    source.ready.wait()
    # hexadecimal digits of random bytes are half as long once compressed
    count = CAP_MIB * 2**20 * CAPS // (ANSWER_BYTES // 2)

    async def ask_all(port: int) -> None:
        await asyncio.gather(*(_ask_many(port, range(first, count, 16)) for first in range(16)))

    with rivals.ours(source.port, "--memory", f"{CAP_MIB}MiB", "--no-cache-file") as server:
        asyncio.run(_ask_many(server.port, range(-100, 0)))
        before = server.memory_bytes()
        asyncio.run(ask_all(server.port))
        after = server.memory_bytes()
    grown = (after - before) / 2**20
    print(
        f"{count:,} answers of {ANSWER_BYTES:,} bytes through {CAP_MIB} MiB: {before / 2**20:.0f} MiB before, {grown:.1f} more after"
    )
    print(f"RATIO proxy_memory {grown / CAP_MIB / 1.3:.3f}")


PARTS = {
    "hits": hits,
    "streams": streams,
    "misses": misses,
    "cpu": cpu,
    "rates": rates,
    "many": many,
    "latency": latency,
    "twins": twins,
    "memory": memory,
}
QUICK = ("hits", "misses", "twins")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []])
    parser.add_argument("--litellm", type=Path)
    given = parser.parse_args()
    # in CI each minute counts, and the figures of a busy machine do not
    for name in given.parts or (QUICK if os.environ.get("CI") else PARTS):
        PARTS[name](given.litellm)


if __name__ == "__main__":
    main()

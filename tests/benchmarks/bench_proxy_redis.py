"""What a shared Redis spares and costs: calls upstream for equal misses at two proxies, and what it adds to a miss, alive or not.

    python tests/benchmarks/bench_proxy_redis.py

Three `toolkit proxy` over loopback before one server of canned answers (8 tokens, one every 10 ms): two on a real redis-server, with the
settings that they have by themselves, and one without. Nothing is pinned.

pairs    The same prompt at both at once, PAIRS times, one after the other. Bar: 1 call upstream for each. And how long after the one whose
         proxy asked the other has its whole answer.
misses   Prompts that never repeat, in turn at one proxy with Redis and at the one without, MISSES times: what the first adds to the TTFT.
         Redis alive: bar 1 ms in the median. Then frozen (SIGSTOP), and then killed: bars 50 ms, at p99 and at most.
         At most is the worst of a round's answers less the worst of the others in that round; of the rounds, the middle one: a stall
         of the machine is nobody's delay.
back     How long after the Redis is back both proxies use it again. Bar: 10 s.

The rounds are interleaved; p50 and p99 are of all rounds together. A RATIO is what was reached over its bar: at most 1 is good.
"""

import json
import math
import socket
import sys
import tempfile
import threading
import time
import urllib.request
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
sys.path.insert(0, str(HERE))

from at_length import at_length  # noqa: E402 (path first)
from bench_proxy import upstream  # noqa: E402 (path first)
from support.proxy_verb import Verb, proxying  # noqa: E402 (path first)
from support.redis_server import RedisServer, redis_server  # noqa: E402 (path first)

ROUNDS = at_length(5, 1)
PAIRS = at_length(60, 10)
MISSES = at_length(60, 20)
BAR_MS, ALIVE_MS, BACK_S = 50.0, 1.0, 10.0
END = b"\r\n0\r\n\r\n", b"\n\ndata: [DONE]\n\n"

_numbers = iter(range(10**9))


class Client:
    """One connection to one proxy."""

    def __init__(self, verb: Verb) -> None:
        self._end = socket.create_connection(("127.0.0.1", verb.port))
        self._end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, data: bytes) -> tuple[float, float]:
        """Milliseconds to the first token and to the end."""
        began = time.perf_counter()
        self._end.sendall(data)
        read, first = b"", 0.0
        while not read.endswith(END):
            read += self._end.recv(65536)
            if not first and read.count(b'"content":"') >= 2:
                first = time.perf_counter() - began
        assert read.startswith(b"HTTP/1.1 200"), read[:200]
        return first * 1000, (time.perf_counter() - began) * 1000


def prompt(number: int) -> bytes:
    messages = [{"role": "user", "content": f"story {number} " + "and go on " * 60}]
    body = json.dumps({"model": "tiny", "messages": messages, "stream": True}).encode()
    head = "POST /v1/chat/completions HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
    return f"{head}content-length: {len(body)}\r\n\r\n".encode() + body


def p(share: float, values: list[float]) -> float:
    """Nearest rank."""
    return sorted(values)[max(0, math.ceil(share * len(values)) - 1)]


def calls(port: int) -> int:
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/counts", timeout=5) as page:
        return sum(json.loads(page.read()))


# --- pairs -----------------------------------------------------------------------------------------


def pair(clients: tuple[Client, Client]) -> float:
    """Both ask for the same at once; how many ms the second whole answer is behind the first."""
    data, together = prompt(next(_numbers)), threading.Barrier(2)
    took: list[float] = []

    def one(client: Client) -> None:
        together.wait()
        took.append(client.ask(data)[1])

    threads = [threading.Thread(target=one, args=(client,)) for client in clients]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    return abs(took[0] - took[1])


# --- misses ----------------------------------------------------------------------------------------


def misses(with_redis: Client, without: Client) -> tuple[list[float], list[float]]:
    """Milliseconds to the first token, in turn."""
    found: tuple[list[float], list[float]] = ([], [])
    for _ in range(MISSES):
        for client, times in zip((with_redis, without), found, strict=True):
            times.append(client.ask(prompt(next(_numbers)))[0])
    return found


def is_used(verb: Verb) -> bool:
    return b"\ntoolkit_proxy_redis_breaker_open 0.0" in verb.get("/metrics", admin=True)[2]


def until_used(verbs: list[Verb], clients: list[Client]) -> float:
    """Ask on until both proxies use Redis again; the seconds that took."""
    began_s = time.perf_counter()
    while not all(map(is_used, verbs)):
        for client in clients:
            client.ask(prompt(next(_numbers)))
    return time.perf_counter() - began_s


def told(name: str, found: list[tuple[list[float], list[float]]]) -> tuple[float, float, float]:
    """What Redis added at p50, p99 and at most."""
    mine = [each for times, _ in found for each in times]
    plain = [each for _, times in found for each in times]
    middle, high = (p(share, mine) - p(share, plain) for share in (0.5, 0.99))
    most = p(0.5, [max(one) - max(other) for one, other in found])
    print(
        f"{name:>6}: {len(mine)} misses, TTFT p50 {p(0.5, plain):.2f} ms without Redis; with it"
        f" {middle:+.2f} ms at p50, {high:+.2f} at p99, {most:+.2f} at most"
    )
    return middle, high, most


def main() -> None:
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        redis: RedisServer = stack.enter_context(redis_server(folder))
        port = stack.enter_context(upstream("brief"))
        text = f'[[upstream]]\nname = "a"\nurl = "http://127.0.0.1:{port}"\nprobes = false\n'
        (folder / "plain.toml").write_text(text)
        (folder / "redis.toml").write_text(text + '[cache]\nredis_env = "CACHE"\n')
        plain, one, other = (
            stack.enter_context(
                proxying(
                    *("--config", f"{name}.toml", "--no-cache-file"), cwd=folder, CACHE=redis.url
                )
            )
            for name in ("plain", "redis", "redis")
        )
        without, first, second = Client(plain), Client(one), Client(other)
        behind: list[float] = []
        back_s: list[float] = []
        phases: dict[str, list[tuple[list[float], list[float]]]] = {}
        asked = 0
        for number in range(ROUNDS):
            before = calls(port)
            behind += [pair((first, second)) for _ in range(PAIRS)]
            asked += calls(port) - before
            phases.setdefault("alive", []).append(misses(first, without))
            redis.freeze()
            phases.setdefault("frozen", []).append(misses(first, without))
            redis.thaw()
            until_used([one, other], [first, second])
            redis.kill()
            phases.setdefault("killed", []).append(misses(first, without))
            redis.start()
            back_s.append(until_used([one, other], [first, second]))
            print(f"round {number + 1} of {ROUNDS}", file=sys.stderr)
        pairs = ROUNDS * PAIRS
        print(
            f"{pairs} pairs, {asked} calls upstream; the second whole answer {p(0.5, behind):.1f} ms"
            f" behind the first at p50, {p(0.99, behind):.1f} at p99"
        )
        middle, _, _ = told("alive", phases["alive"])
        print(f"used again {max(back_s):.1f} s after it was back, at the latest of {ROUNDS} times")
        print(f"RATIO proxy_redis_calls_a_pair {asked / pairs:.3f}")
        print(f"RATIO proxy_redis_alive_adds_p50 {middle / ALIVE_MS:.3f}")
        for name in ("frozen", "killed"):
            _, high, most = told(name, phases[name])
            print(f"RATIO proxy_redis_{name}_adds_p99 {high / BAR_MS:.3f}")
            print(f"RATIO proxy_redis_{name}_adds_most {most / BAR_MS:.3f}")
        print(f"RATIO proxy_redis_back {max(back_s) / BACK_S:.3f}")


if __name__ == "__main__":
    main()

"""CPU of one request's key, and of all that is read of a body, at three sizes of body.

RATIO request_key_<size> is CPU of `canonical` and `request_key` over that of plain orjson reading the body, writing it
with sorted keys, and BLAKE2b-128 over that: the same work without a look at equal keys, long integers and depth.
request_key_<size>_spaced is the same for a body as `json.dumps` writes it by default, where those are harder to see.
RATIO asked_<size> is CPU of `asked`, which also finds the prompt, its key and its blocks, over the same plain work.
RATIO repeated_body is CPU of `Bodies.seen` for a body of 0.8 KB that was seen before over the 6 us that it may take.
"""

import json
import statistics
import time
from collections.abc import Callable, Iterator
from hashlib import blake2b

import orjson

from toolkit.capture.bodies import Bodies
from toolkit.capture.records import HttpRequest
from toolkit.protocol.request import asked
from toolkit.protocol.request_key import Canonical, canonical, request_key

SIZES = {"0.8KB": (1, 600), "9KB": (10, 820), "68KB": (40, 1620)}
"""Turns of the chat, and characters of each."""
ROUNDS = 9
BYTES_A_ROUND = 4_000_000
REPEATED_BAR_US = 6.0
TEXT = "A cache keeps what was asked before, so that it need not be worked out again; two prompts fill it.\n"


def fields(turns: int, characters: int) -> dict[str, object]:
    """A chat as clients send it: a system's text and turns of prose."""
    text = (TEXT * (characters // len(TEXT) + 1))[:characters]
    roles = ("user", "assistant")
    return {
        "model": "Qwen/Qwen3.5-35B-A3B-FP8",
        "messages": [
            {"role": "system", "content": "You are a helpful assistant."},
            *({"role": roles[turn % 2], "content": text} for turn in range(turns)),
        ],
        "temperature": 0.0,
        "top_p": 0.9,
        "max_tokens": 128,
        "seed": 7,
        "stream": True,
    }


def plain(body: bytes) -> str:
    """The key without a look at what is wrong with the body."""
    form = orjson.dumps(orjson.loads(body), option=orjson.OPT_SORT_KEYS)
    return blake2b(form, digest_size=16).hexdigest()


def key(body: bytes) -> str:
    """Ours."""
    told = canonical(body)
    assert isinstance(told, Canonical)
    return request_key(told.form, endpoint="chat/completions")


def everything(body: bytes) -> str:
    """All that is read of a body."""
    return asked(body, path="/v1/chat/completions").exact_key


def cpu_us(work: Callable[[bytes], object], body: bytes) -> float:
    """CPU of one call, in microseconds."""
    calls = max(20, BYTES_A_ROUND // (4_000 + len(body)))
    start = time.process_time()
    for _ in range(calls):
        work(body)
    return (time.process_time() - start) * 1e6 / calls


def compare(name: str, compact: bytes, spaced: bytes) -> None:
    """Take all in turns, so that a slower minute slows all; print the medians."""
    ways = ((plain, compact), (key, compact), (plain, spaced), (key, spaced), (everything, compact))
    rounds = [[cpu_us(work, body) for work, body in ways] for _ in range(ROUNDS)]
    base, ours, base_spaced, ours_spaced, read = map(statistics.median, zip(*rounds, strict=True))
    print(
        f"{name}: {len(compact)} bytes; orjson and BLAKE2b {base:.1f} us, key {ours:.1f} us,"
        f" with spaces {ours_spaced:.1f} us, all that is read {read:.1f} us"
    )
    print(f"RATIO request_key_{name} {ours / base:.2f}")
    print(f"RATIO request_key_{name}_spaced {ours_spaced / base_spaced:.2f}")
    print(f"RATIO asked_{name} {read / base:.2f}")


def requests(body: bytes, count: int) -> Iterator[HttpRequest]:
    """Requests as they come out of packets: each with bytes of its own."""
    for _ in range(count):
        yield HttpRequest(
            ts=1.0,
            ts_last=1.0,
            client=b"\x0a\0\0\x09",
            client_port=4711,
            server=b"\x0a\0\0\x04",
            server_port=8000,
            method="POST",
            path="/v1/chat/completions",
            body=bytes(bytearray(body)),
            body_bytes=len(body),
        )


def repeated_us(body: bytes) -> float:
    """CPU of a request whose body was seen before, in microseconds."""
    bodies = Bodies(client=bytes.hex)
    rounds = []
    for _ in range(ROUNDS):
        waiting = list(requests(body, 5_000))
        start = time.process_time()
        for request in waiting:
            bodies.seen(request)
        rounds.append((time.process_time() - start) * 1e6 / len(waiting))
    return statistics.median(rounds)


def main() -> None:
    """Print what each costs, and the ratios."""
    for name, (turns, characters) in SIZES.items():
        told = fields(turns, characters)
        compare(name, orjson.dumps(told), json.dumps(told).encode())
    once = repeated_us(orjson.dumps(fields(*SIZES["0.8KB"])))
    print(f"a body seen before: {once:.1f} us a request")
    print(f"RATIO repeated_body {once / REPEATED_BAR_US:.2f}")


if __name__ == "__main__":
    main()

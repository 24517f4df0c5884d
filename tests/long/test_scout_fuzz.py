"""Damaged HTTP answers over real sockets: each look ends in time, with one of four statuses, and nothing raises.

15 s by default, 10 minutes with TOOLKIT_LONG=full. A case is told by its number alone: `CASE=1234` repeats it. Slow is a
failure, too: what a damaged host costs in CPU is compared with what a whole one does.
"""

import asyncio
import json
import logging
import os
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import asdict, replace
from pathlib import Path

import pytest
from rich.console import Console
from support.raw_server import RawServer, http, one_look, vllm_pages

from toolkit.cli.scout import as_object, page
from toolkit.records import Sighting
from toolkit.scout.findings import findings
from toolkit.scout.sighting import describe, examine
from toolkit.store import Store

SECONDS = {"short": 15.0, "full": 600.0}[os.environ.get("TOOLKIT_LONG", "short")]
AT_ONCE = 32
TIMEOUT_S = 0.3
"""Or as long as undamaged hosts take here, or all would be down on a busy machine."""
SLACK_S = 30.0
"""For a busy machine; what is looked for here is a look that does not end, what is slow is found by its CPU."""
SLOWER, READ_SLOWER, READ_S = 3.0, 5.0, 0.05
"""CPU of a batch / of one of undamaged hosts; of reading one host's pages / of undamaged ones, and so much beside."""
PLAIN_TIMEOUT_S = 60.0

pytestmark = pytest.mark.timeout(SECONDS + 300)

TOKENS = [
    b"\r\n", b"\n", b"\r", b"\r\n\r\n", b"\0", b"\xff", b"\x1b[2J", b"\xe2\x80\xae", b" ", b":", b",", b'"', b"\\", b"{", b"}",
    b"NaN", b"+Inf", b"1e999", b"-1", b"9" * 400, b"0x10", b"# EOF\n", b"[" * 2000, b"\xef\xbb\xbf",
    b"Content-Length: 5\r\n", b"Content-Length: 99999999999999999999\r\n", b"Transfer-Encoding: chunked\r\n",
    b"Content-Encoding: gzip\r\n", b"Content-Encoding: deflate\r\n", b"Connection: close\r\n", b"Set-Cookie: a=b\r\n",
    b"Location: /metrics\r\n", b"Location: http://127.0.0.1:1/\r\n", b"Location: //\x1b@[::1\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\n", b"HTTP/1.1 302 Found\r\n", b"HTTP/1.0 200 OK\r\n", b"HTTP/9.9 999 \r\n",
    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: x\r\nConnection: upgrade\r\n\r\n", b"x: " + b"y" * 70_000 + b"\r\n",
    b"fffffff\r\n", b"0\r\n\r\n", b"\x15\x03\x01\x00\x02\x02\x28", b"\x1f\x8b\x08\x00", b'{"data":[{"id":"',
]  # fmt: skip
PATHS = (
    *vllm_pages(), "/prometheus/metrics", "/health/liveliness", "/invocations", "/tokenize", "/info", "/props",
)  # fmt: skip

Writer = asyncio.StreamWriter


def damaged(answer: bytes, chance: random.Random) -> bytes:
    """One to five cuts, flips, repeats and insertions, every second one in the head."""
    data = bytearray(answer)
    for _ in range(chance.randint(1, 5)):
        end = min(len(data), 200) if chance.random() < 0.5 else len(data)
        at = chance.randint(0, end)
        upto = at + chance.choice([1, 2, 8, 100, 5000])
        kind = chance.randrange(5)
        if kind == 0:
            del data[at:upto]
        elif kind == 1:
            data[at:at] = data[at:upto]
        elif kind == 2:
            data[at : at + 1] = bytes([chance.randrange(256)])
        elif kind == 3:
            data[at:at] = chance.choice(TOKENS)
        else:
            data[at:upto] = chance.randbytes(chance.choice([1, 4, 64]))
    return bytes(data)


def chunked(body: bytes) -> bytes:
    head = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
    return head + b"%x\r\n%b\r\n0\r\nx-trailer: 1\r\n\r\n" % (len(body), body)


def sender(data: bytes, ending: str, timeout_s: float) -> Callable[[Writer], Awaitable[None]]:
    """Write it whole or in pieces, then close, reset, or stay silent."""

    async def send(writer: Writer) -> None:
        if ending == "drip":
            for at in range(0, len(data), max(1, len(data) // 7)):
                writer.write(data[at : at + max(1, len(data) // 7)])
                await writer.drain()
                await asyncio.sleep(0.001)
        else:
            writer.write(data)
        await writer.drain()
        if ending == "silent":
            await asyncio.sleep(2 * timeout_s)
        if ending == "reset" and not writer.transport.is_closing():
            linger = struct.pack("ii", 1, 0)
            writer.get_extra_info("socket").setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, linger)
            writer.transport.abort()

    return send


def damaged_pages(
    chance: random.Random, timeout_s: float
) -> dict[str, bytes | Callable[[Writer], Awaitable[None]]]:
    pages = vllm_pages(chance.choice(["metrics_after_load.txt", "metrics_idle.txt"]))
    if chance.random() < 0.3:
        everywhere = [http("no", "401 Unauthorized"), http("<html>"), http("", "503 Loading")]
        pages |= dict.fromkeys(pages, chance.choice(everywhere))
    for path in chance.sample(PATHS, chance.choice([1, 2, 4, len(PATHS)])):
        answer = pages.get(path, http('{"version":"1"}', content_type="application/json"))
        assert isinstance(answer, bytes)
        if chance.random() < 0.3:
            answer = chunked(answer.partition(b"\r\n\r\n")[2])
        answer = damaged(answer, chance)
        # given as bytes the connection stays open, and what is too much is read as the next answer
        ending = chance.choice(["close", "close", "drip", "reset", "silent", "open", "open"])
        pages[path] = answer if ending == "open" else sender(answer, ending, timeout_s)
    return pages


async def one_case(
    number: int, timeout_s: float = TIMEOUT_S, *, is_whole: bool = False
) -> tuple[Sighting, float]:
    """Look twice, as a pair, and carry what was seen to JSON and to the screen; and the CPU seconds that reading took."""
    chance = random.Random(number)
    key = chance.choice([None, "s3cret"])
    async with RawServer(vllm_pages() if is_whole else damaged_pages(chance, timeout_s)) as server:
        began = time.monotonic()
        looks = [await one_look(server.url, timeout_s, key) for _ in range(2)]
        took = time.monotonic() - began
        # asyncio's server forgets to close what it is just about to accept
        await asyncio.sleep(0.1)
    assert took < 2 * (timeout_s + SLACK_S), f"two looks took {took:.2f} s"
    began = time.thread_time()
    first, second = map(examine, looks)
    seen = describe(second, first)
    seen = replace(seen, name=f"case {number}", findings=findings(seen, second, describe(first)))
    assert seen.status in ("ok", "degraded", "down", "not_an_engine")
    assert (seen.status == "ok") == (seen.error is None)
    assert_harmless(seen)
    return seen, time.thread_time() - began


def assert_harmless(seen: Sighting) -> None:
    words = [seen.error, seen.model, seen.engine, seen.version, seen.cache_dtype, *seen.models]
    words += [finding.text for finding in seen.findings]
    assert all(word.isprintable() for word in words if word)
    assert "s3cret" not in str(as_object(seen))
    console = Console(width=120, color_system=None, force_terminal=False)
    with console.capture() as captured:
        console.print(page([seen], console))
    assert "\x1b" not in captured.get()


async def whole_batch() -> tuple[float, float]:
    """CPU seconds of a batch of undamaged hosts, and of reading the pages of the dearest."""
    began = time.process_time()
    cases = (one_case(number, PLAIN_TIMEOUT_S, is_whole=True) for number in range(AT_ONCE))
    seen = await asyncio.gather(*cases)
    assert {sighting.status for sighting, _ in seen} == {"ok"}
    return time.process_time() - began, max(read_s for _, read_s in seen)


async def batches(store: Store) -> Counter[str]:
    statuses: Counter[str] = Counter()
    await whole_batch()  # imports, and what is remembered
    began = time.monotonic()
    plain_s, plain_read_s = await whole_batch()
    timeout_s = max(TIMEOUT_S, (time.monotonic() - began) / 2)
    most_s = most_read_s = 0.0
    ends_at, first = time.monotonic() + SECONDS, 0
    while time.monotonic() < ends_at or first < 2 * AT_ONCE:
        numbers = range(first, first + AT_ONCE)
        began = time.process_time()
        found = await asyncio.gather(
            *(one_case(number, timeout_s) for number in numbers), return_exceptions=True
        )
        took_s = time.process_time() - began
        if took_s > SLOWER * plain_s:
            plain_s, _ = await whole_batch()  # or the machine is slower by now
        assert took_s < SLOWER * plain_s, f"CASE={first} and those after it: {took_s:.2f} s of CPU"
        most_s = max(most_s, took_s / plain_s)
        seen: list[Sighting] = []
        for number, one in zip(numbers, found, strict=True):
            if isinstance(one, BaseException):
                pytest.fail(f"CASE={number}: {one!r}")
            sighting, read_s = one
            if read_s > READ_S + READ_SLOWER * plain_read_s:
                _, read_s = await one_case(number, timeout_s)
            assert read_s < READ_S + READ_SLOWER * plain_read_s, (
                f"CASE={number}: {read_s:.3f} s of CPU to read, undamaged {plain_read_s:.3f}"
            )
            most_read_s = max(most_read_s, read_s)
            statuses[sighting.status] += 1
            seen.append(sighting)
        store.add_sightings(seen)
        first += AT_ONCE
    print(
        f"CPU of a batch at most {most_s:.2f} times an undamaged one's; of reading a host at most {1e3 * most_read_s:.0f} ms,"
        f" undamaged {1e3 * plain_read_s:.0f}"
    )
    await asyncio.sleep(3 * timeout_s)  # the last servers' silences end
    return statuses


def test_no_damaged_answer_makes_scout_stumble(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING)
    if case := os.environ.get("CASE"):
        seen, read_s = asyncio.run(one_case(int(case)))
        print(
            json.dumps(as_object(seen), indent=1, default=asdict), f"{read_s:.3f} s of CPU to read"
        )
        return
    with Store.open(tmp_path / "fuzz.db") as store:
        statuses = asyncio.run(batches(store))
        stored = len(store.known_names())
    assert stored == statuses.total() > AT_ONCE
    # nothing is always wrong and nothing is always right, or the damage tests nothing
    assert len(statuses) == 4
    assert [record.getMessage() for record in caplog.records] == []
    print(f"{statuses.total():,} damaged hosts, two looks each: {dict(statuses.most_common())}")

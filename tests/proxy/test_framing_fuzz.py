"""Broken requests by the thousand: what is understood is what a second reader, written after the RFC alone, understands."""

import random
import re
import time
from dataclasses import dataclass

import pytest
from support.fronting import get, post

from toolkit.proxy.config import FrontSetting
from toolkit.proxy.framing import Heads, RequestReader

LIMITS = FrontSetting(header_bytes=2048, headers=20, body_bytes=200)
METHODS = b"GET|HEAD|POST|PUT|DELETE|OPTIONS|PATCH|TRACE"
TOKEN = rb"[-!#$%&'*+.^_`|~0-9A-Za-z]+"
HEAD = re.compile(
    rb"(?:\r\n)?(" + METHODS + rb") (/[^\x00-\x20\x7f-\xff#<>]*) HTTP/1\.([01])\r\n"
    rb"((?:" + TOKEN + rb":[\t\x20-\x7e\x80-\xff]*\r\n)*)\r\n"
)
CHUNK_LINE = re.compile(rb"([0-9a-fA-F]{1,12})([ \t]*;[\t\x20-\x7e]*)?")
TRAILER = re.compile(TOKEN + rb":[\t\x20-\x7e\x80-\xff]*")

Seen = tuple[bytes, bytes, tuple[tuple[bytes, bytes], ...], bytes]
"""Method, target, headers, body."""


@dataclass
class Second:
    """The second reader: all bytes at once, and an exception where they are wrong."""

    data: bytes

    def all(self) -> tuple[list[Seen], str]:
        """The requests, and how it ended: `between`, `within` one, `refused`."""
        found: list[Seen] = []
        try:
            while self.data not in (b"", b"\r\n"):
                found.append(self.one())
        except EOFError:
            return found, "within"
        except ValueError:
            return found, "refused"
        return found, "between"

    def one(self) -> Seen:
        skipped = 2 if self.data[:2] == b"\r\n" else 0
        end = self.data.find(b"\r\n\r\n", skipped)
        if end < 0:
            raise EOFError
        match = HEAD.fullmatch(self.data[: end + 4])
        if match is None or end + 4 - skipped > LIMITS.header_bytes:
            raise ValueError
        method, target, minor, lines = match.groups()
        pairs = [line.partition(b":") for line in lines.split(b"\r\n")[:-1]]
        headers = tuple((name.lower(), value.strip(b" \t")) for name, _, value in pairs)
        self.data = self.data[end + 4 :]
        length = self.length(headers, minor == b"0")
        body = self.chunks() if length is None else self.take(length)
        return method, target, headers, body

    def length(self, headers: tuple[tuple[bytes, bytes], ...], is_old: bool) -> int | None:
        def values(name: bytes) -> list[bytes]:
            return [value for each, value in headers if each == name]

        once = b"host authorization content-type content-encoding expect upgrade x-api-key x-request-id"
        fine = (
            all(len(values(name)) < 2 for name in once.split())
            and len(headers) <= LIMITS.headers
            and (is_old or len(values(b"host")) == 1)
            and all(re.fullmatch(rb"[\w.~%:\[\]-]*", host, re.ASCII) for host in values(b"host"))
            and values(b"upgrade") in ([], [b"h2c"])
            and (is_old or values(b"expect") in ([], [b"100-continue"]))
            and values(b"content-encoding") in ([], [b""], [b"identity"])
        )
        if not fine:
            raise ValueError
        codings, lengths = values(b"transfer-encoding"), values(b"content-length")
        if codings:
            if is_old or lengths or [coding.lower() for coding in codings] != [b"chunked"]:
                raise ValueError
            return None
        if not lengths:
            return 0
        if len(lengths) > 1 or not re.fullmatch(rb"[0-9]{1,15}", lengths[0]):
            raise ValueError
        if int(lengths[0]) > LIMITS.body_bytes:
            raise ValueError
        return int(lengths[0])

    def take(self, count: int) -> bytes:
        if len(self.data) < count:
            raise EOFError
        taken, self.data = self.data[:count], self.data[count:]
        return taken

    def line(self) -> bytes:
        end = self.data.find(b"\n")
        if end >= 256 or (end < 0 and len(self.data) >= 256):
            raise ValueError
        if end < 0:
            raise EOFError
        line = self.take(end + 1)
        if line[-2:] != b"\r\n":
            raise ValueError
        return line[:-2]

    def chunks(self) -> bytes:
        body = b""
        while True:
            match = CHUNK_LINE.fullmatch(self.line())
            if match is None:
                raise ValueError
            size = int(match[1], 16)
            if not size:
                break
            if len(body) + size > LIMITS.body_bytes:
                raise ValueError
            body += self.take(size)
            if self.take(2) != b"\r\n":
                raise ValueError
        while trailer := self.line():
            if not TRAILER.fullmatch(trailer):
                raise ValueError
        return body


def first(data: bytes, cuts: list[int]) -> tuple[list[Seen], str]:
    """The reader under test, fed in pieces."""
    reader = RequestReader(LIMITS, Heads(LIMITS))
    found: list[Seen] = []
    for start, end in zip([0, *cuts], [*cuts, len(data)], strict=True):
        if start == end:
            continue
        reader.feed(data[start:end])
        while (one := reader.next()) is not None:
            if isinstance(one, str):
                return found, "refused"
            head = one.head
            query = f"?{head.query}" if head.query else ""
            target = f"{head.path}{query}".encode()
            found.append((head.method.encode(), target, head.headers, one.body))
    return found, "between" if reader.is_between else "within"


GOOD = [
    get("/a", "Connection: close"),
    get("/v1/models?x=y", "Accept: */*", version="1.0"),
    post(b'{"a": 1}', "Authorization: Bearer k", "Expect: 100-continue"),
    post(b""),
    get("/c", "Transfer-Encoding: chunked", method="POST") + b"3\r\nabc\r\n1;q=r\r\nd\r\n0\r\n\r\n",
    get("/d", "transfer-encoding: CHUNKED", method="PUT") + b"0\r\nX: y\r\nZ:\r\n\r\n",
    b"\r\n" + get("/e", "Upgrade: h2c", "Connection: Upgrade", method="DELETE"),
]
BITS = [
    *(bytes([byte]) for byte in b"\r\n\0 \t:;,-+0123456789abcdefx/#\x0b\x7f\x80\xff\x1b"),
    *(b"\r\n", b"\r\n\r\n", b"\n\n", b"0\r\n\r\n", b"HTTP/1.0", b"HTTP/1.1", b"GET / HTTP/1.1\r\n"),
    *(b"Host: a\r\n", b"Content-Length: 3\r\n", b"Content-Length: 0\r\n", b"Content-Length:3,3\r\n"),
    *(b"Transfer-Encoding: chunked\r\n", b"Transfer-Encoding: identity\r\n", b"Expect: x\r\n"),
    *(b"\r\n folded", b"Connection: close\r\n", b"Upgrade: websocket\r\n", b"Content-Encoding: gzip\r\n"),
]  # fmt: skip


def broken(dice: random.Random) -> bytes:
    """One to three requests, most of them good, with up to four changes."""
    data = b"".join(dice.choice(GOOD) for _ in range(dice.randint(1, 3)))
    for _ in range(dice.choice([0, 0, 1, 1, 2, 4])):
        at = dice.randrange(len(data) + 1)
        # a whole line more often than a byte somewhere: most bytes are but a name's
        if dice.random() < 0.4:
            at = data.find(b"\r\n", at) + 2 if data.find(b"\r\n", at) >= 0 else at
        cut = dice.choice([0, 0, 1, 2, 10])
        data = data[:at] + dice.choice([b"", *BITS]) + data[at + cut :]
    return data


@pytest.mark.parametrize("seed", range(8))
def test_what_is_understood_is_what_the_second_reader_understands(seed: int) -> None:
    dice = random.Random(seed)
    ends = {"between": 0, "within": 0, "refused": 0}
    broken_s = plain_s = 0.0
    for _ in range(400):
        data = broken(dice)
        expected, end = Second(data).all()
        ends[end] += 1
        cuts = sorted(dice.randrange(len(data) + 1) for _ in range(dice.randint(0, 5)))
        plain = get("/", f"X: {'y' * len(data)}")
        for pieces in ([], cuts, list(range(len(data)))):
            began = time.process_time()
            first(plain[: len(data)], pieces)
            plain_s += time.process_time() - began
            began = time.process_time()
            found, how = first(data, pieces)
            broken_s += time.process_time() - began
            assert found == expected, (data, pieces)
            # what will be wrong in the end may be told before the end has come
            assert how == end or (end, how) == ("within", "refused"), (data, pieces)
    assert min(ends.values()) > 5, ends
    # slow is a failure, too: beside as many bytes of one plain request, cut in the same places
    assert broken_s < 4 * plain_s, (broken_s, plain_s)

"""A big capture of chat traffic, the same bytes every time: what the capture's benchmarks read.

64 keep-alive connections; every second request is streamed, in 24 chunks of a frame each, which the client acknowledges
every sixth; the other answers are one frame. Of 16 frames on average one holds a request. Written with struct, in a
stream: neither the file nor a list of its frames is ever in memory.
"""

import hashlib
import struct
from collections.abc import Iterator
from itertools import zip_longest
from pathlib import Path
from typing import NamedTuple

PORT = 8000
CONNECTIONS = 64
CHUNKS = 24
START_S = 1_700_000_000
STEP_US = 10
"""Between two frames: 100,000 a second, about 6,000 requests a second."""

_FILE = struct.pack("<IHHiIII", 0xA1B2C3D4, 2, 4, 0, 0, 262144, 1)
_RECORD = struct.Struct("<IIII")
_HEADERS = struct.Struct(">14sBBHHHBBH4s4sHHIIBBHHH12s")
_ETHERNET = b"\x02\0\0\0\0\x02" + b"\x02\0\0\0\0\x01" + b"\x08\0"
_TIMESTAMPS = b"\x01\x01\x08\x0a" + bytes(8)
_SERVER = b"\x0a\0\0\x64"
_SYN, _ACK, _PSH = 0x02, 0x10, 0x08

_CHUNK = (
    b'data: {"id":"chatcmpl-0123456789abcdef","object":"chat.completion.chunk","created":1700000000,"model":"llama",'
    b'"choices":[{"index":0,"delta":{"content":" word"},"logprobs":null,"finish_reason":null}]}\n\n'
)
_CHUNK = b"%x\r\n%s\r\n" % (len(_CHUNK), _CHUNK)
_STREAM_HEAD = (
    b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
)
_ANSWER = b'{"id":"chatcmpl-0123456789abcdef","object":"chat.completion","choices":[{"message":{"content":"%s"}}]}'
_ANSWER %= b"word " * 40
_ANSWER = (
    b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: %d\r\n\r\n"
    % len(_ANSWER)
    + _ANSWER
)
_STREAMED = [
    _STREAM_HEAD + _CHUNK,
    *[_CHUNK] * (CHUNKS - 2),
    _CHUNK + b"e\r\ndata: [DONE]\n\n\r\n0\r\n\r\n",
]


class Written(NamedTuple):
    """What a capture file holds."""

    requests: int
    packets: int
    bytes: int
    digest: str
    """How many bodies the requests have, and a hash over them; see `Digest`."""


class Digest:
    """One hash of many bodies, in whatever order they come, without keeping any: the sum of their hashes."""

    def __init__(self) -> None:
        self.bodies = self._sum = 0

    def add(self, body: bytes) -> None:
        self.bodies += 1
        self._sum += int.from_bytes(hashlib.sha256(body).digest(), "big")

    def __str__(self) -> str:
        return f"{self.bodies} {self._sum % 2**256:064x}"


def body(number: int) -> bytes:
    """One request's body; 95 of 100 ask one of two prompts, told apart by their seed."""
    prompt = number if number % 20 == 19 else number % 2
    return (
        b'{"model":"llama","messages":[{"role":"system","content":"You are a helpful assistant."},'
        b'{"role":"user","content":"Prompt %d: %s"}],"max_tokens":128,"temperature":0,"seed":%d,"stream":%s}'
        % (prompt, b"tell me more about it, " * 12, number, b"false" if number % 2 else b"true")
    )


class _Connection:
    """One client's connection: its two sequence numbers, and the frames of each request."""

    def __init__(self, number: int) -> None:
        self.client = bytes([10, 0, 0, 1 + number % 8])
        self.port = 40_000 + number
        self.sent = {True: 1000 * number, False: 77_000 * number}

    def frame(self, from_client: bool, payload: bytes = b"", flags: int = _ACK) -> bytes:
        """One frame, and its sequence number is spent."""
        source, target = (self.client, _SERVER) if from_client else (_SERVER, self.client)
        ports = (self.port, PORT) if from_client else (PORT, self.port)
        seq = self.sent[from_client]
        self.sent[from_client] = seq + len(payload) + bool(flags & _SYN)
        headers = _HEADERS.pack(
            _ETHERNET, 0x45, 0, 52 + len(payload), 0, 0x4000, 64, 6, 0, source, target,
            *ports, seq, self.sent[not from_client], 0x80, flags, 65535, 0, 0, _TIMESTAMPS,
        )  # fmt: skip
        return headers + payload

    def handshake(self) -> Iterator[bytes]:
        yield self.frame(True, flags=_SYN)
        yield self.frame(False, flags=_SYN | _ACK)
        yield self.frame(True)

    def exchange(self, number: int) -> Iterator[bytes]:
        """The frames of one request and its answer."""
        asked = body(number)
        head = (
            b"POST /v1/chat/completions HTTP/1.1\r\nhost: server:8000\r\nuser-agent: bench\r\n"
            b"content-type: application/json\r\ncontent-length: %d\r\n\r\n" % len(asked)
        )
        yield self.frame(True, head + asked, _ACK | _PSH)
        if number % 2:
            yield self.frame(False, _ANSWER, _ACK | _PSH)
            yield self.frame(True)
            return
        for place, chunk in enumerate(_STREAMED):
            yield self.frame(False, chunk, _ACK | _PSH)
            if place % 6 == 5:
                yield self.frame(True)


def _frames(requests: int) -> Iterator[bytes]:
    """All frames, those of concurrent requests in turns."""
    connections = [_Connection(number) for number in range(CONNECTIONS)]
    for connection in connections:
        yield from connection.handshake()
    for first in range(0, requests, CONNECTIONS):
        numbers = range(first, min(first + CONNECTIONS, requests))
        # a connection streams in every other of its requests
        pairs = zip(
            numbers, connections[(first // CONNECTIONS) % 2 :] + connections[:1], strict=False
        )
        at_once = [connection.exchange(number) for number, connection in pairs]
        for step in zip_longest(*at_once):
            yield from (frame for frame in step if frame is not None)


def write(path: Path, requests: int) -> Written:
    """Write a capture of so many requests."""
    packets = size = 0
    with path.open("wb", buffering=1 << 20) as file:
        size += file.write(_FILE)
        for frame in _frames(requests):
            seconds, microseconds = divmod(packets * STEP_US, 10**6)
            size += file.write(
                _RECORD.pack(START_S + seconds, microseconds, len(frame), len(frame))
            )
            size += file.write(frame)
            packets += 1
    digest = Digest()
    for number in range(requests):
        digest.add(body(number))
    return Written(requests, packets, size, str(digest))

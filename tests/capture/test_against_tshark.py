"""The same capture read by us and by tshark with its out-of-order reassembly on: the same requests, byte for byte.

Where tshark is wrong (a capture that begins in the middle, lost bytes) the bodies are written by hand: test_flows_order.py.
All cases are connections of one file, so that tshark starts once.
"""

import gzip
import os
import shutil
import subprocess
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest
from contract.harness.packets import ACK, FIN, PSH, SYN, Conversation, chunked, ok, pcap, post

from toolkit.capture.files import replay
from toolkit.capture.records import HttpRequest, Losses
from toolkit.capture.tcp import Streams

INSTALL = "apt-get install tshark"
ONE, TWO, THREE = b'{"n": 1, "text": "first"}', b'{"n": 2}', b'{"n": 3}'
LONG = b"".join(b"%06d " % number for number in range(700))  # 4,900 bytes: four segments
CHUNKED = b"POST /v1/x HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"

Told = list[tuple[str, str, bytes]]
"""Method, target, body."""


def in_order(talk: Conversation) -> None:
    for body in (ONE, TWO):
        talk.client(post(body))
        talk.server(ok())


def split_small(talk: Conversation) -> None:
    talk.client(post(ONE) + post(TWO), size=50)


def single_bytes(talk: Conversation) -> None:
    talk.client(post(TWO), size=1)


def shuffled(talk: Conversation, order: list[int], data: bytes, size: int) -> None:
    """The client's bytes in segments of `size`, sent in this order."""
    first = talk.next[True]
    for number in order:
        piece = data[number * size : (number + 1) * size]
        talk.segment(True, piece, flags=PSH | ACK, seq=first + number * size)
    talk.next[True] = first + len(data)


def out_of_order(talk: Conversation) -> None:
    shuffled(talk, [0, 2, 1, 3], post(LONG), 1300)
    talk.client(post(TWO))


def first_late(talk: Conversation) -> None:
    shuffled(talk, [1, 2, 3, 0], post(LONG), 1300)
    talk.client(post(TWO))


def all_twice(talk: Conversation) -> None:
    shuffled(talk, [0, 0, 1, 2, 1, 3, 3, 2], post(LONG), 1300)
    talk.client(post(TWO))


def again_in_part(talk: Conversation) -> None:
    data, first = post(LONG), talk.next[True]
    for low, high in ((0, 1448), (0, 700), (700, 2000), (1900, 3000), (2500, len(data))):
        talk.segment(True, data[low:high], flags=PSH | ACK, seq=first + low)
    talk.next[True] = first + len(data)
    talk.client(post(TWO))


def data_on_the_syn(talk: Conversation) -> None:
    talk.frames.clear()
    talk.next = {True: 7000, False: 9000}
    talk.segment(True, post(ONE), flags=SYN)
    talk.segment(False, flags=SYN | ACK)
    talk.segment(True)
    talk.client(post(TWO))


def wrapped(talk: Conversation) -> None:
    talk.frames.clear()
    talk.next[True] = 2**32 - 60
    talk.open()
    talk.client(post(LONG) + post(TWO))


def probes(talk: Conversation) -> None:
    talk.client(post(ONE))
    for _ in range(2):
        talk.segment(True, b"\0", seq=talk.next[True] - 1)
        talk.segment(False)
    talk.client(post(TWO))


def fin_with_data(talk: Conversation) -> None:
    talk.segment(True, post(ONE), flags=FIN | PSH | ACK)
    talk.segment(False)
    talk.server(ok())
    talk.segment(False, flags=FIN | ACK)


def reset_then_again(talk: Conversation) -> None:
    talk.client(post(ONE))
    talk.reset()
    talk.next[True] += 5_000_000
    talk.open()
    talk.client(post(TWO))


def again_without_a_fin(talk: Conversation) -> None:
    talk.client(post(ONE))
    talk.next = {True: 50_000_000, False: 70_000_000}
    talk.open()
    talk.client(post(TWO))


def pipelined(talk: Conversation) -> None:
    get = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"
    talk.client(post(ONE) + get + post(TWO) + get + post(THREE))


def pipelined_and_split(talk: Conversation) -> None:
    talk.client(post(ONE) + post(TWO) + post(THREE), size=70)


def chunks(talk: Conversation) -> None:
    talk.client(CHUNKED + chunked(ONE, [1] * 5 + [10]))
    talk.client(CHUNKED + b"8;ext=1\r\n" + TWO + b"\r\n0;last\r\nX-Sum: 1\r\n\r\n")
    talk.client(CHUNKED + chunked(LONG, [100] * 20), size=333)


def a_terminators_text(talk: Conversation) -> None:
    data = CHUNKED + chunked(b'"0 0\r\n\r\n and 0\r\n\r\n"')
    end = data.index(b"0\r\n\r\n") + 5
    talk.client(data[:end])
    talk.client(data[end:])


def expecting(talk: Conversation) -> None:
    data = post(ONE, headers=[("Expect", "100-continue")])
    talk.client(data[: -len(ONE)])
    talk.server(b"HTTP/1.1 100 Continue\r\n\r\n")
    talk.client(data[-len(ONE) :])


def encoded(talk: Conversation) -> None:
    talk.client(post(gzip.compress(ONE), headers=[("Content-Encoding", "gzip")]))
    talk.client(post(zlib.compress(LONG), headers=[("Content-Encoding", "deflate")]))


def odd_heads(talk: Conversation) -> None:
    talk.client(post(ONE).replace(b"Content-Length", b"cOnTeNt-LeNgTh"))
    talk.client(post(b""))
    talk.client(post(TWO, path="/proxy/v1/x?a=1&b=2"))
    talk.client(post(THREE, path="http://10.0.0.2:8000/v1/x"))
    talk.client(post(ONE).replace(b"HTTP/1.1", b"HTTP/1.0"))


def big(talk: Conversation) -> None:
    talk.client(post(LONG * 14))
    talk.client(post(LONG * 42), size=65_000)


CASES: dict[str, Callable[[Conversation], None]] = {
    case.__name__: case
    for case in (
        in_order, split_small, single_bytes, out_of_order, first_late, all_twice, again_in_part, data_on_the_syn,
        wrapped, probes, fin_with_data, reset_then_again, again_without_a_fin, pipelined, pipelined_and_split, chunks,
        a_terminators_text, expecting, encoded, odd_heads, big,
    )
}  # fmt: skip
PORTS = {name: 41_000 + number for number, name in enumerate(CASES)}


@pytest.fixture(scope="module")
def capture_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("capture") / "cases.pcap"
    frames = []
    for name, case in CASES.items():
        talk = Conversation(sport=PORTS[name])
        talk.open()
        case(talk)
        frames += talk.frames
    path.write_bytes(pcap(frames))
    return path


@pytest.fixture(scope="module")
def by_tshark(capture_file: Path) -> dict[int, Told]:
    """What tshark tells, by the client's port."""
    if shutil.which("tshark") is None:
        # outside CI, where a skip fails, nobody is made to install it; the reason shown is the command that does
        pytest.skip(f"no tshark here: {INSTALL}")
    fields = "tcp.srcport http.request.method http.request.uri http.file_data".split()
    command = ["tshark", "-r", str(capture_file), "-o", "tcp.reassemble_out_of_order:TRUE"]
    command += ["-d", "tcp.port==8000,http", "-Y", "http.request", "-T", "fields"]
    command += ["-E", "aggregator=@", *(word for name in fields for word in ("-e", name))]
    ran = subprocess.run(
        command, capture_output=True, check=True, env=os.environ | {"LC_ALL": "C"}, timeout=60
    )
    told: dict[int, Told] = {}
    for line in ran.stdout.decode().splitlines():
        port, methods, targets, bodies = line.split("\t")
        told.setdefault(int(port), []).extend(requests_of(methods, targets, bodies))
    return told


def requests_of(methods: str, targets: str, bodies: str) -> Told:
    """One line may hold several requests that ended in one segment; those without a body have no column for it."""
    rest = [body.replace("\\r\\n", "\r\n").encode() for body in bodies.split("@") if body]
    told: Told = []
    for method, target in zip(methods.split("@"), targets.split("@"), strict=True):
        told.append((method, target, rest.pop(0) if method == "POST" and rest else b""))
    assert not rest
    return told


@pytest.fixture(scope="module")
def by_us(capture_file: Path) -> dict[int, list[HttpRequest]]:
    told: dict[int, list[HttpRequest]] = {}
    losses = Losses()
    streams = Streams(
        lambda request: told.setdefault(request.client_port, []).append(request),
        ports=[8000],
        losses=losses,
    )
    replay(str(capture_file), streams.segment, ports=[8000], follow_answers=False, losses=losses)
    streams.close()
    assert (losses.gaps, losses.unparsed, losses.truncated) == (0, 0, 0)
    return told


@pytest.mark.slow
@pytest.mark.parametrize("name", CASES)
def test_tshark_and_we_read_the_same_requests(
    name: str, by_tshark: dict[int, Told], by_us: dict[int, list[HttpRequest]]
) -> None:
    port = PORTS[name]
    theirs = [(method, path(target), body) for method, target, body in by_tshark[port]]
    ours = [(one.method, one.path, one.body or b"") for one in by_us[port]]
    assert not any(one.damaged for one in by_us[port])
    assert ours == theirs


def path(target: str) -> str:
    return target.removeprefix("http://10.0.0.2:8000").partition("?")[0]

"""Hard captures whose bodies are known from how their files were built: each is told once, whole, or as damaged; none is invented.

Every case is a file of its own and a client address of its own; all files go through one `toolkit capture`, so that a request is
found by its client. Which losses there are is known, too, and the sums of all cases must be told.
"""

import base64
import gzip
import json
import random
import zlib
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from contract.harness import packets as p
from contract.harness.packets import ACK, FIN, SYN, Conversation, Frame, post
from contract.harness.programs import rows, run

KEYS = set(
    "ts client method path model stream max_tokens temperature prompt_key exact_key new unique_so_far prompt_chars"
    " prompt_preview damaged body".split()
)
SUMMARY = set("requests unique kernel_drops app_drops gaps truncated encrypted unparsed".split())
"""Keys that are promised."""
CHANCE = random.Random(15)
HELLO = bytes.fromhex("16030100050100000100")
NOISE = bytes(range(128, 256)) * 3


def body(*, size: int = 0) -> bytes:
    """Like no other; longer than a segment where `size` says so."""
    word = f"{CHANCE.getrandbits(64):016x}"
    text = word + " " + CHANCE.randbytes(size // 2).hex()
    return json.dumps({"model": "m", "messages": [{"role": "user", "content": text}]}).encode()


@dataclass
class Case:
    """One file."""

    name: str
    client: str
    talk: Conversation
    bodies: list[bytes] = field(default_factory=list)
    """In the order in which they are whole."""
    damaged: int = 0
    bare: int = 0
    """Requests without a body."""
    losses: Counter[str] = field(default_factory=Counter)
    write: Callable[[Sequence[Frame]], bytes] = p.pcap

    def body(self, size: int = 0) -> bytes:
        """A body that is to arrive."""
        self.bodies.append(body(size=size))
        return self.bodies[-1]

    def asks(self, size: int = 0) -> None:
        """A plain request with its answer."""
        self.talk.client(post(self.body(size)))
        self.talk.server(p.ok())

    def file(self) -> bytes:
        return self.write(self.talk.frames)


BUILDERS: list[tuple[str, Callable[[Case], None]]] = []


def case(build: Callable[[Case], None]) -> Callable[[Case], None]:
    BUILDERS.append((build.__name__, build))
    return build


def cases() -> list[Case]:
    """All of them, built anew."""
    made = []
    for number, (name, build) in enumerate(BUILDERS):
        client = f"10.7.{number // 250}.{number % 250 + 1}"
        each = Case(name, client, Conversation(client=client, start=p.START + number * 10))
        build(each)
        made.append(each)
    return made


# --- how a file holds frames ------------------------------------------------------------------------


def three(case: Case) -> None:
    case.talk.open()
    for size in (0, 6000, 0):
        case.asks(size)
    case.talk.close()


for link in p.LINKS:
    if link != p.IPV6_ONLY:

        def on_link(case: Case, link: int = link) -> None:
            case.talk = Conversation(client=case.client, start=case.talk.now, link=link)
            case.write = lambda frames: p.pcap(frames, link)
            three(case)

        BUILDERS.append((f"link_{link}", on_link))

for name, write in {
    "big_endian": lambda frames: p.pcap(frames, order=">"),
    "nanoseconds": lambda frames: p.pcap(frames, nanoseconds=True),
    "pcapng": p.pcapng,
    "pcapng_big_endian": lambda frames: p.pcapng(frames, order=">"),
    "gzip": lambda frames: gzip.compress(p.pcap(frames), mtime=0),
    "gzip_pcapng": lambda frames: gzip.compress(p.pcapng(frames), mtime=0),
    "cut_in_its_last_record": lambda frames: p.pcap(frames)[:-9],
    "cut_gzip": lambda frames: gzip.compress(p.pcap(frames), mtime=0)[:-4],
    "sections": lambda frames: b"".join(
        p.pcapng(part, order=order) for part, order in ((frames[:9], "<"), (frames[9:], ">"))
    ),
    "interfaces": lambda frames: (
        p.section()
        + p.interface(resolution=9)
        + p.interface(resolution=3)
        + b"".join(
            p.enhanced(frame, number=n % 2, ticks_per_s=1000 if n % 2 else 10**9)
            for n, frame in enumerate(frames)
        )
    ),
    "simple_packets": lambda frames: (
        p.section() + p.interface() + b"".join(p.simple(frame) for frame in frames)
    ),
    "a_clock_set_back": lambda frames: p.pcap(
        [frame.at(frame.ts - 5 * (n > 8)) for n, frame in enumerate(frames)]
    ),
}.items():

    def in_file(case: Case, write: Callable[[Sequence[Frame]], bytes] = write) -> None:
        case.write = write
        three(case)

    BUILDERS.append((name, in_file))


# --- IP ----------------------------------------------------------------------------------------------


def repacked(case: Case, how: Callable[[bytes], Sequence[bytes]]) -> None:
    """A plain conversation, each of whose IP packets becomes other frames."""
    case.talk = Conversation(client=case.client, start=case.talk.now, link=p.RAW)
    three(case)
    case.talk.frames[:] = [
        Frame(frame.ts, made) for frame in case.talk.frames for made in how(frame.data)
    ]


def tcp_of(packet: bytes) -> bytes:
    return packet[20:]


@case
def vlan(case: Case) -> None:
    repacked(case, lambda packet: [p.ethernet(packet, vlans=[7])])


@case
def qinq(case: Case) -> None:
    repacked(case, lambda packet: [p.ethernet(packet, vlans=[7, 9])])


@case
def padded_frames(case: Case) -> None:
    repacked(case, lambda packet: [p.ethernet(packet, pad=True)])


@case
def ip_options(case: Case) -> None:
    repacked(
        case,
        lambda packet: [p.ethernet(p.ipv4(tcp_of(packet), *ends(packet), options=b"\x01" * 12))],
    )


@case
def ip_length_of_zero(case: Case) -> None:
    repacked(
        case, lambda packet: [p.ethernet(p.ipv4(tcp_of(packet), *ends(packet), total_length=0))]
    )


def ends(packet: bytes) -> tuple[str, str]:
    return ".".join(map(str, packet[12:16])), ".".join(map(str, packet[16:20]))


@case
def fragments_in_reverse(case: Case) -> None:
    idents = iter(range(1, 999))
    repacked(
        case,
        lambda packet: [
            p.ethernet(each)
            for each in reversed(
                p.ipv4_fragments(tcp_of(packet), 480, *ends(packet), ident=next(idents))
            )
        ],
    )


@case
def both_copies_of_loopback(case: Case) -> None:
    repacked(case, lambda packet: [p.ethernet(packet)] * 2)


@case
def among_noise(case: Case) -> None:
    def noisy(packet: bytes) -> list[bytes]:
        return [
            p.ethernet(p.ipv4(p.udp(53, 8000, NOISE), protocol=17)),
            p.ethernet(p.ipv4(NOISE[:64], protocol=1)),
            p.ethernet(p.ipv4(p.tcp(8001, 9999, 5, NOISE), case.client)),
            b"\xff" * 14,
            p.ethernet(packet),
        ]

    repacked(case, noisy)


@case
def ipv6_with_extensions(case: Case) -> None:
    case.client = f"fd00::7:{case.client.rpartition('.')[2]}"
    talk = Conversation(client=case.client, server="fd00::2", start=case.talk.now, link=p.IPV6_ONLY)
    case.talk = talk
    three(case)
    talk.frames[:] = [
        Frame(
            frame.ts,
            p.ipv6(frame.data[40:], *ends6(frame.data), extensions=[p.hop_by_hop()]),
        )
        for frame in talk.frames
    ]
    case.write = lambda frames: p.pcap(frames, p.IPV6_ONLY)


def ends6(packet: bytes) -> tuple[str, str]:
    return (
        ":".join(packet[n : n + 2].hex() for n in range(8, 24, 2)),
        ":".join(packet[n : n + 2].hex() for n in range(24, 40, 2)),
    )


@case
def ipv6_fragments(case: Case) -> None:
    case.client = f"fd00::7:{case.client.rpartition('.')[2]}"
    talk = Conversation(client=case.client, server="fd00::2", start=case.talk.now, link=p.IPV6_ONLY)
    case.talk = talk
    three(case)
    talk.frames[:] = [
        Frame(frame.ts, each)
        for n, frame in enumerate(talk.frames)
        for each in p.ipv6_fragments(frame.data[40:], 512, *ends6(frame.data), ident=n)
    ]
    case.write = lambda frames: p.pcap(frames, p.IPV6_ONLY)


# --- TCP ---------------------------------------------------------------------------------------------


@case
def byte_by_byte(case: Case) -> None:
    case.talk.open()
    case.talk.client(post(case.body()), size=1)


def late(case: Case, size: int, order: Callable[[list[Frame]], list[Frame]]) -> None:
    """A request whose segments come in another order; the server acknowledges what it has, which is all in the end."""
    case.talk.open()
    sent = case.talk.client(post(case.body(size)), size=700)
    moments = [frame.ts for frame in sent]
    case.talk.frames[3:] = [frame.at(ts) for frame, ts in zip(order(sent), moments, strict=True)]
    case.asks()


@case
def out_of_order(case: Case) -> None:
    late(case, 20_000, lambda sent: CHANCE.sample(sent, len(sent)))


@case
def in_reverse(case: Case) -> None:
    late(case, 9000, lambda sent: sent[::-1])


@case
def the_first_segment_comes_last(case: Case) -> None:
    late(case, 3000, lambda sent: [*sent[1:], sent[0]])


@case
def all_sent_twice(case: Case) -> None:
    case.talk.open()
    case.asks(4000)
    case.talk.frames += [
        frame.at(frame.ts + 0.5) for frame in case.talk.frames if len(frame.data) > 60
    ]
    case.talk.now += 1
    case.asks()


@case
def overlapping_segments_in_other_sizes(case: Case) -> None:
    case.talk.open()
    data = post(case.body(5000))
    first = case.talk.next[True]
    for start, end in ((0, 1000), (600, 1900), (1900, 1901), (0, 2500), (2400, len(data))):
        case.talk.segment(True, data[start:end], seq=first + start)


@case
def of_two_versions_the_first_counts(case: Case) -> None:
    case.talk.open()
    data = post(case.body(2000))
    first = case.talk.next[True]
    case.talk.segment(True, data[:900], seq=first)
    case.talk.segment(True, b"X" * 500 + data[500:], seq=first)
    case.talk.segment(True, data[900:], seq=first + 900)


@case
def sequence_numbers_begin_anew(case: Case) -> None:
    case.talk = Conversation(
        client=case.client, start=case.talk.now, client_seq=2**32 - 2000, server_seq=2**32 - 5
    )
    three(case)


@case
def data_on_the_syn(case: Case) -> None:
    case.talk.segment(True, post(case.body()), flags=SYN)
    case.talk.segment(False, flags=SYN | ACK)


@case
def begun_in_the_midst_of_a_body(case: Case) -> None:
    case.talk.client(body(size=3000))
    case.losses["unparsed"] = 1
    case.talk.server(p.ok())
    case.asks()


@case
def begun_at_a_request(case: Case) -> None:
    case.asks(3000)


@case
def keep_alive_probes(case: Case) -> None:
    case.talk.open()
    case.asks()
    case.talk.segment(True, b"\0", seq=case.talk.next[True] - 1)
    case.talk.segment(True, b"", seq=case.talk.next[True] - 1)
    case.asks()


@case
def the_last_bytes_with_the_fin(case: Case) -> None:
    case.talk.open()
    data = post(case.body(1800))
    case.talk.client(data[:1000])
    case.talk.segment(True, data[1000:], flags=FIN | ACK)


@case
def a_port_used_again(case: Case) -> None:
    for seq in (1000, 9_000_000, 5):
        talk = Conversation(client=case.client, client_seq=seq, start=case.talk.now)
        talk.open()
        talk.client(post(case.body()))
        talk.reset() if seq == 1000 else None
        case.talk.frames += talk.frames
        case.talk.now = talk.now + 1


@case
def a_stray_segment_from_far_off(case: Case) -> None:
    case.talk.open()
    case.asks()
    case.talk.segment(True, NOISE, seq=case.talk.next[True] + 2**30)
    case.asks()


@case
def one_segment_lost(case: Case) -> None:
    case.talk.open()
    case.talk.client(post(body(size=9000)), size=1000)
    del case.talk.frames[3 + 2 * 4]
    case.talk.server(p.ok())
    case.talk.now += 3
    case.asks()
    case.damaged, case.losses["gaps"] = 1, 1


@case
def the_head_lost(case: Case) -> None:
    case.talk.open()
    case.talk.client(post(body(size=9000)), size=1000)
    del case.talk.frames[3]
    case.talk.server(p.ok())
    case.talk.now += 3
    case.asks()
    case.damaged, case.losses["gaps"] = 1, 1


@case
def cut_by_a_snaplen(case: Case) -> None:
    case.talk.open()
    case.talk.client(post(body(size=3000)))
    case.talk.server(p.ok())
    big = [n for n, frame in enumerate(case.talk.frames) if len(frame.data) > 500]
    for place in big:
        case.talk.frames[place] = case.talk.frames[place].cut(300)
    case.losses["truncated"] = len(big)
    case.talk.now += 3
    case.asks()
    case.damaged = 1
    case.losses["gaps"] = len(big)


@case
def reset_in_the_midst(case: Case) -> None:
    case.talk.open()
    case.talk.client(post(body(size=3000))[:-100])
    case.talk.reset()
    case.damaged = 1


# --- HTTP --------------------------------------------------------------------------------------------


@case
def pipelined_in_one_segment(case: Case) -> None:
    case.talk.open()
    case.talk.client(b"".join(post(case.body()) for _ in range(5)), size=60_000)


@case
def pipelined_and_split_anywhere(case: Case) -> None:
    case.talk.open()
    case.talk.client(b"".join(post(case.body(300)) for _ in range(9)), size=173)


@case
def pipelined_with_requests_without_a_body(case: Case) -> None:
    case.talk.open()
    get = b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n"
    case.talk.client(get + post(case.body()) + get + post(case.body()) + get)
    case.bare = 3


def in_chunks(case: Case, sizes: Sequence[int], segment: int, trailer: bytes = b"") -> None:
    head = b"POST /v1/chat/completions HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
    case.talk.open()
    case.talk.client(head + p.chunked(case.body(2000), sizes, trailer=trailer), size=segment)
    case.asks()


@case
def chunks(case: Case) -> None:
    in_chunks(case, [1, 2, 3, 500], 1448)


@case
def chunks_of_a_byte(case: Case) -> None:
    in_chunks(case, [1] * 1500, 1448)


@case
def chunks_split_anywhere_with_a_trailer(case: Case) -> None:
    in_chunks(case, [7, 900], 3, b"X-Sum: 5\r\n")


@case
def chunk_extensions_and_an_end_inside_a_chunk(case: Case) -> None:
    text = b'{"prompt": "ends with 0\\r\\n\\r\\n' + b"0\r\n\r\n" + b'"}'
    case.bodies.append(text)
    head = b"POST /v1/completions HTTP/1.1\r\nhost: h\r\ntransfer-ENCODING: Chunked\r\n\r\n"
    case.talk.open()
    at = text.index(b"0\r\n\r\n") + 5
    parts = b"".join(
        b"%x;name=value\r\n%s\r\n" % (len(part), part) for part in (text[:at], text[at:])
    )
    case.talk.client(head + parts[: parts.index(text[:at]) + at], size=60_000)
    case.talk.client(parts[parts.index(text[:at]) + at :] + b"0\r\n\r\n", size=60_000)


@case
def gzip_and_deflate(case: Case) -> None:
    case.talk.open()
    # some senders of `deflate` leave zlib's header out
    bare = partial(zlib.compress, wbits=-zlib.MAX_WBITS)
    for coding, packed in (("gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", bare)):
        case.talk.client(post(packed(case.body(3000)), headers=[("Content-Encoding", coding)]))


@case
def a_continue_is_waited_for(case: Case) -> None:
    case.talk.open()
    data = post(case.body(), headers=[("Expect", "100-continue")])
    head, _, rest = data.partition(b"\r\n\r\n")
    case.talk.client(head + b"\r\n\r\n")
    case.talk.server(b"HTTP/1.1 100 Continue\r\n\r\n")
    case.talk.client(rest)
    case.talk.server(p.ok())
    case.asks()


@case
def odd_heads(case: Case) -> None:
    case.talk.open()
    for head in (
        b"POST http://h:8000/v1/completions?a=b HTTP/1.1\r\nhost: h\r\ncOnTeNt-LeNgTh:   %d  \r\n\r\n",
        b"POST /proxy/v1/completions HTTP/1.0\r\nConnection: keep-alive\r\nContent-Length: %d\r\nX:\r\n\r\n",
        b"\r\n\r\nPOST /v1/completions HTTP/1.1\r\nX-Long: " + b"y" * 60_000 + b"\r\nContent-Length: %d\r\n\r\n",
        b"PUT /v1/completions HTTP/1.1\r\nUpgrade: h2c\r\nConnection: Upgrade\r\nContent-Length: %d\r\n\r\n",
    ):  # fmt: skip
        text = case.body()
        case.talk.client(head % len(text) + text)
        case.talk.server(p.ok())
    case.talk.client(b"POST /v1/completions HTTP/1.1\r\nHost: h\r\nContent-Length: 0\r\n\r\n")
    case.bare = 1


@case
def garbage_and_then_a_request(case: Case) -> None:
    case.talk.open()
    case.talk.client(NOISE + b"\r\n")
    case.losses["unparsed"] = 1
    case.asks()


@case
def tls(case: Case) -> None:
    case.talk.open()
    case.talk.client(HELLO + NOISE)
    case.losses["encrypted"] = 1


@case
def http_2(case: Case) -> None:
    case.talk.open()
    case.talk.client(b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + NOISE)
    case.losses["unparsed"] = 1


# --- bodies ------------------------------------------------------------------------------------------


@case
def a_megabyte(case: Case) -> None:
    case.talk.open()
    case.talk.client(post(case.body(1_000_000)), size=65_000)


@case
def no_json_and_no_text(case: Case) -> None:
    case.talk.open()
    for text in (
        b"\xff\xfe\0\x01" + NOISE, b"null", b'{"prompt": "\\ud800"}', b'{"prompt": 1e999}',
        "{“prompt”: 'é漢😀'}".encode(), b"[" * 5000, b'{"a":' * 3000, b"POST / HTTP/1.1\r\n\r\n",
    ):  # fmt: skip
        case.bodies.append(text)
        case.talk.client(post(text))
        case.talk.server(p.ok())


@case
def a_thousand_connections(case: Case) -> None:
    frames = []
    for n in range(1000):
        talk = Conversation(
            client=case.client, sport=20_000 + n, start=case.talk.now, step_s=0.0001
        )
        talk.open()
        talk.client(post(case.body()))
        frames.append(talk.frames)
    # all begin, then all ask, so that all are open at once
    case.talk.frames[:] = [each[step] for step in range(5) for each in frames if step < len(each)]


# --- what is told ------------------------------------------------------------------------------------


def told_body(row: dict[str, Any]) -> bytes | None:
    if "body_base64" in row:
        return base64.b64decode(row["body_base64"])
    return None if row["body"] is None else row["body"].encode()


@pytest.mark.parametrize("full", [False, True], ids=["requests", "with answers"])
def test_every_body_of_the_corpus_is_told_once_and_nothing_else(full: bool, tmp_path: Path) -> None:
    every = cases()
    for number, each in enumerate(every):
        (tmp_path / f"{number:03}.cap").write_bytes(each.file())
    files = sorted(tmp_path.iterdir())
    words = ["--json", "--bodies", "--show-clients", "--no-store", *(["--full"] if full else [])]
    done = run("capture", *files, *words, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    *requests, last = rows(done.stdout)
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for row in requests:
        found[row["client"]].append(row)
    assert found.keys() <= {each.client for each in every}
    wrong = {}
    for each in every:
        mine = found[each.client]
        whole = [told_body(row) for row in mine if not row["damaged"] and row["body"] is not None]
        bare = sum(not row["damaged"] and row["body"] is None for row in mine)
        damaged = [row for row in mine if row["damaged"]]
        as_built = (
            sorted(whole) == sorted(each.bodies) and bare == each.bare,
            len(damaged) == each.damaged and all(row["body"] is None for row in damaged),
        )
        if as_built != (True, True):
            wrong[each.name] = (len(whole), len(each.bodies), bare, [r["problem"] for r in damaged])
    assert not wrong
    summary = last["summary"]
    assert all(row.keys() >= KEYS for row in requests)
    assert summary.keys() >= SUMMARY
    losses = Counter[str]()
    for each in every:
        losses += each.losses
    names = ("gaps", "truncated", "encrypted", "unparsed", "kernel_drops", "app_drops")
    assert {name: summary[name] for name in names} == {name: losses[name] for name in names}
    assert summary["requests"] == len(requests)
    assert summary["damaged"] == sum(each.damaged for each in every)

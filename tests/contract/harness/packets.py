"""Hand-made frames and capture files, written from the standards with struct.

    talk = Conversation()                         # one TCP connection, frames in the order of sending
    talk.open()                                   # SYN, SYN+ACK, ACK
    talk.client(b"POST /v1/..."); talk.server(b"HTTP/1.1 200 ...")
    talk.close()                                  # FIN both ways
    path.write_bytes(pcap(talk.frames))

A frame is `Frame(ts, data, wire_length)`; lists of them may be cut, shuffled and repeated by a test at will.
"""

import gzip
import struct
from collections.abc import Iterable, Sequence
from functools import lru_cache
from ipaddress import ip_address
from typing import Literal, NamedTuple

FIN, SYN, RST, PSH, ACK = 0x01, 0x02, 0x04, 0x08, 0x10

ETHERNET, NULL, LOOP, RAW, SLL, SLL2, IPV4_ONLY, IPV6_ONLY = 1, 0, 108, 101, 113, 276, 228, 229
CLIENT, SERVER = "10.0.0.1", "10.0.0.2"
CLIENT_MAC, SERVER_MAC = b"\x02\0\0\0\0\x01", b"\x02\0\0\0\0\x02"
START = 1_700_000_000.0


class Frame(NamedTuple):
    ts: float
    data: bytes
    wire_length: int | None = None
    """None: as long as `data`."""

    @property
    def on_wire(self) -> int:
        return len(self.data) if self.wire_length is None else self.wire_length

    def cut(self, snaplen: int) -> "Frame":
        """As a capture with a snaplen would have kept it."""
        return Frame(self.ts, self.data[:snaplen], self.on_wire)

    def at(self, ts: float) -> "Frame":
        return Frame(ts, self.data, self.wire_length)


# --- TCP, UDP, IP -----------------------------------------------------------------------------------


def tcp(
    sport: int,
    dport: int,
    seq: int,
    payload: bytes = b"",
    *,
    ack: int = 0,
    flags: int = ACK,
    options: bytes = b"",
    window: int = 65535,
    checksum: int = 0,
) -> bytes:
    options += b"\0" * (-len(options) % 4)
    offset = (5 + len(options) // 4) << 4
    head = struct.pack(
        "!HHIIBBHHH", sport, dport, seq % 2**32, ack % 2**32, offset, flags, window, checksum, 0
    )
    return head + options + payload


def udp(sport: int, dport: int, payload: bytes = b"") -> bytes:
    return struct.pack("!HHHH", sport, dport, 8 + len(payload), 0) + payload


@lru_cache(4096)
def packed(address: str) -> bytes:
    return ip_address(address).packed


def _checksum(head: bytes) -> int:
    total = sum(struct.unpack(f"!{len(head) // 2}H", head))
    while total >> 16:
        total = (total & 0xFFFF) + (total >> 16)
    return ~total & 0xFFFF


def ipv4(
    payload: bytes,
    source: str = CLIENT,
    target: str = SERVER,
    *,
    protocol: int = 6,
    options: bytes = b"",
    ident: int = 0,
    offset: int = 0,
    more: bool = False,
    total_length: int | None = None,
) -> bytes:
    """`offset` in bytes, a multiple of 8; `total_length` 0 is what big segments and offload leave behind."""
    options += b"\0" * (-len(options) % 4)
    words = 5 + len(options) // 4
    length = words * 4 + len(payload) if total_length is None else total_length
    place = offset // 8 | (0x2000 if more else 0)

    def head(checksum: int) -> bytes:
        return (
            struct.pack(
                "!BBHHHBBH4s4s",
                0x40 | words,
                0,
                length,
                ident,
                place,
                64,
                protocol,
                checksum,
                packed(source),
                packed(target),
            )
            + options
        )

    return head(_checksum(head(0))) + payload


def ipv4_fragments(
    payload: bytes,
    size: int,
    source: str = CLIENT,
    target: str = SERVER,
    *,
    ident: int = 7,
    protocol: int = 6,
) -> list[bytes]:
    """The packet's fragments of `size` bytes (a multiple of 8) each, in order."""
    return [
        ipv4(
            payload[start : start + size],
            source,
            target,
            protocol=protocol,
            ident=ident,
            offset=start,
            more=start + size < len(payload),
        )
        for start in range(0, len(payload), size)
    ]


def ipv6(
    payload: bytes,
    source: str = "fd00::1",
    target: str = "fd00::2",
    *,
    protocol: int = 6,
    extensions: Sequence[tuple[int, bytes]] = (),
    length: int | None = None,
) -> bytes:
    """`extensions`: (header number, its bytes after the next-header byte) in order, e.g., `hop_by_hop()`."""
    numbers = [number for number, _ in extensions] + [protocol]
    chain = b"".join(
        bytes([numbers[place + 1]]) + body for place, (_, body) in enumerate(extensions)
    )
    whole = chain + payload
    head = struct.pack(
        "!IHBB16s16s",
        6 << 28,
        len(whole) if length is None else length,
        numbers[0],
        64,
        packed(source),
        packed(target),
    )
    return head + whole


def hop_by_hop() -> tuple[int, bytes]:
    return 0, b"\0\x01\x04\0\0\0\0"  # 8 bytes: PadN of 4


def ipv6_fragments(
    payload: bytes,
    size: int,
    source: str = "fd00::1",
    target: str = "fd00::2",
    *,
    ident: int = 7,
    protocol: int = 6,
) -> list[bytes]:
    parts = []
    for start in range(0, len(payload), size):
        more = start + size < len(payload)
        header = (44, struct.pack("!BHI", 0, start | int(more), ident))
        parts.append(
            ipv6(
                payload[start : start + size],
                source,
                target,
                protocol=protocol,
                extensions=[header],
            )
        )
    return parts


# --- the link layer ---------------------------------------------------------------------------------


def _ethertype(packet: bytes) -> int:
    return 0x86DD if packet[0] >> 4 == 6 else 0x0800


def ethernet(packet: bytes, *, vlans: Sequence[int] = (), pad: bool = False) -> bytes:
    """`vlans`: tags from the outside in; two make QinQ. `pad`: to the 60 bytes that a card sends at least."""
    tags = b""
    for place, vlan in enumerate(vlans):
        outer = len(vlans) > 1 and place == 0
        tags += struct.pack("!HH", 0x88A8 if outer else 0x8100, vlan)
    frame = SERVER_MAC + CLIENT_MAC + tags + struct.pack("!H", _ethertype(packet)) + packet
    return frame.ljust(60, b"\xee") if pad else frame


def sll(packet: bytes, *, packet_type: int = 0) -> bytes:
    """`packet_type`: 0 to us, 4 sent by us."""
    return struct.pack("!HHH8sH", packet_type, 772, 6, CLIENT_MAC, _ethertype(packet)) + packet


def sll2(packet: bytes, *, packet_type: int = 0, interface: int = 1) -> bytes:
    head = struct.pack(
        "!HHIHBB8s", _ethertype(packet), 0, interface, 772, packet_type, 6, CLIENT_MAC
    )
    return head + packet


def null(packet: bytes, *, order: Literal["<", ">"] = "<") -> bytes:
    """BSD loopback: the family in the byte order of the machine that captured (LOOP: always `>`)."""
    return struct.pack(f"{order}I", 30 if packet[0] >> 4 == 6 else 2) + packet


LINKS = {
    ETHERNET: ethernet,
    SLL: sll,
    SLL2: sll2,
    NULL: null,
    RAW: lambda packet: packet,
    IPV4_ONLY: lambda packet: packet,
    IPV6_ONLY: lambda packet: packet,
}


# --- one connection ---------------------------------------------------------------------------------


class Conversation:
    """One TCP connection; every call appends frames, and returns those it appended."""

    def __init__(
        self,
        *,
        client: str = CLIENT,
        server: str = SERVER,
        sport: int = 40000,
        dport: int = 8000,
        client_seq: int = 1000,
        server_seq: int = 9000,
        link: int = ETHERNET,
        mss: int = 1448,
        start: float = START,
        step_s: float = 0.001,
    ) -> None:
        self.frames: list[Frame] = []
        self._ends = {True: (client, sport), False: (server, dport)}
        self.next = {True: client_seq, False: server_seq}
        """Next sequence number: of the client (True), of the server (False)."""
        self._link, self._mss, self._step_s = link, mss, step_s
        self.now = start

    def packet(
        self, from_client: bool, payload: bytes = b"", *, flags: int = ACK, seq: int | None = None
    ) -> bytes:
        """An IP packet of this connection, at the current or the given sequence number; nothing is appended."""
        (source, sport), (target, dport) = self._ends[from_client], self._ends[not from_client]
        segment = tcp(
            sport,
            dport,
            self.next[from_client] if seq is None else seq,
            payload,
            ack=self.next[not from_client] if flags & ACK else 0,
            flags=flags,
        )
        return (ipv6 if ":" in source else ipv4)(segment, source, target)

    def add(self, packet: bytes) -> Frame:
        """Append any IP packet, at the next moment."""
        frame = Frame(round(self.now, 6), LINKS[self._link](packet))
        # a sum of thousandths drifts from the decimals that a reader works out by hand
        self.now = round(self.now + self._step_s, 6)
        self.frames.append(frame)
        return frame

    def segment(
        self, from_client: bool, payload: bytes = b"", *, flags: int = ACK, seq: int | None = None
    ) -> Frame:
        """Append one segment; without `seq` the sequence number goes on by what it holds."""
        frame = self.add(self.packet(from_client, payload, flags=flags, seq=seq))
        if seq is None:
            self.next[from_client] += len(payload) + bool(flags & SYN) + bool(flags & FIN)
        return frame

    def open(self) -> list[Frame]:
        return [
            self.segment(True, flags=SYN),
            self.segment(False, flags=SYN | ACK),
            self.segment(True),
        ]

    def client(self, data: bytes, *, size: int | None = None) -> list[Frame]:
        """Send bytes to the server in segments of `size` (the MSS unless given), each acknowledged."""
        return self._send(True, data, size)

    def server(self, data: bytes, *, size: int | None = None) -> list[Frame]:
        return self._send(False, data, size)

    def _send(self, from_client: bool, data: bytes, size: int | None) -> list[Frame]:
        size = size or self._mss
        sent = []
        for start in range(0, len(data), size):
            sent.append(self.segment(from_client, data[start : start + size], flags=PSH | ACK))
            self.segment(not from_client)
        return sent

    def close(self) -> list[Frame]:
        return [
            self.segment(True, flags=FIN | ACK),
            self.segment(False, flags=FIN | ACK),
            self.segment(True),
        ]

    def reset(self, *, from_client: bool = True) -> Frame:
        return self.segment(from_client, flags=RST | ACK)


# --- HTTP -------------------------------------------------------------------------------------------


def post(
    body: bytes, path: str = "/v1/chat/completions", headers: Iterable[tuple[str, str]] = ()
) -> bytes:
    lines = [f"POST {path} HTTP/1.1", "Host: 10.0.0.2:8000", "Content-Type: application/json"]
    lines += [f"{name}: {value}" for name, value in headers]
    lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


def chunked(body: bytes, sizes: Iterable[int] = (), *, trailer: bytes = b"") -> bytes:
    """A body in chunks: of the given sizes, the rest in one."""
    parts, place = [], 0
    for size in (*sizes, len(body)):
        part = body[place : place + size]
        if part:
            parts.append(b"%x\r\n%s\r\n" % (len(part), part))
        place += len(part)
    return b"".join(parts) + b"0\r\n" + trailer + b"\r\n"


def ok(body: bytes = b"{}") -> bytes:
    return b"HTTP/1.1 200 OK\r\ncontent-length: %d\r\n\r\n" % len(body) + body


# --- files ------------------------------------------------------------------------------------------


def pcap(
    frames: Iterable[Frame],
    link: int = ETHERNET,
    *,
    order: Literal["<", ">"] = "<",
    nanoseconds: bool = False,
    snaplen: int = 262144,
) -> bytes:
    magic = 0xA1B23C4D if nanoseconds else 0xA1B2C3D4
    parts = [struct.pack(f"{order}IHHiIII", magic, 2, 4, 0, 0, snaplen, link)]
    units = 10**9 if nanoseconds else 10**6
    for frame in frames:
        ticks = round(frame.ts * 10**6) * (units // 10**6)
        parts.append(
            struct.pack(
                f"{order}IIII", ticks // units, ticks % units, len(frame.data), frame.on_wire
            )
            + frame.data
        )
    return b"".join(parts)


def block(kind: int, body: bytes, order: Literal["<", ">"] = "<") -> bytes:
    """A pcapng block."""
    body += b"\0" * (-len(body) % 4)
    length = struct.pack(f"{order}I", 12 + len(body))
    return struct.pack(f"{order}I", kind) + length + body + length


def option(code: int, value: bytes, order: Literal["<", ">"] = "<") -> bytes:
    return struct.pack(f"{order}HH", code, len(value)) + value + b"\0" * (-len(value) % 4)


def section(order: Literal["<", ">"] = "<") -> bytes:
    return block(0x0A0D0D0A, struct.pack(f"{order}IHHq", 0x1A2B3C4D, 1, 0, -1), order)


def interface(
    link: int = ETHERNET,
    *,
    order: Literal["<", ">"] = "<",
    resolution: int | None = None,
    offset_s: int | None = None,
    snaplen: int = 0,
) -> bytes:
    """`resolution` as in if_tsresol: 9 is nanoseconds, 0x80 | 20 is 2^-20 s; None: microseconds by default."""
    options = b""
    if resolution is not None:
        options += option(9, bytes([resolution]), order)
    if offset_s is not None:
        options += option(14, struct.pack(f"{order}q", offset_s), order)
    if options:
        options += option(0, b"", order)
    return block(1, struct.pack(f"{order}HHI", link, 0, snaplen) + options, order)


def enhanced(
    frame: Frame,
    *,
    number: int = 0,
    order: Literal["<", ">"] = "<",
    ticks_per_s: int = 10**6,
    offset_s: int = 0,
) -> bytes:
    ticks = round((frame.ts - offset_s) * ticks_per_s)
    head = struct.pack(
        f"{order}IIIII", number, ticks >> 32, ticks & 0xFFFFFFFF, len(frame.data), frame.on_wire
    )
    return block(6, head + frame.data + b"\0" * (-len(frame.data) % 4), order)


def simple(frame: Frame, order: Literal["<", ">"] = "<") -> bytes:
    """A block without time or interface; the first interface of the section is meant."""
    return block(3, struct.pack(f"{order}I", frame.on_wire) + frame.data, order)


def pcapng(
    frames: Iterable[Frame], link: int = ETHERNET, *, order: Literal["<", ">"] = "<"
) -> bytes:
    """One section, one interface, microseconds."""
    return (
        section(order)
        + interface(link, order=order)
        + b"".join(enhanced(frame, order=order) for frame in frames)
    )


def zipped(capture: bytes) -> bytes:
    return gzip.compress(capture, mtime=0)

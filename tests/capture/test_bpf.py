"""toolkit.capture.bpf against three judges: a machine written from the kernel's documentation, the kernel, libpcap."""

import ctypes
import random
import shutil
import socket
import struct
import subprocess
from pathlib import Path

import pytest
from contract.harness import packets
from contract.harness.packets import ACK, FIN, PSH, RST, SYN, ethernet, ipv4, ipv6, tcp
from support.bpf_machine import ETHERNET, HOST, LOOPBACK, OUTGOING, verdict
from support.net_namespaces import needs_tcpdump

from toolkit.capture import bpf
from toolkit.errors import ToolkitError


def passes(
    frame: bytes, *, follow: bool = False, kind: int = HOST, hardware: int = ETHERNET
) -> bool:
    """Whether the filter for port 8000 lets an Ethernet frame through; the cooked one must say the same."""
    raw = bpf.program([8000], follow_answers=follow)
    cooked = bpf.program([8000], follow_answers=follow, cooked=True)
    protocol = int.from_bytes(frame[12:14])
    said = verdict(raw, frame, kind=kind, hardware=hardware)
    again = verdict(cooked, frame[14:], kind=kind, hardware=hardware, protocol=protocol)
    assert bool(said) == bool(again)
    assert said in (0, 0xFFFFFFFF), "all of it or nothing"
    return bool(said)


# --- hand-made frames ---------------------------------------------------------------------------------

HEADS = {"IPv4": ipv4, "IPv6": ipv6}
SEGMENTS = [
    # to the server: with payload, or opening or ending; a bare acknowledgement says nothing
    ("a request", tcp(40000, 8000, 1, b"POST / HTTP/1.1\r\n", flags=PSH | ACK), True, True),
    ("a single byte", tcp(40000, 8000, 1, b"P"), True, True),
    ("a SYN", tcp(40000, 8000, 1, flags=SYN), True, True),
    ("a FIN", tcp(40000, 8000, 1, flags=FIN | ACK), True, True),
    ("an RST", tcp(40000, 8000, 1, flags=RST), True, True),
    ("an acknowledgement", tcp(40000, 8000, 1), False, False),
    ("one with options", tcp(40000, 8000, 1, options=b"\1" * 12), False, False),
    ("options and a byte", tcp(40000, 8000, 1, b"P", options=b"\1" * 12), True, True),
    # from the server: only where answers are followed
    ("an answer", tcp(8000, 40000, 1, b"HTTP/1.1 200 OK\r\n"), False, True),
    ("a SYN+ACK", tcp(8000, 40000, 1, flags=SYN | ACK), False, True),
    ("the server's FIN", tcp(8000, 40000, 1, flags=FIN | ACK), False, True),
    ("the server's acknowledgement", tcp(8000, 40000, 1), False, False),
    # others
    ("another port", tcp(40000, 8001, 1, b"POST"), False, False),
    ("port 80", tcp(80, 443, 1, b"POST", flags=SYN), False, False),
]


@pytest.mark.parametrize("version", HEADS)
@pytest.mark.parametrize(
    ("segment", "asked", "followed"),
    [row[1:] for row in SEGMENTS],
    ids=[row[0] for row in SEGMENTS],
)
def test_what_says_something_to_the_port_passes(
    segment: bytes, asked: bool, followed: bool, version: str
) -> None:
    frame = ethernet(HEADS[version](segment))
    assert passes(frame) is asked
    assert passes(frame, follow=True) is followed


P, BARE = tcp(40000, 8000, 1, b"P"), tcp(40000, 8000, 1)
BIG = tcp(40000, 8000, 1, b"x" * 70_000)
LONG = tcp(40000, 8000, 1, b"x" * 4000)
GROUPS = ipv6(b"\x8f\0" + bytes(22), extensions=[packets.hop_by_hop()], protocol=58)
FRAMES = {
    # the padding of a short frame is no payload; IP options move the ports
    "padded": (ethernet(ipv4(BARE), pad=True), False),
    "padded byte": (ethernet(ipv4(P), pad=True), True),
    "options": (ethernet(ipv4(P, options=b"\1" * 8)), True),
    "options, acknowledgement": (ethernet(ipv4(BARE, options=b"\1" * 8)), False),
    # a packet too long for its length field is as long as its frame
    "jumbo": (ethernet(ipv4(BIG, total_length=0)), True),
    "jumbo 6": (ethernet(ipv6(BIG, length=0)), True),
    "no length, acknowledgement": (ethernet(ipv4(BARE, total_length=0)), False),
    "no length 6, acknowledgement": (ethernet(ipv6(BARE, length=0)), False),
    # fragments and extensions are user space's business
    **{f"fragment {n}": (ethernet(part), True) for n, part in enumerate(packets.ipv4_fragments(LONG, 1480))},
    **{f"fragment 6 {n}": (ethernet(part), True) for n, part in enumerate(packets.ipv6_fragments(LONG, 1400))},
    "fragment of UDP": (ethernet(packets.ipv4_fragments(bytes(4000), 1480, protocol=17)[1]), False),
    **{f"extension {n}": (ethernet(ipv6(BARE, extensions=[(n, bytes(7))])), True) for n in (0, 43, 44, 51, 60, 135, 139, 140)},
    "multicast groups": (ethernet(GROUPS), False),
    "tag": (ethernet(ipv4(BARE), vlans=[7]), True),
    "two tags": (ethernet(ipv4(BARE), vlans=[7, 8]), True),
    # noise
    "UDP": (ethernet(ipv4(packets.udp(40000, 8000, b"P"), protocol=17)), False),
    "UDP 6": (ethernet(ipv6(packets.udp(40000, 8000, b"P"), protocol=17)), False),
    "ICMP": (ethernet(ipv4(b"\x08\0" + bytes(30), protocol=1)), False),
    "ARP": (b"\xff" * 12 + b"\x08\x06" + bytes(46), False),
    "IPv4 in IPv4": (ethernet(ipv4(ipv4(P), protocol=4)), False),
}  # fmt: skip


@pytest.mark.parametrize(("frame", "wanted"), FRAMES.values(), ids=FRAMES)
def test_what_user_space_must_see_passes_and_noise_does_not(frame: bytes, wanted: bool) -> None:
    assert passes(frame) is passes(frame, follow=True) is wanted
    assert passes(frame, kind=HOST, hardware=LOOPBACK) is wanted
    # of `lo`'s two copies the inbound one; elsewhere what this machine sends passes, too
    assert not passes(frame, kind=OUTGOING, hardware=LOOPBACK)
    assert passes(frame, kind=OUTGOING, hardware=ETHERNET) is wanted
    assert verdict(bpf.NOTHING, frame) == 0


def test_a_frame_that_ends_within_its_headers_does_not_pass() -> None:
    frame = ethernet(ipv4(tcp(40000, 8000, 1, b"POST")))
    # flags at 47 and offset at 46 are the last that the filter reads
    assert [length for length in range(len(frame)) if passes(frame[:length])] == [
        48, 49, 50, 51, 52, 53, 54, 55, 56, 57,
    ]  # fmt: skip


def test_every_one_of_many_ports_is_watched_and_none_between() -> None:
    ports = range(2, 1602, 2)  # 800 of them: jumps far beyond the 255 that a condition reaches
    program = bpf.program(ports, follow_answers=True)
    for port in (2, 300, 1000, 1600):
        assert verdict(program, ethernet(ipv4(tcp(40001, port, 1, b"P"))))
        assert verdict(program, ethernet(ipv4(tcp(port, 40001, 1, b"P"))))
    for port in (1, 3, 301, 1601):
        assert not verdict(program, ethernet(ipv4(tcp(40001, port, 1, b"P"))))


def test_more_ports_than_the_kernel_takes_are_refused() -> None:
    with pytest.raises(ToolkitError, match="too many ports"):
        bpf.program(range(1, 5000), follow_answers=False)


@pytest.mark.parametrize(
    ("packet", "protocol", "inner"),
    [
        (b"\x45 packet", 0x0800, b"\x45 packet"),
        (b"\x60 packet", 0x86DD, b"\x60 packet"),
        # a tag is 2 bytes of VLAN and 2 of what follows
        (b"\0\x07\x08\0\x45 packet", 0x8100, b"\x45 packet"),
        (b"\0\x07\x81\0\0\x08\x86\xdd\x60 packet", 0x88A8, b"\x60 packet"),
        # from kernel 6.11 on: the protocol behind the tags is named, and the packet begins at them still
        (b"\0\x07\x08\0\x45 packet", 0x0800, b"\x45 packet"),
        (b"\0\x07\x81\0\0\x08\x86\xdd\x60 packet", 0x86DD, b"\x60 packet"),
        (b"\0\x07\x08\x06 ARP", 0x8100, b""),
        (b"\x45 packet", 0x86DD, b""),
        (b"", 0x0800, b""),
        (b"\0\x07\x81", 0x8100, b""),
        (b"ARP", 0x0806, b""),
    ],
)
def test_the_packet_behind_the_tags_is_found(packet: bytes, protocol: int, inner: bytes) -> None:
    assert bpf.behind_tags(packet, protocol) == inner


# --- many frames, and the two other judges -----------------------------------------------------------------


def varied(seed: int, count: int) -> list[bytes]:
    """Ethernet frames of all these kinds, most of them damaged somewhere in their headers or cut."""
    chance = random.Random(seed)
    segments = [row[1] for row in SEGMENTS]
    kinds = [
        lambda segment: ethernet(ipv4(segment)),
        lambda segment: ethernet(ipv6(segment)),
        lambda segment: ethernet(ipv4(segment, options=b"\1" * chance.choice([4, 20, 40]))),
        lambda segment: ethernet(ipv6(segment, extensions=[packets.hop_by_hop()])),
        lambda segment: ethernet(ipv4(segment, total_length=0)),
        lambda segment: ethernet(ipv4(segment), pad=True),
        lambda segment: ethernet(ipv4_part(segment, chance)),
        lambda segment: ethernet(ipv4(segment, protocol=chance.choice([1, 6, 17]))),
    ]
    frames = []
    for _ in range(count):
        frame = bytearray(chance.choice(kinds)(chance.choice(segments)))
        for _ in range(chance.choice([0, 0, 1, 1, 2])):
            frame[chance.randrange(12, min(len(frame), 75))] = chance.randrange(256)
        frames.append(bytes(frame[: chance.choice([len(frame)] * 4 + [chance.randrange(14, 75)])]))
    return frames


def ipv4_part(segment: bytes, chance: random.Random) -> bytes:
    return ipv4(segment, offset=chance.choice([0, 8, 1480]), more=chance.random() < 0.5)


def kernel_verdicts(program: bpf.Program, frames: list[bytes]) -> list[bool]:
    """The kernel runs a filter on the messages of a Unix socket as well; these have no link, which is like inbound."""
    sending, receiving = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
    code = ctypes.create_string_buffer(bpf.packed(program))
    with sending, receiving:
        receiving.setblocking(False)
        receiving.setsockopt(
            socket.SOL_SOCKET, 26, struct.pack("HP", len(program), ctypes.addressof(code))
        )
        said = []
        for frame in frames:
            sending.send(frame)
            try:
                said.append(receiving.recv(1 << 20) == frame)
            except BlockingIOError:
                said.append(False)
        return said


@pytest.mark.parametrize("follow", [False, True])
def test_the_kernel_says_what_the_documentation_says(follow: bool) -> None:
    program = bpf.program([8000, 8080], follow_answers=follow)
    frames = varied(seed=follow, count=3000)
    said = kernel_verdicts(program, frames)
    assert said == [bool(verdict(program, frame)) for frame in frames]
    assert 500 < sum(said) < 2500, "both verdicts are tried"


SAYS_4 = "tcp[13] & 7 != 0 or ip[2:2] = 0 or ip[2:2] > ((ip[0] & 15) << 2) + ((tcp[12] & 240) >> 2)"
SAYS_6 = "ip6[53] & 7 != 0 or ip6[4:2] = 0 or ip6[4:2] > (ip6[52] & 240) >> 2"
PORTS = {
    False: ("tcp dst port 8000", "ip6[42:2] = 8000"),
    True: ("tcp port 8000", "ip6[42:2] = 8000 or ip6[40:2] = 8000"),
}


def expression(*, follow: bool) -> str:
    """The filter in tcpdump's language, but for acknowledgements in packets too long for their length field: these pass.

    What reads ports comes last: reading beyond the end of a short frame rejects it, whatever alternatives follow.
    """
    ports_4, ports_6 = PORTS[follow]
    parts = [
        "ether proto 0x8100 or ether proto 0x88a8 or ether proto 0x9100",
        "ip proto 6 and ip[6:2] & 0x3fff != 0",
        f"ip6 and ({' or '.join(f'ip6[6] = {n}' for n in (43, 44, 51, 60, 135, 139, 140))})",
        "ip6 and ip6[6] = 0 and ip6[40] != 58",
        f"ip and ({ports_4}) and ({SAYS_4})",
        f"ip6 and ip6[6] = 6 and ({ports_6}) and ({SAYS_6})",
    ]
    return " or ".join(f"({part})" for part in parts)


@needs_tcpdump
@pytest.mark.parametrize("link", [packets.ETHERNET, packets.SLL2])
@pytest.mark.parametrize("follow", [False, True])
def test_tcpdumps_expression_says_the_same(follow: bool, link: int, tmp_path: Path) -> None:
    frames = varied(seed=10 + follow, count=3000)
    # numbered by their times; a cooked header is Ethernet's type field and 18 other bytes
    cooked = [frame[12:14] + bytes(18) + frame[14:] for frame in frames]
    written = [
        packets.Frame(number, frame)
        for number, frame in enumerate(cooked if link == packets.SLL2 else frames)
    ]
    (tmp_path / "all.pcap").write_bytes(packets.pcap(written, link))
    words = ["-r", tmp_path / "all.pcap", "-w", "-", expression(follow=follow)]
    command = [shutil.which("tcpdump") or "", *words]
    kept = subprocess.run(command, capture_output=True, check=True, timeout=60).stdout
    program = bpf.program([8000], follow_answers=follow)
    wanted = {n for n, frame in enumerate(frames) if verdict(program, frame)}
    more = set(numbers(kept)) ^ wanted
    assert [n for n in more if length_field(frames[n]) != b"\0\0"] == []
    assert wanted <= set(numbers(kept))


def length_field(frame: bytes) -> bytes:
    """IPv4's total length or IPv6's payload length: where it is 0, the language cannot say how long the packet is."""
    return frame[16:18] if frame[12:14] == b"\x08\0" else frame[18:20]


def numbers(capture: bytes) -> list[int]:
    """The times of a pcap file's frames, in whole seconds."""
    found, at = [], 24
    while at < len(capture):
        seconds, _, length, _ = struct.unpack_from("<IIII", capture, at)
        found.append(seconds)
        at += 16 + length
    return found

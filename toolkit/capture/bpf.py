"""The kernel's filter of a live capture, written as classic BPF: which frames are worth waking us for.

A streamed answer of 24 chunks on `lo` is 31.6 frames a request, each acknowledgement and each loopback copy counted; this
program lets 1.0 of them through. It never opens a socket, and needs no libpcap: libpcap's compiler cannot say "inbound"
without an open device.
"""

import struct
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from toolkit.errors import ToolkitError


class Instruction(NamedTuple):
    """One instruction, as in the kernel's `struct sock_filter`."""

    code: int
    jt: int
    jf: int
    k: int


Program = tuple[Instruction, ...]

# Operation codes, from linux/bpf_common.h: class | size | mode, class | operation | source.
LOAD_WORD_AT, LOAD_HALF_AT, LOAD_BYTE_AT = 0x20, 0x28, 0x30
LOAD_HALF_X, LOAD_BYTE_X = 0x48, 0x50
LOAD_LENGTH, LOAD_MEMORY = 0x80, 0x60
LOADX_NUMBER, LOADX_HEADER = 0x01, 0xB1
STORE = 0x02
ADD, SUBTRACT, AND, SHIFT_RIGHT, ADD_X = 0x04, 0x14, 0x54, 0x74, 0x0C
JUMP, EQUAL, ANY_BIT, GREATER_X = 0x05, 0x15, 0x45, 0x2D
COPY_TO_X, RETURN = 0x07, 0x06

# What the kernel knows about a frame beside its bytes; from linux/filter.h (SKF_AD_*).
ANCILLARY = 0xFFFFF000
PROTOCOL, PACKET_TYPE, HARDWARE_TYPE = ANCILLARY, ANCILLARY + 4, ANCILLARY + 28
OUTGOING = 4
LOOPBACK = 772

ETHERNET_BYTES = 14
IPV4, IPV6 = 0x0800, 0x86DD
VERSIONS = {IPV4: 4, IPV6: 6}
VLAN_TAGS = (0x8100, 0x88A8, 0x9100)
"""The kernel takes the first tag off; a second one is still there, and user space looks behind it."""
MOST_TAGS = 3
TCP = 6
ICMPV6 = 58
HOP_BY_HOP = 0
IPV6_EXTENSIONS = (43, 44, 51, 60, 135, 139, 140)
"""Routing, fragment, authentication, destination, mobility, HIP, shim6: TCP may stand behind any of them."""
IPV6_HEADER_BYTES = 40
FIN_SYN_RST = 0x07

WHOLE_FRAME = 0xFFFFFFFF
"""Bytes let through of a frame: with segmentation offload `lo` has frames of 65,549 bytes, BIG TCP longer ones."""
LONGEST_PROGRAM = 4096
"""Instructions; the kernel's limit (BPF_MAXINSNS)."""

NOTHING: Program = (Instruction(RETURN, 0, 0, 0),)
"""Lets nothing through: attached while a socket is emptied of what it held before its own filter came."""


def program(ports: Iterable[int], *, follow_answers: bool, cooked: bool = False) -> Program:
    """The filter for TCP to these ports and, if answers are followed, from them.

    cooked: the frames begin with the IP header (SOCK_DGRAM), not with Ethernet's.

    Let through: segments with payload, and SYN, FIN, RST; IPv4 fragments of TCP; IPv6 with extension headers; inline VLAN
    tags. Of `lo`'s two copies of a frame only the inbound one. Bare acknowledgements are left out even where answers
    are followed: they are 2 of the 15.8 frames of a request, and an answer's own segments acknowledge the request too.
    """
    watched = sorted(set(ports))
    base = 0 if cooked else ETHERNET_BYTES
    lines: list[_Jump | str] = [
        # `lo` shows each frame twice, as outgoing and as inbound. Elsewhere an outgoing frame shows once and counts.
        # The word is 0 for now: the kernel takes no program that reads its memory behind a path that did not write it.
        _Jump(STORE, 0),
        _Jump(LOAD_BYTE_AT, PACKET_TYPE),
        _Jump(EQUAL, OUTGOING, otherwise="network"),
        _Jump(LOAD_HALF_AT, HARDWARE_TYPE),
        _Jump(EQUAL, LOOPBACK, then="reject"),
        # to `transport` with X at the TCP header behind `base`, and the IP packet's length in memory word 0
        "network",
        _Jump(LOAD_HALF_AT, PROTOCOL if cooked else ETHERNET_BYTES - 2),
        _Jump(EQUAL, IPV4, then="ipv4"),
        _Jump(EQUAL, IPV6, then="ipv6"),
        *(_Jump(EQUAL, tag, then="accept") for tag in VLAN_TAGS),
        _Jump(JUMP, then="reject"),
        "ipv4",
        _Jump(LOAD_BYTE_AT, base + 9),
        _Jump(EQUAL, TCP, otherwise="reject"),
        _Jump(LOAD_HALF_AT, base + 6),
        # more fragments, or an offset: the ports are in the first one only
        _Jump(ANY_BIT, 0x3FFF, then="accept"),
        _Jump(LOADX_HEADER, base),
        _Jump(LOAD_HALF_AT, base + 2),
        _Jump(EQUAL, 0, then="jumbo"),
        _Jump(STORE, 0),
        _Jump(JUMP, then="transport"),
        "ipv6",
        _Jump(LOAD_BYTE_AT, base + 6),
        _Jump(EQUAL, HOP_BY_HOP, then="hop by hop"),
        *(_Jump(EQUAL, header, then="accept") for header in IPV6_EXTENSIONS),
        _Jump(EQUAL, TCP, otherwise="reject"),
        _Jump(LOADX_NUMBER, IPV6_HEADER_BYTES),
        _Jump(LOAD_HALF_AT, base + 4),
        _Jump(EQUAL, 0, then="jumbo"),
        _Jump(ADD, IPV6_HEADER_BYTES),
        _Jump(STORE, 0),
        _Jump(JUMP, then="transport"),
        # every interface now and then tells its multicast groups, which is of no use here
        "hop by hop",
        _Jump(LOAD_BYTE_AT, base + IPV6_HEADER_BYTES),
        _Jump(EQUAL, ICMPV6, then="reject", otherwise="accept"),
        # 0 where the packet is longer than the field can say (BIG TCP): then it is as long as the frame
        "jumbo",
        _Jump(LOAD_LENGTH),
        _Jump(SUBTRACT, base),
        _Jump(STORE, 0),
        _Jump(JUMP, then="transport"),
        "reject",
        _Jump(RETURN, 0),
        "accept",
        _Jump(RETURN, WHOLE_FRAME),
        # behind the others' exits: there may be many ports, and a condition's jump reaches 255 instructions
        "transport",
        _Jump(LOAD_HALF_X, base + 2),
        *_one_of(watched),
        *((_Jump(LOAD_HALF_X, base), *_one_of(watched)) if follow_answers else ()),
        _Jump(RETURN, 0),
        # accepted where the IP packet is longer than its IP and TCP headers, or a flag opens or ends the connection
        "watched",
        _Jump(LOAD_BYTE_X, base + 13),
        _Jump(ANY_BIT, FIN_SYN_RST, then="said"),
        _Jump(LOAD_BYTE_X, base + 12),
        _Jump(AND, 0xF0),
        # the data offset counts words of 4 bytes and stands in the upper half of its byte
        _Jump(SHIFT_RIGHT, 2),
        _Jump(ADD_X),
        _Jump(COPY_TO_X),
        _Jump(LOAD_MEMORY, 0),
        _Jump(GREATER_X, then="said"),
        _Jump(RETURN, 0),
        "said",
        _Jump(RETURN, WHOLE_FRAME),
    ]
    places: dict[str, int] = {}
    wanted: list[_Jump] = []
    for line in lines:
        if isinstance(line, str):
            places[line] = len(wanted)
        else:
            wanted.append(line)
    if len(wanted) > LONGEST_PROGRAM:
        raise ToolkitError("too many ports for the kernel's filter", "Watch fewer ports")

    def over(target: str | int, place: int) -> int:
        return places[target] - place - 1 if isinstance(target, str) else target

    return tuple(
        Instruction(JUMP, 0, 0, over(line.then, place))
        if line.code == JUMP
        else Instruction(line.code, over(line.then, place), over(line.otherwise, place), line.k)
        for place, line in enumerate(wanted)
    )


class _Jump(NamedTuple):
    """An instruction; it goes on at a label ahead, or over a number of instructions, after a condition by its outcome."""

    code: int
    k: int = 0
    then: str | int = 0
    otherwise: str | int = 0


def _one_of(watched: list[int]) -> Iterator[_Jump]:
    """A long jump for each port."""
    for port in watched:
        yield _Jump(EQUAL, port, otherwise=1)
        yield _Jump(JUMP, then="watched")


def packed(instructions: Program) -> bytes:
    """The program as the kernel reads it: an array of `struct sock_filter`."""
    return b"".join(struct.pack("=HBBI", *one) for one in instructions)


def behind_tags(packet: bytes, protocol: int) -> bytes:
    """The IP packet of a cooked frame behind the tags that the kernel left on it; empty: none is there.

    Kernels from 6.11 on name the protocol behind the tags, older ones the tag's: the packet's own version tells.
    """
    for _ in range(MOST_TAGS + 1):
        if packet and packet[0] >> 4 == VERSIONS.get(protocol):
            return packet
        protocol, packet = int.from_bytes(packet[2:4]), packet[4:]
    return b""

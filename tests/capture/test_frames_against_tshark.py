"""Frames against tshark: every file that can be made gives the segments that tshark finds in it."""

import random
import shutil
import struct
import subprocess
from collections import Counter
from ipaddress import ip_address
from pathlib import Path
from typing import NamedTuple

import pytest
from contract.harness import packets
from contract.harness.packets import START, Conversation, Frame
from support.segments import Segment, replayed

needs_tshark = pytest.mark.skipif(
    shutil.which("tshark") is None, reason="tshark is missing: `apt-get install tshark`"
)
pytestmark = [needs_tshark, pytest.mark.slow]

FIELDS = "frame.time_epoch ip.src ipv6.src ip.dst ipv6.dst tcp.srcport tcp.dstport tcp.seq_raw tcp.ack_raw tcp.flags tcp.len"


class Row(NamedTuple):
    """A segment as tshark tells it; its time in microseconds."""

    at_us: int
    source: str
    target: str
    sport: int
    dport: int
    seq: int
    ack: int
    flags: int
    length: int


def by_tshark(path: Path) -> list[Row]:
    """All TCP segments of a file, whole packets only; nothing is reassembled but fragments of IP."""
    command = ["tshark", "-r", str(path), "-n", "-Y", "tcp", "-T", "fields", "-E", "occurrence=l"]
    command += ["-o", "ip.defragment:TRUE", "-o", "ipv6.defragment:TRUE"]
    for field in FIELDS.split():
        command += ["-e", field]
    lines = subprocess.run(command, capture_output=True, text=True, check=True).stdout.splitlines()
    rows = []
    for line in lines:
        epoch, source4, source6, target4, target6, *numbers = line.split("\t")
        sport, dport, seq, ack, flags, length = (int(number or "0", 0) for number in numbers)
        at_us = round(float(epoch) * 10**6)
        rows.append(
            Row(
                at_us, source4 or source6, target4 or target6, sport, dport, seq, ack, flags, length
            )
        )
    return rows


def by_us(segment: Segment) -> Row:
    size = (len(segment.key) - 4) // 2
    source, target = segment.key[:size], segment.key[size : 2 * size]
    return Row(
        round(segment.ts * 10**6),
        str(ip_address(source)),
        str(ip_address(target)),
        int.from_bytes(segment.key[-4:-2], "big"),
        int.from_bytes(segment.key[-2:], "big"),
        segment.seq,
        segment.ack,
        segment.flags,
        len(segment.payload) + segment.missing,
    )


def random_talk(dice: random.Random, link: int) -> list[Frame]:
    """Several connections over one link, their frames mixed, and noise between them."""
    frames = []
    for number in range(4):
        six = link == packets.IPV6_ONLY or (link != packets.IPV4_ONLY and dice.random() < 0.5)
        talk = Conversation(
            client=f"fd00::{number + 1}" if six else f"10.0.0.{number + 1}",
            server="fd00::99" if six else "10.0.0.99",
            sport=40_000 + number,
            dport=9000 if number == 3 else 8000,
            client_seq=dice.getrandbits(32),
            link=link,
        )
        talk.open()
        for _ in range(dice.randrange(2, 5)):
            talk.client(dice.randbytes(dice.randrange(1, 4000)))
            talk.server(dice.randbytes(dice.randrange(1, 9000)))
        (talk.close if dice.random() < 0.5 else talk.reset)()
        frames += talk.frames
    dice.shuffle(frames)
    # times that go up, but with a step back now and then, and that a microsecond can tell
    return [
        frame.at(START + number - 5 * (number % 17 == 0)) for number, frame in enumerate(frames)
    ]


def compare(path: Path, *, ports: tuple[int, ...] = (8000,)) -> int:
    """Check both directions of the ports; how many segments there were."""
    theirs = [row for row in by_tshark(path) if row.sport in ports or row.dport in ports]
    ours = [by_us(each) for each in replayed(path, ports=ports, follow_answers=True).segments]
    assert Counter(ours) == Counter(theirs)
    wanted = [row for row in theirs if row.dport in ports and (row.length or row.flags & 0x07)]
    asked = [by_us(each) for each in replayed(path, ports=ports).segments]
    assert Counter(asked) == Counter(wanted)
    return len(theirs)


@pytest.mark.parametrize("link", [packets.ETHERNET, packets.SLL2])
def test_every_kind_of_file_gives_what_tshark_finds(link: int, tmp_path: Path) -> None:
    frames = random_talk(random.Random(link), link)
    files = {
        "little.pcap": packets.pcap(frames, link),
        "big.pcap": packets.pcap(frames, link, order=">"),
        "nano.pcap": packets.pcap(frames, link, nanoseconds=True),
        "little.pcapng": packets.pcapng(frames, link),
        "big.pcapng": packets.pcapng(frames, link, order=">"),
        "zipped.pcap.gz": packets.zipped(packets.pcap(frames, link)),
        "cut.pcap": packets.pcap([frame.cut(120) for frame in frames], link, snaplen=120),
    }
    if link != packets.ETHERNET:  # what the file is like has nothing to do with its links
        files = {name: files[name] for name in ("little.pcap", "cut.pcap")}
    for name, file in files.items():
        (tmp_path / name).write_bytes(file)
        assert compare(tmp_path / name) > 20


def test_tags_options_padding_and_fragments(tmp_path: Path) -> None:
    dice = random.Random(7)
    frames: list[Frame] = []
    for number in range(200):
        segment = packets.tcp(
            40_000, 8000, dice.getrandbits(32), dice.randbytes(dice.choice([0, 3, 700])), flags=24
        )
        made = dice.choice(
            [
                [packets.ipv4(segment, options=b"\x94\x04\0\0" * dice.randrange(4))],
                [packets.ipv6(segment, extensions=[packets.hop_by_hop()] * dice.randrange(2))],
                packets.ipv4_fragments(segment, 64, ident=number),
                packets.ipv6_fragments(segment, 64, ident=number),
                [packets.ipv4(packets.udp(40_000, 8000, b"x"), protocol=17)],
            ]
        )
        dice.shuffle(made)
        vlans = dice.choice([[], [], [5], [5, 6]])
        for packet in made:
            data = packets.ethernet(packet, vlans=vlans, pad=dice.random() < 0.5)
            frames.append(Frame(START + len(frames) / 64, data))
    (tmp_path / "x.pcap").write_bytes(packets.pcap(frames))
    assert compare(tmp_path / "x.pcap") > 100


def test_sections_interfaces_and_clocks(tmp_path: Path) -> None:
    talk = random_talk(random.Random(3), packets.ETHERNET)
    raw = random_talk(random.Random(4), packets.RAW)
    parts = []
    for order in ("<", ">"):
        parts += [
            packets.section(order),
            packets.interface(order=order, resolution=9),
            packets.interface(packets.RAW, order=order, resolution=0x80 | 20, offset_s=1000),
        ]
        for one, other in zip(talk, raw, strict=False):
            parts.append(packets.enhanced(one, order=order, ticks_per_s=10**9))
            parts.append(
                packets.enhanced(other, number=1, order=order, ticks_per_s=2**20, offset_s=1000)
            )
            secrets = struct.pack(f"{order}II", 0x544C534B, 5) + b"# key"
            parts.append(packets.block(10, secrets, order))
    (tmp_path / "x.pcapng").write_bytes(b"".join(parts))
    assert compare(tmp_path / "x.pcapng") > 100

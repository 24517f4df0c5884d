"""Frames: whatever lies around a TCP segment, it comes out as it was sent; what is none, or on no port watched, does not."""

import struct
from collections import Counter
from collections.abc import Callable
from ipaddress import ip_address

import pytest
from contract.harness import packets
from contract.harness.packets import (
    ACK,
    ETHERNET,
    FIN,
    START,
    SYN,
    Conversation,
    Frame,
    ethernet,
    hop_by_hop,
    ipv4,
    ipv4_fragments,
    ipv6,
    ipv6_fragments,
    tcp,
    udp,
)
from support.segments import Segment, segments_of

from toolkit.capture.records import Losses, MemoryBounds

PAYLOAD = b"POST / HTTP/1.1\r\n"
SEGMENT = tcp(40000, 8000, 1000, PAYLOAD, ack=9000, flags=ACK)
KEY4 = bytes([10, 0, 0, 1, 10, 0, 0, 2]) + struct.pack("!HH", 40000, 8000)
KEY6 = ip_address("fd00::1").packed + ip_address("fd00::2").packed + KEY4[8:]


def one(frame: bytes, link: int = ETHERNET) -> Segment:
    caught = segments_of([Frame(START, frame)], link)
    (segment,) = caught.segments
    assert caught.losses == Losses(frames=1, segments=1)
    return segment


def test_a_packet_that_tells_no_length_is_as_long_as_its_frame() -> None:
    long = tcp(40000, 8000, 1000, bytes(70_000))
    assert len(one(ethernet(ipv4(long, total_length=0))).payload) == 70_000
    assert len(one(ethernet(ipv4(long, total_length=0, options=b"\x94\x04\0\0"))).payload) == 70_000
    assert len(one(ethernet(ipv6(long, length=0))).payload) == 70_000


# --- fragments --------------------------------------------------------------------------------------

LONG = tcp(40000, 8000, 1000, bytes(range(256)) * 12, ack=9000)
FRAGMENTED = {
    "IPv4": [ethernet(packet) for packet in ipv4_fragments(LONG, 800)],
    "IPv4 behind a tag": [ethernet(packet, vlans=[5]) for packet in ipv4_fragments(LONG, 800)],
    "IPv4, padded": [ethernet(packet, pad=True) for packet in ipv4_fragments(LONG, 8)],
    "IPv6": [ethernet(packet) for packet in ipv6_fragments(LONG, 800)],
}


@pytest.mark.parametrize("frames", FRAGMENTED.values(), ids=FRAGMENTED)
@pytest.mark.parametrize("step", [1, -1])
def test_fragments_in_any_order_are_one_segment(frames: list[bytes], step: int) -> None:
    sent = [Frame(START + place / 64, frame) for place, frame in enumerate(frames[::step])]
    caught = segments_of(sent)
    (segment,) = caught.segments
    assert segment.payload == bytes(range(256)) * 12
    assert segment.key in {KEY4, KEY6}
    assert segment.ts == START + (len(frames) - 1) / 64
    assert caught.losses == Losses(frames=len(frames), segments=1)


@pytest.mark.parametrize("frames", FRAGMENTED.values(), ids=FRAGMENTED)
def test_a_missing_fragment_is_a_lost_packet_and_no_segment(frames: list[bytes]) -> None:
    for gone in (0, 1, len(frames) - 1):
        rest = frames[:gone] + frames[gone + 1 :]
        caught = segments_of(Frame(START, frame) for frame in rest)
        assert caught.segments == []
        assert caught.losses.fragments == 1


def test_fragments_that_overlap_count_once_and_those_beyond_any_packet_not_at_all() -> None:
    parts = [ipv4(LONG[:800], more=True), ipv4(LONG[400:], offset=400)]
    caught = segments_of(Frame(START, ethernet(part)) for part in parts)
    assert caught.payloads == [bytes(range(256)) * 12]
    far = ipv4(bytes(800), offset=65_528, ident=9)
    assert segments_of([Frame(START, ethernet(far))]).losses == Losses(frames=1)


@pytest.mark.parametrize("number", [0, 43, 51, 60, 135, 139, 140])
def test_a_segment_is_found_behind_whatever_extension_the_kernel_lets_through(number: int) -> None:
    # 8 bytes each, and an authentication header of 12: it counts its length in fours
    extension = bytes([1]) + bytes(10) if number == 51 else bytes(7)
    assert one(ethernet(ipv6(SEGMENT, extensions=[(number, extension)]))).payload == PAYLOAD


def test_a_fragment_cut_by_the_snaplen_is_a_lost_packet() -> None:
    frames = [Frame(START, frame).cut(96) for frame in FRAGMENTED["IPv4"]]
    caught = segments_of(frames)
    assert caught.segments == []
    # 3,092 bytes in pieces of 800: 4, each of them cut
    assert (caught.losses.fragments, caught.losses.truncated) == (1, 4)


def test_fragments_keep_no_more_than_their_limit() -> None:
    frames = [
        Frame(START, ethernet(ipv4_fragments(LONG, 1400, ident=number)[0])) for number in range(100)
    ]
    # a piece is charged 2,000: five of 100 fit into 10,000, and they are missing at the end, too
    caught = segments_of(frames, limits=MemoryBounds(fragments_bytes=10_000))
    assert caught.losses.fragments == 100
    assert (
        segments_of(frames[:5], limits=MemoryBounds(fragments_bytes=10_000)).losses.fragments == 5
    )


# --- cut frames and damaged ones --------------------------------------------------------------------


@pytest.mark.parametrize("packet", [ipv4, ipv6])
def test_what_the_snaplen_cut_is_missing_and_told(packet: Callable[[bytes], bytes]) -> None:
    whole = ethernet(packet(tcp(40000, 8000, 1000, bytes(500))))
    caught = segments_of([Frame(START, whole).cut(96)])
    (segment,) = caught.segments
    headers = len(whole) - 500
    assert (len(segment.payload), segment.missing) == (96 - headers, 500 - 96 + headers)
    assert caught.losses == Losses(frames=1, segments=1, truncated=1)


@pytest.mark.parametrize("packet", [ipv4, ipv6])
def test_a_header_that_is_cut_within_its_options_keeps_its_numbers(
    packet: Callable[[bytes], bytes],
) -> None:
    whole = ethernet(packet(tcp(40000, 8000, 1000, bytes(500), options=bytes(12))))
    (segment,) = segments_of([Frame(START, whole).cut(len(whole) - 506)]).segments
    assert (segment.seq, segment.payload, segment.missing) == (1000, b"", 500)


@pytest.mark.parametrize("packet", [ipv4, ipv6])
def test_a_frame_cut_within_its_headers_is_damaged_where_it_may_be_ours(
    packet: Callable[[bytes], bytes],
) -> None:
    whole = Frame(START, ethernet(packet(tcp(40000, 8000, 1000, bytes(500)))))
    tcp_at = len(whole.data) - 520
    for kept in (15, tcp_at - 1, tcp_at + 3, tcp_at + 13):
        caught = segments_of([whole.cut(kept)])
        assert caught.segments == []
        assert caught.losses.damaged_frames == 1, kept
    # 14 bytes hold the ports, the numbers and the flags
    assert segments_of([whole.cut(tcp_at + 14)]).segments[0].missing == 500
    other = Frame(START, ethernet(packet(tcp(40000, 9000, 1000, bytes(500)))))
    assert segments_of([other.cut(tcp_at + 4)]).losses.damaged_frames == 0


def test_a_frame_cut_among_the_extensions_is_damaged() -> None:
    whole = Frame(START, ethernet(ipv6(SEGMENT, extensions=[hop_by_hop()])))
    assert segments_of([whole.cut(14 + 40 + 1)]).losses.damaged_frames == 1
    (first, *_) = FRAGMENTED["IPv6"]
    assert segments_of([Frame(START, first).cut(14 + 40 + 7)]).losses.damaged_frames == 1


@pytest.mark.parametrize("packet", [ipv4, ipv6])
def test_headers_that_contradict_themselves_are_damaged(packet: Callable[[bytes], bytes]) -> None:
    segment = bytearray(SEGMENT)
    for offset in (0x00, 0x40, 0xF0):  # shorter than a header; longer than the packet
        segment[12] = offset
        caught = segments_of([Frame(START, ethernet(packet(bytes(segment))))])
        assert caught.segments == []
        assert caught.losses.damaged_frames == 1


# --- ports and noise --------------------------------------------------------------------------------


def conversation(link: int = ETHERNET) -> Conversation:
    talk = Conversation(link=link)
    talk.open()
    talk.client(b"ask")
    talk.server(b"answer")
    talk.close()
    return talk


def test_only_what_goes_to_the_ports_and_says_something_is_handed_on() -> None:
    caught = segments_of(conversation().frames)
    assert [(each.flags & ~ACK, each.payload) for each in caught.segments] == [
        (SYN, b""),
        (packets.PSH, b"ask"),
        (FIN, b""),
    ]
    # the client's acknowledgements after the handshake, the answer and the server's end are segments, too
    assert (caught.losses.frames, caught.losses.segments) == (10, 6)


def test_answers_that_are_followed_bring_all_segments_both_ways() -> None:
    caught = segments_of(conversation().frames, follow_answers=True)
    assert len(caught.segments) == 10
    assert b"".join(caught.payloads) == b"askanswer"
    back = [each for each in caught.segments if each.payload == b"answer"]
    assert back[0].key == KEY4[4:8] + KEY4[:4] + KEY4[10:] + KEY4[8:10]


@pytest.mark.parametrize("follow_answers", [False, True])
def test_noise_is_no_segment(follow_answers: bool) -> None:
    noise = [
        ethernet(ipv4(udp(40000, 8000, PAYLOAD), protocol=17)),
        ethernet(ipv6(udp(40000, 8000, PAYLOAD), protocol=17)),
        ethernet(ipv4(b"\x08\0" + SEGMENT, protocol=1)),  # ping
        ethernet(ipv4(ipv4(SEGMENT), protocol=4)),  # a tunnel
        ethernet(ipv4(tcp(8001, 9000, 1, PAYLOAD))),
        ethernet(ipv6(tcp(8001, 9000, 1, PAYLOAD))),
        bytes(12) + b"\x88\xb5" + ipv4(SEGMENT),  # an experiment's EtherType
        bytes(12) + b"\x08\x06" + bytes(28) + struct.pack("!HH", 40000, 8000) * 8,  # ARP
        ethernet(b"\x55" + ipv4(SEGMENT)[1:]),  # IP version 5
        b"",
        b"\0",
    ]
    caught = segments_of((Frame(START, frame) for frame in noise), follow_answers=follow_answers)
    assert caught.segments == []
    # two of them are requests on a port that nobody watches
    assert caught.losses == Losses(frames=len(noise), other_ports=Counter({9000: 2}))

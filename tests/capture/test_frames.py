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
    RST,
    SLL,
    SLL2,
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
    sll,
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


# --- the link and what lies around ------------------------------------------------------------------


@pytest.mark.parametrize(
    ("link", "frame"),
    [
        (ETHERNET, ethernet(ipv4(SEGMENT))),
        (ETHERNET, ethernet(ipv4(SEGMENT), vlans=[5])),
        (ETHERNET, ethernet(ipv4(SEGMENT), vlans=[0x4500, 6])),
        (ETHERNET, ethernet(ipv4(SEGMENT, options=b"\x94\x04\0\0"))),  # router alert
        (ETHERNET, ethernet(ipv4(SEGMENT, options=bytes(40)), vlans=[5])),
        (SLL, sll(ipv4(SEGMENT))),
        (SLL, sll(ipv4(SEGMENT), packet_type=4)),
        (SLL2, packets.sll2(ipv4(SEGMENT))),
        (0, packets.null(ipv4(SEGMENT))),
        (0, packets.null(ipv4(SEGMENT), order=">")),
        (108, packets.null(ipv4(SEGMENT), order=">")),
        (12, ipv4(SEGMENT)),
        (14, ipv4(SEGMENT)),
        (101, ipv4(SEGMENT)),
        (228, ipv4(SEGMENT)),
    ],
)
def test_a_segment_in_ipv4_comes_out_as_it_was_sent(link: int, frame: bytes) -> None:
    assert one(frame, link) == Segment(START, KEY4, 1000, 9000, ACK, PAYLOAD, 0)


@pytest.mark.parametrize("number", [0, 43, 60, 135, 139, 140])
def test_a_segment_is_found_behind_whatever_extension_the_kernel_lets_through(number: int) -> None:
    # hop-by-hop, routing, destination options, mobility, HIP, shim6: 8 bytes each
    frame = ethernet(ipv6(SEGMENT, extensions=[(number, bytes(7))]))
    assert one(frame).payload == PAYLOAD


def test_tcps_own_options_are_not_payload() -> None:
    segment = tcp(40000, 8000, 1000, PAYLOAD, options=b"\x01\x01\x08\x0a" + bytes(8))
    assert one(ethernet(ipv4(segment))).payload == PAYLOAD
    assert one(ethernet(ipv6(segment))).payload == PAYLOAD


@pytest.mark.parametrize("vlans", [[], [5]])
def test_the_padding_of_a_short_frame_is_not_payload(vlans: list[int]) -> None:
    # 14 + 20 + 20 + 2 bytes are padded to 60
    packet = ipv4(tcp(40000, 8000, 1000, b"hi"))
    assert one(ethernet(packet, vlans=vlans, pad=True)).payload == b"hi"


def test_a_packet_that_tells_no_length_is_as_long_as_its_frame() -> None:
    long = tcp(40000, 8000, 1000, bytes(70_000))
    assert len(one(ethernet(ipv4(long, total_length=0))).payload) == 70_000
    assert len(one(ethernet(ipv4(long, total_length=0, options=b"\x94\x04\0\0"))).payload) == 70_000
    assert len(one(ethernet(ipv6(long, length=0))).payload) == 70_000


def test_wrong_checksums_are_right_enough() -> None:
    packet = bytearray(ipv4(tcp(40000, 8000, 1000, PAYLOAD, checksum=0xBAD)))
    packet[10] ^= 0xFF
    assert one(ethernet(bytes(packet))).payload == PAYLOAD


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


def test_a_fragment_cut_by_the_snaplen_is_a_lost_packet() -> None:
    frames = [Frame(START, frame).cut(96) for frame in FRAGMENTED["IPv4"]]
    caught = segments_of(frames)
    assert caught.segments == []
    # 3,092 bytes in pieces of 800: 4, each of them cut
    assert (caught.losses.fragments, caught.losses.truncated) == (1, 4)


def test_a_fragmented_segment_with_an_extension_before_it_is_found() -> None:
    whole = bytes([6, 0]) + bytes(6) + LONG  # destination options, then TCP
    frames = [ethernet(packet) for packet in ipv6_fragments(whole, 800, protocol=60)]
    (segment,) = segments_of(Frame(START, frame) for frame in frames).segments
    assert segment.payload == bytes(range(256)) * 12


def test_an_only_fragment_of_ipv6_is_its_packet() -> None:
    assert one(ethernet(ipv6_fragments(SEGMENT, 4000)[0])).payload == PAYLOAD


def test_fragments_of_other_protocols_do_not_count() -> None:
    sent = udp(1, 8000, bytes(2000))
    parts = ipv4_fragments(sent, 800, protocol=17)[1:] + ipv6_fragments(sent, 800, protocol=17)[1:]
    caught = segments_of(Frame(START, ethernet(part)) for part in parts)
    assert caught.losses == Losses(frames=len(parts))


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


def test_a_cut_packet_that_tells_no_length_misses_what_the_wire_had() -> None:
    whole = ethernet(ipv4(tcp(40000, 8000, 1000, bytes(70_000)), total_length=0))
    (segment,) = segments_of([Frame(START, whole).cut(1054)]).segments
    assert (len(segment.payload), segment.missing) == (1000, 69_000)


def test_a_frame_whose_cut_was_not_written_down_is_cut_all_the_same() -> None:
    # some programs write the cut length as the length on the wire; the packet's own tells better
    whole = ethernet(ipv4(tcp(40000, 8000, 1000, bytes(500))))
    (segment,) = segments_of([Frame(START, whole[:96])]).segments
    assert segment.missing == 500 - (96 - 54)


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


def test_an_ip_packet_shorter_than_its_headers_is_damaged() -> None:
    for total in (1, 19, 25, 39):
        caught = segments_of([Frame(START, ethernet(ipv4(SEGMENT, total_length=total)))])
        assert (caught.segments, caught.losses.damaged_frames) == ([], 1)
    tiny_header = b"\x41" + ipv4(SEGMENT)[1:]  # says its header is 4 bytes long
    assert segments_of([Frame(START, ethernet(tiny_header))]).losses.damaged_frames == 1


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


@pytest.mark.parametrize("flag", [SYN, FIN, RST])
@pytest.mark.parametrize("packet", [ipv4, ipv6])
def test_a_segment_that_opens_or_ends_is_handed_on_without_payload(
    flag: int, packet: Callable[[bytes], bytes]
) -> None:
    assert one(ethernet(packet(tcp(40000, 8000, 1, flags=flag)), pad=True)).flags == flag


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

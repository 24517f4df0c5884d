"""Links: where the IP packet begins, and what is no link of ours."""

import pytest
from support import packets
from support.packets import ethernet, ipv4, sll, sll2, tcp

from toolkit.capture.links import ip_start, link, transport
from toolkit.errors import ToolkitError

PACKET = ipv4(tcp(1, 2, 3))
NO_NEXT_HEADER = 59


@pytest.mark.parametrize(
    ("link_type", "frame", "start"),
    [
        (1, ethernet(PACKET), 14),
        (1, ethernet(PACKET, vlans=[5]), 18),
        (1, ethernet(PACKET, vlans=[5, 6]), 22),
        (113, sll(PACKET), 16),
        (276, sll2(PACKET), 20),
        (0, packets.null(PACKET), 4),
        (0, packets.null(PACKET, order=">"), 4),
        (108, packets.null(PACKET, order=">"), 4),
        (12, PACKET, 0),
        (14, PACKET, 0),
        (101, PACKET, 0),
        (228, PACKET, 0),
        (229, PACKET, 0),
    ],
)
def test_the_packet_begins_where_its_link_says(link_type: int, frame: bytes, start: int) -> None:
    assert ip_start(link(link_type), frame) == start


def test_an_old_tag_that_came_before_qinq_is_passed_over_too() -> None:
    frame = ethernet(PACKET, vlans=[5]).replace(b"\x81\0\0\x05", b"\x91\0\0\x05")
    assert ip_start(link(1), frame) == 18


@pytest.mark.parametrize(
    "frame",
    [
        bytes(12) + b"\x08\x06" + bytes(28),  # ARP
        bytes(12) + b"\x81\0\0\x05\x08\x06" + bytes(28),  # ARP behind a tag
        bytes(12) + b"\x88\xcc" + bytes(40),  # LLDP
        bytes(12) + b"\x81\0" * 30,  # tags without end
        bytes(12) + b"\x08\0",  # cut before the packet
        bytes(5),
        b"",
    ],
)
def test_a_frame_without_ip_holds_no_packet(frame: bytes) -> None:
    assert ip_start(link(1), frame) is None


def test_a_link_that_is_not_read_is_refused_by_its_name_and_number() -> None:
    with pytest.raises(ToolkitError) as wifi:
        link(127)
    assert wifi.value.message == "frames of link type IEEE802_11_RADIOTAP (127) are not read"
    assert "EN10MB (1)" in wifi.value.hint
    with pytest.raises(ToolkitError, match=r"link type unknown \(4242\)"):
        link(4242)


def test_extensions_of_ipv6_are_passed_over_by_their_own_lengths() -> None:
    # hop-by-hop of 8 bytes, routing of (1 + 1) * 8 = 16, authentication of (4 + 2) * 4 = 24, then TCP at 48
    chain = bytes([43, 0]) + bytes(6) + bytes([51, 1]) + bytes(14) + bytes([6, 4]) + bytes(22)
    assert transport(chain + tcp(1, 2, 3), 0, 0) == (6, 48)


def test_a_fragment_header_and_any_transport_end_the_walk() -> None:
    assert transport(bytes(80), 44, 40) == (44, 40)
    assert transport(bytes(80), 6, 40) == (6, 40)
    assert transport(bytes(80), NO_NEXT_HEADER, 40) == (NO_NEXT_HEADER, 40)


def test_a_chain_that_is_cut_ends_as_the_extension_it_ends_in() -> None:
    assert transport(bytes([60, 0]) + bytes(6), 0, 0) == (60, 8)

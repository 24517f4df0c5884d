"""pcap: both byte orders, both units of time, any division into blocks, and damage told by its place."""

import struct

import pytest
from contract.harness import packets
from contract.harness.packets import START, Conversation, Frame, ethernet, ipv4, tcp
from hypothesis import given, settings
from hypothesis import strategies as st
from support.segments import Reading

from toolkit.capture.files import LARGEST_FRAME

READ_BUT = "`x.pcap` was read to its end, but"


def read(file: bytes, size: int = 1 << 20) -> Reading:
    return Reading(file, size)


def talk(requests: int = 3) -> list[Frame]:
    made = Conversation(start=START + 0.25, step_s=0.001953125)
    made.open()
    for number in range(requests):
        made.client(b"POST %d " % number + bytes(400))
        made.server(bytes(2000))
    made.close()
    return made.frames


TALK = talk()
PAYLOADS = [b"POST %d " % number + bytes(400) for number in range(3)]


def test_a_nanosecond_is_not_lost_to_microseconds() -> None:
    # 1 s after 1970, so that a float has room for nanoseconds
    frame = ethernet(ipv4(tcp(1, 8000, 1, b"x")))
    head = struct.pack("<IHHiIII", 0xA1B23C4D, 2, 4, 0, 0, 65535, 1)
    reading = read(head + struct.pack("<IIII", 1, 123_456_789, len(frame), len(frame)) + frame)
    assert reading.found[0].ts == 1.123456789


@pytest.mark.parametrize("size", [1, 25])
def test_blocks_of_any_size_give_the_same(size: int) -> None:
    assert read(packets.pcap(TALK), size).found == read(packets.pcap(TALK)).found


@settings(deadline=None)
@given(st.integers(4, len(packets.pcap(TALK))))
def test_a_file_cut_anywhere_gives_what_was_whole_and_says_where_it_was_cut(kept: int) -> None:
    file = packets.pcap(TALK)
    ends = [24]
    for frame in TALK:
        ends.append(ends[-1] + 16 + len(frame.data))
    reading = read(file[:kept])
    assert reading.losses.frames == sum(end <= kept for end in ends[1:])
    if kept < 24:
        assert reading.notes == [f"{READ_BUT} it ends within its header, after {kept} bytes"]
    elif kept in ends:
        assert reading.notes == []
    else:
        begun = max(end for end in ends if end < kept)
        assert reading.notes == [f"{READ_BUT} its last record, at byte {begun:,}, is cut off"]


def test_the_length_of_check_sequences_beside_the_link_type_is_no_part_of_it() -> None:
    file = bytearray(packets.pcap(TALK))
    file[20:24] = struct.pack("<I", 0x24000001)  # 4 bytes of check sequence behind each frame
    reading = read(bytes(file))
    assert len(reading.found) == 5


@pytest.mark.parametrize("length", [LARGEST_FRAME + 1, 0x7FFFFFFF, 0xFFFFFFFF])
@pytest.mark.parametrize("place", [0, 4])
def test_a_damaged_length_is_told_by_its_place_and_nothing_is_waited_for(
    length: int, place: int
) -> None:
    at = 24 + sum(16 + len(frame.data) for frame in TALK[:place])
    file = bytearray(packets.pcap(TALK))
    file[at + 8 : at + 12] = struct.pack("<I", length)
    reading = read(bytes(file))
    assert reading.error == (
        f"`x.pcap` is damaged: at byte {at:,} a frame of {length:,} bytes begins"
    )
    # what came before was handed on, and counted
    assert reading.losses.frames == place
    assert len(reading.found) == (0 if place == 0 else 2)

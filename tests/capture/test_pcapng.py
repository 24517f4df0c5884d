"""pcapng: sections, interfaces and clocks of all kinds, blocks nobody knows, and damage told by its place."""

import struct
from collections.abc import Sequence
from typing import Literal

import pytest
from contract.harness import packets
from contract.harness.packets import (
    START,
    Conversation,
    Frame,
    block,
    enhanced,
    ethernet,
    interface,
    ipv4,
    option,
    section,
    simple,
    tcp,
)
from hypothesis import given, settings
from hypothesis import strategies as st
from support.segments import Reading

from toolkit.capture.files import LARGEST_BLOCK, MOST_INTERFACES

Order = Literal["<", ">"]
READ_BUT = "`x.pcapng` was read to its end, but"
WIFI = 105
ASK = Frame(START, ethernet(ipv4(tcp(40000, 8000, 1, b"ask"))))
OTHER = Frame(START + 1, ethernet(ipv4(tcp(40000, 9000, 1, b"other"))))
RAW_ASK = Frame(START + 2, ipv4(tcp(40000, 8000, 1, b"raw ask")))


def read(file: bytes | Sequence[bytes], size: int = 1 << 20) -> Reading:
    whole = file if isinstance(file, bytes) else b"".join(file)
    return Reading(whole, size, "x.pcapng")


# --- sections, interfaces and clocks ----------------------------------------------------------------


@pytest.mark.parametrize("size", [3, 100])
def test_blocks_of_any_size_give_the_same(size: int) -> None:
    talk = Conversation()
    talk.client(bytes(5000))
    talk.server(bytes(5000))
    file = packets.pcapng(talk.frames)
    assert read(file, size).found == read(file).found


def test_a_section_forgets_the_interfaces_of_the_one_before() -> None:
    file = [section(), interface(), enhanced(ASK), section(), enhanced(ASK)]
    at = sum(len(part) for part in file[:4])
    assert (
        read(file).error == f"`x.pcapng` is damaged: at byte {at:,} a block names interface 0 of 0"
    )


@pytest.mark.parametrize(
    ("resolution", "ticks_per_s", "offset_s", "ts"),
    [
        (None, 10**6, None, START + 0.123456),
        (3, 10**3, None, START + 0.123),
        (0, 1, None, START + 1),
        (0x80 | 20, 2**20, None, START + 0.5),
        (9, 10**9, -3600, START + 0.123456),
        (0x80 | 20, 2**20, 1_600_000_000, START + 0.25),
    ],
)
@pytest.mark.parametrize("order", ["<", ">"])
def test_the_clocks_resolution_and_offset_are_honoured(
    resolution: int | None, ticks_per_s: int, offset_s: int | None, ts: float, order: Order
) -> None:
    reading = read(
        [
            section(order),
            interface(order=order, resolution=resolution, offset_s=offset_s),
            enhanced(ASK.at(ts), order=order, ticks_per_s=ticks_per_s, offset_s=offset_s or 0),
        ]
    )
    assert reading.found[0].ts == pytest.approx(ts, abs=2e-7)


@pytest.mark.parametrize("resolution", [127, 0xFF])
def test_a_resolution_beyond_any_clock_breaks_nothing(resolution: int) -> None:
    # 2^64 ticks of 10^-127 s or of 2^-127 s are less than a millionth of a second
    reading = read([section(), interface(resolution=resolution), enhanced(ASK)])
    assert 0 <= reading.found[0].ts < 1e-6


@pytest.mark.parametrize(("resolution", "offset_s"), [(0, None), (6, -5_000_000_000), (6, 2**62)])
def test_a_time_no_calendar_has_is_none(resolution: int, offset_s: int | None) -> None:
    reading = read(
        [
            *(section(), interface(), interface(resolution=resolution, offset_s=offset_s)),
            *(enhanced(ASK), enhanced(ASK, number=1), enhanced(ASK, number=1)),
        ]
    )
    # microseconds taken for seconds are 53 million years
    assert [each.ts for each in reading.found] == [START, START, START]
    assert "2 frames have no time that can be" in reading.notes[0]


# --- the other kinds of blocks ----------------------------------------------------------------------


def test_a_packet_without_a_time_is_as_late_as_the_one_before() -> None:
    reading = read([section(), interface(), simple(ASK), enhanced(ASK), simple(ASK), simple(OTHER)])
    assert [each.ts for each in reading.found] == [0, START, START]
    assert reading.notes == [
        "`x.pcapng`: 3 frames have no time that can be; each is taken for as late as the one before"
    ]


def test_a_simple_packet_is_cut_at_its_interfaces_snaplen() -> None:
    frame = Frame(START, ethernet(ipv4(tcp(40000, 8000, 1, bytes(500)))))
    # 97 bytes are kept, and 3 of padding make them 100
    cut = Frame(START, frame.data[:97], len(frame.data))
    (segment,) = read([section(), interface(snaplen=97), simple(cut)]).found
    assert (len(segment.payload), segment.missing) == (97 - 54, 500 - 97 + 54)
    # a block that holds less than its interface's snaplen and the wire's length promise ends with itself
    (segment,) = read([section(), interface(), simple(cut), enhanced(OTHER)]).found
    assert (len(segment.payload), segment.missing) == (100 - 54, 500 - 100 + 54)


def old_packet(frame: Frame, drops: int, order: Order = "<") -> bytes:
    ticks = round(frame.ts * 10**6)
    head = struct.pack(
        f"{order}HHIIII", 0, drops, ticks >> 32, ticks % 2**32, len(frame.data), frame.on_wire
    )
    return block(2, head + frame.data, order)


@pytest.mark.parametrize("order", ["<", ">"])
def test_packet_blocks_of_old_are_read_with_the_drops_they_tell(order: Order) -> None:
    reading = read(
        [
            *(section(order), interface(order=order)),
            *(
                old_packet(ASK, 7, order),
                old_packet(ASK, 0xFFFF, order),
                old_packet(OTHER, 2, order),
            ),
        ]
    )
    assert [(each.ts, each.payload) for each in reading.found] == [(START, b"ask")] * 2
    assert (reading.losses.kernel_drops, reading.losses.frames) == (9, 3)


def statistics(number: int, *options: tuple[int, int], order: Order = "<") -> bytes:
    told = b"".join(option(code, struct.pack(f"{order}Q", value), order) for code, value in options)
    return block(5, struct.pack(f"{order}III", number, 0, 0) + told, order)


@pytest.mark.parametrize("order", ["<", ">"])
def test_drops_in_the_statistics_count_once_however_often_they_are_told(order: Order) -> None:
    reading = read(
        [
            section(order),
            *(interface(order=order), interface(order=order)),
            statistics(0, (4, 1000), (5, 3), (7, 4), order=order),
            statistics(0, (4, 2000), (5, 5), (7, 4), order=order),
            statistics(1, (5, 10), order=order),
            statistics(1, order=order),
        ]
    )
    assert reading.losses.kernel_drops == 5 + 4 + 10


@pytest.mark.parametrize(
    "other",
    [
        block(10, struct.pack("<II", 0x544C534B, 9) + b"CLIENT_RANDOM"[:9]),  # secrets
        block(4, struct.pack("<HH", 0, 0)),  # names
        block(0xBAD, struct.pack("<I", 42)),
        block(0x80000001, b""),
        block(1000, bytes(300_000)),
    ],
)
def test_blocks_nobody_asked_for_are_passed_over(other: bytes) -> None:
    file = [section(), other, interface(), other, enhanced(ASK), other, enhanced(OTHER), other]
    for size in (1000, 1 << 20):
        reading = read(b"".join(file), size)
        assert (reading.payloads, reading.losses.frames) == ([b"ask"], 2)


# --- links that are not read ------------------------------------------------------------------------


def test_an_interface_that_is_not_read_is_told_beside_one_that_is() -> None:
    file = [section(), interface(WIFI), interface(), enhanced(ASK), enhanced(ASK, number=1)]
    reading = read([*file, enhanced(OTHER), enhanced(ASK, number=1)])
    assert reading.payloads == [b"ask", b"ask"]
    assert reading.notes == ["`x.pcapng`: 2 frames of link type IEEE802_11 (105) are not read"]


# --- damage -----------------------------------------------------------------------------------------

BEGIN = [section(), interface(), enhanced(ASK)]
BEGUN = sum(len(part) for part in BEGIN)


@pytest.mark.parametrize(
    ("bad", "told"),
    [
        (struct.pack("<III", 6, 0, 0), "a block says it is 0 bytes long"),
        (struct.pack("<III", 6, 8, 0), "a block says it is 8 bytes long"),
        (struct.pack("<III", 6, 0xFFFFFFF0, 0), "a block says it is 4,294,967,280 bytes long"),
        (
            struct.pack("<III", 99, LARGEST_BLOCK + 4, 0),
            "a block says it is 16,777,220 bytes long",
        ),
        (block(6, bytes(8)), "a packet's block is cut off"),
        (block(2, bytes(8)), "a packet's block is cut off"),
        (block(3, b""), "a packet's block is cut off"),
        (block(1, bytes(4)), "an interface's block is cut off"),
        (block(5, bytes(4)), "a block of statistics is cut off"),
        (enhanced(ASK, number=1), "a block names interface 1 of 1"),
        (statistics(7), "a block names interface 7 of 1"),
        (block(6, struct.pack("<IIIII", 0, 0, 0, 57, 57) + bytes(56)), "a block of 88 bytes holds a frame of 57"),
        (
            block(6, struct.pack("<IIIII", 0, 0, 0, 0xFFFFFFFF, 60) + bytes(56)),
            "a block of 88 bytes holds a frame of 4,294,967,295",
        ),
        (
            enhanced(OTHER).replace(struct.pack("<I", len(OTHER.data)), struct.pack("<I", 70), 1),
            "a block of 92 bytes holds a frame of 70",
        ),
        (
            enhanced(ASK)[:-4] + struct.pack("<I", 100),
            "a block says it is 92 bytes long, and 100 at its end",
        ),
        (section()[:8] + bytes(20), "a section tells no byte order"),
    ],
)  # fmt: skip
def test_damage_is_told_by_its_place_with_what_came_before_handed_on(bad: bytes, told: str) -> None:
    reading = read([*BEGIN, bad, bytes(200)])
    assert reading.error == f"`x.pcapng` is damaged: at byte {BEGUN:,} {told}"
    assert reading.payloads == [b"ask"]


def test_a_file_of_nothing_but_interfaces_does_not_fill_the_memory() -> None:
    reading = read([section(), *[interface()] * MOST_INTERFACES, enhanced(ASK), interface()])
    assert reading.payloads == [b"ask"]
    assert str(reading.error).endswith("one too many")


@settings(deadline=None)
@given(st.integers(4, len(packets.pcapng([ASK, OTHER, ASK]))))
def test_a_file_cut_anywhere_gives_what_was_whole_and_says_where_it_was_cut(kept: int) -> None:
    parts = [section(), interface(), enhanced(ASK), enhanced(OTHER), enhanced(ASK)]
    ends = [sum(len(part) for part in parts[:count]) for count in range(len(parts) + 1)]
    reading = read(b"".join(parts)[:kept])
    assert reading.losses.frames == sum(end <= kept for end in ends[3:])
    begun = max(end for end in ends if end <= kept)
    if kept in ends:
        assert reading.notes == []
    elif kept < ends[1]:
        assert reading.notes == [f"{READ_BUT} it ends within its header, after {kept} bytes"]
    else:
        assert reading.notes == [f"{READ_BUT} its last block, at byte {begun:,}, is cut off"]

"""Glances: what one throws away, nobody wanted; and it throws most away."""

import random
import struct
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support import packets
from support.packets import LINKS, START, Frame, ethernet, ipv4, ipv6, tcp, udp
from support.segments import Segment, catch, segments_of

from toolkit.capture.exchange import Losses, MemoryBounds
from toolkit.capture.frames import Frames
from toolkit.capture.glance import Glances
from toolkit.capture.links import link
from toolkit.capture.pcap import Pcap
from toolkit.capture.pcapng import Pcapng

RECORD = "8xI4x"


def thrown_away(frame: bytes, like: bytes, *, follow_answers: bool = False) -> bool:
    """Whether the glance that the second frame calls for throws the first away, as the readers' loops ask it."""
    glance = Glances(link(1), [8000], follow_answers=follow_answers).at(like[:64], RECORD, "<")
    record = struct.pack("<IIII", 0, 0, len(frame), len(frame)) + frame + bytes(100)
    kept, kind, version, total, part, source, target, offset, flags = glance.fields(record, 0)
    if not (
        kind == glance.ethertype
        and version == glance.version
        and kept >= glance.least
        and part & glance.part_mask == glance.part
    ):
        return False
    if target not in glance.to and source not in glance.answers_from:
        return True
    return total == glance.bare[offset] and not flags & 7


PLAIN = {
    "IPv4": lambda segment: ethernet(ipv4(segment)),
    "IPv6": lambda segment: ethernet(ipv6(segment)),
    "IPv4 behind a tag": lambda segment: ethernet(ipv4(segment), vlans=[5]),
    "IPv6 behind a tag": lambda segment: ethernet(ipv6(segment), vlans=[5]),
}


@pytest.mark.parametrize("made", PLAIN.values(), ids=PLAIN)
def test_other_ports_and_bare_acknowledgements_of_a_plain_shape_are_thrown_away(
    made: Callable[[bytes], bytes],
) -> None:
    ours = made(tcp(40000, 8000, 1, b"x"))
    assert not thrown_away(ours, ours)
    assert thrown_away(made(tcp(40000, 9000, 1, b"x")), ours)
    assert thrown_away(made(tcp(8000, 40000, 1, b"x")), ours)
    assert thrown_away(made(tcp(40000, 8000, 1)), ours)
    assert thrown_away(made(tcp(40000, 8000, 1, options=bytes(12))), ours)
    assert not thrown_away(made(tcp(40000, 8000, 1, flags=packets.FIN | packets.ACK)), ours)


@pytest.mark.parametrize("made", PLAIN.values(), ids=PLAIN)
def test_with_answers_followed_both_ways_and_acknowledgements_are_kept(
    made: Callable[[bytes], bytes],
) -> None:
    for kept in (tcp(8000, 40000, 1, b"x"), tcp(40000, 8000, 1), tcp(8000, 40000, 1)):
        assert not thrown_away(made(kept), made(kept), follow_answers=True)
    assert thrown_away(made(tcp(1, 2, 3)), made(tcp(1, 2, 3)), follow_answers=True)


@pytest.mark.parametrize("like", PLAIN.values(), ids=PLAIN)
@pytest.mark.parametrize("made", PLAIN.values(), ids=PLAIN)
def test_a_frame_of_another_shape_is_not_judged(
    made: Callable[[bytes], bytes], like: Callable[[bytes], bytes]
) -> None:
    other_port = made(tcp(40000, 9000, 1, b"x"))
    judged = thrown_away(other_port, like(tcp(40000, 9000, 1, b"x")))
    assert judged == (made is like)


def test_options_fragments_and_cut_frames_are_not_judged() -> None:
    away = tcp(40000, 9000, 1, bytes(100))
    plain = ethernet(ipv4(away))
    unusual = [
        ethernet(ipv4(away, options=bytes(4))),
        ethernet(packets.ipv4_fragments(away, 80)[0]),
        ethernet(packets.ipv4_fragments(away, 80)[1]),
        plain[:47],  # one byte short of TCP's flags
        ethernet(b"\x46" + ipv4(away)[1:]),
    ]
    assert [thrown_away(frame, plain) for frame in unusual] == [False] * 5
    plain6 = ethernet(ipv6(away))
    for extensions in ([packets.hop_by_hop()], [(44, bytes(7))]):
        assert not thrown_away(ethernet(ipv6(away, extensions=extensions)), plain6)


def test_a_header_that_cannot_be_is_left_to_be_told() -> None:
    segment = bytearray(tcp(40000, 8000, 1))
    segment[12] = 0
    nonsense = ethernet(ipv4(bytes(segment), total_length=20))
    assert not thrown_away(nonsense, ethernet(ipv4(bytes(segment))))


# --- what the readers keep is what frame by frame is kept, whatever the frames are like ---------------


def random_frame(dice: random.Random, number: int) -> Frame:
    """Any frame of the zoo, sometimes cut, sometimes with a byte gone wrong."""
    ports = [8000, 8000, 9000, 40000, 0x4500, 2048]
    segment = tcp(
        dice.choice(ports),
        dice.choice(ports),
        dice.getrandbits(32),
        bytes(dice.choice([0, 0, 1, 5, 200])),
        flags=dice.choice([16, 16, 17, 18, 24, 4]),
        options=bytes(dice.choice([0, 0, 12])),
    )
    made = dice.choice(
        [
            [ipv4(segment)],
            [ipv6(segment)],
            [ipv4(segment, options=bytes(4))],
            [ipv4(segment, total_length=0)],
            [ipv6(segment, extensions=[packets.hop_by_hop()])],
            packets.ipv4_fragments(segment, 16, ident=number),
            packets.ipv6_fragments(segment, 16, ident=number),
            [ipv4(udp(40000, 8000, b"x"), protocol=17)],
        ]
    )
    vlans = dice.choice([[], [], [], [5], [0x4508], [5, 6]])
    data = bytearray(ethernet(dice.choice(made), vlans=vlans, pad=dice.random() < 0.2))
    if dice.random() < 0.3:
        data[dice.randrange(min(len(data), 60))] = dice.randrange(256)
    frame = Frame(START + number, bytes(data))
    return frame.cut(dice.randrange(len(data))) if dice.random() < 0.1 else frame


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.booleans(), st.sampled_from("<>"), st.sampled_from([100, 10**6]))
def test_a_file_gives_what_its_frames_one_by_one_give(
    seed: int, follow_answers: bool, order: str, block: int
) -> None:
    dice = random.Random(seed)
    frames = [random_frame(dice, number) for number in range(dice.randrange(1, 60))]
    expected = segments_of(frames, follow_answers=follow_answers)
    files = {
        Pcap: packets.pcap(frames, order=order),  # type: ignore[arg-type]
        Pcapng: packets.pcapng(frames, order=order),  # type: ignore[arg-type]
    }
    for reader, file in files.items():
        found: list[Segment] = []
        losses = Losses()
        reading = Frames(
            1,
            catch(found),
            ports=[8000],
            follow_answers=follow_answers,
            losses=losses,
            limits=MemoryBounds(),
        )
        whole = reader("it", lambda _, frames=reading: frames, losses)  # type: ignore[misc]
        for start in range(0, len(file), block):
            whole.feed(file[start : start + block])
        reading.close()
        assert found == expected.segments
        assert losses == expected.losses


@pytest.mark.parametrize("link_type", LINKS)
def test_every_link_has_a_glance_that_throws_nothing_wanted_away(link_type: int) -> None:
    sides = {"client": "fd00::1", "server": "fd00::2"} if link_type == 229 else {}
    talk = packets.Conversation(link=link_type, **sides)  # type: ignore[arg-type]
    talk.open()
    talk.client(b"x" * 5000)
    talk.server(b"y" * 5000)
    talk.close()
    expected = segments_of(talk.frames, link_type)
    found: list[Segment] = []
    losses = Losses()
    reading = Frames(
        link_type,
        catch(found),
        ports=[8000],
        follow_answers=False,
        losses=losses,
        limits=MemoryBounds(),
    )
    looked: list[float] = []
    reading.frame = lambda ts, *_: looked.append(ts)  # type: ignore[assignment, method-assign]
    Pcap("it", lambda _: reading, losses).feed(packets.pcap(talk.frames, link_type))
    # the last frames of a block are looked at closely, be they wanted or not
    assert set(looked) >= {segment.ts for segment in expected.segments}
    assert len(looked) <= len(expected.segments) + 2

"""Fragments: every order gives the packet, nothing fills a hole, and no flood fills the memory."""

from itertools import pairwise, permutations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from toolkit.capture.exchange import Losses, MemoryBounds
from toolkit.capture.fragments import Fragments

KEY = (b"from to", 7)
WHOLE = bytes(range(40))
PIECES = [(0, True, WHOLE[:16]), (16, True, WHOLE[16:32]), (32, False, WHOLE[32:])]


class Bench:
    """Fragments with what they lost beside them."""

    def __init__(self, limits: MemoryBounds | None = None) -> None:
        self.losses = Losses()
        self.fragments = Fragments(losses=self.losses, limits=limits or MemoryBounds())

    def add(
        self,
        offset: int,
        more: bool,
        data: bytes,
        *,
        ts: float = 0.0,
        key: object = KEY,
        length: int | None = None,
    ) -> bytes | None:
        return self.fragments.add(
            ts,
            key,  # type: ignore[arg-type]
            offset=offset,
            more=more,
            length=len(data) if length is None else length,
            data=data,
        )


@pytest.mark.parametrize("order", list(permutations(PIECES)))
def test_any_order_gives_the_packet_with_its_last_piece(
    order: tuple[tuple[int, bool, bytes], ...],
) -> None:
    bench = Bench()
    assert [bench.add(*piece) for piece in order] == [None, None, WHOLE]
    bench.fragments.close()
    assert bench.losses.fragments == 0


def test_a_missing_piece_gives_nothing_and_is_counted_once() -> None:
    bench = Bench()
    for piece in (PIECES[0], PIECES[2]):
        assert bench.add(*piece) is None
    assert bench.losses.fragments == 0
    bench.fragments.close()
    assert bench.losses.fragments == 1


def test_the_packets_of_different_senders_are_not_mixed() -> None:
    bench = Bench()
    assert bench.add(0, True, b"a" * 8, key="a") is None
    assert bench.add(8, False, b"b" * 8, key="b") is None
    assert bench.add(8, False, b"A" * 8, key="a") == b"a" * 8 + b"A" * 8


def test_a_second_copy_of_each_piece_changes_nothing() -> None:
    bench = Bench()
    found = [bench.add(*piece) for piece in PIECES for _ in range(2)]
    assert [whole for whole in found if whole is not None] == [WHOLE]
    bench.fragments.close()
    assert bench.losses.fragments == 0


def test_a_copy_of_the_whole_packet_is_not_given_twice() -> None:
    bench = Bench()
    found = [bench.add(*piece) for _ in range(2) for piece in PIECES]
    assert found == [None, None, WHOLE, None, None, None]


def test_the_same_number_used_again_for_other_bytes_is_a_new_packet() -> None:
    bench = Bench()
    for piece in PIECES:
        bench.add(*piece)
    assert [bench.add(0, True, b"n" * 8), bench.add(8, False, b"ew")] == [None, b"n" * 8 + b"ew"]


def test_overlapping_pieces_are_joined_without_a_byte_twice() -> None:
    bench = Bench()
    assert bench.add(0, True, WHOLE[:24]) is None
    assert bench.add(16, False, WHOLE[16:]) == WHOLE


def test_an_overlap_with_a_hole_behind_it_is_no_packet() -> None:
    # 24 + 16 + 8 bytes were seen of 40, and yet 24 to 32 are missing
    bench = Bench()
    for piece in ((0, True, WHOLE[:24]), (8, True, WHOLE[8:24]), (32, False, WHOLE[32:])):
        assert bench.add(*piece) is None
    assert bench.add(24, True, WHOLE[24:32]) == WHOLE


def test_what_lies_beyond_the_last_piece_is_no_part_of_the_packet() -> None:
    bench = Bench()
    assert bench.add(32, False, WHOLE[32:]) is None
    assert bench.add(40, True, b"beyond it") is None
    assert bench.add(0, True, WHOLE[:32]) == WHOLE


def test_a_piece_cut_at_capture_never_becomes_a_packet() -> None:
    bench = Bench()
    assert bench.add(0, True, WHOLE[:16]) is None
    assert bench.add(16, False, WHOLE[16:20], length=24) is None
    bench.fragments.close()
    assert bench.losses.fragments == 1


def test_a_piece_that_comes_half_a_minute_late_is_too_late() -> None:
    bench = Bench()
    bench.add(0, True, WHOLE[:16], ts=100.0)
    bench.add(0, True, b"x" * 8, ts=130.0, key="other")
    assert bench.losses.fragments == 0
    bench.add(0, True, b"y" * 8, ts=130.1, key="third")
    assert bench.losses.fragments == 1
    assert bench.add(16, False, WHOLE[16:], ts=130.2) is None


def test_a_clock_that_goes_back_gives_nothing_up() -> None:
    bench = Bench()
    bench.add(0, True, WHOLE[:16], ts=100.0)
    assert bench.add(16, False, WHOLE[16:], ts=50.0) == WHOLE


def test_a_piece_beyond_any_packet_is_not_kept() -> None:
    bench = Bench()
    assert bench.add(65_528, False, bytes(64)) is None
    bench.fragments.close()
    assert bench.losses.fragments == 0


def test_a_flood_gives_up_the_oldest_and_keeps_the_memory() -> None:
    limits = MemoryBounds(fragments_bytes=100_000)
    bench = Bench(limits)
    for number in range(1000):
        bench.add(0, True, bytes(1400), key=number)
        assert bench.fragments._bytes <= limits.fragments_bytes
    # 1,400 bytes and 600 for the keeping: 50 of them fit
    assert bench.losses.fragments == 950
    assert bench.add(1400, False, b"end", key=999) == bytes(1400) + b"end"
    assert bench.add(1400, False, b"end", key=0) is None


def test_a_flood_of_empty_pieces_is_bounded_too() -> None:
    bench = Bench(MemoryBounds(fragments_bytes=100_000))
    for number in range(10_000):
        bench.add(8, True, b"", key=number)
    assert len(bench.fragments._packets) <= 100_000 // 600


def test_a_packet_in_thousands_of_pieces_is_not_put_together() -> None:
    bench = Bench()
    pieces = [(place * 8, True, bytes(8)) for place in range(2000)]
    assert not any(bench.add(*piece) for piece in pieces)
    assert bench.add(16_000, False, bytes(8)) is None


@given(st.data(), st.binary(min_size=1, max_size=400))
def test_whatever_the_sizes_the_order_and_the_copies_the_bytes_are_those_sent(
    data: st.DataObject, sent: bytes
) -> None:
    cuts = sorted(data.draw(st.sets(st.integers(1, max(1, (len(sent) - 1) // 8)), max_size=20)))
    edges = [0, *(cut * 8 for cut in cuts if cut * 8 < len(sent)), len(sent)]
    pieces = [(start, end < len(sent), sent[start:end]) for start, end in pairwise(edges)]
    order = data.draw(st.permutations(pieces + data.draw(st.lists(st.sampled_from(pieces)))))
    bench = Bench()
    found = [bench.add(*piece) for piece in order]
    assert [whole for whole in found if whole is not None] == [sent]
    bench.fragments.close()
    assert bench.losses.fragments == 0

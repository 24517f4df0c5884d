"""Memory stays within limits whatever comes, and what was let go is told."""

import tracemalloc

import pytest
from support.streams import ACK, SYN, Capture, key, opened, post

from toolkit.capture.records import MemoryBounds

ONE = b'{"n": 1}'


def test_a_quiet_connection_is_over_by_the_packets_clock() -> None:
    capture = opened(limits=MemoryBounds(idle_s=60.0))
    capture.client(post(ONE)[:20])
    capture.wait(59.0)
    assert capture.requests == []
    capture.wait(20.0)
    assert capture.problems == ["the connection went quiet before it was whole"]
    assert capture.streams.held_bytes == 0


def test_a_connection_that_speaks_now_and_then_is_not_over() -> None:
    capture = opened(limits=MemoryBounds(idle_s=60.0))
    data = post(b"x" * 100)
    for start in range(0, len(data), 10):
        capture.client(data[start : start + 10])
        capture.wait(50.0)
    assert capture.bodies == [b"x" * 100]


def test_a_quiet_connection_ends_while_others_speak() -> None:
    capture = opened(limits=MemoryBounds(idle_s=60.0))
    capture.client(post(ONE)[:20])
    for second in range(80):
        capture.streams.segment(101.0 + second, key(50_000), 1 + second, 0, ACK, b"x")
    assert capture.problems == ["the connection went quiet before it was whole"]


def test_a_clock_that_is_set_back_ends_nothing() -> None:
    capture = opened()
    capture.client(post(ONE)[:20])
    capture.now = 5.0
    capture.client(post(ONE)[20:])
    assert capture.bodies == [ONE]
    assert capture.requests[0].ts_last >= capture.requests[0].ts


def test_a_hole_is_given_up_on_a_clock_that_was_set_back() -> None:
    capture = opened()
    capture.now = 5.0
    capture.lose(10)
    capture.client(post(ONE))
    capture.wait(3)
    assert capture.bodies == [ONE]


def test_beyond_the_bytes_that_may_wait_a_hole_is_given_up_at_once() -> None:
    capture = opened(limits=MemoryBounds(stash_bytes=20_000))
    capture.lose(10)
    for _ in range(30):
        capture.client(post(b"x" * 1000))
    # each segment waits with 1,000 and some bytes: 20,000 are reached before the 20th
    assert 10 < len(capture.bodies) <= 30
    assert capture.losses.gap_bytes == 10
    assert capture.streams.held_bytes <= 20_000


def test_beyond_the_segments_that_may_wait_a_hole_is_given_up_at_once() -> None:
    capture = opened(limits=MemoryBounds(stash_segments=5))
    capture.lose(1)
    for _ in range(6):
        assert capture.requests == []
        capture.client(post(ONE))
    assert len(capture.bodies) == 6


def test_a_flood_of_segments_out_of_order_stays_within_bounds() -> None:
    limits = MemoryBounds(stash_segments=500, stash_bytes=100_000)
    capture = opened(limits=limits)
    tracemalloc.start()
    for number in range(20_000):
        capture.send(capture.next + 2 + 2 * (number * 7919 % 20_000), b"z")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 2_000_000
    assert capture.losses.gaps > 0


@pytest.mark.parametrize("size", [1, 1448])
def test_holes_on_many_connections_stay_within_the_total(size: int) -> None:
    limits = MemoryBounds(total_bytes=200_000)
    capture = Capture(limits=limits)
    for number in range(2000):
        which = key(30_000 + number)
        capture.streams.segment(1.0 + number / 1e6, which, 1, 0, SYN, b"")
        capture.streams.segment(1.0 + number / 1e6, which, 50, 0, ACK, b"h" * size)
        assert capture.streams.held_bytes <= limits.total_bytes
    assert capture.losses.gave_up > 0


def test_unfinished_bodies_stay_within_the_total_and_the_quietest_is_given_up() -> None:
    capture = Capture(limits=MemoryBounds(total_bytes=100_000))
    for number in range(200):
        capture.key = key(30_000 + number)
        capture.next = 1001
        capture.open()
        capture.client(post(b"b" * 5000)[:4000])
        assert capture.streams.held_bytes <= 100_000
    assert capture.losses.gave_up == len(capture.problems) >= 170
    assert set(capture.problems) == {"given up for want of room before it was whole"}
    assert capture.requests[0].client_port == 30_000
    # the last one still lives
    capture.client(post(b"b" * 5000)[4000:])
    assert capture.bodies == [b"b" * 5000]


def test_beyond_the_connections_followed_the_one_longest_quiet_is_given_up() -> None:
    capture = Capture(limits=MemoryBounds(flows=10))
    for number in range(30):
        capture.key, capture.next = key(30_000 + number), 1001
        capture.open()
        assert len(capture.streams._flows) <= 10
    assert capture.losses.gave_up >= 20
    capture.client(post(ONE))
    assert capture.bodies == [ONE]


def test_segments_from_far_off_are_not_kept_by_the_thousand() -> None:
    capture = opened()
    tracemalloc.start()
    for number in range(2000):
        capture.send(capture.next + 100_000_000 + number * 10_000_000, bytes(1400))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 1_000_000
    capture.client(post(ONE))
    assert capture.bodies == [ONE]


def test_a_jump_that_a_second_segment_confirms_is_a_gap_of_unknown_length() -> None:
    # a burst lost at capture, longer than we could wait for
    capture = opened()
    capture.client(post(ONE))
    capture.lose(50_000_000)
    capture.client(post(b"x" * 2000)[1000:1500])
    capture.client(post(b"x" * 2000)[1500:])
    capture.client(post(ONE))
    assert capture.bodies == [ONE, ONE]
    assert (capture.losses.gaps, capture.losses.gap_bytes) == (1, 0)


def test_closed_connections_are_forgotten_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.capture.tcp.CLOSED", 100)
    capture = Capture()
    for number in range(1000):
        capture.key, capture.next = key(30_000 + number), 1001
        capture.open()
        capture.fin()
    assert len(capture.streams._closed) == 100
    assert len(capture.streams._flows) == 0


def test_nothing_is_left_when_all_connections_are_over() -> None:
    capture = Capture()
    for number in range(100):
        capture.key, capture.next = key(30_000 + number), 1001
        capture.open()
        capture.client(post(ONE)[:30])
        capture.lose(5)
        capture.client(post(b"x" * 100))
        if number % 2:
            capture.fin()
    capture.streams.close()
    streams = capture.streams
    assert (streams.held_bytes, streams._flows, streams._waiting) == (0, {}, {})

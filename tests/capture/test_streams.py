"""Segments in any order, twice, cut and lost; connections that begin and end in every way; memory within limits, whatever comes."""

import random
import tracemalloc
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.streams import ACK, FIN, RST, SYN, Capture, key, opened, post

from toolkit.capture.records import MemoryBounds

ONE, TWO, LONG = b'{"n": 1, "text": "first"}', b'{"n": 2}', b"x" * 1000
FIRST, SECOND, BIG = post(ONE), post(TWO), post(LONG)
HALF, REST = BIG[:500], BIG[500:]
REPLACED = "another connection took its place before it was whole"
CUT_OFF = "the connection ended before it was whole"
NO_SUCH = 3_000_000_000
"""Sequence numbers that nothing of the connection has."""


class At(NamedTuple):
    """A segment of the client at any place, before the next byte or behind it."""

    seq: int
    data: bytes = b""
    flags: int = ACK
    missing: int = 0


class Go(NamedTuple):
    """The client goes on at these sequence numbers; with `syn` it says so."""

    isn: int
    syn: bool = True


Step = bytes | int | float | At | Go | str


def played(*steps: Step, limits: MemoryBounds | None = None) -> Capture:
    """What the client sends, loses (so many bytes), and how long it waits (seconds); `fin` and `rst`. Numbers begin at 1000."""
    capture = Capture(limits=limits)
    for step in steps:
        if isinstance(step, bytes):
            capture.client(step)
        elif isinstance(step, int):
            capture.lose(step)
        elif isinstance(step, float):
            capture.wait(step)
        elif isinstance(step, At):
            capture.send(step.seq, step.data, step.flags, missing=step.missing)
        elif isinstance(step, Go):
            capture.isn, capture.next = step.isn, step.isn + 1
            if step.syn:
                capture.open()
        elif step == "fin":
            capture.fin()
        elif step == "rst":
            capture.send(capture.next, flags=RST | ACK)
    return capture


OPEN = Go(1000)
STORIES: dict[str, tuple[list[Step], list[bytes], list[str]]] = {
    # --- order
    "a cut frame that comes early is a hole in its place": (
        [OPEN, At(1061, BIG[60:70], missing=len(BIG) - 70), At(1001, BIG[:60]), len(BIG), SECOND],
        [TWO],
        [f"{len(BIG) - 70} bytes lost"],
    ),
    "of two versions that wait the first that came counts": (
        [
            *(OPEN, At(1001 + len(post(b"abcdefgh")) - 6, b"cd")),
            *(At(1001 + len(post(b"abcdefgh")) - 3, b"f"),),
            *(At(1001 + len(post(b"abcdefgh")) - 8, b"abXXeXgh"), post(b"abcdefgh")[:-8]),
        ],
        [b"abcdefgh"],
        [],
    ),
    "a SYN that data overtook begins no second connection": (
        [Go(1000, syn=False), FIRST, At(1000, flags=SYN), SECOND],
        [ONE, TWO],
        [],
    ),
    "nor one that half a line overtook": (
        [Go(1000, syn=False), FIRST[:15], At(1000, flags=SYN), FIRST[15:]],
        [ONE],
        [],
    ),
    "data before the SYN of its connection is not the last one's": (
        [OPEN, FIRST, At(6001, SECOND), Go(6000), SECOND],
        [ONE, TWO],
        [],
    ),
    "sequence numbers begin anew": ([Go(2**32 - 100), BIG, SECOND], [LONG, TWO], []),
    # --- holes
    "a hole is given up after two seconds": ([OPEN, HALF, 100, REST[100:], SECOND, 1.9], [], []),
    "and costs its request": (
        [OPEN, HALF, 100, REST[100:], SECOND, 1.9, 0.2],
        [TWO],
        ["100 bytes lost"],
    ),
    "on a clock that was set back, too": ([OPEN, -90.0, 10, FIRST, 3.0], [ONE], []),
    "a reset reads what waited": (
        [OPEN, HALF, 10, REST[10:] + SECOND, "rst"],
        [TWO],
        ["10 bytes lost"],
    ),
    # --- ends
    "a FIN cuts a request": ([OPEN, HALF, "fin"], [], [CUT_OFF]),
    "a FIN that comes early waits": (
        [OPEN, At(1001 + len(FIRST), flags=FIN | ACK), FIRST],
        [ONE],
        [],
    ),
    "a FIN behind a hole": (
        [OPEN, HALF, 500, "fin", 2.5],
        [],
        [f"500 bytes lost, then {CUT_OFF}"],
    ),
    "what comes behind a FIN is none of the stream": (
        [OPEN, FIRST, At(1006 + len(FIRST), flags=FIN | ACK), SECOND],
        [ONE],
        [CUT_OFF],
    ),
    "sent again after the end it begins no connection": (
        [OPEN, FIRST, "fin", At(1001, FIRST), At(1001, FIRST, FIN | ACK), At(1000, flags=SYN)],
        [ONE],
        [],
    ),
    "strays of the connection before the last begin none": (
        [
            *(OPEN, FIRST, "fin", Go(5_000_000), SECOND, "fin"),
            *(At(1000, flags=SYN), At(1001, FIRST), At(5_000_001, SECOND)),
        ],
        [ONE, TWO],
        [],
    ),
    "a SYN sent again changes nothing": (
        [OPEN, At(1000, flags=SYN), HALF, At(1000, flags=SYN), REST, At(1000, flags=SYN)],
        [LONG],
        [],
    ),
    # --- ports used again
    "a port used again without a FIN": ([OPEN, FIRST + HALF, Go(77), SECOND], [ONE, TWO], [REPLACED]),
    "without FIN and SYN, at its first request": (
        [OPEN, FIRST, Go(NO_SUCH, syn=False), SECOND, FIRST],
        [ONE, TWO, ONE],
        [],
    ),
    "in the middle of a request, at the second segment": (
        [OPEN, HALF, Go(NO_SUCH, syn=False), post(b"y" * 3000)[:1448], post(b"y" * 3000)[1448:]],
        [b"y" * 3000],
        ["bytes lost"],
    ),
    "a request behind a FIN is another connection's": (
        [OPEN, FIRST[:-1], 1, "fin", 1000, SECOND],
        [TWO],
        ["1 byte lost"],
    ),
    # --- strays
    "a stray from far off changes nothing": (
        [OPEN, HALF, At(NO_SUCH, b"stray"), REST, At(NO_SUCH + 5, b"and another"), SECOND],
        [LONG, TWO],
        [],
    ),
    "what a stream that was left sends again is old": (
        [OPEN, FIRST, SECOND, Go(NO_SUCH, syn=False), SECOND, At(1001, FIRST), SECOND],
        [ONE, TWO, TWO, TWO],
        [],
    ),
    "a jump that a second segment confirms": (
        [OPEN, FIRST, 50_000_000, REST[:100], REST[100:], SECOND],
        [ONE, TWO],
        ["bytes lost"],
    ),
    "a lone FIN, reset or acknowledgement begins nothing": (
        [At(5000, flags=FIN | ACK), At(5000, flags=RST), At(5000)],
        [],
        [],
    ),
}  # fmt: skip


@pytest.mark.parametrize(("steps", "bodies", "problems"), STORIES.values(), ids=STORIES)
def test_of_each_story_the_whole_requests_and_the_damaged_ones_are_told(
    steps: list[Step], bodies: list[bytes], problems: list[str]
) -> None:
    capture = played(*steps)
    assert (capture.bodies, capture.problems) == (bodies, problems)


AFTER = FIRST + SECOND
LONGER, BOTH = post(b"x" * 3000), BIG + FIRST
AT_V1 = post(ONE, path=b"/v1/completions")
CHUNKED = b"POST /v1/x HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\n5\r\nhel"
NAMELESS, NAMED = (None, None), ("POST", "/v1/x")
# what is sent, and how many bytes of it are lost; per damaged request what is told of it; the whole bodies
HOLES: dict[str, tuple[list[bytes | int], list[tuple[str, tuple[str | None, ...]]], list[bytes]]] = {
    "up to a body's last byte: the next request is spared, even in segments without a whole first line": (
        [LONGER[:1000], len(LONGER) - 1000, *(AFTER[at : at + 10] for at in range(0, len(AFTER), 10))],
        [(f"{len(LONGER) - 1000:,} bytes lost", NAMED)],
        [ONE, TWO],
    ),
    "beyond a body's end: it hurts until a segment begins with a request": (
        [BOTH[:500], len(BOTH) - 510, BOTH[-10:], SECOND],
        [(f"{len(BOTH) - 510:,} bytes lost", NAMED)],
        [TWO],
    ),
    "beyond a body's end, the second one": (
        [BOTH[:500], 100, BOTH[600:700], len(BOTH) - 710, BOTH[-10:], SECOND],
        [(f"{len(BOTH) - 610:,} bytes lost", NAMED)],
        [TWO],
    ),
    "in the head of a pipelined request: its first line may be cut": (
        [FIRST + AT_V1[:12], 10, AT_V1[22:], SECOND],
        [("10 bytes lost", NAMELESS)],
        [ONE, TWO],
    ),
    "in a head behind its first line": (
        [AT_V1[:40], 10, AT_V1[50:], SECOND],
        [("10 bytes lost", ("POST", "/v1/completions"))],
        [TWO],
    ),
    "twice in one body": (
        [LONGER[:1000], 100, LONGER[1100:1200], 200, LONGER[1400:], SECOND],
        [("300 bytes lost", NAMED)],
        [TWO],
    ),
    "a head, and the rest of its body comes": ([len(FIRST) - 5, FIRST[-5:], SECOND], [(f"{len(FIRST) - 5} bytes lost", NAMELESS)], [TWO]),
    "a whole request: no request": ([len(AT_V1), SECOND], [], [TWO]),
    "in a chunk": ([CHUNKED, 2, b"\r\n0\r\n\r\n", SECOND], [("2 bytes lost", NAMED)], [TWO]),
    "over a chunk's end": ([CHUNKED, 4, b"0\r\n\r\n", SECOND], [("4 bytes lost", NAMED)], [TWO]),
}  # fmt: skip


@pytest.mark.parametrize(("sent", "damaged", "bodies"), HOLES.values(), ids=HOLES)
def test_a_hole_hurts_the_request_that_it_is_in_and_no_other(
    sent: list[bytes | int],
    damaged: list[tuple[str, tuple[str | None, ...]]],
    bodies: list[bytes],
) -> None:
    capture = played(OPEN, *sent, 3.0)
    hurt = [one for one in capture.requests if one.damaged]
    assert [(one.problem, (one.method, one.path)) for one in hurt] == damaged
    assert capture.bodies == bodies
    losses, lost = capture.losses, [step for step in sent if isinstance(step, int)]
    assert (losses.gaps, losses.gap_bytes, losses.unparsed) == (len(lost), sum(lost), 0)


# --- order, times and what is known -------------------------------------------------------------------


@settings(deadline=None)
@given(st.integers(0, 2**32), st.integers(1, 60))
def test_requests_are_the_same_however_they_are_cut_and_in_whatever_order_they_come(
    seed: int, most: int
) -> None:
    chance = random.Random(seed)
    data, at = FIRST + BIG + SECOND, 0
    pieces = []
    while at < len(data):
        size = chance.randint(1, most)
        # some are cut once more, so that they overlap
        pieces += [(at, data[at : at + size]), (at, data[at : at + chance.choice([0, 3, 90])])]
        at += size
    chance.shuffle(pieces)
    capture = opened()
    for start, piece in pieces:
        if piece:
            capture.send(1001 + start, piece)
    assert (capture.bodies, capture.problems) == ([ONE, LONG, TWO], [])
    assert (capture.losses.gaps, capture.streams.held_bytes) == (0, 0)


def test_a_request_in_one_segment_is_told_with_all_that_is_known() -> None:
    capture = played(OPEN, post(ONE, path=b"/v1/chat/completions"))
    (request,) = capture.requests
    assert (request.method, request.path, request.body) == ("POST", "/v1/chat/completions", ONE)
    # the SYN came at 100.001, the request a millisecond later
    assert (request.ts, request.ts_last) == (100.002, 100.002)
    assert (request.client, request.client_port) == (bytes([10, 0, 0, 1]), 40000)
    assert (request.server, request.server_port) == (bytes([10, 0, 9, 9]), 8000)
    assert (request.damaged, request.problem, request.answer) == (False, None, None)
    assert request.in_flight is None


def test_a_request_behind_a_hole_begins_when_it_can_be_read_and_ends_with_what_closed_it() -> None:
    capture = played(
        OPEN, At(1011, FIRST[10:]), At(1001 + len(FIRST), SECOND), 1.0, At(1001, FIRST[:10])
    )
    assert [(one.ts, one.ts_last) for one in capture.requests] == [(101.004, 101.004)] * 2


def test_the_servers_half_is_left_alone_where_answers_are_not_followed() -> None:
    capture = Capture()
    capture.key = key(8000, 40000)
    capture.client(b"HTTP/1.1 200 OK\r\nContent-Length: 0\r\n\r\n")
    assert (capture.requests, capture.losses.unparsed) == ([], 0)
    # but a gateway on 8000 may be bound to 8000 as it calls another one
    capture = Capture()
    capture.key = key(8000, 8000)
    capture.open()
    capture.client(FIRST)
    assert capture.bodies == [ONE]


def test_the_end_of_the_capture_tells_what_is_unfinished() -> None:
    capture = played(OPEN, FIRST + HALF)
    capture.streams.close()
    assert (capture.bodies, capture.problems) == ([ONE], ["the capture ended before it was whole"])
    assert capture.streams.held_bytes == 0


# --- limits -------------------------------------------------------------------------------------------


def test_a_quiet_connection_is_over_by_the_packets_clock_while_others_speak() -> None:
    for speaks in (False, True):
        capture = opened(limits=MemoryBounds(idle_s=60.0))
        for start in range(0, 300, 100):  # now and then it speaks
            capture.client(BIG[start : start + 100])
            capture.wait(50.0)
        assert capture.requests == []
        for second in range(80):
            if speaks:
                capture.streams.segment(251.0 + second, key(50_000), 1 + second, 0, ACK, b"x")
        if not speaks:
            capture.wait(20.0)
        assert capture.problems == ["the connection went quiet before it was whole"]


@pytest.mark.parametrize(
    "limits", [MemoryBounds(stash_bytes=20_000), MemoryBounds(stash_segments=15)]
)
def test_beyond_what_may_wait_a_hole_is_given_up_at_once(limits: MemoryBounds) -> None:
    capture = opened(limits=limits)
    capture.lose(10)
    for _ in range(15):
        capture.client(BIG)
        assert capture.streams.held_bytes <= 20_000
    assert capture.requests == []
    capture.client(BIG)
    assert capture.bodies == [LONG] * 16
    assert capture.losses.gap_bytes == 10


def test_a_copy_from_farther_back_than_is_waited_for_is_old() -> None:
    limits = MemoryBounds(stash_bytes=5000)
    assert len(played(OPEN, *[BIG] * 10, At(1001, BIG), limits=limits).bodies) == 10


def peak_of(capture: Capture, seqs: list[int], data: bytes) -> int:
    tracemalloc.start()
    for seq in seqs:
        capture.send(seq, data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return peak


def test_floods_out_of_order_and_from_far_off_stay_within_bounds() -> None:
    capture = opened(limits=MemoryBounds(stash_segments=500, stash_bytes=100_000))
    places = [1003 + 2 * (number * 7919 % 20_000) for number in range(20_000)]
    assert peak_of(capture, places, b"z") < 2_000_000
    assert capture.losses.gaps > 0
    capture = opened()
    places = [100_000_000 + number * 10_000_000 for number in range(2000)]
    assert peak_of(capture, places, bytes(1400)) < 1_000_000
    capture.client(FIRST)
    assert capture.bodies == [ONE]


@pytest.mark.parametrize("size", [1, 1448])
def test_holes_on_many_connections_stay_within_the_total(size: int) -> None:
    limits = MemoryBounds(total_bytes=200_000)
    capture = Capture(limits=limits)
    for number in range(2000):
        capture.key = key(30_000 + number)
        capture.now = 1.0 + number / 1e6
        capture.send(1, flags=SYN)
        capture.send(50, b"h" * size)
        assert capture.streams.held_bytes <= limits.total_bytes
    assert capture.losses.gave_up > 0


def test_the_connection_longest_quiet_is_given_up_for_want_of_room() -> None:
    for limits in (MemoryBounds(total_bytes=100_000), MemoryBounds(flows=20)):
        capture = Capture(limits=limits)
        for number in range(200):
            capture.key, capture.next = key(30_000 + number), 1001
            capture.open()
            capture.client(post(b"b" * 5000)[:4000])
            assert capture.streams.held_bytes <= 100_000
        assert capture.losses.gave_up == len(capture.problems) >= 170
        assert set(capture.problems) == {"given up for want of room before it was whole"}
        assert capture.requests[0].client_port == 30_000
        # the last one still lives
        capture.client(post(b"b" * 5000)[4000:])
        assert capture.bodies == [b"b" * 5000]


def test_closed_connections_are_forgotten_beyond_a_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("toolkit.capture.tcp.CLOSED", 100)
    capture = Capture()
    tracemalloc.start()
    for number in range(5000):
        capture.key, capture.next = key(number), 1001
        capture.open()
        capture.fin()
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 500_000
